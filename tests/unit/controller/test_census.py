from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller.api import DeviceTally, NodeTally
from controller.watching import Census
from controller.watching.census import count_pool
from controller.watching.model import UNLIMITED, DeviceKind, SeenClaim, SeenDevice, SeenNode, SeenSlice

GPU, MIG = DeviceKind(type="gpu"), DeviceKind(type="mig", profile="1g.10gb")
NAME = "nvidia.com/gpu"


def slots(*numbers):
    return (("set", tuple((f"slot-{number}", 1) for number in numbers)),)


WHOLE = SeenDevice(name="gpu-0", kind=GPU, consumes=slots(0, 1))
PARTS = tuple(SeenDevice(name=f"part-{number}", kind=MIG, consumes=slots(number)) for number in range(2))
COUNTERS = SeenSlice(pool="n", node="n", total=2, counters=slots(0, 1))
DEVICES = SeenSlice(pool="n", node="n", total=2, devices=(WHOLE, *PARTS))


def gpu(kind):
    return kind.type == "gpu"


def mig(kind):
    return kind.type == "mig"


def anything(_kind):
    return True


def test_devices_whose_counters_are_used_up_are_not_allocatable():
    pool = [COUNTERS, DEVICES]
    assert count_pool(pool, (), {}) == {
        GPU: DeviceTally(published=1, allocatable=1),
        MIG: DeviceTally(published=2, allocatable=2),
    }
    assert count_pool(pool, {"part-0"}, {}) == {
        GPU: DeviceTally(published=1, blocked=1),
        MIG: DeviceTally(published=2, allocatable=1, allocated=1),
    }
    assert count_pool(pool, {"gpu-0"}, {}) == {
        GPU: DeviceTally(published=1, allocated=1),
        MIG: DeviceTally(published=2, blocked=2),
    }


def test_of_a_pool_that_is_not_complete_nothing_is_allocatable():
    assert count_pool([DEVICES], (), {})[GPU] == DeviceTally(published=1, blocked=1)


def test_slices_of_an_older_generation_do_not_count():
    old = SeenSlice(pool="n", devices=(SeenDevice(name="gpu-1", kind=GPU),))
    new = SeenSlice(pool="n", generation=2, devices=(SeenDevice(name="gpu-0", kind=GPU),))
    assert count_pool([old, new], (), {}) == {GPU: DeviceTally(published=1, allocatable=1)}


def test_tainted_devices_are_not_allocatable():
    pool = [SeenSlice(pool="n", devices=(SeenDevice(name="gpu-0", kind=GPU, is_tainted=True),))]
    assert count_pool(pool, (), {}) == {GPU: DeviceTally(published=1, tainted=1)}
    assert count_pool(pool, {"gpu-0"}, {}) == {GPU: DeviceTally(published=1, allocated=1, tainted=1)}


SHARED = SeenDevice(name="gpu-1", kind=GPU, shares=4)


def test_of_a_shared_device_its_shares_are_counted():
    pool = [SeenSlice(pool="n", devices=(SHARED, SeenDevice(name="gpu-0", kind=GPU)))]
    assert count_pool(pool, (), {}) == {GPU: DeviceTally(published=5, allocatable=5)}
    assert count_pool(pool, {"gpu-1"}, {"gpu-1": 3}) == {GPU: DeviceTally(published=5, allocatable=2, allocated=3)}
    assert count_pool(pool, {"gpu-0", "gpu-1"}, {"gpu-1": 9}) == {GPU: DeviceTally(published=5, allocated=5)}


def test_a_shared_device_that_is_tainted_or_of_an_incomplete_pool():
    tainted = SeenDevice(name="gpu-1", kind=GPU, shares=4, is_tainted=True)
    assert count_pool([SeenSlice(pool="n", devices=(tainted,))], {"gpu-1"}, {"gpu-1": 1}) == {
        GPU: DeviceTally(published=4, allocated=1, tainted=4)
    }
    assert count_pool([SeenSlice(pool="n", total=2, devices=(SHARED,))], {"gpu-1"}, {"gpu-1": 1}) == {
        GPU: DeviceTally(published=4, allocated=1, blocked=3)
    }


