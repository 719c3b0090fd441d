"""What is shown to users as a file of node configurations, in deploy/ and in docs/."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from doubles.machines import gpus

from dradriver.api import node_config
from dradriver.gpu.health import HealthWishes
from dradriver.gpu.policy import Detail, OfferPolicy, Order, Sharing
from dradriver.gpu.profiles import MigOffer
from dradriver.nodeconfig.file import decode_bytes
from dradriver.nodeconfig.manifest import documents
from dradriver.nodeconfig.policy import make_policy, make_wishes

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "deploy/examples/node-config.yaml"
DOCS = (REPOSITORY / "docs/configuration.md").read_text()
SHARING = (REPOSITORY / "docs/sharing.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", DOCS + SHARING, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def decoded():
    (part,) = documents(EXAMPLE.read_bytes())
    found = decode_bytes(part.data)
    assert found.all_problems() == ()
    return found


@pytest.fixture(scope="module")
def configs(decoded):
    return decoded.configs


def test_the_example_is_a_config_map_for_any_namespace():
    manifest = yaml.safe_load(EXAMPLE.read_text())
    assert (manifest["kind"], list(manifest["data"])) == ("ConfigMap", ["nodes.yaml"])
    assert "namespace" not in manifest["metadata"]


@pytest.mark.parametrize(
    ("name", "machine", "offered"),
    [
        ("default", "2xh100-80gb", ["static", "static"]),
        ("training", "2xh100-80gb", ["off", "off"]),
        ("inference", "1xh100-80gb", ["dynamic"]),
        ("inference", "1xa100-40gb", ["dynamic"]),
        ("inference", "1xt4", ["off"]),
        ("mixed", "4xh100-80gb", ["dynamic", "dynamic", "off", "off"]),
        ("shared", "2xh100-80gb", ["off", "off"]),
    ],
)
def test_it_means_what_its_remarks_say(configs, name, machine, offered):
    policy = make_policy(configs[name], OfferPolicy())
    mig = "" if machine == "1xt4" else "on"
    assert [policy.rule(gpu, index).mig for index, gpu in enumerate(gpus(machine, mig=mig))] == offered


def test_its_other_fields_are_understood(configs):
    policy = make_policy(configs["inference"], OfferPolicy())
    assert (policy.order, policy.detail) == (Order.PACKED, Detail.LEAN)
    assert make_policy(configs["mixed"], OfferPolicy()).order is Order.SPREAD
    assert policy.rules[1].profiles.names == {"1g.5gb", "2g.10gb", "3g.20gb"}
    assert policy.rules[1].mig is MigOffer.DYNAMIC
    shared = make_policy(configs["shared"], OfferPolicy())
    assert (shared.default.sharing, shared.order) == (Sharing(replicas=4, renamed=True), Order.SPREAD)


def test_its_health_policies_are_understood(decoded):
    wishes = {name: make_wishes(decoded.health_policy(config)) for name, config in decoded.configs.items()}
    assert wishes == {
        "default": HealthWishes(),
        "training": HealthWishes(strict_memory=True),
        "inference": HealthWishes(xids={43: "ignore"}, expiry_seconds=3600),
        "mixed": HealthWishes(),
        "shared": HealthWishes(),
    }


def test_the_documents_shown_in_the_docs_have_no_mistakes():
    shown = [block for block in BLOCKS if "NodeConfigs" in block]
    assert shown
    for block in shown:
        assert [str(problem) for problem in decode_bytes(block.encode()).all_problems()] == []


NAMED = [
    node_config.NodeConfig,
    node_config.GpuRule,
    node_config.SharingRule,
    node_config.GpuFilter,
    node_config.HealthPolicy,
]


def test_the_docs_name_every_word_for_xids():
    for word in get_args(node_config.XidWord):
        assert f"`{word}`" in DOCS


@pytest.mark.parametrize("model", NAMED)
def test_the_docs_name_every_field(model):
    for name, field in model.model_fields.items():
        assert f"`{field.alias or name}`" in DOCS
