"""Bridges of others, and of an earlier plan, before `kubectl dra plan --apply` on a real API server."""

import json
import re
import shlex

import pytest
from support.bridging import CRD, bridge
from support.planning import (
    GPU,
    SHARED,
    TEXTS,
)

from controller.api import BRIDGES
from controller.cli.wanted import CONFIG_MAPS
from dradriver.kube import NODES

pytestmark = pytest.mark.control_plane


def test_a_bridge_of_another_name_for_the_resource_is_left_and_told(world):
    world.admin.create(BRIDGES, bridge("mine", GPU, select={"cel": "true"}))
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert "ExtendedResourceBridge gpu: nvidia.com/gpu has the bridge mine already" in told
    assert "kubectl delete erb mine" in told
    assert world.find(BRIDGES, "gpu") is None
    assert outcomes["ExtendedResourceBridge gpu.shared"] == "created"


def test_a_bridge_of_another_name_that_selects_the_same_will_do(world):
    world.admin.create(BRIDGES, bridge("mine", GPU, select={"type": "gpu", "renamed": False}))
    outcomes, told = world.apply()
    assert outcomes["ExtendedResourceBridge mine"] == "unchanged"
    assert told.startswith("kubectl dra plan: ExtendedResourceBridge mine: spec.mode is Enabled and the plan wants")
    world.admin.patch(BRIDGES, "mine", {"spec": {"mode": "WhenReady"}})
    assert world.apply()[1] == ""
    assert world.find(BRIDGES, "gpu") is None


def test_a_bridge_that_somebody_has_edited_is_not_forced(world):
    world.apply()
    world.admin.patch(BRIDGES, "gpu", {"spec": {"mode": "Disabled"}}, field_manager="kubectl-edit")
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert 'conflict with "kubectl-edit"' in told
    assert ".spec.mode" in told
    assert world.find(BRIDGES, "gpu")["spec"]["mode"] == "Disabled"
    assert outcomes["ExtendedResourceBridge gpu.shared"] == "unchanged"


def test_a_bridge_of_the_readme_keeps_its_mode_and_the_next_step_is_told(world, planned):
    planned.kubectl("apply", "-f", str(CRD.parent.parent / "bridges"))
    outcomes, told = world.apply(status=1)
    # All but the mode is there already.
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    spec = world.find(BRIDGES, "gpu")["spec"]
    assert (spec["mode"], spec["select"]) == ("Enabled", {"type": "gpu", "renamed": False})
    assert "spec.mode is Enabled and the plan wants WhenReady (as it is, the name is served before" in told
    (command,) = re.findall(r"kubectl (patch erb gpu --type=merge -p '[^']*')", told)
    planned.kubectl(*shlex.split(command))
    outcomes, told = world.apply()
    assert (outcomes["ExtendedResourceBridge gpu"], told) == ("unchanged", "")
    assert world.find(BRIDGES, "gpu")["spec"]["mode"] == "WhenReady"


def test_a_bridge_that_says_nothing_of_names_gets_what_nobody_has_set(world, planned):
    planned.kubectl("apply", "-f", "-", text=json.dumps(bridge("gpu", GPU, select={"type": "gpu"})))
    outcomes, told = world.apply("--dry-run", status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "changed in part (dry run)"
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "gpu"}
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "changed in part"
    assert "its other fields are as planned" in told
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "gpu", "renamed": False}
    assert world.find(BRIDGES, "gpu")["spec"]["mode"] == "Enabled"
    assert world.apply(status=1)[0]["ExtendedResourceBridge gpu"] == "left as it is"


def test_a_selection_of_somebody_else_is_left_as_a_whole(world, planned):
    theirs = {"type": "mig", "profile": "1g.10gb"}
    planned.kubectl("apply", "-f", "-", text=json.dumps(bridge("gpu", GPU, select=theirs)))
    outcomes, told = world.apply(status=1)
    assert outcomes["ExtendedResourceBridge gpu"] == "left as it is"
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == theirs
    assert "spec.select.profile is 1g.10gb and the plan wants nothing there" in told
    (command,) = re.findall(r"kubectl (patch erb gpu --type=merge -p '[^']*')", told)
    planned.kubectl(*shlex.split(command))
    outcomes, told = world.apply()
    assert (outcomes["ExtendedResourceBridge gpu"], told) == ("unchanged", "")
    assert world.find(BRIDGES, "gpu")["spec"]["select"] == {"type": "gpu", "renamed": False}


def test_a_bridge_of_an_earlier_plan_is_told_with_the_command_that_deletes_it(world, planned):
    world.apply()
    world.admin.patch(CONFIG_MAPS, "configs", {"data": {"sliced": TEXTS["default"]}}, namespace="gpu-operator")
    world.admin.patch(
        NODES, "shared", {"status": {"capacity": {SHARED: "0"}, "allocatable": {SHARED: "0"}}}, subresource="status"
    )
    outcomes, told = world.apply()
    assert outcomes["ExtendedResourceBridge gpu.shared"] == "no longer planned"
    (command,) = re.findall("kubectl (delete erb .*)", told)
    assert world.find(BRIDGES, "gpu.shared")
    planned.kubectl(*command.split())
    outcomes, told = world.apply()
    assert ("ExtendedResourceBridge gpu.shared" in outcomes, told) == (False, "")


def test_a_bridge_of_the_name_for_another_resource_is_told(world):
    world.admin.create(BRIDGES, bridge("gpu", "nvidia.com/other", select={"type": "gpu"}))
    _, told = world.apply(status=1)
    assert "ExtendedResourceBridge gpu: there is one of that name for nvidia.com/other" in told
