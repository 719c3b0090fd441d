import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu import counters
from dradriver.gpu.model import MigProfile, Placement
from dradriver.gpu.profiles import ProfileChoice

ALL = ProfileChoice(rule="all")


def packings(offered, length):
    """Every set of partitions side by side, as lists of (profile, placement)."""

    def extend(position):
        if position >= length:
            yield []
            return
        yield from extend(position + 1)
        for profile in offered:
            for placement in profile.placements:
                if placement.start == position:
                    for rest in extend(position + placement.size):
                        yield [(profile, placement), *rest]

    return extend(0)


def within(packing, totals, engines):
    return all(sum(counters.ENGINES[name](p) for p, _ in packing) <= totals[name] for name in engines)


def allowed_multisets(gpu, offered, engines):
    totals = counters.engine_totals(gpu.profiles)
    length = max(p.start + p.size for profile in offered for p in profile.placements)
    return {
        tuple(sorted(profile.name for profile, _ in packing))
        for packing in packings(offered, length)
        if within(packing, totals, engines)
    }


@pytest.mark.parametrize(
    ("machine", "engines"),
    [
        ("1xh100-80gb", ("ofa-engines",)),
        ("1xh200", ("ofa-engines",)),
        ("1xa100-80gb", ("ofa-engines",)),
        ("1xrtx-pro-6000", ("jpeg-engines", "ofa-engines")),
    ],
)
def test_only_the_engines_that_bind_are_counted(machine, engines):
    gpu = gpus(machine, mig="on")[0]
    assert counters.binding_engines(ALL.select(gpu), counters.engine_totals(gpu.profiles)) == engines


@pytest.mark.parametrize("machine", ["1xh100-80gb", "1xa100-40gb", "1xa30", "1xrtx-pro-6000", "1xh200"])
def test_memory_slices_suffice_for_the_standard_profiles(machine):
    gpu = gpus(machine, mig="on")[0]
    assert counters.binding_engines(ProfileChoice().select(gpu), counters.engine_totals(gpu.profiles)) == ()


@pytest.mark.parametrize(
    ("machine", "count"), [("1xa100-40gb", 128), ("1xh100-80gb", 128), ("1xa30", 20), ("1xrtx-pro-6000", 115)]
)
def test_counters_allow_exactly_the_sets_the_hardware_allows(machine, count):
    gpu = gpus(machine, mig="on")[0]
    offered = ALL.select(gpu)
    engines = counters.binding_engines(offered, counters.engine_totals(gpu.profiles))
    assert len(allowed_multisets(gpu, offered, engines)) == count  # the empty set is one of them


@pytest.mark.parametrize("machine", ["1xh100-80gb", "1xh100-nvl", "1xa100-80gb", "1xa30", "1xrtx-pro-6000", "1xb200"])
def test_counters_allow_as_many_of_one_profile_as_nvml_says(machine):
    gpu = gpus(machine, mig="on")[0]
    offered = ALL.select(gpu)
    engines = counters.binding_engines(offered, counters.engine_totals(gpu.profiles))
    allowed = allowed_multisets(gpu, offered, engines)
    for profile in offered:
        most = max(len(names) for names in allowed if set(names) <= {profile.name})
        assert most == profile.max_instances, profile.name


def test_a_partition_consumes_its_slices_and_the_counted_engines_only():
    gpu = gpus("1xh100-80gb")[0]
    media = next(profile for profile in gpu.profiles if profile.name == "1g.10gb+me")
    assert counters.partition_counters(media, Placement(start=3, size=1), ["ofa-engines"]) == {
        "memory-slice-3": 1,
        "ofa-engines": 1,
    }


def make(size, compute, engines, starts):
    decoders, ofa = engines
    return MigProfile(
        id=size * 100 + decoders * 10 + ofa,
        name=f"p{size}{decoders}{ofa}",
        compute_slices=compute,
        max_instances=1,
        memory_mib=1,
        multiprocessors=compute,
        copy_engines=compute,
        decoders=decoders,
        encoders=0,
        jpeg_engines=ofa,
        ofa_engines=ofa,
        placements=tuple(Placement(start=start, size=size) for start in starts),
    )


profiles = st.lists(
    st.builds(
        lambda size, engines, mask: make(size, size, engines, [s for s in range(7 - size) if mask >> s & 1] or [0]),
        st.integers(1, 4),
        st.tuples(st.integers(0, 2), st.integers(0, 1)),
        st.integers(0, 63),
    ),
    min_size=1,
    max_size=4,
)


@given(profiles)
def test_the_chosen_counters_refuse_what_all_counters_refuse(offered):
    totals = counters.engine_totals(offered)
    chosen = counters.binding_engines(offered, totals)
    length = max(p.start + p.size for profile in offered for p in profile.placements)
    for packing in packings(offered, length):
        assert within(packing, totals, chosen) == within(packing, totals, counters.ENGINES)


@given(profiles)
def test_no_chosen_counter_can_be_left_out(offered):
    totals = counters.engine_totals(offered)
    chosen = counters.binding_engines(offered, totals)
    length = max(p.start + p.size for profile in offered for p in profile.placements)
    every = [(within(x, totals, chosen), x) for x in packings(offered, length)]
    for name in chosen:
        others = [other for other in chosen if other != name]
        assert any(within(packing, totals, others) != fits for fits, packing in every)


def test_the_set_holds_every_slice_once_and_the_totals():
    gpu = gpus("1xa30", mig="on")[0]
    totals = counters.engine_totals(gpu.profiles)
    assert counters.set_counters(ALL.select(gpu), ["ofa-engines"], totals) == {
        "memory-slice-0": 1,
        "memory-slice-1": 1,
        "memory-slice-2": 1,
        "memory-slice-3": 1,
        "ofa-engines": 1,
    }
