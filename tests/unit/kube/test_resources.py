import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.kube import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (NODES.path(name="n"), "/api/v1/nodes/n"),
        (DEVICE_CLASSES.path(), "/apis/resource.k8s.io/v1/deviceclasses"),
        (RESOURCE_CLAIMS.path(), "/apis/resource.k8s.io/v1/resourceclaims"),
        (RESOURCE_CLAIMS.path(namespace="a"), "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims"),
        (
            RESOURCE_CLAIMS.path(namespace="a", name="b", subresource="status"),
            "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/b/status",
        ),
    ],
)
def test_paths(path, expected):
    assert path == expected


def test_a_namespaced_object_needs_its_namespace():
    with pytest.raises(ValueError, match="resourceclaims/c needs a namespace"):
        RESOURCE_CLAIMS.path(name="c")


@given(st.text(min_size=1))
def test_no_name_changes_the_meaning_of_a_path(name):
    try:
        path = NODES.path(name=name)
    except ValueError:
        assert set(name) & set("/%?# \t\r\n") or name in {".", ".."}
    else:
        assert path.count("/") == 4
        assert path.endswith(f"/{name}")


def test_api_version_of_core_has_no_group():
    assert (NODES.api_version, RESOURCE_CLAIMS.api_version) == ("v1", "resource.k8s.io/v1")