def test_a_shared_device_that_does_not_say_how_many_can_have_it_is_never_used_up():
    pool = [SeenSlice(pool="n", devices=(SeenDevice(name="gpu-0", kind=GPU, shares=UNLIMITED),))]
    assert count_pool(pool, {"gpu-0"}, {"gpu-0": 7}) == {GPU: DeviceTally(published=1, allocatable=1, allocated=1)}


def test_the_counters_of_a_shared_device_are_paid_once():
    shared = SeenDevice(name="gpu-1", kind=GPU, shares=4, consumes=slots(0, 1))
    pool = [SeenSlice(pool="n", devices=(shared,), counters=slots(0, 1))]
    assert count_pool(pool, {"gpu-1"}, {"gpu-1": 1}) == {GPU: DeviceTally(published=4, allocatable=3, allocated=1)}


def test_shares_come_back_when_claims_go():
    census = Census()
    census.put_slice("s", SeenSlice(pool="n", node="n", devices=(SHARED,)))
    for number in range(3):
        held = SeenClaim(name=f"a/{number}", devices=(("n", "gpu-1"),), shares=(("n", "gpu-1", 1),))
        census.put_claim(f"a/{number}", held)
    assert census.devices(gpu) == DeviceTally(published=4, allocatable=1, allocated=3)
    census.put_claim("a/0", None)
    assert census.devices(gpu) == DeviceTally(published=4, allocatable=2, allocated=2)
    for number in (1, 2):
        census.put_claim(f"a/{number}", None)
    assert census.devices(gpu) == DeviceTally(published=4, allocatable=4)
    assert census._shares == {}


def test_numbers_by_node():
    census = Census()
    census.put_slice("a", SeenSlice(pool="a", node="a", devices=(WHOLE,)))
    census.put_slice("b", SeenSlice(pool="b", node="b", devices=(SHARED, *PARTS)))
    census.put_slice("any", SeenSlice(pool="any", devices=(SeenDevice(name="x", kind=GPU),)))
    census.put_node("b", SeenNode(name="b", allocatable=((NAME, 2),), labels=(("zone", "1"),)))
    census.put_node("a", SeenNode(name="a", allocatable=((NAME, 0),)))
    assert census.places(gpu) == {
        "a": DeviceTally(published=1, blocked=1),
        "b": DeviceTally(published=4, allocatable=4),
        "": DeviceTally(published=1, allocatable=1),
    }
    assert {node: found.distinct for node, found in census.places(anything).items()} == {"a": 1, "b": 3, "": 1}
    assert set(census.places(mig)) == {"b"}
    assert census.plugin_nodes(NAME) == {"b": 2}
    assert census.known_nodes["b"].labels == (("zone", "1"),)


def test_what_is_told_a_second_time_changes_nothing():
    census = Census()
    assert census.put_slice("s", DEVICES)
    assert not census.put_slice("s", DEVICES)
    assert census.put_node("n", SeenNode(name="n"))
    assert not census.put_node("n", SeenNode(name="n"))
    assert census.put_claim("c", SeenClaim(name="a/c"))
    assert not census.put_claim("c", SeenClaim(name="a/c"))
    assert not census.put_claim("other", None)


def test_the_users_of_a_class():
    census = Census()
    census.put_claim("b/c", SeenClaim(name="b/c", classes=("x", "y")))
    census.put_claim("a/c", SeenClaim(name="a/c", classes=("x",)))
    assert census.users("x") == ("a/c", "b/c")
    assert census.users("y") == ("b/c",)
    census.put_claim("b/c", None)
    assert (census.users("x"), census.users("y")) == (("a/c",), ())


