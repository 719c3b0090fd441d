"""What a configuration makes of the flags."""

from dataclasses import replace

import pytest
from doubles.machines import gpus

from dradriver.api.node_config import BUILT_IN_POLICIES, NodeConfig, decode_config, decode_policy
from dradriver.gpu.health import HealthWishes
from dradriver.gpu.policy import Detail, GpuRule, OfferPolicy, Order, Sharing
from dradriver.gpu.profiles import MigOffer, ProfileChoice, parse_choice
from dradriver.nodeconfig.policy import make_policy, make_wishes

FLAGS = OfferPolicy(default=GpuRule(mig=MigOffer.DYNAMIC, profiles=parse_choice("all")))


def policy(config, defaults=FLAGS):
    decoded = decode_config(config, name="x")
    assert isinstance(decoded, NodeConfig), decoded
    return make_policy(decoded, defaults)


def test_what_is_not_named_is_as_the_flags_say():
    assert policy({}) == FLAGS
    assert policy({"gpus": []}) == FLAGS
    other = replace(FLAGS, order=Order.NVIDIA, detail=Detail.LEAN)
    assert policy({}, other) == other


def test_what_is_named_wins():
    made = policy({"order": "spread", "publish": "lean", "gpus": [{"mig": "off", "profiles": "standard"}]})
    assert made == OfferPolicy(
        default=GpuRule(mig=MigOffer.OFF, profiles=ProfileChoice()), order=Order.SPREAD, detail=Detail.LEAN
    )


def test_each_rule_takes_from_the_flags_what_it_does_not_name():
    made = policy({"gpus": [{"filter": {"indices": [0]}, "mig": "static"}, {"profiles": ["1g.10gb"]}]})
    (rule,) = made.rules
    assert (rule.mig, rule.profiles) == (MigOffer.STATIC, FLAGS.default.profiles)
    assert (made.default.mig, made.default.profiles.names) == (MigOffer.DYNAMIC, {"1g.10gb"})


def test_without_a_rule_for_all_others_the_flags_hold_for_them():
    assert policy({"gpus": [{"filter": {"indices": [0]}, "mig": "off"}]}).default == FLAGS.default


def test_the_first_rule_that_finds_a_gpu_decides():
    made = policy(
        {
            "gpus": [
                {"filter": {"indices": [1, 2]}, "mig": "off"},
                {"filter": {"indices": [2, 3]}, "mig": "static"},
                {"mig": "dynamic"},
            ]
        }
    )
    found = [made.rule(gpu, index).mig for index, gpu in enumerate(gpus("5xh100-80gb"))]
    assert found == ["dynamic", "off", "off", "static", "dynamic"]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"uuids": ["{uuid}"]}, [False, True]),
        ({"pciBusIDs": ["0000{bus}"]}, [False, True]),
        ({"indices": [1]}, [False, True]),
        ({"productNames": ["*H100*"]}, [True, True]),
        ({"productNames": ["nvidia h100*"]}, [True, True]),
        ({"productNames": ["*A100*", "H100"]}, [False, False]),
        ({"productNames": ["[", "[z-a]*", "*" * 200]}, [True, True]),
        ({"deviceIDs": ["{device}"]}, [True, True]),
        ({"deviceIDs": ["0x000010DE"]}, [False, False]),
        ({"indices": [0, 1], "productNames": ["*A100*"]}, [False, False]),
    ],
)
def test_filters_find_what_they_name(fields, found):
    node = gpus("2xh100-80gb")
    second = node[1]
    real = {"uuid": second.uuid.upper(), "bus": second.pci_bus_id.upper(), "device": f"0x{second.pci_device_id:08x}"}
    written = {
        name: [value.format(**real) if isinstance(value, str) and "{" in value else value for value in values]
        for name, values in fields.items()
    }
    (rule,) = policy({"gpus": [{"filter": written}]}).rules
    assert [rule.filter.matches(gpu, index) for index, gpu in enumerate(node)] == found


@pytest.mark.parametrize(
    ("written", "sharing"),
    [
        ({}, None),
        ({"sharing": {"replicas": 4}}, Sharing(replicas=4)),
        ({"sharing": {"replicas": 2, "rename": True}}, Sharing(replicas=2, renamed=True)),
    ],
)
def test_a_rule_says_how_gpus_are_shared(written, sharing):
    made = policy({"gpus": [{"filter": {"indices": [0]}, **written}, {"mig": "off"}]})
    assert made.rules[0].sharing == sharing
    assert made.default.sharing is None
    assert made.shares == (sharing is not None)
    assert policy({"gpus": [written]}).default.sharing == sharing


@pytest.mark.parametrize(
    ("written", "wishes"),
    [
        ({}, HealthWishes()),
        ({"memory": "default", "xids": {}}, HealthWishes()),
        ({"memory": "strict"}, HealthWishes(strict_memory=True)),
        ({"unknownXids": "ignore"}, HealthWishes(unknown_xids="ignore")),
        ({"expirySeconds": 60}, HealthWishes(expiry_seconds=60)),
        ({"xids": {"31": "warn", 79: "noExecute"}}, HealthWishes(xids={79: "noExecute", 31: "warn"})),
    ],
)
def test_a_health_policy_names_wishes(written, wishes):
    assert make_wishes(decode_policy(written, name="x")) == wishes


def test_without_a_health_policy_there_are_no_wishes():
    assert make_wishes(None) == make_wishes(BUILT_IN_POLICIES["default"]) == HealthWishes()
    assert make_wishes(BUILT_IN_POLICIES["strict"]) == HealthWishes(strict_memory=True)
