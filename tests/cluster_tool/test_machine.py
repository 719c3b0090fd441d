# SPDX-License-Identifier: Apache-2.0
import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcluster import cgroups, network, preflight, sysctls
from localcluster.common import ClusterError, Layout

HYBRID = """\
27 1 254:0 / / rw - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:37 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""


def test_hierarchies_are_found_with_their_version():
    root = Path("/sys/fs/cgroup")
    assert cgroups.mounts(HYBRID) == [(root / "cpu", False), (root / "systemd", False), (root / "unified", True)]


def test_a_machine_with_version_2_only():
    text = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    assert cgroups.mounts(text) == [(Path("/sys/fs/cgroup"), True)]


@pytest.fixture
def hierarchies(tmp_path, monkeypatch):
    """Folders that look like a cpuset of version 1 and a memory hierarchy."""
    cpuset, memory = tmp_path / "cpuset", tmp_path / "memory"
    for folder in (cpuset, memory):
        folder.mkdir()
    monkeypatch.setattr(cgroups, "_mounted", lambda: [(cpuset, False), (memory, False)])
    return cpuset, memory


def test_a_nodes_cgroup_is_made_everywhere_and_removed_again(layout, hierarchies):
    cgroups.create(layout, "node-a")
    cgroups.create(layout, "node-a")
    made = [folder / f"dradriver-{layout.id}" / "node-a" for folder in hierarchies]
    assert all(folder.is_dir() for folder in made)
    assert cgroups.remove(layout)
    assert not any(folder.exists() for folder in made)
    assert all(folder.exists() for folder in hierarchies)


def test_others_cgroups_are_left_alone(layout, hierarchies):
    other = hierarchies[0] / "dradriver-00000000"
    other.mkdir()
    cgroups.create(layout, "node-a")
    assert cgroups.remove(layout)
    assert other.is_dir()


def test_an_unwritable_hierarchy_is_named(layout, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(cgroups, "_mounted", lambda: [(file, False)])
    with pytest.raises(ClusterError, match=r"cgroup .*/file/dradriver-.* cannot be made .*control-plane-only"):
        cgroups.create(layout, "node-a")


@pytest.fixture
def version_2(layout, tmp_path):
    """Folders of a version 2 hierarchy: the machine's top, the cluster's and the node's."""
    groups = [tmp_path, tmp_path / f"dradriver-{layout.id}", tmp_path / f"dradriver-{layout.id}" / "node-a"]
    for group in groups:
        group.mkdir(exist_ok=True)
        group.joinpath("cgroup.controllers").write_text("cpu cpuset memory pids\n")
        group.joinpath("cgroup.subtree_control").write_text("")
    return groups


class KernelFile(type(Path())):
    """A path whose cgroup.subtree_control adds up what is written, as the kernel's does."""

    def write_text(self, text):
        kept = self.read_text() + " " if self.name == "cgroup.subtree_control" else ""
        return super().write_text(kept + text.removeprefix("+"))


def test_version_2_passes_every_controller_down(layout, version_2, monkeypatch):
    monkeypatch.setattr(cgroups, "_mounted", lambda: [(KernelFile(version_2[0]), True)])
    cgroups.create(layout, "node-a")
    for group in version_2:
        assert (group / "cgroup.subtree_control").read_text().split() == ["cpu", "cpuset", "memory", "pids"]


def test_version_2_without_a_controller_is_named(layout, version_2, monkeypatch):
    version_2[1].joinpath("cgroup.controllers").write_text("cpu\n")
    monkeypatch.setattr(cgroups, "_mounted", lambda: [(KernelFile(version_2[0]), True)])
    with pytest.raises(ClusterError, match="does not pass on cpuset, memory, pids"):
        cgroups.create(layout, "node-a")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Kernel settings and a /run of our own."""
    proc = tmp_path / "proc"
    for name in ("vm/overcommit_memory", "kernel/panic"):
        (proc / name).parent.mkdir(parents=True)
        (proc / name).write_text("0\n")
    monkeypatch.setattr(sysctls, "_PROC", proc)
    monkeypatch.setattr(Layout, "short", property(lambda layout: tmp_path / "run" / layout.id))
    return proc


def test_kernel_settings_come_back_after_the_last_cluster(layout, tmp_path, kernel):
    other = Layout(tmp_path / "other")
    for each in (layout, other):
        sysctls.remember(each)
        (kernel / "kernel/panic").write_text("10\n")
    layout.short.rmdir()
    sysctls.put_back(layout)
    assert (kernel / "kernel/panic").read_text() == "10\n", "the other cluster still runs"
    other.short.rmdir()
    sysctls.put_back(other)
    assert (kernel / "kernel/panic").read_text() == "0\n"
    assert not other.short.parent.exists()


def test_without_nodes_no_kernel_setting_is_touched(layout, kernel):
    sysctls.put_back(layout)
    assert (kernel / "kernel/panic").read_text() == "0\n"


@given(root=st.text("abcdefgh/", min_size=1, max_size=60), letter=st.sampled_from("abcdefghijklmnopqrstuvwxyz"))
def test_bridge_names_fit_the_kernel(root, letter):
    assert len(network.bridge(Layout(Path("/") / root), f"node-{letter}")) <= 15


ROUTES = """\
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
""".splitlines()


def number(text):
    return int(ipaddress.ip_address(text))


def test_routes_are_read_and_the_default_one_left_out():
    assert list(network.parse_routes(ROUTES)) == [(number("192.0.2.0"), number("255.255.255.0"))]


@pytest.mark.parametrize(
    ("route", "mask", "meets"),
    [
        ("10.104.7.0", "255.255.255.0", True),
        ("10.104.7.9", "255.255.255.255", True),
        ("10.104.0.0", "255.255.0.0", True),
        ("10.105.0.0", "255.255.0.0", False),
        ("192.168.0.0", "255.255.0.0", False),
        # What a VPN sets: all of the Internet in two halves, a company's network, and one that begins like ours.
        ("0.0.0.0", "128.0.0.0", False),
        ("10.0.0.0", "255.0.0.0", False),
        ("10.104.0.0", "255.248.0.0", False),
    ],
)
def test_a_subnet_is_taken_by_routes_into_it_and_not_by_wider_ones(route, mask, meets):
    routes = [(number("192.0.2.0"), number("255.255.255.0")), (number(route), number(mask))]
    assert network.holds(number("10.104.0.0"), number("255.255.0.0"), routes) is meets


@pytest.mark.parametrize("path", ["/tmp/a b", "/tmp/a:b", "/tmp/a,b", '/tmp/a"b', "/tmp/a'b", "/tmp/a\\b"])
def test_directories_that_break_configuration_files_are_refused(path):
    with pytest.raises(ClusterError, match="plain path"):
        preflight.check_directory(Path(path))


def test_very_long_directories_are_refused():
    with pytest.raises(ClusterError, match="longer than 200"):
        preflight.check_directory(Path("/" + "x" * 220))


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ClusterError, match="cannot be made: Not a directory"):
        preflight.check_directory(file / "below")


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(preflight.shutil, "which", lambda name, path: None if name == "nsenter" else "/bin/x")
    with pytest.raises(ClusterError, match="`nsenter` is needed"):
        preflight.check_nodes()