def test_a_device_that_is_shared_is_held_until_its_last_claim_goes():
    census = Census()
    census.put_slice("s", SeenSlice(pool="n", devices=(SeenDevice(name="gpu-0", kind=GPU),)))
    for name in ("one", "other"):
        census.put_claim(name, SeenClaim(name=name, devices=(("n", "gpu-0"),)))
    census.put_claim("one", None)
    assert census.devices(gpu).allocated == 1
    census.put_claim("other", None)
    assert census.devices(gpu) == DeviceTally(published=1, allocatable=1)


def test_nodes_by_what_serves_a_name():
    census = Census()
    for node in ("dra", "both", "none"):
        kind = MIG if node == "none" else GPU
        census.put_slice(node, SeenSlice(pool=node, node=node, devices=(SeenDevice(name="d", kind=kind),)))
    census.put_node("dra", SeenNode(name="dra", allocatable=((NAME, 0),)))
    census.put_node("both", SeenNode(name="both", allocatable=((NAME, 8),)))
    census.put_node("plugin", SeenNode(name="plugin", allocatable=((NAME, 1),)))
    census.put_node("left", SeenNode(name="left", allocatable=((NAME, 0),)))
    census.put_node("cpu", SeenNode(name="cpu"))
    assert census.nodes(NAME, gpu) == NodeTally(device_plugin=2, dra=1, neither=2)
    assert census.nodes("nvidia.com/other", mig) == NodeTally(dra=1, neither=2)
    census.put_node("both", SeenNode(name="both", allocatable=((NAME, 0),)))
    assert census.nodes(NAME, gpu) == NodeTally(device_plugin=1, dra=2, neither=2)
    census.put_node("plugin", None)
    census.put_slice("dra", None)
    assert census.nodes(NAME, gpu) == NodeTally(dra=1, neither=3)


def standing(census, matches=gpu):
    """What a node tally says, with what a status does not."""
    found = census.nodes(NAME, matches)
    return found.dra, found.neither, found.tainted, found.incomplete


def a_slice(node, *tainted, total=1, kind=GPU):
    devices = tuple(SeenDevice(name=f"d{index}", kind=kind, is_tainted=each) for index, each in enumerate(tainted))
    return SeenSlice(pool=node, node=node, total=total, devices=devices)


def test_a_node_serves_with_a_sound_device_in_a_complete_pool():
    census = Census()
    census.put_slice("s", a_slice("n", True, True))
    assert standing(census) == (0, 1, 1, 0)
    census.put_slice("s", a_slice("n", True, False))
    assert standing(census) == (1, 0, 0, 0)
    census.put_slice("s", a_slice("n", True, False, total=2))
    assert standing(census) == (0, 1, 0, 1)
    census.put_slice("more", SeenSlice(pool="n", node="n", total=2))
    assert standing(census) == (1, 0, 0, 0)
    census.put_slice("more", None)
    census.put_slice("s", None)
    assert standing(census) == (0, 0, 0, 0)
    assert not census._incomplete


def test_a_sound_device_of_another_kind_does_not_serve():
    census = Census()
    devices = (SeenDevice(name="a", kind=GPU, is_tainted=True), SeenDevice(name="b", kind=MIG))
    census.put_slice("s", SeenSlice(pool="n", node="n", devices=devices))
    assert standing(census) == (0, 1, 1, 0)
    assert standing(census, mig) == (1, 0, 0, 0)
    assert standing(census, anything) == (1, 0, 0, 0)


def test_a_node_that_is_full_serves_also_where_its_devices_are_held():
    census = Census()
    census.put_slice("s", a_slice("n", False))
    census.put_claim("a/c", SeenClaim(name="a/c", devices=(("n", "d0"),)))
    assert census.devices(gpu).allocatable == 0
    assert standing(census) == (1, 0, 0, 0)


def test_of_several_pools_of_a_node_one_that_serves_is_enough():
    census = Census()
    census.put_slice("bad", a_slice("n", True))
    census.put_slice("good", SeenSlice(pool="n-2", node="n", devices=(SeenDevice(name="x", kind=GPU),)))
    assert standing(census) == (1, 0, 0, 0)
    census.put_slice("good", None)
    assert standing(census) == (0, 1, 1, 0)


