import copy

from doubles.pools import DRIVER, NODE, device_slice, node_slices, sick
from hypothesis import given
from hypothesis import strategies as st

from dradriver.publish.plan import Accepted, Desired, Equals, Identity, Known, make_plan

IDENTITY = Identity(driver=DRIVER, node_name=NODE, pool_name=NODE)
OWNER = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u", "controller": True}


def desired(slices):
    return Desired.of(slices, IDENTITY)


def plan(slices, observed, **known):
    return make_plan(desired(slices), IDENTITY, Known(observed=observed, owner=OWNER, **known))


def applied(made, observed):
    """States of the API server after each write of a plan."""
    state = dict(observed)
    for item in made.clears:
        state.pop(item["metadata"]["name"])
        yield dict(state)
    for body in (*made.updates, *made.creates):
        state[body["metadata"]["name"]] = copy.deepcopy(body)
        yield dict(state)
    for item in made.deletes:
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


def test_two_changes_write_everything_at_a_new_generation():
    state = published(node_slices())
    slices = [*node_slices()]
    slices[1:3] = [device_slice(0, taints=(sick(),)), device_slice(1, taints=(sick(),))]
    made = plan(slices, state)
    assert made.generation == 2
    assert len(made.updates) == 4
    assert {body["spec"]["pool"]["generation"] for body in made.updates} == {2}


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


def test_no_slices_means_delete_everything():
    state = published(node_slices())
    made = plan((), state)
    assert len(made.deletes) == 4
    assert (made.updates, made.creates) == ((), ())


contents = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(
    lambda sizes: tuple(device_slice(gpu, size=size + 1) for gpu, size in enumerate(sizes))
)


@given(before=contents, between=contents, wanted=contents, data=st.data())
def test_no_mixture_ever_looks_complete(before, between, wanted, data):
    """From any state that crashes and others' deletions can leave, every step shows the old, the new, or nothing."""
    state = published(before)
    steps = [state, *applied(plan(between, state), state)]
    state = data.draw(st.sampled_from(steps))
    for name in data.draw(st.sets(st.sampled_from(sorted(state)), max_size=2)) if state else ():
        state = {key: item for key, item in state.items() if key != name}
    if data.draw(st.booleans()):
        state = {**state, "foreign": foreign("foreign", generation=data.draw(st.integers(0, 4)))}
    made = plan(wanted, state)
    allowed = [None, usable(state), usable(published(wanted))]
    for step in applied(made, state):
        assert usable(step) in allowed
        state = step
    assert usable(state) == usable(published(wanted))
    assert plan(wanted, state, generation=made.generation).is_empty


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
