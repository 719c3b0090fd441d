"""Noticing that a file has changed, and reading it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.nodeconfig import file

GOOD = b"apiVersion: dradriver.dev/v1alpha1\nkind: NodeConfigs\nconfigs:\n  a: {order: packed}\n"


def mount(folder, content):
    """Make what a mounted ConfigMap looks like; gives the path that a pod sees."""
    swap(folder, "..1", content)
    (folder / "nodes.yaml").symlink_to("..data/nodes.yaml")
    return folder / "nodes.yaml"


def swap(folder, version, content):
    """Do what the kubelet does when the ConfigMap has changed."""
    (folder / version).mkdir()
    (folder / version / "nodes.yaml").write_bytes(content)
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").rename(folder / "..data")


def test_a_file_that_is_left_alone_looks_the_same(tmp_path):
    path = mount(tmp_path, GOOD)
    assert file.look(path) == file.look(path)


def test_a_swapped_config_map_looks_different_even_with_the_same_content_and_times(tmp_path):
    path = mount(tmp_path, GOOD)
    before = file.look(path)
    swap(tmp_path, "..2", GOOD)
    os.utime(tmp_path / "..2/nodes.yaml", ns=(before.modified_ns, before.modified_ns))
    assert file.look(path) != before


@pytest.mark.parametrize("change", ["longer", "same size"])
def test_an_edit_in_place_looks_different(tmp_path, change):
    path = tmp_path / "nodes.yaml"
    path.write_bytes(GOOD)
    before = file.look(path)
    path.write_bytes(GOOD + b"#" if change == "longer" else GOOD.replace(b"packed", b"spread"))
    os.utime(path, ns=(before.modified_ns, before.modified_ns + 1))
    assert file.look(path) != before


def test_what_is_not_there_looks_different_from_what_is(tmp_path):
    path = tmp_path / "nodes.yaml"
    missing = file.look(path)
    assert missing == file.look(path)
    path.write_bytes(GOOD)
    assert file.look(path) != missing
    path.unlink()
    assert file.look(path) == missing


def test_a_good_file_is_read(tmp_path):
    path = mount(tmp_path, GOOD)
    read = file.read(path)
    assert read.all_problems() == ()
    assert read.configs["a"].order == "packed"


def test_duplicates_and_mistakes_are_told_together(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_bytes(GOOD + b"  b: {order: packed, order: x, publish: y}\n")
    read = file.read(path)
    assert set(read.configs) == {"a"}
    assert [str(problem) for problem in read.broken["b"]] == [
        "configs.b.order: stands there twice, the second time at line 5",
        "configs.b.publish: is 'y'; allowed: full, lean",
    ]


def test_an_xid_that_stands_there_twice_breaks_its_health_policy(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_bytes(
        GOOD
        + b"  b: {healthPolicy: patient}\nhealthPolicies:\n  patient:\n    xids: {31: warn, '31': ignore, 79: warn}\n"
    )
    read = file.read(path)
    assert set(read.configs) == {"a"}
    assert [str(problem) for problem in read.all_problems()] == [
        "healthPolicies.patient.xids.31: stands there twice, the second time at line 8",
        "configs.b.healthPolicy: is 'patient'; this health policy has mistakes: correct healthPolicies.patient",
    ]


def test_xids_of_yaml_and_json_are_the_same():
    yaml = GOOD + b"healthPolicies:\n  patient:\n    xids: {31: noSchedule, '79': ignore}\n"
    json = (
        b'{"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": {"a": {"order": "packed"}}, '
        b'"healthPolicies": {"patient": {"xids": {"31": "noSchedule", "79": "ignore"}}}}'
    )
    read = file.decode_bytes(yaml)
    assert read == file.decode_bytes(json)
    assert read.policies["patient"].xids == {31: "noSchedule", 79: "ignore"}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it is empty"),
        (b"{", "it is not YAML: line"),
        (b"\xff", "it is not UTF-8"),
        (b"x" * (1 << 21), "it is larger than 1 MiB"),
        (b"5", "is 5; must be a mapping"),
    ],
)
def test_what_is_no_document_is_a_mistake_of_the_whole(tmp_path, data, told):
    path = tmp_path / "nodes.yaml"
    path.write_bytes(data)
    (problem,) = file.read(path).problems
    assert str(problem).startswith(told)


def test_a_missing_file_is_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        file.read(tmp_path / "nodes.yaml")
    dangling = tmp_path / "link"
    dangling.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        file.read(dangling)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory") as caught:
            file.read(path)
        (problem,) = file.unreadable(caught.value).problems
        assert str(problem).startswith("it cannot be read: ")


@given(st.binary(max_size=300).map(lambda tail: GOOD + tail) | st.binary(max_size=300))
def test_no_content_makes_it_fail(data):
    decoded = file.decode_bytes(data)
    assert decoded.configs or decoded.all_problems() or data.strip()
