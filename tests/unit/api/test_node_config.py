"""What a document of node configurations may say, and how mistakes in it are told."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver import api
from dradriver.api import node_config
from dradriver.api.node_config import (
    BUILT_IN_POLICIES,
    HealthPolicy,
    NodeConfig,
    decode,
    decode_config,
    decode_policy,
    encode_config,
    encode_policy,
)
from dradriver.api.problems import Problem
from dradriver.gpu.health import EFFECTS
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


def policy_mistakes(policy):
    told = decode_policy(policy, name="x")
    assert isinstance(told, tuple), "there is no mistake"
    return [str(problem).removeprefix("healthPolicies.x").removeprefix(".") for problem in told]


def with_policies(configs, **policies):
    return document(**configs) | {"healthPolicies": policies}


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
        "gpus[0].profile: is not known; allowed are filter, mig, profiles, sharing",
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


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"sharing": None}, ".sharing: is empty; give it a value, or leave the field out"),
        ({"sharing": 4}, ".sharing: is 4; must be a mapping"),
        ({"sharing": {}}, ".sharing.replicas: is missing"),
        (
            {"sharing": {"replicas": 1}},
            ".sharing.replicas: is 1; must be from 2 to 256; leave `sharing` out for GPUs that are not shared",
        ),
        (
            {"sharing": {"replicas": 257}},
            ".sharing.replicas: is 257; must be from 2 to 256; leave `sharing` out for GPUs that are not shared",
        ),
        ({"sharing": {"replicas": "4"}}, ".sharing.replicas: is '4'; must be a whole number"),
        ({"sharing": {"replicas": True}}, ".sharing.replicas: is true; must be a whole number"),
        ({"sharing": {"replicas": 4, "rename": "yes"}}, ".sharing.rename: is 'yes'; must be true or false"),
        (
            {"sharing": {"replicas": 4, "rename": None}},
            ".sharing.rename: is empty; give it a value, or leave the field out",
        ),
        (
            {"sharing": {"replicas": 4, "strategy": "MPS"}},
            ".sharing.strategy: is not known; allowed are replicas, rename",
        ),
        (
            {"mig": "dynamic", "sharing": {"replicas": 4}},
            (
                ": has both `mig: dynamic` and `sharing`; a GPU is either cut for claims or shared by them: "
                "drop one of these"
            ),
        ),
    ],
)
def test_a_mistake_in_sharing(rule, told):
    assert mistakes({"gpus": [{"filter": {"indices": [0]}}, rule]}) == [f"gpus[1]{told}"]


@pytest.mark.parametrize("mig", [None, "static", "off"])
@pytest.mark.parametrize("replicas", [2, 256])
def test_gpus_that_are_not_cut_may_be_shared(mig, replicas):
    rule = {"sharing": {"replicas": replicas, "rename": True}} | ({"mig": mig} if mig else {})
    config = decode_config({"gpus": [rule]}, name="x")
    assert config.gpus[0].sharing == node_config.SharingRule(replicas=replicas, rename=True)
    assert decode_config(node_config.encode_config(config), name="x") == config


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
        (document() | {"version": 1}, ["version: is not known; allowed are apiVersion, kind, configs, healthPolicies"]),
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


def test_mistakes_of_the_document_hide_none_inside():
    whole = document(a={"order": "?"}, b={}) | {"version": 1, "healthPolicies": {"p": {"memory": 1}}}
    found = [Problem(path=("configs", "b", "order"), text="twice"), Problem(path=("kind",), text="twice")]
    decoded = decode(whole, found=found)
    assert [str(problem) for problem in decoded.all_problems()] == [
        "kind: twice",
        "version: is not known; allowed are apiVersion, kind, configs, healthPolicies",
        "healthPolicies.p.memory: is 1; allowed: default, strict",
        "configs.a.order: is '?'; allowed: packed, spread, nvidia",
        "configs.b.order: twice",
    ]
    assert decoded.configs == {}
    assert [str(problem) for problem in decoded.problems_of("b")] == [
        "kind: twice",
        "version: is not known; allowed are apiVersion, kind, configs, healthPolicies",
        "configs.b.order: twice",
    ]
    assert decoded.problems_of("other") == decoded.problems


def test_too_many_configurations_do_not_hide_what_is_wrong_inside_them():
    told = decode(document(**{f"c{n}": {"order": 1} if n == 256 else {} for n in range(257)})).all_problems()
    assert [str(problem) for problem in told] == [
        "configs: has 257 entries; at most 256 are allowed",
        "configs.c256.order: is 1; allowed: packed, spread, nvidia",
    ]


# --- health policies ------------------------------------------------------------------------------

PATIENT = {
    "xids": {"31": "noSchedule", "79": "ignore"},
    "unknownXids": "warn",
    "memory": "strict",
    "expirySeconds": 600,
}


def test_a_full_health_policy():
    decoded = decode(with_policies({"a": {"healthPolicy": "patient"}, "b": {}}, patient=PATIENT))
    assert decoded.all_problems() == ()
    policy = decoded.health_policy(decoded.configs["a"])
    assert policy == decoded.policies["patient"]
    assert policy.xids == {31: "noSchedule", 79: "ignore"}
    assert (policy.unknown_xids, policy.memory, policy.expiry_seconds) == ("warn", "strict", 600)
    assert encode_policy(policy) == PATIENT
    assert decoded.health_policy(decoded.configs["b"]) is None


def test_nothing_has_to_be_named_in_a_health_policy():
    decoded = decode(with_policies({}, a={}, b={"xids": {}}))
    assert decoded.all_problems() == ()
    assert decoded.policies["a"] == HealthPolicy()
    assert encode_policy(decoded.policies["a"]) == {}


def test_two_health_policies_are_built_in():
    decoded = decode(document(a={"healthPolicy": "default"}, b={"healthPolicy": "strict"}))
    assert decoded.all_problems() == ()
    assert decoded.policies == BUILT_IN_POLICIES
    assert encode_policy(decoded.health_policy(decoded.configs["a"])) == {}
    assert encode_policy(decoded.health_policy(decoded.configs["b"])) == {"memory": "strict"}


def test_xids_may_be_numbers_or_texts():
    assert decode_policy({"xids": {31: "warn", "999": "ignore", "1": "warn"}}, name="x").xids == {
        31: "warn",
        999: "ignore",
        1: "warn",
    }


def test_the_words_for_xids_are_nothing_and_the_effects():
    words = get_args(node_config.XidWord)
    assert words[:2] == ("ignore", "warn")
    assert [word[0].upper() + word[1:] for word in words[2:]] == list(EFFECTS[1:])


XID_WRONG = "is not the number of an Xid: a whole number from 1 to 999"
WORDS = "allowed: ignore, warn, noSchedule, noExecute"
NO_POLICY = "the document has no such health policy"
WEEK = "must be from 1 to 604800 seconds, a week"


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (None, ": is empty; must be a mapping"),
        ([], ": is a list; must be a mapping"),
        ({"xid": {}}, "xid: is not known; allowed are xids, unknownXids, memory, expirySeconds"),
        ({"xids": None}, "xids: is empty; give it a value, or leave the field out"),
        ({"xids": []}, "xids: is a list; must be a mapping"),
        ({"xids": {"31": "NoSchedule"}}, f"xids.31: is 'NoSchedule'; {WORDS}"),
        ({"xids": {31: None}}, f"xids.31: is empty; {WORDS}"),
        ({"xids": {"31": True}}, f"xids.31: is true; {WORDS}"),
        ({"xids": {"31": {}}}, f"xids.31: is a mapping; {WORDS}"),
        ({"xids": {"0": "warn"}}, f"xids.0: {XID_WRONG}"),
        ({"xids": {0: "warn"}}, f"xids.0: {XID_WRONG}"),
        ({"xids": {"1000": "warn"}}, f"xids.1000: {XID_WRONG}"),
        ({"xids": {1000: "warn"}}, f"xids.1000: {XID_WRONG}"),
        ({"xids": {"-1": "warn"}}, f"xids.-1: {XID_WRONG}"),
        ({"xids": {"031": "warn"}}, f"xids.031: {XID_WRONG}"),
        ({"xids": {"3 1": "warn"}}, f"xids['3 1']: {XID_WRONG}"),
        ({"xids": {"31\n": "warn"}}, f"xids['31\\n']: {XID_WRONG}"),
        ({"xids": {"٣": "warn"}}, f"xids['٣']: {XID_WRONG}"),
        ({"xids": {"": "warn"}}, f"xids['']: {XID_WRONG}"),
        ({"xids": {"[key]": "warn"}}, f"xids['[key]']: {XID_WRONG}"),
        ({"xids": {True: "warn"}}, f"xids.1: {XID_WRONG}"),
        ({"xids": {3.5: "warn"}}, f"xids['3.5']: {XID_WRONG}"),
        ({"xids": {None: "warn"}}, f"xids.None: {XID_WRONG}"),
        ({"xids": {31: "warn", "31": "warn"}}, "xids.31: stands there twice, as a number and as a text"),
        ({"xids": {f"x{n}": "warn" for n in range(1025)}}, "xids: must have at most 1024 entries"),
        ({"unknownXids": "all"}, f"unknownXids: is 'all'; {WORDS}"),
        ({"unknownXids": None}, "unknownXids: is empty; give it a value, or leave the field out"),
        ({"memory": "lax"}, "memory: is 'lax'; allowed: default, strict"),
        ({"memory": None}, "memory: is empty; give it a value, or leave the field out"),
        ({"expirySeconds": 0}, f"expirySeconds: is 0; {WEEK}"),
        ({"expirySeconds": 604801}, f"expirySeconds: is 604801; {WEEK}"),
        ({"expirySeconds": "10m"}, "expirySeconds: is '10m'; must be a whole number"),
        ({"expirySeconds": True}, "expirySeconds: is true; must be a whole number"),
        ({"expirySeconds": None}, "expirySeconds: is empty; give it a value, or leave the field out"),
    ],
)
def test_a_mistake_in_a_health_policy(policy, told):
    assert policy_mistakes(policy) == [told]


@pytest.mark.parametrize("seconds", [1, 604800])
def test_the_bounds_of_the_expiry_belong_to_it(seconds):
    assert decode_policy({"expirySeconds": seconds}, name="x").expiry_seconds == seconds


def test_all_mistakes_of_a_health_policy_are_told_at_once():
    policy = {"xids": {"x": "y", 31: "warn", "31": "no"}, "memory": 1, "expirySeconds": -1, "more": 1}
    assert policy_mistakes(policy) == [
        "xids.31: stands there twice, as a number and as a text",
        f"xids.x: {XID_WRONG}",
        f"xids.x: is 'y'; {WORDS}",
        f"xids.31: is 'no'; {WORDS}",
        "memory: is 1; allowed: default, strict",
        f"expirySeconds: is -1; {WEEK}",
        "more: is not known; allowed are xids, unknownXids, memory, expirySeconds",
    ]


def test_a_broken_health_policy_breaks_only_the_configurations_that_name_it():
    configs = {name: {"healthPolicy": policy} for name, policy in [("a", "bad"), ("b", "good"), ("c", "bad")]}
    decoded = decode(with_policies(configs | {"d": {}}, bad={"memory": 1}, good={"memory": "strict"}))
    assert (set(decoded.configs), set(decoded.broken)) == ({"b", "d"}, {"a", "c"})
    assert (decoded.problems, set(decoded.policies)) == ((), {"default", "strict", "good"})
    inside = "healthPolicies.bad.memory: is 1; allowed: default, strict"
    named = "configs.{}.healthPolicy: is 'bad'; this health policy has mistakes: correct healthPolicies.bad"
    assert [str(problem) for problem in decoded.problems_of("a")] == [named.format("a"), inside]
    told = [str(problem) for problem in decoded.all_problems()]
    assert told == [inside, named.format("a"), named.format("c")]


def test_of_many_mistakes_in_a_health_policy_a_configuration_repeats_some_and_all_are_told():
    configs = {f"c{n}": {"healthPolicy": "bad"} for n in range(3)}
    decoded = decode(with_policies(configs, bad={f"unknown{n}": 1 for n in range(100)}))
    assert {len(decoded.problems_of(name)) for name in configs} == {1 + 10}
    assert len(decoded.all_problems()) == 100 + 3


def test_a_broken_health_policy_that_nobody_names_is_told_too():
    decoded = decode(with_policies({"a": {}}, bad=1))
    assert set(decoded.configs) == {"a"}
    assert [str(problem) for problem in decoded.all_problems()] == ["healthPolicies.bad: is 1; must be a mapping"]


def test_a_health_policy_that_the_document_does_not_have():
    decoded = decode(with_policies({"a": {"healthPolicy": "patiant", "order": 1}}, patient={}, bad=1))
    assert [str(problem) for problem in decoded.broken["a"]] == [
        "configs.a.order: is 1; allowed: packed, spread, nvidia",
        f"configs.a.healthPolicy: is 'patiant'; {NO_POLICY}; there is default, strict, patient, bad",
    ]
    many = decode(with_policies({"a": {"healthPolicy": "x"}}, **{f"p{n}": {} for n in range(20)}))
    assert str(many.broken["a"][0]).endswith("there is default, strict, p0, p1, p2, p3, p4, p5, p6, p7 and 12 more")


@pytest.mark.parametrize("name", ["default", "strict"])
def test_a_built_in_health_policy_is_not_defined_anew(name):
    decoded = decode(with_policies({"a": {"healthPolicy": name}, "b": {}}, **{name: {"memory": "strict"}}))
    assert (set(decoded.configs), set(decoded.broken)) == ({"b"}, {"a"})
    assert str(decoded.all_problems()[0]) == (
        f"healthPolicies.{name}: is built in and cannot be defined anew; give this one another name"
    )


@pytest.mark.parametrize("name", ["", "Strict", "a_b", "-a", "a-", "x" * 64, "a\n"])
def test_a_health_policy_with_a_name_that_is_none(name):
    decoded = decode(with_policies({"a": {"healthPolicy": name}}, **{name: {"memory": 1}}))
    told = [str(problem) for problem in decoded.all_problems()]
    assert len(told) == 3
    assert "is not a name: at most 63 small letters, digits and dashes, no dash at either end" in told[0]
    assert told[1].endswith("memory: is 1; allowed: default, strict")
    assert told[2].startswith("configs.a.healthPolicy: is '")
    assert "must be a name" in told[2]


@pytest.mark.parametrize(
    ("policies", "told"),
    [
        (None, "healthPolicies: is empty; give it a value, or leave the field out"),
        ([], "healthPolicies: is a list; must be a mapping"),
        ({f"p{n}": {} for n in range(257)}, "healthPolicies: has 257 entries; at most 256 are allowed"),
    ],
)
def test_health_policies_that_are_none(policies, told):
    decoded = decode(document(a={}) | {"healthPolicies": policies})
    assert [str(problem) for problem in decoded.all_problems()] == [told]
    assert (decoded.configs, len(decoded.problems)) == ({}, 1)


def test_as_many_as_allowed_are_allowed():
    policies = {f"p{n}": {"xids": {str(xid): "warn" for xid in range(1, 1000)}} for n in range(3)}
    policies |= {f"q{n}": {} for n in range(253)}
    assert decode(with_policies({"a": {"healthPolicy": "q7"}}, **policies)).all_problems() == ()


def test_what_was_found_before_in_a_health_policy_counts_there():
    inside = Problem(path=("healthPolicies", "p", "xids", "31"), text="stands there twice")
    decoded = decode(with_policies({"a": {"healthPolicy": "p"}, "b": {}}, p={}), found=[inside])
    assert (set(decoded.configs), decoded.broken_policies) == ({"b"}, {"p": (inside,)})
    assert decoded.broken["a"][1:] == (inside,)
    assert decode(document(a={}), found=[inside]).problems == (inside,)


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


@given(
    st.dictionaries(
        st.sampled_from(["xids", "unknownXids", "memory", "expirySeconds"]),
        anything | st.dictionaries(st.integers() | st.booleans() | st.none() | st.text() | st.just("[key]"), anything),
    )
    | anything
)
def test_no_health_policy_makes_it_fail(policy):
    decoded = decode(with_policies({"a": {"healthPolicy": "p"}}, p=policy))
    assert len(decoded.policies) + len(decoded.broken_policies) == 3
    assert len(decoded.configs) + len(decoded.broken) == 1
    assert ("p" in decoded.policies) == ("a" in decoded.configs)
    for problem in decoded.all_problems():
        assert "\n" not in str(problem)
        assert str(problem).startswith(("healthPolicies.p", "configs.a.healthPolicy: "))


@given(anything, anything)
def test_no_content_makes_it_fail(configs, policies):
    decoded = decode(document() | {"configs": configs, "healthPolicies": policies})
    for problem in decoded.all_problems():
        assert "\n" not in str(problem)


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


policies = st.fixed_dictionaries(
    {},
    optional={
        "xids": st.dictionaries(st.integers(1, 999), st.sampled_from(get_args(node_config.XidWord)), max_size=5),
        "unknownXids": st.sampled_from(get_args(node_config.XidWord)),
        "memory": st.sampled_from(["default", "strict"]),
        "expirySeconds": st.integers(1, 604800),
    },
)


@given(policies)
def test_a_health_policy_that_is_encoded_is_decoded_to_the_same_from_json_too(written):
    policy = decode_policy(written, name="x")
    assert isinstance(policy, HealthPolicy)
    encoded = encode_policy(policy)
    assert json.loads(json.dumps(encoded)) == encoded
    assert decode_policy(encoded, name="x") == policy
    assert encoded.keys() == written.keys()


def test_labels_are_ours_and_names_that_kubernetes_allows():
    assert api.CONFIG_LABEL == "dradriver.dev/config"
    assert api.ALLOCATION_LABEL == "dradriver.dev/allocation"
