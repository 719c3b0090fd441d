from pathlib import PurePosixPath

import pytest

from dradriver.cdi.errors import DriverFilesError
from dradriver.cdi.host import DriverRoot, driver_edits, find_hook

VERSION = "580.105.08"


@pytest.fixture
def root(tmp_path):
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"{name}.{VERSION}").write_text("")
        (libraries / f"{name}.1").symlink_to(f"{name}.{VERSION}")
        (libraries / name).symlink_to(f"{name}.1")
    (libraries / "libcuda.so.550.0").write_text("another driver")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nvidia-smi").write_text("")
    (tmp_path / "lib/firmware/nvidia" / VERSION).mkdir(parents=True)
    (tmp_path / "lib/firmware/nvidia" / VERSION / "gsp_ga10x.bin").write_text("")
    return DriverRoot(here=tmp_path, host=PurePosixPath("/run/nvidia/driver"))


def mounts(edits):
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def test_libraries_programs_and_firmware_are_mounted_from_the_hosts_path(root):
    found = mounts(driver_edits(root, driver_version=VERSION))
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert found[library] == f"/run/nvidia/driver{library}"
    assert found["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    firmware = f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    assert found[firmware] == f"/run/nvidia/driver{firmware}"


def test_without_a_hook_the_names_programs_load_are_mounts_of_their_own(root):
    found = mounts(driver_edits(root, driver_version=VERSION))
    target = f"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert found["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] == target
    assert found["/usr/lib/x86_64-linux-gnu/libcuda.so"] == target


def test_without_a_hook_every_loader_finds_the_libraries(root, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = mounts(driver_edits(root, driver_version=VERSION))
    target = f"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert found["/usr/lib64/libcuda.so.1"] == found["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] == target


def hooks(root, version):
    """The hooks that are chosen where the installed program says it is of this version."""
    program = root.here / "usr/bin/nvidia-cdi-hook"
    program.write_text(f"#!/bin/sh\necho NVIDIA Container Toolkit CDI Hook version {version}\n")
    program.chmod(0o755)
    edits = driver_edits(root, driver_version=VERSION, hook=root.on_host(program))
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" not in mounts(edits)
    return {hook.args[1]: hook.args[2:] for hook in edits.hooks}


def test_with_a_hook_the_hook_makes_them(root):
    found = hooks(root, "1.18.2")
    assert f"libcuda.so.{VERSION}::/usr/lib/x86_64-linux-gnu/libcuda.so.1" in found["create-symlinks"]
    assert found["enable-cuda-compat"] == (f"--host-driver-version={VERSION}",)
    assert found["disable-device-node-modification"] == ()
    assert found["update-ldcache"] == ("--folder", "/usr/lib/x86_64-linux-gnu")


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("1.14.4", {"create-symlinks", "update-ldcache"}),
        ("odd", {"create-symlinks", "update-ldcache"}),
        ("1.17.5", {"create-symlinks", "enable-cuda-compat", "update-ldcache"}),
    ],
)
def test_only_hooks_that_the_installed_program_knows_are_named(root, version, known):
    assert set(hooks(root, version)) == known


def test_a_hook_that_cannot_be_run_from_here_gets_what_every_version_knows(root):
    edits = driver_edits(root, driver_version=VERSION, hook="/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    assert [hook.args[1] for hook in edits.hooks] == ["create-symlinks", "update-ldcache"]


def test_a_program_that_is_an_absolute_link_is_found_in_the_root(root):
    (root.here / "usr/bin/nvidia-smi").unlink()
    (root.here / "etc/alternatives").mkdir(parents=True)
    (root.here / "etc/alternatives/nvidia-smi").write_text("")
    (root.here / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia-smi")
    found = mounts(driver_edits(root, driver_version=VERSION))
    assert found["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/etc/alternatives/nvidia-smi"


def test_another_drivers_libraries_are_left_out(root):
    assert not [path for path in mounts(driver_edits(root, driver_version=VERSION)) if path.endswith("550.0")]


def test_a_library_seen_through_a_linked_folder_is_mounted_once(root):
    (root.here / "lib64").symlink_to("usr/lib/x86_64-linux-gnu")
    hosts = [
        mount.host_path
        for mount in driver_edits(root, driver_version=VERSION, hook="/h").mounts
        if "libcuda" in mount.host_path
    ]
    assert len(hosts) == 1


def test_absolute_links_are_followed_within_the_root(root):
    link = root.here / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    link.unlink()
    link.symlink_to(f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}")
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in mounts(driver_edits(root, driver_version=VERSION))


@pytest.mark.parametrize("missing", ["libcuda.so", "libnvidia-ml.so"])
def test_an_incomplete_driver_is_told(root, missing):
    (root.here / f"usr/lib/x86_64-linux-gnu/{missing}.{VERSION}").unlink()
    with pytest.raises(DriverFilesError, match=rf"no {missing}\.{VERSION} below .*--nvidia-driver-root"):
        driver_edits(root, driver_version=VERSION)


def test_sockets_are_writable_mounts(root):
    (root.here / "run/nvidia-persistenced").mkdir(parents=True)
    (root.here / "run/nvidia-persistenced/socket").write_text("")
    (mount,) = (m for m in driver_edits(root, driver_version=VERSION).mounts if m.host_path.endswith("socket"))
    assert "ro" not in mount.options
    assert "noexec" in mount.options


def test_the_hook_program_is_found_in_the_root(root):
    assert find_hook(root) is None
    (root.here / "usr/bin/nvidia-cdi-hook").write_text("")
    assert find_hook(root) == "/run/nvidia/driver/usr/bin/nvidia-cdi-hook"


def test_host_paths_are_found_again_here(root):
    assert root.from_host("/run/nvidia/driver/usr/bin/nvidia-smi") == root.here / "usr/bin/nvidia-smi"
    assert str(root.from_host("/usr/bin/elsewhere")) == "/usr/bin/elsewhere"
