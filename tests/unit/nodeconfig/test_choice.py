"""Which configuration holds, and what is told: no files, no server."""

from dataclasses import replace
from pathlib import Path

import pytest

from dradriver.api.node_config import Decoded, HealthPolicy, NodeConfig, decode, decode_config, decode_policy
from dradriver.api.problems import Problem
from dradriver.gpu.health import HealthWishes
from dradriver.gpu.policy import OfferPolicy, Order
from dradriver.nodeconfig.choice import Choice
from dradriver.nodeconfig.memory import Remembered
from dradriver.nodeconfig.wanted import Labels

PATH = Path("/etc/dradriver/nodes.yaml")
FLAGS = OfferPolicy(order=Order.NVIDIA)
PACKED, SPREAD, WRONG = {"order": "packed"}, {"order": "spread", "healthPolicy": "strict"}, {"order": "?"}
STAYS = "node configuration: until this is corrected, configuration {!r} holds, as it was last read"
FLAGS_HOLD = "node configuration: until this is corrected, the flags of the plugin hold"


def says(*, policies=None, **configs):
    document = {"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": configs}
    return decode(document if policies is None else document | {"healthPolicies": policies})


UNREADABLE = Decoded(problems=(Problem(text="it is not YAML: line 1"),))


class Node:
    """A choice, asked as the plugin does, with the labels set by name."""

    def __init__(self, file=None, *, path=PATH, remembered=None, **labels):
        self.choice = Choice(path, FLAGS)
        self.labels = Labels(**labels)
        self.choice.take(file)
        if remembered is not None:
            config = None if remembered.config is None else decode_config(remembered.config, name="x")
            health = None if remembered.health is None else decode_policy(remembered.health, name="x")
            self.choice.recall(
                remembered,
                config if isinstance(config, NodeConfig) else None,
                health if isinstance(health, HealthPolicy) else None,
            )

    def take(self, file):
        self.choice.take(file)
        return self.wanted()

    def label(self, **labels):
        self.labels = Labels(**labels)
        return self.wanted()

    def wanted(self):
        return self.choice.choose(self.labels, settled=True)

    @property
    def name(self):
        return self.wanted().name


def held(name="a", what=PACKED, *, label="a", allocation="dra"):
    labels = Labels(config=label, allocation=allocation)
    return Remembered(labels=labels, allocation=allocation, name=name, config=what)


# --- what is asked for is there -------------------------------------------------------------------


def test_the_label_names_the_configuration():
    wanted = Node(says(a=PACKED, b=SPREAD, default=PACKED), config="b").wanted()
    assert (wanted.name, wanted.policy.order, wanted.health_policy) == ("b", Order.SPREAD, "strict")
    assert wanted.health == HealthWishes(strict_memory=True)
    assert (wanted.problems, wanted.settled, wanted.hold) == ((), True, False)


def test_without_the_label_the_default_holds_where_there_is_one():
    assert Node(says(a=PACKED, default=SPREAD)).name == "default"
    wanted = Node(says(a=PACKED)).wanted()
    assert (wanted.name, wanted.policy, wanted.health_policy, wanted.problems) == ("", FLAGS, "", ())
    assert wanted.health == HealthWishes()


def test_without_a_file_the_flags_hold():
    wanted = Node(path=None).wanted()
    assert (wanted.name, wanted.policy, wanted.problems) == ("", FLAGS, ())


def test_label_and_file_are_followed():
    node = Node(says(a=PACKED, b=SPREAD), config="a")
    assert node.name == "a"
    assert node.label(config="b").policy.order is Order.SPREAD
    assert node.label().policy == FLAGS
    assert node.take(says(a=PACKED, default=SPREAD)).name == "default"
    assert node.take(says(default=PACKED)).policy.order is Order.PACKED
    assert node.take(says()).policy == FLAGS


# --- it is not ------------------------------------------------------------------------------------


def test_a_broken_configuration_stays_as_it_was_and_says_so():
    node = Node(says(a=SPREAD), config="a")
    node.wanted()
    wanted = node.take(says(a=WRONG))
    assert (wanted.name, wanted.policy.order) == ("a", Order.SPREAD)
    assert wanted.problems == (
        "/etc/dradriver/nodes.yaml: configs.a.order: is '?'; allowed: packed, spread, nvidia",
        STAYS.format("a"),
    )
    assert node.take(says(a=PACKED)).problems == ()
    assert node.wanted().policy.order is Order.PACKED


