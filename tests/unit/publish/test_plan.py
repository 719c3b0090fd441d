import copy
from dataclasses import replace

import pytest
from doubles.pools import DRIVER, NODE, counter_slice, device_slice, node_slices, sick
from doubles.scheduler import view
from hypothesis import given
from hypothesis import strategies as st

from dradriver.publish.plan import Accepted, Desired, Equals, Identity, Known, make_plan
from dradriver.resource import CounterConsumption, CounterSet, Device, Slice, Taint

IDENTITY = Identity(driver=DRIVER, node_name=NODE, pool_name=NODE)
OWNER = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u", "controller": True}


def desired(slices):
    return Desired.of(slices, IDENTITY)


def plan(slices, observed, **known):
    return make_plan(desired(slices), IDENTITY, Known(observed=observed, owner=OWNER, **known))


def applied(made, observed, *, missed=()):
    """States of the API server after each write of a plan; where somebody was quicker, nothing is deleted."""
    state = dict(observed)
    for item in made.clears:
        state.pop(item["metadata"]["name"])
        yield dict(state)
    for body in (*made.updates, *made.creates):
        if body["metadata"]["name"] not in missed:
            state[body["metadata"]["name"]] = copy.deepcopy(body)
            yield dict(state)
    for item in made.deletes if not missed else ():
        state.pop(item["metadata"]["name"])
        yield dict(state)


def published(slices, observed=None):
    observed = observed or {}
    *_, state = [observed, *applied(plan(slices, observed), observed)]
    return state


def usable(state):
    """What the scheduler sees: the devices of the newest generation if it is complete, else None."""
    pool = [item["spec"] for item in state.values() if item["spec"]["pool"]["name"] == NODE]
    newest = max((spec["pool"]["generation"] for spec in pool), default=0)
    current = [spec for spec in pool if spec["pool"]["generation"] == newest]
    if not current or any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
        return None
    return sorted(str({key: value for key, value in spec.items() if key != "pool"}) for spec in current)


def foreign(name, generation=7, count=1, pool=NODE):
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": "gpu-0"}],
        },
    }


