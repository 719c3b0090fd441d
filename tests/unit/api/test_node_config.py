"""What a document of node configurations may say, and how mistakes in it are told."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver import api
from dradriver.api import node_config
from dradriver.api.node_config import NodeConfig, decode, decode_config, encode_config
from dradriver.api.problems import Problem
from dradriver.gpu.policy import Detail, Order
from dradriver.gpu.profiles import ALL, STANDARD, MigOffer

UUID = "GPU-12345678-abcd-1234-1234-123456789abc"


def document(**configs):
    return {"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": configs}


def mistakes(config):
    """What is told of one configuration, without the path that leads to it."""
    told = decode_config(config, name="x")
    assert isinstance(told, tuple), "there is no mistake"
    return [str(problem).removeprefix("configs.x").removeprefix(".") for problem in told]


def filter_mistakes(**fields):
    return [text.removeprefix("gpus[0].filter") for text in mistakes({"gpus": [{"filter": fields}]})]


# --- what is understood ---------------------------------------------------------------------------


def test_a_full_configuration():
    config = {
        "gpus": [
            {
                "filter": {
                    "uuids": [UUID],
                    "indices": [0, 7],
                    "pciBusIDs": ["0000:41:00.0"],
                    "productNames": ["*A100*"],
                    "deviceIDs": ["0x20B010DE"],
                },
                "mig": "dynamic",
                "profiles": ["1g.5gb", "1g.5gb+me"],
            },
            {"mig": "off", "profiles": "all"},
        ],
        "order": "spread",
        "publish": "lean",
        "healthPolicy": "strict",
    }
    decoded = decode(document(a100=config))
    assert decoded.all_problems() == ()
    found = decoded.configs["a100"]
    assert found.gpus[0].filter.indices == [0, 7]
    assert found.gpus[0].profiles == ["1g.5gb", "1g.5gb+me"]
    assert (found.gpus[1].filter, found.gpus[1].mig, found.gpus[1].profiles) == (None, "off", "all")
    assert (found.order, found.publish, found.health_policy) == ("spread", "lean", "strict")
    assert encode_config(found) == config


def test_nothing_has_to_be_named():
    decoded = decode(document(a={}, b={"gpus": []}, c={"gpus": [{}]}))
    assert decoded.all_problems() == ()
    assert decoded.configs["a"] == NodeConfig()
    assert encode_config(decoded.configs["a"]) == {}


def test_other_spellings_of_the_same_are_one():
    written = {"uuids": [UUID.upper()], "pciBusIDs": ["00000000:C1:00.0"], "deviceIDs": ["0x20b010de"]}
    config = decode_config({"gpus": [{"filter": written}]}, name="x")
    found = config.gpus[0].filter
    assert (found.uuids, found.pci_bus_ids, found.device_ids) == ([UUID], ["0000:c1:00.0"], ["0x20B010DE"])


@pytest.mark.parametrize(
    ("field", "owner", "words"),
    [
        ("order", node_config.NodeConfig, set(Order)),
        ("publish", node_config.NodeConfig, set(Detail)),
        ("mig", node_config.GpuRule, set(MigOffer)),
    ],
)
def test_the_words_are_those_of_the_policy(field, owner, words):
    union = owner.model_fields[field].annotation
    assert {word for choice in get_args(union) for word in get_args(choice)} == words


@pytest.mark.parametrize("word", [STANDARD, ALL])
def test_the_words_for_profiles_are_those_of_the_flag(word):
    assert decode_config({"gpus": [{"profiles": word}]}, name="x").gpus[0].profiles == word


@pytest.mark.parametrize("name", ["default", "a100", "all-1g.10gb.me", "A", "x" * 63, "1"])
def test_a_name_is_what_a_label_can_hold(name):
    assert name in decode(document(**{name: {}})).configs


# --- what is not ----------------------------------------------------------------------------------


def test_all_mistakes_are_told_at_once_with_path_value_and_what_is_allowed():
    config = {"gpus": [{"mig": False, "profile": "all"}, {"filter": None}], "order": "random", "publsh": "lean"}
    assert mistakes(config) == [
        "gpus[0].mig: is false; allowed: static, dynamic, off",
        "gpus[0].profile: is not known; allowed are filter, mig, profiles",
        "gpus[1].filter: is empty; give it a value, or leave the field out",
        "order: is 'random'; allowed: packed, spread, nvidia",
        "publsh: is not known; allowed are gpus, order, publish, healthPolicy",
    ]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (None, ": is empty; must be a mapping"),
        ([], ": is a list; must be a mapping"),
        ("a100", ": is 'a100'; must be a mapping"),
        ({"gpus": {}}, "gpus: is a mapping; must be a list"),
        ({"gpus": ["all"]}, "gpus[0]: is 'all'; must be a mapping"),
        ({"gpus": None}, "gpus: is empty; give it a value, or leave the field out"),
        ({"publish": "some"}, "publish: is 'some'; allowed: full, lean"),
        ({"order": 1}, "order: is 1; allowed: packed, spread, nvidia"),
        ({"gpus": [{"mig": "on"}]}, "gpus[0].mig: is 'on'; allowed: static, dynamic, off"),
        (
            {"gpus": [{"profiles": "large"}]},
            "gpus[0].profiles: is 'large'; allowed: standard, all, or a list of MIG profiles",
        ),
        ({"gpus": [{"profiles": []}]}, "gpus[0].profiles: must not be empty"),
        (
            {"gpus": [{"profiles": ["1g.10gb", "all"]}]},
            "gpus[0].profiles[1]: is 'all'; must be a MIG profile such as 1g.10gb or 1g.10gb+me",
        ),
        ({"gpus": [{"profiles": [1]}]}, "gpus[0].profiles[0]: is 1; must be a text"),
        (
            {"gpus": [{"mig": "off"}, {"filter": {"indices": [0]}}]},
            "gpus: the rule at [0] has no filter, so the ones behind it find no GPU: put it last",
        ),
        ({"gpus": [{}] * 65}, "gpus: must have at most 64 entries"),
    ],
)
def test_a_mistake_in_a_configuration(config, told):
    assert mistakes(config) == [told.removeprefix(".")]


@pytest.mark.parametrize("name", ["", "Strict", "a_b", "-a", "a-", "x" * 64])
def test_a_health_policy_is_a_name(name):
    assert mistakes({"healthPolicy": name}) == [
        f"healthPolicy: is {name!r}; must be a name: at most 63 small letters, digits and dashes, no dash at either end"
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ": name at least one thing, or leave `filter` out for a rule for all other GPUs"),
        ({"uuid": UUID}, ".uuid: is not known; allowed are uuids, indices, pciBusIDs, productNames, deviceIDs"),
        ({"indices": []}, ".indices: must not be empty"),
        ({"indices": 0}, ".indices: is 0; must be a list"),
        ({"indices": ["0"]}, ".indices[0]: is '0'; must be a whole number"),
        ({"indices": [True]}, ".indices[0]: is true; must be a whole number"),
        ({"indices": [-1]}, ".indices[0]: is -1; must be from 0 to 1023"),
        ({"indices": [1024]}, ".indices[0]: is 1024; must be from 0 to 1023"),
        ({"indices": [0] * 257}, ".indices: must have at most 256 entries"),
        ({"productNames": [""]}, ".productNames[0]: is ''; must not be empty"),
        ({"productNames": ["*A100*", None]}, ".productNames[1]: is empty; must be a text"),
    ],
)
def test_a_mistake_in_a_filter(fields, told):
    assert filter_mistakes(**fields) == [told]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("uuids", "GPU-1", "must be a GPU's UUID as `nvidia-smi -L` shows it"),
        ("uuids", UUID.replace("GPU", "MIG"), "must be a GPU's UUID"),
        ("pciBusIDs", "41:00.0", "must be a PCI bus id with its domain, such as 0000:41:00.0"),
        ("pciBusIDs", "0000:41:00.8", "must be a PCI bus id"),
        ("deviceIDs", "0x20B0", "must be a PCI device id and vendor id, eight hex digits such as 0x233010DE"),
        ("deviceIDs", "20B010DE", "must be a PCI device id"),
        ("deviceIDs", "0x20B010DE:0x134F10DE", "must be a PCI device id"),
        ("productNames", "x" * 257, "must have at most 256 characters"),
    ],
)
def test_an_identity_that_is_none(field, value, told):
    (text,) = filter_mistakes(**{field: [value]})
    assert text.startswith(f".{field}[0]: is '")
    assert told in text


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a+b", "x" * 64, "a/b", "ä", "a\n"])
def test_a_name_that_no_label_can_hold(name):
    decoded = decode(document(**{name: {}, "sound": {}}))
    assert set(decoded.configs) == {"sound"}
    assert "is not a name that a node label can hold" in str(decoded.broken[name][0])


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        (None, ["is empty; must be a mapping"]),
        ([], ["is a list; must be a mapping"]),
        ({}, ["apiVersion: is missing", "kind: is missing", "configs: is missing"]),
        (document() | {"apiVersion": "v1"}, ["apiVersion: is 'v1'; allowed: dradriver.dev/v1alpha1"]),
        (document() | {"kind": "NodeConfig"}, ["kind: is 'NodeConfig'; allowed: NodeConfigs"]),
        (document() | {"configs": []}, ["configs: is a list; must be a mapping"]),
        (document() | {"version": 1}, ["version: is not known; allowed are apiVersion, kind, configs"]),
        (document(**{f"c{n}": {} for n in range(257)}), ["configs: has 257 entries; at most 256 are allowed"]),
    ],
)
def test_a_document_that_is_none(whole, told):
    decoded = decode(whole)
    assert [str(problem) for problem in decoded.problems] == told
    assert (decoded.configs, decoded.broken) == ({}, {})


def test_a_mistake_in_one_configuration_leaves_the_others():
    decoded = decode(document(good={"order": "packed"}, bad={"order": "?"}))
    assert set(decoded.configs) == {"good"}
    assert [str(problem) for problem in decoded.broken["bad"]] == [
        "configs.bad.order: is '?'; allowed: packed, spread, nvidia"
    ]
    assert decoded.problems == ()
    assert decoded.all_problems() == decoded.broken["bad"]


def test_what_was_found_before_counts_where_it_belongs():
    inside = Problem(path=("configs", "a", "order"), text="stands there twice")
    decoded = decode(document(a={}, b={}), found=[inside])
    assert (set(decoded.configs), decoded.broken) == ({"b"}, {"a": (inside,)})
    outside = Problem(path=("kind",), text="stands there twice")
    assert decode(document(a={}), found=[outside]).problems == (outside,)
    assert decode({}, found=[inside]).problems[0] == inside


# --- whatever it is -------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["gpus", "off", "all", "filter"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text() | st.sampled_from(["gpus", "filter", "mig", "profiles", "order", "uuids", "[key]", "names"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(anything)
def test_no_configuration_makes_it_fail(config):
    decoded = decode(document(x=config))
    assert len(decoded.configs) + len(decoded.broken) == 1
    for problem in decoded.all_problems():
        assert "\n" not in str(problem)
        assert str(problem).startswith("configs.x")


@given(anything)
def test_no_document_makes_it_fail(whole):
    assert decode(whole).configs == {}


hexes = st.text("0123456789abcdef", min_size=8, max_size=8)
filters = st.fixed_dictionaries(
    {"indices": st.lists(st.integers(0, 1023), min_size=1, max_size=4)},
    optional={
        "uuids": st.lists(st.uuids().map(lambda uuid: f"GPU-{uuid}"), min_size=1, max_size=3),
        "productNames": st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3),
        "deviceIDs": st.lists(hexes.map(lambda text: f"0x{text}"), min_size=1, max_size=3),
        "pciBusIDs": st.lists(hexes.map(lambda text: f"{text}:{text[:2]}:{text[2:4]}.0"), min_size=1, max_size=3),
    },
)
rules = st.fixed_dictionaries(
    {"filter": filters},
    optional={
        "mig": st.sampled_from(list(MigOffer)).map(str),
        "profiles": st.sampled_from(["standard", "all", ["1g.10gb"], ["1g.10gb+me", "1g.24gb-me"]]),
    },
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.lists(rules, max_size=4),
        "order": st.sampled_from(list(Order)).map(str),
        "publish": st.sampled_from(list(Detail)).map(str),
        "healthPolicy": st.just("strict-2"),
    },
)


@given(configs)
def test_what_is_encoded_is_decoded_to_the_same(written):
    config = decode_config(written, name="x")
    assert isinstance(config, NodeConfig)
    assert decode_config(encode_config(config), name="x") == config
    assert encode_config(config).keys() == written.keys()


def test_labels_are_ours_and_names_that_kubernetes_allows():
    assert api.CONFIG_LABEL == "dradriver.dev/config"
    assert api.ALLOCATION_LABEL == "dradriver.dev/allocation"
