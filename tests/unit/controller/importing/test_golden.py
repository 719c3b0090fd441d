"""Whole plans: for each file in tests/data/device_plugin, everything that comes out, and nothing else."""

import re
from pathlib import Path

import pytest
import yaml
from support import golden

from dradriver.api.node_config import decode

USUAL = golden.usual()


@pytest.mark.parametrize("name", golden.names())
def test_a_whole_plan_is_as_it_was_written_down(name):
    case = golden.given(name)
    expected = yaml.safe_load((golden.FOLDER / f"{name}.plan.yaml").read_text())
    made = golden.planned(case)
    assert golden.shown(made, {} if name == golden.PLAIN else USUAL) == expected
    assert decode(made.node_configs).all_problems() == ()
    assert case["what"]


def test_there_are_enough_cases_and_no_result_without_a_case():
    assert len(golden.names()) >= 40
    results = {path.name.removesuffix(".plan.yaml") for path in golden.FOLDER.glob("*.plan.yaml")}
    assert results == set(golden.names())


FIELDS = (
    "migStrategy failOnInitError nvidiaDriverRoot nvidiaDevRoot deviceDiscoveryStrategy passDeviceSpecs "
    "deviceListStrategy deviceIDStrategy cdiAnnotationPrefix sharedDevicesAllocationPolicy gdrcopyEnabled gdsEnabled "
    "mofedEnabled timeSlicing mps renameByDefault failRequestsGreaterThanOne replicas rename devices channelIDs "
    "required mpsRoot containerDriverRoot nvidiaCTKPath useNodeFeatureAPI gfd resources"
)
VARIABLES = (
    "MIG_STRATEGY FAIL_ON_INIT_ERROR NVIDIA_DRIVER_ROOT NVIDIA_DEV_ROOT DEVICE_DISCOVERY_STRATEGY PASS_DEVICE_SPECS "
    "DEVICE_LIST_STRATEGY DEVICE_ID_STRATEGY CDI_ANNOTATION_PREFIX SHARED_DEVICES_ALLOCATION_POLICY "
    "DP_DISABLE_HEALTHCHECKS DP_ENABLE_HEALTHCHECKS CDI_FEATURE_FLAGS CDI_DISABLE_HOOKS KUBELET_SOCKET MPS_ROOT"
)


@pytest.mark.parametrize("word", [*FIELDS.split(), *VARIABLES.split()])
def test_every_field_and_variable_stands_in_a_sound_case(word):
    sound = [name for name in golden.names() if not golden.planned(golden.given(name)).problems]
    texts = [Path(golden.FOLDER / f"{name}.yaml").read_text() for name in sound]
    assert any(re.search(rf"\b{word}\b", text) for text in texts)
