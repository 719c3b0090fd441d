# SPDX-License-Identifier: Apache-2.0
"""Building every program once, into a cache outside the checkout.

A group of programs has a folder whose name holds a hash of all it is made from. The folder appears in one
step when the build is complete; when it is there, nothing is built.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localcluster import golang, images
from localcluster.common import HACK, ClusterError, cache_dir, elapsed, home, locked, tell

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SOURCES = HACK / "kube"
# What the multicall program is started as.
KUBE_NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Programs that come out of one Go module."""

    name: str
    folder: Path
    modfile: Path
    packages: str
    ldflags: str = "-s -w"
    tags: str = ""
    cgo: bool = False
    hint: str = "about a minute"
    size: str = ""

    def key(self) -> str:
        """A hash of the recipe, the module's requirements and our own sources."""
        digest = hashlib.sha256(repr((self.packages, self.ldflags, self.tags, self.cgo)).encode())
        own = self.folder.glob("*.go") if self.packages == "." else self.folder.rglob("*.go")
        files = sorted({self.modfile, self.modfile.with_suffix(".sum"), *own})
        for file in files:
            digest.update(f"{file.relative_to(_SOURCES)}\n".encode())
            digest.update(file.read_bytes() if file.exists() else b"")
        return digest.hexdigest()[:12]

    def output(self) -> Path:
        """Where the programs are, or will be."""
        return cache_dir() / "programs" / f"{self.name}-{self.key()}"


def versions() -> list[str]:
    """The Kubernetes versions that can be built, newest first."""
    found = [file.name.removesuffix(".mod") for file in (_SOURCES / "versions").glob("*.mod")]
    return sorted(found, key=golang.version_of, reverse=True)


def _kubernetes(version: str) -> Group:
    modfile = _SOURCES / "versions" / f"{version}.mod"
    if not modfile.exists():
        raise ClusterError(
            f"Kubernetes {version} is not known; known are {', '.join(versions())} (add one by hack/kube/update)"
        )
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = [f"-X {package}.{name}={value}" for package in _VERSION_PACKAGES for name, value in values.items()]
    return Group(
        name=f"kubernetes-{version}",
        folder=_SOURCES,
        modfile=modfile,
        packages=".",
        ldflags=" ".join(["-s -w", *stamps]),
        hint="about a quarter of an hour on two cores",
        size=" of about 2450",
    )


def _module(name: str, packages: str = "tool", **rest: Any) -> Group:
    folder = _SOURCES / name
    return Group(name=name, folder=folder, modfile=folder / "go.mod", packages=packages, **rest)


def groups(kubernetes: str, *, nodes: bool) -> list[Group]:
    """What a cluster of this version is made of; without nodes no container programs are needed."""
    control = [_module("tools", "./cmd/...", hint="seconds"), _kubernetes(kubernetes)]
    if not nodes:
        return control
    # The tags leave out what needs C libraries; overlayfs is all that is used.
    containerd = _module("containerd", tags="no_btrfs no_devmapper no_zfs", hint="about two minutes on two cores")
    return [*control, containerd, _module("runc", cgo=True), _module("cni")]


def ensure(kubernetes: str, *, nodes: bool) -> list[Path]:
    """Build what is missing and give the folders of all programs and, with nodes, images.

    Raises:
        ClusterError: something needed for the build is missing, or it failed.
    """
    wanted = groups(kubernetes, nodes=nodes)
    _check_needs(wanted)
    for group in wanted:
        if not group.output().exists():
            lock = cache_dir() / "locks" / f"{group.name}.lock"
            with locked(lock, waiting=f"{group.name} is being built already, waiting for it"):
                if not group.output().exists():
                    _build(group)
    tools = wanted[0].output()
    folders = [*(group.output() for group in wanted), *([images.ensure(tools)] if nodes else [])]
    for folder in folders:
        # Its time tells when it was used last.
        os.utime(folder)
    return folders


_UNUSED_DAYS = 30