def test_a_mistake_in_another_configuration_is_none_of_this_node_s_business():
    node = Node(says(a=PACKED, b=PACKED), config="a")
    wanted = node.take(says(a=SPREAD, b=WRONG))
    assert (wanted.policy.order, wanted.problems) == (Order.SPREAD, ())


def test_who_turns_to_a_broken_configuration_gets_it_as_it_was():
    node = Node(says(a=PACKED, b=SPREAD), config="a")
    assert node.take(says(a=PACKED, b=WRONG)).name == "a"
    wanted = node.label(config="b")
    assert (wanted.name, wanted.policy.order) == ("b", Order.SPREAD)
    assert wanted.problems[-1] == STAYS.format("b")


def test_a_file_that_is_no_document_changes_nothing_and_says_so():
    node = Node(says(a=SPREAD, b=PACKED), config="a")
    node.wanted()
    wanted = node.take(UNREADABLE)
    assert (wanted.name, wanted.policy.order) == ("a", Order.SPREAD)
    assert wanted.problems == ("/etc/dradriver/nodes.yaml: it is not YAML: line 1", STAYS.format("a"))
    assert node.label(config="b").name == "b"


def test_a_file_that_vanishes_changes_nothing_and_says_so():
    node = Node(says(a=SPREAD), config="a")
    node.wanted()
    wanted = node.take(None)
    assert wanted.policy.order is Order.SPREAD
    assert wanted.problems == (
        "/etc/dradriver/nodes.yaml: there is no such file; put the node configurations there, or drop --node-config",
        STAYS.format("a"),
    )


def test_a_label_that_names_none_changes_nothing_and_says_what_there_is():
    node = Node(says(a=SPREAD, b=PACKED, default=PACKED, c=WRONG), config="a")
    node.wanted()
    wanted = node.label(config="x")
    assert wanted.policy.order is Order.SPREAD
    assert wanted.problems == (
        f"node label dradriver.dev/config=x: {PATH} has no such configuration; there is a, b, c, default",
        STAYS.format("a"),
    )


def test_a_configuration_that_is_taken_out_of_the_file_holds_on():
    node = Node(says(a=SPREAD, b=PACKED), config="a")
    node.wanted()
    wanted = node.take(says(b=PACKED))
    assert (wanted.name, wanted.policy.order) == ("a", Order.SPREAD)
    assert "has no such configuration; there is b" in wanted.problems[0]


def test_a_node_that_never_had_any_falls_back_to_what_it_would_have_without_its_label():
    wanted = Node(says(default=SPREAD), config="x").wanted()
    assert (wanted.name, wanted.problems[-1]) == ("default", STAYS.format("default"))
    wanted = Node(says(b=SPREAD), config="x").wanted()
    assert (wanted.policy, wanted.problems[-1]) == (FLAGS, FLAGS_HOLD)
    wanted = Node(UNREADABLE, config="x").wanted()
    assert (wanted.policy, wanted.problems[-1]) == (FLAGS, FLAGS_HOLD)
    wanted = Node(None, config="x").wanted()
    assert (wanted.policy, wanted.problems[-1]) == (FLAGS, FLAGS_HOLD)


def test_a_broken_default_stays_as_it_was():
    node = Node(says(default=SPREAD))
    node.wanted()
    assert node.take(says(default=WRONG)).policy.order is Order.SPREAD
    assert node.take(UNREADABLE).policy.order is Order.SPREAD
    assert Node(says(default=WRONG)).wanted().policy == FLAGS


def test_a_label_without_a_file_is_told():
    wanted = Node(path=None, config="a").wanted()
    assert wanted.problems == (
        "node label dradriver.dev/config=a names a configuration, but the plugin was started without --node-config",
        FLAGS_HOLD,
    )


def test_many_mistakes_and_many_names_are_told_in_short():
    mistakes = {f"unknown{n}": 1 for n in range(30)}
    wanted = Node(says(a=mistakes), config="a").wanted()
    assert len(wanted.problems) == 12
    assert wanted.problems[10] == "/etc/dradriver/nodes.yaml: 20 more mistakes, see `dradriver config check`"
    wanted = Node(says(**{f"c{n:03}": {} for n in range(30)}), config="a").wanted()
    assert wanted.problems[0].endswith(
        "there is c000, c001, c002, c003, c004, c005, c006, c007, c008, c009 and 20 more"
    )
    assert Node(says(), config="a").wanted().problems[0].endswith("there is none")