def test_where_the_device_plugin_serves_devices_that_cannot_be_had_are_no_matter():
    census = Census()
    census.put_slice("s", a_slice("n", True))
    census.put_node("n", SeenNode(name="n", allocatable=((NAME, 8),)))
    assert census.nodes(NAME, gpu).device_plugin == 1
    assert standing(census) == (0, 0, 0, 0)


def test_kinds_that_are_gone_are_not_remembered():
    census = Census()
    census.put_slice("s", DEVICES)
    assert set(census.kinds()) == {GPU, MIG}
    census.put_slice("s", None)
    assert census.kinds() == ()
    assert not census._nodes_with
    assert not census._of_pool
    assert not census._counted


# --- any order of changes gives what counting all at once gives ----------------------------------

POOLS = st.sampled_from(["n1", "n2"])
KINDS = st.sampled_from([GPU, MIG])
SEEN_DEVICES = st.builds(
    SeenDevice,
    name=st.sampled_from(["a", "b", "c"]),
    kind=KINDS,
    is_tainted=st.booleans(),
    consumes=st.sampled_from([(), slots(0), slots(1), slots(0, 1)]),
    shares=st.sampled_from([0, 0, 3]),
)
SLICES = st.builds(
    SeenSlice,
    pool=POOLS,
    generation=st.integers(1, 2),
    total=st.integers(1, 2),
    devices=st.lists(SEEN_DEVICES, max_size=3, unique_by=lambda each: each.name).map(tuple),
    counters=st.sampled_from([(), slots(0, 1)]),
).map(lambda each: SeenSlice(**{name: getattr(each, name) for name in SeenSlice.__slots__} | {"node": each.pool}))
CLAIMS = st.builds(
    SeenClaim,
    name=st.just("ns/c"),
    classes=st.lists(st.sampled_from(["x", "y"]), unique=True).map(tuple),
    devices=st.lists(st.tuples(POOLS, st.sampled_from(["a", "b"])), max_size=2, unique=True).map(tuple),
    shares=st.lists(st.tuples(POOLS, st.sampled_from(["a", "b"]), st.integers(1, 2)), max_size=2).map(tuple),
)
NODES = st.builds(
    SeenNode, name=st.just("n"), allocatable=st.sampled_from([(), ((NAME, 0),), ((NAME, 3),), (("other/x", 1),)])
)
KEYS = st.sampled_from(["n1", "n2", "n3"])


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.census = Census()
        self.told = {"slice": {}, "claim": {}, "node": {}}

    def tell(self, what, key, seen):
        getattr(self.census, f"put_{what}")(key, seen)
        self.told[what].pop(key, None)
        if seen is not None:
            self.told[what][key] = seen

    @rule(key=KEYS, seen=st.none() | SLICES)
    def change_slice(self, key, seen):
        self.tell("slice", key, seen)

    @rule(key=KEYS, seen=st.none() | CLAIMS)
    def change_claim(self, key, seen):
        self.tell("claim", key, seen)

    @rule(key=KEYS, seen=st.none() | NODES)
    def change_node(self, key, seen):
        self.tell("node", key, seen)

    @invariant()
    def is_what_counting_all_at_once_gives(self):
        fresh = Census()
        for what, items in self.told.items():
            for key, seen in items.items():
                getattr(fresh, f"put_{what}")(key, seen)
        for matches in (gpu, mig, anything):
            assert self.census.devices(matches) == fresh.devices(matches)
            assert self.census.nodes(NAME, matches) == fresh.nodes(NAME, matches)
            assert standing(self.census, matches) == standing(fresh, matches)
            places = self.census.places(matches)
            assert places == fresh.places(matches)
            distinct = {node: found.distinct for node, found in fresh.places(matches).items()}
            assert {node: found.distinct for node, found in places.items()} == distinct
        for name in ("x", "y"):
            assert self.census.users(name) == fresh.users(name)
        assert set(self.census.kinds()) == set(fresh.kinds())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
