"""Finding the device plugin among DaemonSets."""

import pytest
from doubles.deviceplugin import daemon_set
from hypothesis import given
from hypothesis import strategies as st

from controller.importing.installed import find_plugins


def found(**more):
    (one,) = find_plugins([daemon_set(**more)])
    return one


def test_the_side_car_tells_config_map_default_and_fallbacks():
    one = found(
        env={"MIG_STRATEGY": "single", "NODE_NAME": "x"}, car={"DEFAULT_CONFIG": "a", "FALLBACK_STRATEGIES": "empty"}
    )
    assert str(one) == "gpu-operator/nvidia-device-plugin-daemonset"
    assert (one.config_map, one.key) == ("configs", "")
    assert (one.default, one.fallbacks) == ("a", ("empty",))
    assert one.env == {"MIG_STRATEGY": "single"}


def test_without_words_the_side_car_has_the_usual_fallbacks():
    assert (found(car={}).default, found(car={}).fallbacks) == ("", ("named", "single", "empty"))


@pytest.mark.parametrize("path", ["/config", "/config/"])
def test_without_a_side_car_one_entry_is_the_file(path):
    one = found(env={"CONFIG_FILE": "/config/dp.yaml"}, mounts=[{"name": "available-configs", "mountPath": path}])
    assert (one.config_map, one.key) == ("configs", "dp.yaml")


def test_without_a_file_there_is_only_the_environment():
    one = found(env={"MIG_STRATEGY": "mixed"})
    assert (one.config_map, one.key) == ("", "")


def test_flags_go_before_variables():
    one = found(env={"MIG_STRATEGY": "none"}, args=["--mig-strategy=single", "--pass-device-specs", "--mps-root", "/x"])
    assert one.env == {"MIG_STRATEGY": "single", "PASS_DEVICE_SPECS": "true", "MPS_ROOT": "/x"}


def test_variables_that_others_give_are_no_settings():
    one = daemon_set()
    one["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "MIG_STRATEGY", "valueFrom": {}}]
    assert find_plugins([one])[0].env == {}


@pytest.mark.parametrize(
    ("name", "image"),
    [("gpu-feature-discovery-ctr", "k8s-device-plugin"), ("mps-control-daemon-ctr", "k8s-device-plugin"),
     ("nvidia-gpu-device-plugin", "gke.gcr.io/nvidia-gpu-device-plugin"), ("c", "nginx")],
)  # fmt: skip
def test_others_are_none(name, image):
    assert find_plugins([daemon_set(container=name, image=image)]) == ()


_KEYS = st.sampled_from(["spec", "template", "containers", "env", "name", "value", "volumes", "args", "volumeMounts"])
_DATA = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
)


@given(_DATA, st.dictionaries(_KEYS, _DATA))
def test_nothing_is_too_strange(body, container):
    pod = {"containers": [body, {**container, "name": "nvidia-device-plugin"}], "volumes": body}
    find_plugins([{"kind": "DaemonSet", "spec": {"template": {"spec": pod}}}])
    find_plugins([{"kind": "DaemonSet", "spec": body}])
