"""Somebody else sets back what is written: in a small world, on a clock that a test moves."""

from dataclasses import replace

import pytest
from doubles.bridgeworld import NAME, Mode, World, bridge, foreign

from controller.acting import Contests, contested, dying, hold_back, waits_for_end
from controller.api import ConditionType
from controller.bridges import ApplyClass, ClearName, decide

OURS = "gpu.gpu.dradriver.dev"


class Fight:
    """A world in which decisions are paced as the reconciler does it."""

    def __init__(self, *items):
        self.world, self.contests, self.now = World(), Contests(), 0.0
        self.world.add(*items)
        self.tellings, self.writes = [], 0
        self.settle()

    def step(self):
        """One look; gives whether it was held back."""
        self.world.rivals |= self.world.carried
        self.world.carried = set()
        situation = self.world.situation()
        decision = decide(situation)
        wait = self.contests.wait(NAME, decision.actions, situation.classes, now=self.now)
        carried_out = hold_back(decision, situation) if wait else decision
        if problem := self.contests.problem(NAME, now=self.now):
            carried_out = contested(carried_out, situation, problem, is_held=wait > 0)
        versions = {}
        for action in carried_out.actions:
            self.world.do(action, versions)
            self.writes += 1
        if not wait:
            self.contests.wrote(NAME, decision.actions, now=self.now)
            self.world.rivals = decision.rivals
        for name, status in carried_out.statuses.items():
            self.world.bridges[name] = replace(self.world.bridges[name], status=status)
        self.tellings += [each.reason for each in carried_out.tellings]
        return wait > 0

    def settle(self):
        for _ in range(3):
            self.step()
        self.writes, self.tellings = 0, []

    def edit(self, manager="helm"):
        """Somebody changes our class."""
        spec = self.world.classes[OURS].spec | {"selectors": [{"cel": {"expression": "false"}}]}
        self.world.put_class(self.world.edited(OURS, spec=spec, managers=(manager,)))

    def fight(self, seconds, undo):
        """The other side undoes it as soon as it can, and we look each tenth of a second."""
        times = []
        end = self.now + seconds
        while self.now < end:
            undo()
            before = self.writes
            self.step()
            if self.writes > before:
                times.append(round(self.now, 1))
            self.now = round(self.now + 0.1, 3)
        return times

    def is_edited(self):
        return self.world.classes[OURS].spec["selectors"] == [{"cel": {"expression": "false"}}]


@pytest.fixture
def fight():
    return Fight(bridge())


def test_the_first_change_is_undone_at_once_and_further_ones_ever_later(fight):
    assert fight.fight(70, fight.edit) == [0.0, 2.0, 6.0, 14.0, 30.0, 62.0]


def test_it_never_waits_longer_than_some_minutes(fight):
    times = [fight.now]
    for _ in range(14):
        fight.edit()
        while fight.step():
            fight.now += 1.0
        times.append(fight.now)
    assert times[-1] - times[-2] == 300
    assert times[-2] - times[-3] == 300


def test_a_change_of_the_bridge_is_never_held_back(fight):
    fight.fight(20, fight.edit)
    fight.edit()
    assert fight.step()
    fight.world.change("gpu", mode=Mode.DISABLED)
    assert not fight.step()
    assert fight.world.carriers() == frozenset()


def test_after_a_calm_it_begins_anew(fight):
    fight.fight(20, fight.edit)
    fight.now += 600
    fight.edit()
    assert not fight.step()
    assert not fight.is_edited()
    assert fight.world.status().condition(ConditionType.CONFLICT).reason == "NoConflict"


def test_after_some_rounds_the_bridge_says_who_it_is_and_tells_it_once(fight):
    fight.fight(5, fight.edit)
    assert fight.world.status().condition(ConditionType.CONFLICT).holds is False
    fight.fight(60, fight.edit)
    condition = fight.world.status().condition(ConditionType.CONFLICT)
    assert (condition.holds, condition.reason) == (True, "Contested")
    assert "field manager helm sets back what is written for nvidia.com/gpu" in condition.message
    assert fight.tellings.count("Contested") == 1
    # The class carries its name all the same.
    assert fight.world.status().condition(ConditionType.READY).holds


def test_without_a_known_manager_it_is_somebody():
    contests = Contests()
    actions = [ClearName(name="x", resource_version="1")]
    for _ in range(4):
        assert contests.wait("x", actions, {}, now=0.0) >= 0
        contests.wrote("x", actions, now=0.0)
    assert contests.problem("x", now=1.0).startswith("somebody sets back")
    contests.forget("x")
    assert contests.problem("x", now=1.0) == ""


class TestAdoption:
    """Somebody gives the name to his class again and again, which the bridge is to take over."""

    @pytest.fixture
    def fight(self):
        return Fight(bridge(adopt=True), foreign("theirs"))

    @staticmethod
    def give_back(fight):
        def undo():
            if not fight.world.classes["theirs"].extended_name:
                fight.world.put_class(foreign("theirs", managers=("argocd",)))

        return undo

    def test_no_two_classes_have_the_name_after_any_of_our_looks(self, fight):
        for _ in range(300):
            self.give_back(fight)()
            fight.step()
            assert len(fight.world.carriers()) == 1
            fight.now += 0.1

    def test_ours_gives_way_at_once_and_then_nothing_is_written_until_it_is_time(self, fight):
        undo = self.give_back(fight)
        fight.fight(3, undo)
        undo()
        assert fight.step()
        assert fight.world.carriers() == {"theirs"}
        before = fight.writes
        for _ in range(5):
            assert fight.step()
        assert fight.writes == before

    def test_writes_become_few(self, fight):
        fight.fight(120, self.give_back(fight))
        # About three for each round, of which there are six, and giving way.
        assert fight.writes < 40

    def test_while_ours_has_given_way_the_bridge_is_not_ready(self, fight):
        undo = self.give_back(fight)
        fight.fight(60, undo)
        undo()
        assert fight.step()
        assert fight.world.reasons() == {"Ready": "Contested", "Conflict": "Contested"}
        assert "argocd" in fight.world.status().condition(ConditionType.CONFLICT).message

    def test_once_the_other_side_has_given_up_ours_has_it(self, fight):
        fight.fight(60, self.give_back(fight))
        while fight.step():
            fight.now += 1
        assert fight.world.carriers() == {OURS}
        assert fight.world.known[NAME] == OURS


class TestDying:
    """A class that is deleted, and kept by a finalizer of somebody else."""

    @pytest.fixture
    def fight(self):
        made = Fight(bridge())
        keeping = {"finalizers": ("example.com/x",), "is_deleting": True}
        made.world.put_class(made.world.edited(OURS, **keeping))
        return made

    def test_nothing_is_written_to_it_and_the_bridge_says_why(self, fight):
        situation = fight.world.situation()
        problem = dying(situation)
        decision = waits_for_end(hold_back(decide(situation), situation), situation, problem)
        assert not any(isinstance(each, ApplyClass) for each in decision.actions)
        ready = decision.statuses["gpu"].condition(ConditionType.READY)
        assert (ready.holds, ready.reason) == (False, "ClassDeleting")
        assert "example.com/x" in ready.message
        assert [each.reason for each in decision.tellings] == ["ClassDeleting"]

    def test_other_classes_are_none_of_it(self, fight):
        fight.world.put_class(replace(fight.world.classes[OURS], is_deleting=False))
        assert dying(fight.world.situation()) == ""
        assert dying(replace(fight.world.situation(), bridges=())) == ""
