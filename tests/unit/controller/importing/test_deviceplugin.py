"""Reading one configuration: what it says, and that nothing is too strange."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.importing import read
from controller.importing.deviceplugin import check
from controller.importing.environment import KNOWN


def config(text, **more):
    reading = read(text.encode(), **more)
    assert reading.problems == ()
    return reading.config


# --- what it says ---------------------------------------------------------------------------------


def test_defaults_are_the_device_plugins():
    found = config("")
    assert found.flags.mig_strategy == "none"
    assert found.flags.fail_on_init_error is True
    assert found.flags.plugin.device_list_strategy == ["envvar"]
    assert found.flags.plugin.device_id_strategy == "uuid"
    assert found.flags.plugin.shared_devices_allocation_policy == "distributed"
    assert (found.strategy, found.replicas(), found.at_most_one) == ("none", {}, False)


@pytest.mark.parametrize(
    ("way", "field", "strict"),
    [
        ("timeSlicing", "", False),
        ("timeSlicing", "failRequestsGreaterThanOne: true, ", True),
        ("mps", "", True),
        ("mps", "failRequestsGreaterThanOne: false, ", False),
    ],
)
def test_more_than_one_share_is_refused_by_default_with_mps_only(way, field, strict):
    found = config(f"sharing: {{{way}: {{{field}resources: [{{name: gpu, replicas: 2}}]}}}}")
    assert found.at_most_one is strict
    assert found.replicas() == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(("word", "meant"), [("yes", True), ("on", True), ("Y", True), ("no", False), ("OFF", False)])
def test_truth_values_are_those_of_old_yaml(word, meant):
    assert config(f"flags: {{gdsEnabled: {word}}}").flags.gds_enabled is meant


def test_what_is_ignored_there_is_kept_apart_with_what_may_stand_there():
    reading = read(
        b"flags: {gfd: {interval: 1}}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, x: 1}]}}"
    )
    assert reading.config is not None
    assert [str(problem) for problem in reading.ignored] == [
        (
            "flags.gfd.interval: is not known; "
            "allowed are oneshot, noTimestamp, sleepInterval, outputFile, machineTypeFile"
        ),
        "sharing.timeSlicing.resources[0].x: is not known; allowed are name, rename, devices, replicas",
    ]


# --- the environment ------------------------------------------------------------------------------


def test_the_environment_goes_before_the_file():
    env = {"MIG_STRATEGY": "mixed", "PASS_DEVICE_SPECS": "true", "DEVICE_LIST_STRATEGY": "envvar, cdi-cri"}
    found = config("flags: {migStrategy: single, plugin: {deviceIDStrategy: index}}", env=env)
    assert found.flags.mig_strategy == "mixed"
    assert found.flags.plugin.pass_device_specs is True
    assert found.flags.plugin.device_list_strategy == ["envvar", "cdi-cri"]
    assert found.flags.plugin.device_id_strategy == "index"


def test_an_empty_variable_is_none_and_others_do_not_matter():
    assert config("flags: {migStrategy: single}", env={"MIG_STRATEGY": "", "HOME": "/"}).flags.mig_strategy == "single"


def test_mistakes_in_the_environment_are_told():
    reading = read(b"", env={"GDS_ENABLED": "yes", "MIG_STRATEGY": "both"})
    assert [str(problem) for problem in reading.problems] == [
        "the variable GDS_ENABLED is 'yes'; must be true or false",
        "flags.migStrategy: is 'both'; allowed: none, single, mixed",
    ]


@pytest.mark.parametrize("text", ["flags: x", "flags: {plugin: [1]}"])
def test_a_variable_has_no_place_in_what_is_no_mapping(text):
    reading = read(text.encode(), env={"MIG_STRATEGY": "none", "DEVICE_ID_STRATEGY": "uuid"})
    assert any("must be a mapping" in str(problem) for problem in reading.problems)


# --- what the environment goes before ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "env", "told"),
    [
        ("flags: {migStrategy: none}", {"MIG_STRATEGY": "mixed"}, [("none", "MIG_STRATEGY", "--mig-strategy")]),
        ("flags: {migStrategy: mixed}", {"MIG_STRATEGY": "mixed"}, []),
        ("flags: {migStrategy: none}", {"MIG_STRATEGY": ""}, []),
        ("flags: {migStrategy: }", {"MIG_STRATEGY": "mixed"}, []),
        ("flags: {}", {"MIG_STRATEGY": "mixed"}, []),
        ("flags: {failOnInitError: yes}", {"FAIL_ON_INIT_ERROR": "1"}, []),
        ("flags: {gdsEnabled: no}", {"GDS_ENABLED": "true"}, [("no", "GDS_ENABLED", "--gds-enabled")]),
        ("flags: {plugin: {deviceListStrategy: envvar}}", {"DEVICE_LIST_STRATEGY": "envvar"}, []),
        (
            "flags: {plugin: {deviceListStrategy: [envvar]}}",
            {"DEVICE_LIST_STRATEGY": "cdi-cri, envvar"},
            [(["envvar"], "DEVICE_LIST_STRATEGY", "--device-list-strategy")],
        ),
        ("flags: {migStrategy: wrong}", {"MIG_STRATEGY": "none"}, [("wrong", "MIG_STRATEGY", "--mig-strategy")]),
    ],
)
def test_fields_that_a_variable_goes_before_are_known(text, env, told):
    reading = read(text.encode(), env=env)
    assert reading.config is not None
    assert [(one.given, one.variable, one.flag) for one in reading.overridden] == told


# --- anything -------------------------------------------------------------------------------------

_KEYS = st.sampled_from(
    [
        "version", "flags", "sharing", "resources", "imex", "plugin", "gfd", "timeSlicing", "mps", "name", "replicas",
        "devices", "rename", "renameByDefault", "failRequestsGreaterThanOne", "migStrategy", "deviceListStrategy",
        "channelIDs", "required", "gpus", "mig", "pattern", "MPS",
    ]
)  # fmt: skip
_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8)
    | st.sampled_from(["v1", "gpu", "all", "mixed", "nvidia.com/gpu", "envvar", "0:1"])
)  # fmt: skip
_DATA = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=4), inner, max_size=4)
)


def test_a_document_of_data_is_read_like_its_text():
    document = {"version": "v1", "sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 2}]}}}
    assert check(document) == read(json.dumps(document).encode())


@given(_DATA)
def test_no_data_are_too_strange(document):
    reading = check(document)
    assert (reading.config is None) == bool(reading.problems)
    assert all(str(problem) for problem in (*reading.problems, *reading.ignored))


@given(st.dictionaries(_KEYS, _DATA, max_size=4), st.dictionaries(st.sampled_from(KNOWN), st.text(max_size=8)))
def test_no_environment_is_too_strange(document, env):
    reading = check(document, env=env)
    assert (reading.config is None) == bool(reading.problems)


@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange(data):
    reading = read(data)
    assert (reading.config is None) == bool(reading.problems)