def test_first_publication_creates_all_in_order_with_an_owner():
    made = plan(node_slices(2), {})
    assert [body["metadata"]["name"] for body in made.creates] == [
        f"{number:05d}-{DRIVER}-{NODE}" for number in range(3)
    ]
    assert "sharedCounters" in made.creates[0]["spec"]
    for body in made.creates:
        assert body["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 3}
        assert body["metadata"]["ownerReferences"] == [OWNER]
        assert "annotations" not in body["metadata"]


def test_nothing_to_do_is_an_empty_plan():
    state = published(node_slices())
    assert plan(node_slices(), state).is_empty


def test_one_change_is_one_update_without_a_new_generation():
    state = published(node_slices())
    slices = [*node_slices()]
    slices[2] = device_slice(1, taints=(sick(),))
    made = plan(slices, state)
    assert [body["metadata"]["name"][:5] for body in made.updates] == ["00002"]
    assert (made.generation, made.creates, made.deletes) == (1, (), ())


def test_changes_that_touch_no_other_slice_are_written_one_by_one_in_place():
    state = published(node_slices())
    changed = (device_slice(0, memory=7), device_slice(1, taints=(sick(),)))
    reordered = Slice(devices=device_slice(2).devices[::-1])
    made = plan((counter_slice(3), *changed, reordered), state)
    assert [body["metadata"]["name"][:5] for body in made.updates] == ["00002", "00001", "00003"]
    assert {body["spec"]["pool"]["generation"] for body in made.updates} == {made.generation} == {1}


def test_what_is_bad_is_known_before_what_is_good_again():
    state = published((device_slice(0, taints=(sick(),)), device_slice(1), device_slice(2)))
    made = plan((device_slice(0), device_slice(1, memory=7), device_slice(2, taints=(sick(),))), state)
    assert [body["metadata"]["name"][:5] for body in made.updates] == ["00002", "00001", "00000"]


def test_a_taint_that_changes_is_one_that_is_added():
    state = published((device_slice(0), device_slice(1, taints=(sick(),))))
    worse = Taint(key=sick().key, value="95", effect="NoExecute")
    made = plan((device_slice(0, memory=7), device_slice(1, taints=(worse,))), state)
    assert [body["metadata"]["name"][:5] for body in made.updates] == ["00001", "00000"]


def test_one_regrouped_slice_may_change_in_place_beside_others_that_are_retouched():
    state = published(node_slices())
    made = plan((counter_slice(3), device_slice(0, size=5), device_slice(1, memory=7), device_slice(2)), state)
    assert [body["metadata"]["name"][:5] for body in made.updates] == ["00001", "00002"]
    assert made.generation == 1


@pytest.mark.parametrize(
    "other",
    [device_slice(1, size=5), Slice(devices=device_slice(1).devices[:1]), device_slice(9)],
    ids=["more devices", "fewer devices", "other counters"],
)
def test_two_regrouped_slices_write_everything_at_a_new_generation(other):
    state = published(node_slices())
    made = plan((counter_slice(3), device_slice(0, size=5), other, device_slice(2)), state)
    assert made.generation == 2
    assert [body["metadata"]["name"][:5] for body in made.updates] == ["00000", "00001", "00002", "00003"]
    assert {body["spec"]["pool"]["generation"] for body in made.updates} == {2}


def test_counters_that_change_with_their_consumers_are_a_new_generation():
    state = published((Slice(counter_sets=(CounterSet(name="gpu-0", counters={"memory": 8}),)), device_slice(0)))
    sets = CounterSet(name="gpu-0", counters={"slices": 8})
    device = Device(name="gpu-0", consumes=(CounterConsumption(counter_set="gpu-0", counters={"slices": 8}),))
    made = plan((Slice(counter_sets=(sets,)), Slice(devices=(device,))), state)
    assert (made.generation, len(made.updates)) == (2, 2)


def test_a_quantity_that_is_only_written_otherwise_is_the_same_consumption():
    state = published((counter_slice(2), device_slice(0, memory=7), device_slice(1, memory=7)))
    for item in state.values():
        for device in item["spec"].get("devices", ()):
            device["consumesCounters"][0]["counters"] = {
                name: {"value": f"{value['value']}000m"}
                for name, value in device["consumesCounters"][0]["counters"].items()
            }
    assert plan((counter_slice(2), device_slice(0), device_slice(1)), state).generation == 1


def test_a_wrong_count_is_corrected_in_place_if_nothing_is_missing():
    state = published(node_slices())
    first, second, *_ = sorted(state)
    state[first]["spec"]["pool"]["resourceSliceCount"] = 9
    made = plan(node_slices(), state)
    assert ([body["metadata"]["name"] for body in made.updates], made.generation) == ([first], 1)
    del state[second]
    assert plan(node_slices(), state).generation == 2


def test_changes_while_slices_are_missing_keep_the_generation_if_they_touch_no_other_slice():
    state = published(node_slices())
    first, second, *_ = sorted(state)
    del state[first]
    made = plan((counter_slice(3), device_slice(0, memory=7), device_slice(1), device_slice(2)), state)
    assert made.generation == 1
    assert [body["metadata"]["name"] for body in (*made.updates, *made.creates)] == [second, first]
    assert plan((counter_slice(3), device_slice(0, size=5), device_slice(1), device_slice(2)), state).generation == 2


def test_another_number_of_slices_is_a_new_generation():
    state = published(node_slices(3))
    more = plan(node_slices(4), state)
    assert (more.generation, len(more.updates), len(more.creates)) == (2, 4, 1)
    fewer = plan(node_slices(2), state)
    assert (fewer.generation, len(fewer.updates), len(fewer.deletes)) == (2, 3, 1)


def test_a_deleted_slice_is_put_back_alone():
    state = published(node_slices())
    name = sorted(state)[1]
    del state[name]
    made = plan(node_slices(), state)
    assert [body["metadata"]["name"] for body in made.creates] == [name]
    assert (made.generation, made.updates) == (1, ())


def test_after_a_wipe_the_generation_does_not_go_back():
    made = plan(node_slices(), {}, generation=9)
    assert made.generation == 9
    assert len(made.creates) == 4


def test_an_edit_is_undone():
    state = published(node_slices())
    name = sorted(state)[1]
    state[name]["spec"]["devices"].pop()
    made = plan(node_slices(), state)
    assert [body["metadata"]["name"] for body in made.updates] == [name]


def test_a_foreign_slice_of_the_pool_outlives_the_new_ones():
    state = {"predecessor": foreign("predecessor")}
    made = plan(node_slices(), state)
    assert made.generation == 8
    assert len(made.creates) == 4
    assert [item["metadata"]["name"] for item in made.deletes] == ["predecessor"]


def test_a_stranger_in_our_own_current_generation_makes_it_grow():
    state = published(node_slices())
    state["stranger"] = foreign("stranger", generation=1, count=4)
    made = plan(node_slices(), state)
    assert (made.generation, len(made.updates), len(made.deletes)) == (2, 4, 1)


def test_leftovers_of_an_old_generation_are_only_deleted():
    state = published(node_slices())
    state["old"] = foreign("old", generation=0)
    made = plan(node_slices(), state)
    assert (made.generation, made.updates, len(made.deletes)) == (1, (), 1)


def test_slices_of_another_pool_of_ours_go_without_ado():
    state = published(node_slices())
    state["elsewhere"] = foreign("elsewhere", generation=99, pool="other")
    made = plan(node_slices(), state)
    assert (made.generation, made.updates, len(made.deletes)) == (1, (), 1)


def test_our_name_in_another_pool_is_cleared_first():
    name = f"00000-{DRIVER}-{NODE}"
    made = plan(node_slices(), {name: foreign(name, pool="other")})
    assert [item["metadata"]["name"] for item in made.clears] == [name]
    assert len(made.creates) == 4
    assert (made.deletes, made.updates) == ((), ())


def test_an_update_keeps_what_others_wrote_into_the_metadata():
    state = published(node_slices())
    name = sorted(state)[1]
    state[name]["metadata"] |= {"labels": {"a": "b"}, "resourceVersion": "7", "uid": "x", "managedFields": [1]}
    state[name]["spec"]["devices"].pop()
    (body,) = plan(node_slices(), state).updates
    assert body["metadata"] == {
        "name": name,
        "labels": {"a": "b"},
        "resourceVersion": "7",
        "uid": "x",
        "ownerReferences": [OWNER],
    }


def test_a_wrong_owner_is_corrected_without_a_new_generation():
    state = published(node_slices())
    for item in state.values():
        item["metadata"]["ownerReferences"] = [{**OWNER, "uid": "earlier node"}]
    made = plan(node_slices(), state)
    assert (made.generation, len(made.updates)) == (1, 4)


def test_the_time_of_a_taint_is_carried_over():
    slices = (device_slice(0, taints=(sick(),)),)
    state = published(slices)
    (item,) = state.values()
    for device in item["spec"]["devices"]:
        device["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert plan(slices, state).is_empty
    grown = plan((*slices, device_slice(1)), state)
    assert grown.updates[0]["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


def test_the_time_of_a_taint_survives_a_wipe():
    slices = (device_slice(0, taints=(sick(),)),)
    (item,) = published(slices).values()
    item["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    made = plan(slices, {}, remembered=(item["spec"],))
    assert made.creates[0]["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


def test_what_the_server_made_of_a_spec_is_not_sent_again():
    slices = (device_slice(0, taints=(sick(),)),)
    state = published(slices)
    (name,) = state
    sent = copy.deepcopy(state[name]["spec"])
    for device in state[name]["spec"]["devices"]:
        del device["taints"]
    accepted = {name: Accepted(sent=sent, stored=copy.deepcopy(state[name]["spec"]))}
    assert not plan(slices, state).is_empty
    assert plan(slices, state, accepted=accepted).is_empty
    state[name]["spec"]["devices"].pop()
    assert not plan(slices, state, accepted=accepted).is_empty


def test_what_only_a_finalizer_keeps_is_not_deleted_again():
    state = published(node_slices()) | {"old": foreign("old", generation=0)}
    state["old"]["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/f"]}
    assert plan(node_slices(), state).is_empty


def test_no_slices_means_delete_everything():
    state = published(node_slices())
    made = plan((), state)
    assert len(made.deletes) == 4
    assert (made.updates, made.creates) == ((), ())


def test_with_all_slices_deleted_while_nobody_ran_the_generation_begins_again():
    """Who watches has seen the deletions before anything new, so there is nothing that the number must exceed."""
    assert plan(node_slices(), {}).generation == 1
    assert plan(node_slices(), {}, generation=5).generation == 5


@st.composite
def pools(draw):
    """Slices as a node may offer them, in either layout."""
    gpus = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    taints = st.lists(st.sampled_from(["NoSchedule", "NoExecute"]), unique=True, max_size=2)
    memory = st.integers(1, 2)
    parts = [
        device_slice(
            gpu,
            size=size,
            memory=draw(memory),
            taints=tuple(Taint(key=f"{DRIVER}/sick", effect=effect) for effect in draw(taints)),
            share=draw(memory),
        )
        for gpu, size in enumerate(gpus)
    ]
    parts = draw(st.permutations(parts))
    if draw(st.booleans()):
        return (counter_slice(len(gpus)), *parts)
    sets = {counter_set.name: counter_set for counter_set in counter_slice(len(gpus)).counter_sets}
    return tuple(
        Slice(counter_sets=(sets[part.devices[0].consumes[0].counter_set],), devices=part.devices) for part in parts
    )


@st.composite
def variants(draw, pool):
    """The same pool with a few slices retouched or regrouped."""
    return tuple(draw(st.sampled_from((part, *changed(part)))) for part in pool)


def changed(part):
    """Slices that may take the place of this one, as far as it has devices."""
    if part.devices:
        first, *others = part.devices
        yield replace(part, devices=(replace(first, taints=(sick(),)), *others))
        yield replace(part, devices=(replace(first, attributes={"type": "other"}), *others))
        yield replace(part, devices=(*others, first))
        yield replace(part, devices=(*part.devices, replace(first, name=f"{first.name}-more")))
        yield replace(part, devices=part.devices[:1])


@st.composite
def situations(draw):
    """What is wanted, and what crashes in the middle of a change, deletions and a predecessor have left."""
    before = draw(pools())
    others = st.one_of(pools(), variants(before))
    state = published(before)
    steps = [state, *applied(plan(draw(others), state), state)]
    state = draw(st.sampled_from(steps))
    for name in draw(st.sets(st.sampled_from(sorted(state)), max_size=2)) if state else ():
        state = {key: item for key, item in state.items() if key != name}
    if draw(st.booleans()):
        state = {**state, **predecessor(draw(others), generation=draw(st.integers(0, 4)))}
    return state, draw(others)


def predecessor(slices, *, generation):
    """The same slices as another driver has named them."""
    items = [copy.deepcopy(item) for item in published(slices).values()]
    for item in items:
        name = f"{item['metadata']['name']}-x7k2p"
        item["metadata"] = {"name": name, "uid": name, "resourceVersion": "1"}
        item["spec"]["pool"]["generation"] = generation
    return {item["metadata"]["name"]: item for item in items}


@given(situation=situations(), data=st.data())
def test_the_scheduler_sees_the_old_pool_or_the_new_one_or_none(situation, data):
    """Whatever is there and whatever is wanted, after every single write, and where somebody else wrote meanwhile."""
    state, wanted = situation
    made = plan(wanted, state)
    written = [body["metadata"]["name"] for body in (*made.updates, *made.creates)]
    missed = data.draw(st.sets(st.sampled_from(written), max_size=2)) if written else ()
    start, end = view(state.values(), NODE), view(published(wanted).values(), NODE)
    for step in applied(made, state, missed=missed):
        seen = view(step.values(), NODE)
        if seen is not None:
            assert seen.problems == ()
            assert seen in (start, end)
            if start is not None and start.problems == ():
                kept = {name: used for name, used in start.devices.items() if end.devices.get(name) == used}
                assert seen.lacks(kept) == set()
        state = step
    if not missed:
        assert usable(state) == usable(published(wanted))
        assert plan(wanted, state, generation=made.generation).is_empty


@given(situation=situations())
def test_every_device_is_at_each_moment_as_it_was_or_as_it_is_wanted(situation):
    """Attributes, capacity and taints: never a third thing."""
    state, wanted = situation
    allowed = devices(state) | devices(published(wanted))
    for step in applied(plan(wanted, state), state):
        assert devices(step) <= allowed


@given(situation=situations(), remembered=st.integers(0, 6))
def test_the_generation_never_goes_back(situation, remembered):
    state, wanted = situation
    made = plan(wanted, state, generation=remembered)
    assert made.generation >= max(remembered, newest(state))
    for step in applied(made, state):
        assert newest(step) >= newest(state)
        state = step


@given(wanted=pools(), data=st.data())
def test_the_generation_goes_on_from_what_is_left_when_a_new_process_finds_it(wanted, data):
    state = published(wanted)
    for _ in range(data.draw(st.integers(1, 3))):
        state = published(data.draw(pools()), state)
    left = data.draw(st.sets(st.sampled_from(sorted(state)), min_size=1))
    found = {name: item for name, item in state.items() if name in left}
    assert plan(data.draw(pools()), found).generation >= newest(state)


def newest(state):
    return max((item["spec"]["pool"]["generation"] for item in state.values()), default=0)


def devices(state):
    """Everything that is said of any device in any generation."""
    return {str(device) for item in state.values() for device in item["spec"].get("devices", ())}


def test_equal_specs_are_compared_once(monkeypatch):
    compared = []
    monkeypatch.setattr("dradriver.publish.plan.same_content", lambda a, b: compared.append(1) or a["x"] == b["x"])
    equals = Equals()
    observed, wanted = {"x": 1}, {"x": 1}
    assert equals("n", observed, wanted)
    assert equals("n", observed, wanted)
    assert len(compared) == 1
    assert not equals("n", {"x": 2}, wanted)
    assert equals("n", dict(observed), wanted)
    assert not equals("n", observed, {"x": 3})


def test_an_unchanged_slice_is_the_same_object_in_the_next_offer():
    first = desired(node_slices(2))
    slices = list(node_slices(2))
    slices[1] = device_slice(0, taints=(sick(),))
    second = Desired.of(slices, IDENTITY, before=first)
    kept = [name for name, spec in second.specs.items() if spec is first.specs[name]]
    assert [name[:5] for name in kept] == ["00000", "00002"]