# --- who hands the GPUs out -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "allocation", "hold"),
    [("", "dra", False), ("dra", "dra", False), ("hold", "hold", True), ("device-plugin", "device-plugin", True)],
)
def test_the_label_for_the_allocation(value, allocation, hold):
    wanted = Node(path=None, allocation=value).wanted()
    assert (wanted.allocation, wanted.hold, wanted.problems) == (allocation, hold, ())


def test_a_value_that_is_none_changes_nothing_and_is_told():
    node = Node(path=None, allocation="hold")
    assert node.wanted().hold
    wanted = node.label(allocation="never")
    assert wanted.hold
    assert wanted.problems == (
        "node label dradriver.dev/allocation=never is none of dra, hold, device-plugin; the node stays with hold",
    )
    assert not node.label().hold
    assert not node.label(allocation="never").hold


# --- health policies ------------------------------------------------------------------------------

WARN, IGNORE = {"xids": {"31": "warn"}}, {"xids": {"31": "ignore"}}
PATIENT = {"healthPolicy": "patient"}
NAMED = f"{PATH}: configs.a.healthPolicy: is 'patient';"


def test_a_configuration_brings_the_health_policy_that_it_names():
    node = Node(says(a=PATIENT, b={}, policies={"patient": WARN}), config="a")
    wanted = node.wanted()
    assert (wanted.health_policy, wanted.health, wanted.problems) == ("patient", HealthWishes(xids={31: "warn"}), ())
    assert node.take(says(a=PATIENT, policies={"patient": IGNORE})).health == HealthWishes(xids={31: "ignore"})
    assert node.take(says(a={}, policies={"patient": IGNORE})).health == HealthWishes()


def test_equal_wishes_are_equal_and_others_are_not():
    first, same, other = (Node(says(a=PATIENT, policies={"patient": one}), config="a") for one in (WARN, WARN, IGNORE))
    assert first.wanted() == same.wanted()
    assert first.wanted() != other.wanted()


def test_a_health_policy_that_breaks_leaves_configuration_and_policy_as_they_were():
    node = Node(says(a=PATIENT | PACKED, b={}, policies={"patient": WARN}), config="a")
    node.wanted()
    wanted = node.take(says(a=PATIENT | {"order": "spread"}, b=SPREAD, policies={"patient": {"memory": 1}}))
    assert (wanted.policy.order, wanted.health) == (Order.PACKED, HealthWishes(xids={31: "warn"}))
    assert wanted.problems == (
        f"{NAMED} this health policy has mistakes: correct healthPolicies.patient",
        f"{PATH}: healthPolicies.patient.memory: is 1; allowed: default, strict",
        STAYS.format("a"),
    )
    wanted = node.label(config="b")
    assert (wanted.policy.order, wanted.health, wanted.problems) == (
        Order.SPREAD,
        HealthWishes(strict_memory=True),
        (),
    )


def test_a_health_policy_that_is_not_there_is_told():
    wanted = Node(says(a=PATIENT), config="a").wanted()
    assert wanted.problems == (
        f"{NAMED} the document has no such health policy; there is default, strict",
        FLAGS_HOLD,
    )


@pytest.mark.parametrize("file", [UNREADABLE, says(a=PATIENT), says(b=SPREAD)], ids=["no document", "broken", "gone"])
def test_the_health_policy_survives_a_restart(file):
    kept = Node(says(a=PATIENT, policies={"patient": WARN}), config="a")
    kept.wanted()
    wanted = Node(file, remembered=kept.choice.to_remember(), config="a").wanted()
    assert (wanted.name, wanted.health_policy) == ("a", "patient")
    assert wanted.health == HealthWishes(xids={31: "warn"})


def test_mistakes_of_the_document_and_of_the_configuration_are_told_together():
    wanted = Node(decode({"kind": "NodeConfigs", "configs": {"a": WRONG, "b": WRONG}}), config="a").wanted()
    assert wanted.problems == (
        f"{PATH}: apiVersion: is missing",
        f"{PATH}: configs.a.order: is '?'; allowed: packed, spread, nvidia",
        FLAGS_HOLD,
    )


