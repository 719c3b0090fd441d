"""Taking over mig-parted's files."""

import json

import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.api.node_config import decode
from dradriver.gpu.policy import OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.nodeconfig.migparted import MigPartedError, import_mig_parted
from dradriver.nodeconfig.policy import make_policy

H100, A30 = "0x233010DE", "0x20B710DE"


def written(*entries, name="x", **more):
    return json.dumps({"version": "v1", "mig-configs": {name: list(entries)}} | more).encode()


def entry(devices="all", *, enabled=True, mig=None, **more):
    made = {"devices": devices, "mig-enabled": enabled} | {
        name.replace("_", "-"): value for name, value in more.items()
    }
    return made if mig is None else made | {"mig-devices": mig}


def rules(*entries):
    return import_mig_parted(written(*entries)).document["configs"]["x"]["gpus"]


def notices(*entries):
    return [text for text in import_mig_parted(written(*entries)).notices if text.startswith("mig-configs.x")]


def mistakes(data):
    with pytest.raises(MigPartedError) as caught:
        import_mig_parted(data)
    assert str(caught.value) == "; ".join(str(problem) for problem in caught.value.problems)
    return [str(problem).removeprefix("mig-configs.x") for problem in caught.value.problems]


# --- what becomes of it ---------------------------------------------------------------------------


