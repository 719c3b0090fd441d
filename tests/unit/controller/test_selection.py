import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api import Select, Sharing
from controller.bridges import expressions, matches
from controller.watching.model import DeviceKind

GI = 1 << 30
WHOLE = DeviceKind(type="gpu", product_name="H100", memory=80 * GI)
SMALL = DeviceKind(type="mig", profile="1g.10gb", product_name="H100", memory=10 * GI)
SHARED = DeviceKind(type="gpu", product_name="H100", memory=80 * GI, sharing="mps")
RENAMED = DeviceKind(type="gpu", product_name="A30", memory=24 * GI, sharing="time-slicing", renamed=True)
UNKNOWN = DeviceKind()


def ours(select):
    """What we say ourselves."""
    return expressions(select)[0]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (Select(type="gpu"), {WHOLE, SHARED, RENAMED}),
        (Select(type="gpu", renamed=True), {RENAMED}),
        (Select(type="gpu", renamed=False), {WHOLE, SHARED}),
        (Select(type="gpu", sharing=Sharing.TIME_SLICING, renamed=False), set()),
        (Select(type="mig"), {SMALL}),
        (Select(type="any"), {WHOLE, SMALL, SHARED, RENAMED}),
        (Select(type="any", renamed=True), {RENAMED}),
        (Select(type="any", profiles=("1g.10gb",)), {WHOLE, SMALL, SHARED, RENAMED}),
        (Select(type="any", profiles=("2g.20gb", "3g.40gb")), {WHOLE, SHARED, RENAMED}),
        (Select(type="mig", profiles=("2g.20gb", "1g.10gb")), {SMALL}),
        (Select(type="mig", profiles=("2g.20gb",)), set()),
        (Select(profile="1g.10gb"), {SMALL}),
        (Select(profile="2g.20gb"), set()),
        (Select(product_name="H100"), {WHOLE, SMALL, SHARED}),
        (Select(product_name="A100"), set()),
        (Select(memory_min=10 * GI), {WHOLE, SMALL, SHARED, RENAMED}),
        (Select(memory_min=10 * GI + 1), {WHOLE, SHARED, RENAMED}),
        (Select(memory_max=10 * GI), {SMALL}),
        (Select(memory_max=10 * GI - 1), set()),
        (Select(type="gpu", sharing=Sharing.NONE), {WHOLE}),
        (Select(sharing=Sharing.MPS), {SHARED}),
        (Select(cel="anything"), {WHOLE, SMALL, SHARED, RENAMED, UNKNOWN}),
    ],
)
def test_which_devices_are_selected(select, expected):
    assert {kind for kind in (WHOLE, SMALL, SHARED, RENAMED, UNKNOWN) if matches(select, kind)} == expected


def test_the_expression_asks_for_the_driver_first_and_for_attributes_only_where_they_are():
    select = Select(type="mig", profile="1g.10gb", memory_min=10 * GI, sharing=Sharing.TIME_SLICING)
    assert ours(select).split(" && ") == [
        "device.driver == 'gpu.nvidia.com'",
        "has(device.attributes['gpu.nvidia.com'].type)",
        "device.attributes['gpu.nvidia.com'].type == 'mig'",
        "has(device.attributes['gpu.nvidia.com'].profile)",
        "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'",
        "has(device.capacity['gpu.nvidia.com'].memory)",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('10Gi')) >= 0",
        "has(device.attributes['gpu.nvidia.com'].sharing)",
        "device.attributes['gpu.nvidia.com'].sharing == 'time-slicing'",
    ]


def test_whole_gpus_and_partitions_of_some_profiles():
    kind, profile = (f"device.attributes['gpu.nvidia.com'].{name}" for name in ("type", "profile"))
    among = f"has({profile}) && {profile} in ['1g.10gb', '2g.20gb']"
    driver = "device.driver == 'gpu.nvidia.com' && "
    assert ours(Select(type="any")) == f"{driver}has({kind}) && {kind} in ['gpu', 'mig']"
    both = ours(Select(type="any", profiles=("1g.10gb", "2g.20gb"), renamed=False))
    assert both.startswith(f"{driver}has({kind}) && ({kind} == 'gpu' || {kind} == 'mig' && {among}) && (!has(")
    partitions = ours(Select(type="mig", profiles=("1g.10gb", "2g.20gb")))
    assert partitions == f"{driver}has({kind}) && {kind} == 'mig' && {among}"


def test_devices_that_say_nothing_of_sharing_are_not_shared():
    assert "(!has(" in ours(Select(type="gpu", sharing=Sharing.NONE))


def test_devices_that_say_nothing_of_their_name_are_not_renamed():
    field = "device.attributes['gpu.nvidia.com'].renamed"
    assert ours(Select(type="gpu", renamed=False)).endswith(f" && (!has({field}) || {field} == false)")
    assert ours(Select(type="gpu", renamed=True)).endswith(f" && has({field}) && {field} == true")


OPEN = [
    "true",
    "a || b // why",
    "true) || (true",
    "true\n) || (true //",
    "'",
]


@pytest.mark.parametrize("own", OPEN)
def test_the_users_own_expression_is_behind_ours_and_never_joined_to_it(own):
    assert expressions(Select(type="gpu", cel=own)) == (ours(Select(type="gpu")), own)


@given(st.text(min_size=1))
def test_no_expression_of_the_user_changes_ours(own):
    plain = Select(profile="1g.10gb")
    assert expressions(Select(profile="1g.10gb", cel=own)) == (ours(plain), own)


@given(st.text(max_size=20))
def test_no_product_name_gets_out_of_its_quotes(name):
    text = ours(Select(type="gpu", product_name=name))
    if name:
        literal = text.partition(".productName == ")[2]
        assert literal[0] == literal[-1] == "'"
        inside = literal[1:-1].replace("\\\\", "").replace("\\'", "")
        assert "'" not in inside
        assert not inside.endswith("\\")


FIELDS = {
    "type": st.sampled_from(["gpu", "mig", "any"]),
    "profile": st.sampled_from(["1g.10gb", "2g.20gb"]),
    "product_name": st.sampled_from(["H100", "A100"]),
}
KINDS = st.builds(
    DeviceKind,
    **FIELDS | {"type": st.sampled_from(["gpu", "mig", ""])},
    memory=st.none() | st.integers(0, 4),
    sharing=st.sampled_from(["", "none", "mps"]),
    renamed=st.booleans(),
)
MORE = st.fixed_dictionaries(
    {},
    optional=FIELDS
    | {
        "profiles": st.lists(st.sampled_from(["1g.10gb", "3g.40gb"]), max_size=2).map(tuple),
        "memory_min": st.integers(0, 4),
        "memory_max": st.integers(0, 4),
        "sharing": st.sampled_from(Sharing),
        "renamed": st.booleans(),
        "cel": st.just("true"),
    },
)


@given(MORE, MORE, KINDS)
def test_every_field_that_is_added_selects_fewer(one, other, kind):
    both = one | other
    if matches(Select(**both), kind):
        shared = {key: both[key] for key in one if one[key] == both[key]}
        assert matches(Select(**shared), kind)
