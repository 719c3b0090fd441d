from hypothesis import given
from hypothesis import strategies as st

from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceGroup,
    Layout,
    Pool,
    Slice,
    lay_out,
    validate,
)


def group(index, *, devices, counted):
    counter_sets = (CounterSet(name=f"set-{index}", counters={"memory-slice-0": 1}),) if counted else ()
    consumes = (CounterConsumption(counter_set=f"set-{index}", counters={"memory-slice-0": 1}),) if counted else ()
    return DeviceGroup(
        devices=tuple(Device(name=f"gpu-{index}-{number}", consumes=consumes) for number in range(devices)),
        counter_sets=counter_sets,
    )


groups = st.lists(st.tuples(st.integers(1, 70), st.booleans()), max_size=16).map(
    lambda shapes: tuple(group(i, devices=n, counted=counted) for i, (n, counted) in enumerate(shapes))
)


@given(groups)
def test_every_pool_fits_the_limits_and_nothing_is_lost_or_reordered(groups):
    slices = lay_out(Pool(name="node-a", groups=groups))
    validate(slices)
    assert [device for part in slices for device in part.devices] == [d for g in groups for d in g.devices]
    assert [s for part in slices for s in part.counter_sets] == [s for g in groups for s in g.counter_sets]


@given(groups)
def test_a_gpu_with_counters_shares_its_slice_with_no_other(groups):
    for part in lay_out(Pool(name="node-a", groups=groups)):
        sets = {consumption.counter_set for device in part.devices for consumption in device.consumes}
        assert len(sets) <= 1
        assert not sets or all(device.consumes for device in part.devices)


@given(groups)
def test_the_devices_of_a_small_gpu_stay_together(groups):
    slices = lay_out(Pool(name="node-a", groups=groups))
    for one in groups:
        if len(one.devices) <= 64:
            assert sum(one.devices[0] in part.devices for part in slices) == 1
            assert any({d.name for d in one.devices} <= {d.name for d in part.devices} for part in slices)


def test_eight_partitioned_gpus_take_one_counter_slice_and_eight_device_slices():
    slices = lay_out(Pool(name="n", groups=tuple(group(i, devices=26, counted=True) for i in range(8))))
    assert [(len(part.counter_sets), len(part.devices)) for part in slices] == [(8, 0)] + [(0, 26)] * 8


def test_sixteen_partitioned_gpus_take_two_counter_slices():
    slices = lay_out(Pool(name="n", groups=tuple(group(i, devices=26, counted=True) for i in range(16))))
    assert [len(part.counter_sets) for part in slices[:3]] == [8, 8, 0]


def test_whole_gpus_share_one_slice():
    slices = lay_out(Pool(name="n", groups=tuple(group(i, devices=1, counted=False) for i in range(16))))
    assert [len(part.devices) for part in slices] == [16]


def test_a_pool_without_devices_is_one_empty_slice():
    assert lay_out(Pool(name="n", groups=())) == (Slice(),)


@given(groups)
def test_kubernetes_1_34_finds_each_counter_set_beside_its_devices(groups):
    pool = Pool(name="node-a", groups=groups)
    slices = lay_out(pool, Layout.TOGETHER)
    validate(slices, Layout.TOGETHER)
    wanted = {device.name for one in groups for device in one.devices}
    assert sorted(device.name for part in slices for device in part.devices) == sorted(wanted)
    assert [s for part in slices for s in part.counter_sets] == [s for g in groups for s in g.counter_sets]
    assert all(len(part.counter_sets) <= 1 for part in slices)


def test_devices_find_their_counter_set_however_the_pool_mixes_gpus():
    first, second = (group(index, devices=2, counted=True) for index in range(2))
    mixed = (
        DeviceGroup(
            devices=(first.devices[0], second.devices[0]), counter_sets=(*first.counter_sets, *second.counter_sets)
        ),
        DeviceGroup(devices=(first.devices[1], second.devices[1])),
    )
    slices = lay_out(Pool(name="n", groups=mixed), Layout.TOGETHER)
    found = [[device.name for device in part.devices] for part in slices]
    assert found == [["gpu-0-0", "gpu-0-1"], ["gpu-1-0", "gpu-1-1"]]
    validate(slices, Layout.TOGETHER)
