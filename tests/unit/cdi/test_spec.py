import json

import pytest

from dradriver.cdi.errors import SpecFileError
from dradriver.cdi.files import SpecFolder
from dradriver.cdi.spec import CdiDevice, CdiSpec, ContainerEdits, DeviceNode, Hook, Mount

NODE = DeviceNode(path="/dev/nvidia0", host_path="/root/dev/nvidia0", major=195, minor=0)
SPEC = CdiSpec(
    kind="k8s.gpu.nvidia.com/claim",
    devices=(CdiDevice(name="a-gpu-0", edits=ContainerEdits(env=("A=1",), device_nodes=(NODE,))),),
    edits=ContainerEdits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        mounts=(Mount(host_path="/root/lib/libcuda.so.1", container_path="/lib/libcuda.so.1"),),
        hooks=(Hook(path="/usr/bin/nvidia-cdi-hook", args=("nvidia-cdi-hook", "update-ldcache")),),
    ),
)


def test_a_spec_is_written_as_the_schema_wants_it():
    assert SPEC.to_json() == {
        "cdiVersion": "0.5.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "devices": [
            {
                "name": "a-gpu-0",
                "containerEdits": {
                    "env": ["A=1"],
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "type": "c",
                            "major": 195,
                            "minor": 0,
                            "hostPath": "/root/dev/nvidia0",
                            "permissions": "rw",
                        }
                    ],
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [
                {
                    "hostPath": "/root/lib/libcuda.so.1",
                    "containerPath": "/lib/libcuda.so.1",
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                }
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook",
                    "args": ["nvidia-cdi-hook", "update-ldcache"],
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("name", "host_path", "version"),
    [("gpu", None, "0.3.0"), ("gpu", "/dev/nvidia0", "0.5.0"), ("0gpu", None, "0.5.0")],
)
def test_the_version_is_the_lowest_that_suffices(name, host_path, version):
    node = DeviceNode(path="/dev/nvidia0", host_path=host_path, major=195, minor=0)
    device = CdiDevice(name=name, edits=ContainerEdits(device_nodes=(node,)))
    assert CdiSpec(kind="v/c", devices=(device,), edits=ContainerEdits()).version() == version


def test_all_host_paths_are_known():
    assert set(SPEC.host_paths()) == {"/root/dev/nvidia0", "/root/lib/libcuda.so.1", "/usr/bin/nvidia-cdi-hook"}


def test_names_are_qualified_by_the_kind():
    assert SPEC.qualified_names() == ("k8s.gpu.nvidia.com/claim=a-gpu-0",)


@pytest.fixture
def folder(tmp_path):
    return SpecFolder(tmp_path / "cdi", kind="k8s.gpu.nvidia.com/claim")


def test_the_folder_is_made_when_needed(folder, tmp_path):
    path = folder.write("uid-1", SPEC)
    assert path == tmp_path / "cdi/k8s.gpu.nvidia.com-claim_uid-1.json"
    assert json.loads(path.read_text()) == SPEC.to_json()
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_the_spec_of_another_driver_for_the_same_claim_goes(folder):
    path = folder.write("uid-1", SPEC)
    path.with_suffix(".yaml").write_text("kind: k8s.gpu.nvidia.com/claim")
    folder.write("uid-1", SPEC)
    assert not path.with_suffix(".yaml").exists()


def test_removing_is_repeatable(folder):
    folder.write("uid-1", SPEC)
    folder.write("uid-2", SPEC)
    folder.remove("uid-1")
    folder.remove("uid-1")
    assert folder.identities() == {"uid-2"}


def test_specs_of_others_are_not_ours(folder, tmp_path):
    folder.write("uid-1", SPEC)
    (tmp_path / "cdi/nvidia.com-gpu.json").write_text("{}")
    assert folder.identities() == {"uid-1"}


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    folder = SpecFolder(tmp_path / "file/cdi", kind="v/c")
    with pytest.raises(SpecFileError, match=r"cannot write the CDI spec .*--cdi-root"):
        folder.write("uid-1", SPEC)
