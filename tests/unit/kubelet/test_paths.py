import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.kubelet import SocketPathTooLongError, socket_paths
from dradriver.kubelet.paths import MAX_PATH_BYTES

DRIVER = "gpu.nvidia.com"
UID = "0f0c8f9e-5a4b-4a59-9d38-6a5b1c2d3e4f"


def paths_in(root: str, pod_uid: str = ""):
    return socket_paths(
        DRIVER,
        plugins_folder=Path(root) / "plugins",
        registry_folder=Path(root) / "plugins_registry",
        pod_uid=pod_uid,
    )


def test_default_names_are_those_the_kubelet_expects():
    found = socket_paths(DRIVER)
    assert str(found.dra) == "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"
    assert str(found.registration) == "/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock"


def test_a_pod_uid_makes_both_names_unique():
    found = socket_paths(DRIVER, pod_uid=UID)
    assert found.dra.name == f"dra-{UID}.sock"
    assert found.registration.name == f"{DRIVER}-{UID}-reg.sock"


@pytest.mark.parametrize(
    ("driver", "length", "pattern"),
    [
        (DRIVER, 46, rf"{re.escape(DRIVER)}-{UID}-reg\.sock"),
        (DRIVER, 47, rf"{re.escape(DRIVER)}-[\w-]{{11}}-reg\.sock"),
        (DRIVER, 71, rf"{re.escape(DRIVER)}-[\w-]{{11}}-reg\.sock"),
        ("d" * 15, 71, r"dra-[\w-]{22}-reg\.sock"),
    ],
)
def test_longer_registry_folders_get_shorter_names(driver, length, pattern):
    registry = "/" + "r" * (length - 1)
    found = socket_paths(driver, plugins_folder=Path("/p"), registry_folder=Path(registry), pod_uid=UID)
    assert re.fullmatch(pattern, found.registration.name)
    assert len(os.fsencode(found.registration)) <= MAX_PATH_BYTES


def test_hashed_names_differ_between_pods():
    registry = Path("/" + "r" * 56)
    names = {
        socket_paths(DRIVER, plugins_folder=Path("/p"), registry_folder=registry, pod_uid=uid).registration
        for uid in (UID, UID[::-1])
    }
    assert len(names) == 2


def test_a_path_that_cannot_be_is_refused_with_its_length():
    root = "/" + "x" * 90
    with pytest.raises(SocketPathTooLongError, match=r"plugins/gpu\.nvidia\.com/dra\.sock is 123 bytes long.*107"):
        paths_in(root)


def test_relative_folders_become_absolute():
    found = paths_in("some/root")
    assert found.dra.is_absolute()
    assert found.registration.is_absolute()


def test_length_counts_bytes_not_characters():
    with pytest.raises(SocketPathTooLongError):
        paths_in("/" + "ä" * 40)


@given(st.integers(0, 120), st.sampled_from(["", UID]))
def test_a_path_is_refused_only_where_its_shortest_form_does_not_fit(length, uid):
    root = "/" + "x" * length
    shortest = [
        f"{root}/plugins/{DRIVER}/dra{uid and '-' + uid}.sock",
        f"{root}/plugins_registry/" + ("dra-" + "h" * 22 if uid else DRIVER) + "-reg.sock",
    ]
    try:
        found = paths_in(root, uid)
    except SocketPathTooLongError:
        assert max(map(len, shortest)) > MAX_PATH_BYTES
    else:
        assert max(map(len, shortest)) <= MAX_PATH_BYTES
        assert all(len(os.fsencode(path)) <= MAX_PATH_BYTES for path in (found.dra, found.registration))
