"""What a plan wants otherwise than an object has it."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api import BRIDGES
from controller.cli.differences import differences, patch, without_mode
from controller.cli.wanted import CONFIG_MAPS, QUOTAS
from controller.cli.writes import Write

WANTED = {"resourceName": "nvidia.com/gpu", "select": {"type": "gpu", "renamed": False}, "mode": "WhenReady"}


def write(live, wanted=None, resource=BRIDGES, **metadata):
    named = {"name": "gpu", **metadata}
    seen = None if live is None else {"metadata": named, "spec": live}
    return Write(resource=resource, body={"metadata": named, "spec": wanted or WANTED}, live=seen)


def fields(item):
    return {".".join(one.path): (one.found, one.wanted) for one in differences(item)}


def test_nothing_differs_from_itself_or_from_what_is_not_there():
    assert differences(write(WANTED)) == ()
    assert differences(write(None)) == ()
    assert differences(Write(resource=CONFIG_MAPS, body={"data": {"a": "b"}}, live={"data": {}})) == ()


def test_each_field_is_told_with_both_values():
    assert fields(write({**WANTED, "mode": "Enabled", "select": {"type": "gpu"}})) == {
        "mode": ("Enabled", "WhenReady"),
        "select.renamed": (None, False),
    }


def test_of_what_is_selected_more_fields_count_and_of_the_rest_not():
    live = {**WANTED, "adopt": True, "select": {**WANTED["select"], "memory": {"min": "1Gi"}, "profiles": ["1g.10gb"]}}
    assert fields(write(live)) == {"select.memory": ({"min": "1Gi"}, None), "select.profiles": (["1g.10gb"], None)}
    told = "; ".join(map(str, differences(write(live))))
    assert 'spec.select.profiles is ["1g.10gb"] and the plan wants nothing there' in told


@pytest.mark.parametrize(
    ("live", "why"),
    [
        ({"mode": "Enabled"}, "the name is served before a node is ready"),
        ({"mode": "Disabled"}, "the name is not served through DRA at all"),
        ({"select": {"type": "gpu"}}, "pods may get shares of devices that have a name of their own"),
        ({"select": {"type": "mig", "renamed": False}}, "get other devices than today"),
    ],
)
def test_why_it_matters_is_told(live, why):
    (one,) = differences(write(WANTED | live))
    assert why in str(one)
    assert "(as it is, " in str(one)


def test_fields_of_a_quota_have_no_reason_and_a_command_of_their_own():
    item = write({"hard": {"a": "1"}}, {"hard": {"a": "2"}}, resource=QUOTAS, namespace="ml")
    assert [str(one) for one in differences(item)] == ["spec.hard.a is 1 and the plan wants 2"]
    merge = '{"spec":{"hard":{"a":"2"}}}'
    assert patch(item) == f"kubectl patch resourcequota gpu -n ml --type=merge -p '{merge}'"


def merged(live, change):
    """What a merge patch makes."""
    if not isinstance(change, dict):
        return change
    kept = {**live} if isinstance(live, dict) else {}
    for name, value in change.items():
        kept[name] = merged(kept.get(name), value)
    return {name: value for name, value in kept.items() if value is not None}


_SELECTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["gpu", "mig", "any"]),
        "renamed": st.booleans(),
        "profiles": st.lists(st.sampled_from(["1g.10gb", "2g.20gb"]), min_size=1),
        "cel": st.text(min_size=1, max_size=9),
    },
)


@given(_SELECTS, st.sampled_from(["Enabled", "WhenReady", "Disabled"]), st.booleans())
def test_the_command_makes_it_what_the_plan_wants(select, mode, adopt):
    live = {"resourceName": "nvidia.com/gpu", "select": select, "mode": mode, "adopt": adopt}
    item = write(live)
    change = json.loads(shlex.split(patch(item))[-1])
    assert merged({"spec": live}, change)["spec"] == {**WANTED, "adopt": adopt}
    assert all(str(one) for one in differences(item))


@given(_SELECTS, st.sampled_from(["Enabled", "WhenReady", "Disabled"]))
def test_half_of_a_selection_is_never_written(select, mode):
    rest = without_mode(write({"resourceName": "nvidia.com/gpu", "select": select, "mode": mode}))
    sound = select.items() <= WANTED["select"].items()
    assert (rest is not None) == (sound and mode != "WhenReady")
    if rest is not None:
        assert rest.body["spec"] == {name: value for name, value in WANTED.items() if name != "mode"}


def test_other_objects_are_written_as_a_whole_or_not_at_all():
    assert without_mode(write({"hard": {}}, {"hard": {"a": "1"}}, resource=QUOTAS)) is None
    assert without_mode(write(None)) is None