def test_profiles_become_the_list_of_what_is_made_on_demand():
    assert rules(entry(mig={"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 0})) == [
        {"mig": "dynamic", "profiles": ["1g.10gb", "2g.20gb"]}
    ]
    assert rules(entry(mig={"1g.10gb+me": 1, "1g.24gb-me": 4, "1g.24gb+me.all": 1, "1g.24gb+gfx": 4}))[0][
        "profiles"
    ] == ["1g.10gb+me", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb+gfx"]


def test_that_counts_are_not_kept_is_said_where_there_were_any():
    said = import_mig_parted(written(entry(mig={"1g.10gb": 7}))).notices
    assert said[0].startswith("counts are not taken over")
    assert "offered whole" in said[1]
    assert import_mig_parted(written(entry(enabled=False))).notices == ()


def test_disabled_means_whole_gpus_only():
    assert rules(entry(enabled=False)) == [{"mig": "off"}]
    assert rules(entry(enabled=False, mig={})) == [{"mig": "off"}]


def test_enabled_without_devices_means_what_somebody_makes():
    assert rules(entry(mig={})) == [{"mig": "static"}]
    assert notices(entry(mig={})) == [
        "mig-configs.x[0].mig-devices: is empty: MIG instances that somebody makes are offered; dynamic would make them"
    ]


def test_filters_are_taken_over():
    found = rules(entry([0, 1], enabled=False, device_filter=H100), entry(enabled=False, device_filter=[H100, A30]))
    assert found == [
        {"filter": {"deviceIDs": [H100, A30]}, "mig": "off"},
        {"filter": {"indices": [0, 1], "deviceIDs": [H100]}, "mig": "off"},
        {"mig": "static"},
    ]


@pytest.mark.parametrize("nothing", ["", [], None])
def test_an_empty_filter_is_none(nothing):
    assert rules(entry(enabled=False, device_filter=nothing)) == [{"mig": "off"}]


def test_ids_are_spelled_one_way_and_named_once():
    (first, _) = rules(entry(enabled=False, device_filter=["0x233010de", H100]))
    assert first["filter"] == {"deviceIDs": [H100]}


def test_the_last_entry_for_a_gpu_decides_as_there():
    config = import_mig_parted(
        written(entry([0, 1, 2], enabled=False), entry([1], mig={}), entry([2, 3], mig={"1g.10gb": 1}))
    )
    decoded = decode(config.document)
    policy = make_policy(decoded.configs["x"], OfferPolicy())
    found = [policy.rule(gpu, index).mig for index, gpu in enumerate(gpus("5xh100-80gb"))]
    assert found == [MigOffer.OFF, MigOffer.STATIC, MigOffer.DYNAMIC, MigOffer.DYNAMIC, MigOffer.STATIC]


def test_what_never_had_an_effect_is_left_out():
    entries = (entry([0], mig={"1g.10gb": 1}), entry(enabled=False), entry([1], mig={}))
    assert rules(*entries) == [{"filter": {"indices": [1]}, "mig": "static"}, {"mig": "off"}]
    assert notices(*entries)[-1] == (
        "mig-configs.x[0]: left out: an entry behind it is for all GPUs and is applied later"
    )


def test_gpus_that_no_entry_is_for_stay_as_they_are():
    assert rules(entry([0], mig={"1g.10gb": 1}))[-1] == {"mig": "static"}
    assert rules(entry([], mig={"1g.10gb": 1})) == [{"mig": "static"}]
    assert notices(entry([], mig={"1g.10gb": 1})) == ["mig-configs.x[0].devices: left out: the entry is for no GPU"]


def test_parts_of_gpu_instances_are_left_out():
    with_others = entry(mig={"1c.2g.20gb": 2, "2g.20gb": 1})
    assert rules(with_others) == [{"mig": "dynamic", "profiles": ["2g.20gb"]}]
    assert notices(with_others) == [
        "mig-configs.x[0].mig-devices['1c.2g.20gb']: left out: of a GPU instance this driver offers the whole, 2g.20gb"
    ]
    assert mistakes(written(entry(mig={"1c.2g.20gb": 2}))) == [
        "[0].mig-devices: has nothing that this driver offers: it makes no parts of GPU instances"
    ]


def test_a_subsystem_is_not_looked_at_and_that_is_said():
    with_subsystem = entry(enabled=False, device_filter=f"{H100}:0x16C110DE")
    assert rules(with_subsystem)[0]["filter"] == {"deviceIDs": [H100]}
    assert notices(with_subsystem) == [
        f"mig-configs.x[0].device-filter: the subsystem 0x16C110DE is not looked at: the rule is for every {H100}"
    ]


def test_yaml_is_read_with_all_that_people_write():
    text = """
version: v1
mig-configs:
  all-1g.5gb:   # a name with a dot
    - devices: all
      device-filter: 0x20B010DE
      mig-enabled: true
      mig-devices: &devices
        "1g.5gb": 7
  half:
    - devices: [0, 1]
      mig-enabled: false
    - {devices: [2, 3], mig-enabled: true, mig-devices: *devices}
"""
    configs = import_mig_parted(text.encode()).document["configs"]
    assert configs["all-1g.5gb"]["gpus"][0]["filter"] == {"deviceIDs": ["0x20B010DE"]}
    assert configs["half"]["gpus"][0] == {"filter": {"indices": [2, 3]}, "mig": "dynamic", "profiles": ["1g.5gb"]}


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", ["it is empty"]),
        (b"[]", ["is a list; must be a mapping"]),
        (
            b"{}",
            ["version: is empty; must be v1", "mig-configs: must be a mapping with at least one configuration"],
        ),
        (written(entry(enabled=False), version="v2"), ["version: is 'v2'; must be v1"]),
        (written(entry(enabled=False), more=1), ["more: is not known; allowed are version, mig-configs"]),
        (
            b'{"version": "v1", "mig-configs": {}}',
            ["mig-configs: must be a mapping with at least one configuration"],
        ),
        (written(), [": must be a list with at least one entry"]),
        (written(*[entry(enabled=False)] * 64), [": has 64 entries; fewer than 64 can be taken over"]),
        (written("all"), ["[0]: is 'all'; must be a mapping"]),
        (written({}), ["[0].devices: is missing", "[0].mig-enabled: is missing"]),
        (
            written(entry(enabled=False, device=1)),
            ["[0].device: is not known; allowed are device-filter, devices, mig-enabled, mig-devices"],
        ),
        (
            written(entry("some", enabled=False)),
            ["[0].devices: must be all, or a list of numbers from 0 to 1023"],
        ),
        (written(entry([-1], enabled=False)), ["[0].devices: must be all, or a list of numbers from 0 to 1023"]),
        (written(entry([True], enabled=False)), ["[0].devices: must be all, or a list of numbers from 0 to 1023"]),
        (written(entry(enabled="yes", mig={})), ["[0].mig-enabled: is 'yes'; must be true or false"]),
        (written(entry()), ["[0].mig-devices: is missing, and needed where mig-enabled is true"]),
        (
            written(entry(enabled=False, mig={"1g.10gb": 1})),
            ["[0].mig-devices: must be left out where mig-enabled is false"],
        ),
        (
            written(entry(mig=["1g.10gb"])),
            ["[0].mig-devices: is a list; must be a mapping of profiles to counts"],
        ),
        (written(entry(mig={"1g.10gb": "7"})), ["[0].mig-devices['1g.10gb']: is '7'; must be a count"]),
        (written(entry(mig={"1g.10gb": -1})), ["[0].mig-devices['1g.10gb']: is -1; must be a count"]),
        (written(entry(mig={"1g.10gb": True})), ["[0].mig-devices['1g.10gb']: is true; must be a count"]),
        (written(entry(mig={"1g.10gb": 0})), ["[0].mig-devices: all counts are 0"]),
        (
            written(entry(mig={"small": 1})),
            ["[0].mig-devices.small: is not a MIG profile such as 1g.10gb or 1g.10gb+me"],
        ),
        (
            written(entry(enabled=False, device_filter=["A100-SXM4-40GB"])),
            ["[0].device-filter: is 'A100-SXM4-40GB'; must be device and vendor id, such as 0x233010DE"],
        ),
        (
            written(entry(enabled=False, device_filter=7)),
            ["[0].device-filter: is 7; must be device and vendor id, such as 0x233010DE"],
        ),
    ],
)
def test_a_mistake_is_told_where_it_is(data, told):
    assert mistakes(data) == told


def test_a_name_that_no_label_can_hold():
    (text,) = mistakes(written(entry(enabled=False), name="a+b"))
    assert text.startswith("mig-configs['a+b']: is not a name that a node label can hold")


def test_all_mistakes_are_told_at_once():
    found = mistakes(written(entry("x", mig={"y": 1}), {"devices": "all"}))
    assert [text.partition(":")[0] for text in found] == ["[0].devices", "[0].mig-devices.y", "[1].mig-enabled"]


def test_a_key_that_stands_there_twice():
    text = b'{"version": "v1", "mig-configs": {"x": [{"devices": "all", "mig-enabled": false, "devices": [0]}]}}'
    assert mistakes(text) == ["[0].devices: stands there twice, the second time at line 1"]


# --- whatever it is -------------------------------------------------------------------------------

values = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["all", "", H100, "1g.10gb"])
things = (
    values | st.lists(values, max_size=2) | st.dictionaries(st.sampled_from(["1g.10gb", "1c.2g.20gb", "x"]), values)
)
names = st.sampled_from(["devices", "mig-enabled", "mig-devices", "device-filter"])
good = st.builds(
    entry,
    st.just("all") | st.lists(st.integers(0, 7), max_size=3),
    mig=st.dictionaries(st.sampled_from(["1g.10gb", "1c.2g.20gb", "3g.40gb+me"]), st.integers(0, 2), max_size=3),
    device_filter=st.lists(st.sampled_from([H100, A30, f"{A30}:0x16C110DE"]), max_size=2),
)


@given(st.lists(good | st.dictionaries(names, things) | things, max_size=4))
def test_what_is_taken_over_has_no_mistakes(entries):
    try:
        imported = import_mig_parted(written(*entries))
    except MigPartedError as error:
        assert error.problems  # noqa: PT017 (either is fine)
    else:
        decoded = decode(dict(imported.document))
        assert [str(problem) for problem in decoded.all_problems()] == []
        assert set(decoded.configs) == {"x"}


@given(st.binary(max_size=100))
def test_no_bytes_make_it_fail_otherwise(data):
    with pytest.raises(MigPartedError):
        import_mig_parted(data)