def prune(wanted: Iterable[Path], clusters: Iterable[Path]) -> list[Path]:
    """Remove programs of other versions and checkouts that nothing was done with for 30 days; give their folders.

    What `wanted` names stays, and what the programs of a cluster's directory lead to, however long it runs.
    """
    linked = (link for cluster in clusters for part in ("bin", "images") for link in (cluster / part).glob("*"))
    kept = {*wanted, *(link.readlink().parent for link in linked if link.is_symlink())}
    oldest = time.time() - _UNUSED_DAYS * 86400
    folders = sorted((cache_dir() / "programs").glob("[!.]*"))
    gone = [folder for folder in folders if folder not in kept and folder.stat().st_mtime < oldest]
    for folder in gone:
        shutil.rmtree(folder)
    return gone


def _check_needs(wanted: list[Group]) -> None:
    needs_c = any(group.cgo and not group.output().exists() for group in wanted)
    if needs_c and not any(shutil.which(name) for name in (os.environ.get("CC") or "gcc", "gcc", "cc")):
        raise ClusterError(
            "a C compiler is needed to build runc: install gcc (with the C library's headers), "
            "or use --control-plane-only"
        )


def _build(group: Group) -> None:
    go = golang.go_command(golang.required(group.modfile))
    for killed in group.output().parent.glob(f".{group.name}-*"):
        shutil.rmtree(killed)
    unfinished = group.output().with_name(f".{group.output().name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    log = cache_dir() / "logs" / f"{group.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run(group, go=go, output=unfinished, log=log)
        if group.packages == ".":
            _link_kube(unfinished)
        unfinished.rename(group.output())
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _link_kube(folder: Path) -> None:
    for name in KUBE_NAMES:
        (folder / name).symlink_to("kube")


def _command(group: Group, go: Path, output: Path) -> list[str]:
    target = f"{output}/kube" if group.packages == "." else f"{output}/"
    command = [str(go), "build", "-v", "-trimpath", "-buildvcs=false", f"-modfile={group.modfile}"]
    if group.tags:
        command += ["-tags", group.tags]
    return [*command, "-ldflags", group.ldflags, "-o", target, group.packages]


def _run(group: Group, *, go: Path, output: Path, log: Path) -> None:
    began = time.monotonic()
    tell(f"building {group.name}: {group.hint} from nothing, less with a warm Go cache; happens once")
    with log.open("wb") as file:
        process = subprocess.Popen(
            _command(group, go, output), cwd=group.folder, stderr=file, stdout=file, env=_environment(group)
        )
        try:
            _follow(process, group, log, began)
        finally:
            process.terminate()
            process.wait()
    if process.returncode:
        raise ClusterError(f"building {group.name} failed; the end of {log}:\n{_end(log)}")
    tell(f"built {group.name} in {elapsed(time.monotonic() - began)}")


def _environment(group: Group) -> dict[str, str]:
    """What `go build` runs with. It refuses to work without folders for its caches, and with a relative one."""
    given = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME" or value.startswith("/")}
    user = home()
    if user:
        given["HOME"] = str(user)
    else:
        caches = {"GOCACHE": str(cache_dir() / "go-build"), "GOPATH": str(cache_dir() / "go")}
        given = caches | given
    settings = {"CGO_ENABLED": "1" if group.cgo else "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    return given | settings


def _end(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join("    " + line for line in lines[-15:])


def _follow(process: subprocess.Popen[bytes], group: Group, log: Path, began: float) -> None:
    terminal = sys.stderr.isatty()
    every = 2 if terminal else 30
    while True:
        try:
            process.wait(timeout=every)
        except subprocess.TimeoutExpired:
            line = f"building {group.name}: {progress(log.read_text(errors='replace'), group.size)}, " + elapsed(
                time.monotonic() - began
            )
            if terminal:
                print(f"\r\033[Kcluster: {line}", end="", file=sys.stderr, flush=True)
            else:
                tell(line)
        else:
            if terminal:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            return


def progress(log: str, size: str = "") -> str:
    """What a `go build -v` has done so far: it names each module it fetches and each package it compiles."""
    lines = log.splitlines()
    fetched = sum(line.startswith("go: downloading") for line in lines)
    compiled = sum(not line.startswith(("go:", "#", "\t")) for line in lines)
    words = [f"{fetched} modules fetched"] if fetched else []
    return ", ".join([*words, f"{compiled}{size} packages compiled" if compiled else "looking"])
