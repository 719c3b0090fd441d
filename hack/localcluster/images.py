# SPDX-License-Identifier: Apache-2.0
"""The two container images a cluster needs, packed from our own programs without a registry.

An image archive is a tar of an OCI layout: blobs named by their hashes, an index that names the image.
Everything in it is fixed (times, owners, order), so the same programs give the same image.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localcluster.common import cache_dir, locked

if TYPE_CHECKING:
    from pathlib import Path

PAUSE = "dradriver.dev/pause:1"
TOOLBOX = "dradriver.dev/toolbox:1"
# The commands of the toolbox; its program knows them by the name it is started under.
APPLETS = (
    *("[", "cat", "date", "echo", "env", "false", "grep", "head", "hostname", "id", "kill", "ls", "mkdir"),
    *("mknod", "printenv", "printf", "pwd", "readlink", "rm", "sh", "sleep", "sort", "stat", "tail", "test"),
    *("touch", "true", "uname", "wc"),
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image"
# Part of the cache's key: raise it when the packing changes.
_PACKING = "3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What goes into an image."""

    name: str
    program: Path
    path: str
    links: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def ensure(tools: Path) -> Path:
    """The folder with pause.tar and toolbox.tar, made from the programs in `tools` when it is not there."""
    folder = cache_dir() / "programs" / f"images-{_PACKING}-{tools.name.rpartition('-')[2]}"
    with locked(cache_dir() / "locks" / "images.lock", waiting="waiting for another cluster to pack images"):
        if not folder.exists():
            unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
            unfinished.mkdir(parents=True, exist_ok=True)
            for image in _images(tools):
                (unfinished / f"{image.program.name}.tar").write_bytes(archive(image))
            unfinished.rename(folder)
    return folder


def _images(tools: Path) -> list[Image]:
    links = tuple(f"bin/{name}" for name in APPLETS)
    return [
        Image(name=PAUSE, program=tools / "pause", path="pause", command=("/pause",)),
        Image(name=TOOLBOX, program=tools / "toolbox", path="bin/toolbox", links=links, command=("/bin/sh",)),
    ]


def archive(image: Image) -> bytes:
    """The OCI archive of an image with one layer."""
    layer = _layer(image)
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": list(image.command)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor(config, f"{_OCI}.config.v1+json"),
            "layers": [_descriptor(layer, f"{_OCI}.layer.v1.tar")],
        }
    )
    named = _descriptor(manifest, f"{_OCI}.manifest.v1+json") | {
        "annotations": {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        }
    }
    files = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (layer, config, manifest)}
    files["index.json"] = _json({"schemaVersion": 2, "manifests": [named]})
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    return _tar([(name, data, 0o644) for name, data in sorted(files.items())], links={})


def _layer(image: Image) -> bytes:
    target = "/" + image.path
    folders = [(name, None, 0o755) for name in ("bin", "etc", "proc", "sys", "dev", "root")]
    files = [
        (image.path, image.program.read_bytes(), 0o755),
        ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644),
        ("etc/group", b"root:x:0:\n", 0o644),
        ("tmp", None, 0o1777),
    ]
    return _tar([*folders, *files], links=dict.fromkeys(image.links, target))


def _tar(files: list[tuple[str, bytes | None, int]], *, links: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data, mode in files:
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = mode, len(data or b"")
            entry.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            tar.addfile(entry, io.BytesIO(data or b""))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(entry)
    return packed.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _descriptor(blob: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}