# --- the annotation -------------------------------------------------------------------------------


def test_the_annotation_is_passed_on_while_it_is_there():
    node = Node(path=None, clear=" all,")
    assert node.wanted().clear == " all,"
    assert node.label().clear == ""


def test_the_annotation_is_no_difference_of_what_is_wanted():
    node = Node(path=None)
    before = node.wanted()
    assert node.label(clear="all") == before


def test_an_unknown_node_has_no_annotation():
    node = Node(path=None, allocation="hold", clear="all")
    assert node.choice.choose(None, settled=False).clear is None
    node.wanted()
    lost = node.choice.choose(None, settled=True)
    assert (lost.clear, lost.hold) == (None, True)


def test_the_annotation_is_not_to_be_remembered():
    node = Node(says(a=SPREAD), config="a")
    node.wanted()
    before = node.choice.to_remember()
    node.label(config="a", clear="all")
    assert node.choice.to_remember() == before


# --- before the labels are known ------------------------------------------------------------------


def test_nobody_guesses_what_the_labels_are():
    node = Node(says(a=PACKED, default=SPREAD))
    wanted = node.choice.choose(None, settled=False, trouble="no answer")
    assert (wanted.policy, wanted.name, wanted.settled, wanted.problems) == (FLAGS, "", False, ("no answer",))


def test_what_held_before_a_restart_holds_until_they_are():
    node = Node(says(a=SPREAD, default=PACKED), remembered=held(allocation="hold"))
    wanted = node.choice.choose(None, settled=False)
    assert (wanted.name, wanted.policy.order, wanted.hold, wanted.settled) == ("a", Order.SPREAD, True, False)
    assert node.label(config="").name == "default"


def test_labels_that_get_lost_later_are_still_meant():
    node = Node(says(a=SPREAD), config="a")
    node.wanted()
    assert node.choice.choose(None, settled=True, trouble="node is gone").name == "a"


# --- a restart ------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [UNREADABLE, says(a=WRONG), says(b=SPREAD)], ids=["no document", "broken", "removed"])
def test_the_last_good_one_survives_a_restart(file):
    node = Node(file, remembered=held(), config="a")
    wanted = node.wanted()
    assert (wanted.name, wanted.policy.order, wanted.problems[-1]) == ("a", Order.PACKED, STAYS.format("a"))


def test_what_the_file_says_is_better_than_what_is_remembered():
    assert Node(says(a=SPREAD), remembered=held(), config="a").wanted().policy.order is Order.SPREAD


def test_a_file_that_is_missing_from_the_start_leaves_the_flags_alone():
    wanted = Node(None, remembered=held(), config="a").wanted()
    assert (wanted.policy, wanted.problems[-1]) == (FLAGS, FLAGS_HOLD)


def test_without_a_file_only_the_labels_are_remembered():
    node = Node(path=None, remembered=held(allocation="hold"))
    wanted = node.choice.choose(None, settled=False)
    assert (wanted.policy, wanted.hold) == (FLAGS, True)


def test_flags_that_held_alone_still_do_while_the_file_is_broken():
    node = Node(UNREADABLE, remembered=held(name="", what=None), config="a")
    assert node.wanted().policy == FLAGS
    assert node.take(says(default=SPREAD)).policy == FLAGS


def test_what_cannot_be_understood_any_more_is_not_used():
    assert Node(UNREADABLE, remembered=held(what={"future": 1}), config="a").wanted().policy == FLAGS
    odd = Remembered(labels=Labels(), allocation="future")
    assert Node(path=None, remembered=odd).choice.choose(None, settled=False).allocation == "dra"


def test_what_is_to_be_remembered_brings_the_same_back():
    node = Node(says(a=SPREAD), config="a", allocation="hold")
    before = node.wanted()
    kept = node.choice.to_remember()
    assert kept == Remembered(
        labels=Labels(config="a", allocation="hold"),
        allocation="hold",
        name="a",
        config=SPREAD,
        health={"memory": "strict"},
    )
    again = Node(UNREADABLE, remembered=kept, config="a", allocation="hold").wanted()
    assert replace(again, problems=()) == before
    assert Choice(None, FLAGS).to_remember() == Remembered(labels=Labels(), allocation="dra")
