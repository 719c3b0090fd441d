"""The counters we publish, as the real scheduler reads them: exactly what the hardware can hold, and nothing else.

What the hardware can hold is found by trying everything on the simulated hardware, whose rules know no counters.
All questions that do not depend on one another are asked of one scheduler at once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest
from doubles.machines import gpus
from doubles.packings import WHOLE, Packings, Place, multiset, packings
from support.manifests import request
from support.stage import REFUSED, Stage, Verdict

from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Offer, make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.resource import Device, Pool, Slice, lay_out

pytestmark = pytest.mark.control_plane


@dataclass(frozen=True, slots=True)
class Case:
    """A machine with one GPU, and which of its profiles are offered."""

    machine: str
    profiles: str = "all"

    def __str__(self) -> str:
        return f"{self.machine}-{self.profiles}"


CASES = (
    Case("1xh100-80gb"),
    Case("1xh100-80gb", "standard"),
    Case("1xa100-40gb"),
    Case("1xa30"),
    Case("1xrtx-pro-6000"),
    Case("1xrtx-pro-6000", "standard"),
)
COUNTED = (*CASES, Case("1xa100-80gb"), Case("1xh200"), Case("1xb200"))
NAME = "name"
"""An attribute that these tests give every device, to ask for one of them."""


@cache
def offered(case: Case) -> Offer:
    """All a GPU of this kind can offer. MIG mode is on, so where it cannot be switched off there is no whole GPU."""
    policy = OfferPolicy(default=GpuRule(mig=MigOffer.DYNAMIC, profiles=parse_choice(case.profiles)))
    found = gpus(case.machine, mig="on")
    return make_offer(found, pool="any", policy=policy, numbers=number_gpus(found, {}))


def hardware(case: Case) -> Packings:
    devices = offered(case).devices.values()
    profiles = frozenset(device.profile.id for device in devices if device.profile)
    return packings(case.machine, profiles, whole=any(device.profile is None for device in devices))


@cache
def slices(case: Case) -> tuple[Slice, ...]:
    pool = offered(case).pool
    groups = tuple(replace(group, devices=tuple(map(named, group.devices))) for group in pool.groups)
    return lay_out(Pool(name=pool.name, groups=groups))


def named(device: Device) -> Device:
    return replace(device, attributes={**device.attributes, NAME: device.name})


def place(case: Case, device: str) -> Place | None:
    """Where a device lies; None for the whole GPU."""
    found = offered(case).devices[device]
    return Place(found.profile.id, found.placement.start) if found.profile and found.placement else None


def kind_of(case: Case, device: str) -> str:
    profile = offered(case).devices[device].profile
    return profile.name if profile else WHOLE


def device_at(case: Case, wanted: Place) -> str:
    return next(name for name in offered(case).devices if place(case, name) == wanted)


# --- questions --------------------------------------------------------------------------------------


class Questions:
    """Pods of all cases, and what the scheduler says of them.

    A pod whose devices do not fit takes none, so all these of a case share a node. Each of the others has its own.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._nodes: dict[str, tuple[Slice, ...]] = {}
        self._pods: dict[str, tuple[str, list]] = {}
        self.verdicts: Mapping[str, Verdict] = {}

    def fits(self, case, pod, requests):
        self._nodes[pod] = slices(case)
        self._pods[pod] = (pod, requests)

    def is_too_much(self, case, pod, requests):
        self._nodes[str(case)] = slices(case)
        self._pods[pod] = (str(case), requests)

    def all_on_one_node(self, node, pods, content):
        self._nodes[node] = content
        self._pods |= {pod: (node, requests) for pod, requests in pods.items()}

    def ask(self):
        self._stage.add_nodes(self._nodes)
        self._stage.add_pods(self._pods)
        with self._stage.scheduler():
            # The second time, everything that anybody ever got was there before the answers were read.
            self._stage.verdicts(self._pods)
            self.verdicts = self._stage.verdicts(self._pods)


def of_kinds(stage: Stage, names: Iterable[str]) -> list:
    """One request for each profile, with a count."""
    return [of_kind(stage, f"r{index}", name, count) for index, (name, count) in enumerate(Counter(names).items())]


def of_kind(stage: Stage, name: str, kind: str, count: int):
    if kind == WHOLE:
        return request(name, stage.gpu, count=count)
    return request(name, stage.mig, f"{stage.attribute('profile')} == '{kind}'", count=count)


def of_names(stage: Stage, *choices: Iterable[str]) -> list:
    """One request for each choice of devices."""
    return [
        request(f"r{index}", stage.any, f"{stage.attribute(NAME)} in {sorted(choice)}")
        for index, choice in enumerate(choices)
    ]


def pod_of(case: Case, question: str, number: int) -> str:
    return f"{case}-{question}-{number}"


@pytest.fixture(scope="module")
def verdicts(admin, control_plane) -> Iterator[Mapping[str, Verdict]]:
    with Stage(admin, control_plane.kubeconfig) as stage:
        questions = Questions(stage)
        for case in CASES:
            ask_of_multisets(questions, stage, case)
            ask_of_places(questions, stage, case)
        for case in COUNTED:
            ask_of_counts(questions, stage, case)
        questions.ask()
        yield questions.verdicts


# --- how many of what ---------------------------------------------------------------------------------


def ask_of_multisets(questions, stage, case):
    for number, names in enumerate(hardware(case).largest):
        questions.fits(case, pod_of(case, "largest", number), of_kinds(stage, names))
    for number, names in enumerate(hardware(case).smallest_forbidden):
        questions.is_too_much(case, pod_of(case, "forbidden", number), of_kinds(stage, names))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_multiset_that_the_hardware_holds_is_allocated(verdicts, case):
    for number, names in enumerate(hardware(case).largest):
        verdict = verdicts[pod_of(case, "largest", number)]
        assert verdict.fits, (names, verdict)
        assert multiset(kind_of(case, device) for device in verdict.devices) == names


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_allocated_can_be_made(verdicts, case):
    held = hardware(case)
    for number, names in enumerate(held.largest):
        if names != (WHOLE,):
            devices = verdicts[pod_of(case, "largest", number)].devices
            assert held.holds(place(case, device) for device in devices), devices


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_multiset_that_the_hardware_does_not_hold_is_refused(verdicts, case):
    for number, names in enumerate(hardware(case).smallest_forbidden):
        verdict = verdicts[pod_of(case, "forbidden", number)]
        assert REFUSED in verdict.reason, (names, verdict)


def ask_of_counts(questions, stage, case):
    for number, (kind, most) in enumerate(counts(case)):
        pods = {pod_of(case, f"count-{number}", pod): [of_kind(stage, "one", kind, 1)] for pod in range(most + 1)}
        questions.all_on_one_node(pod_of(case, "count", number), pods, slices(case))


def counts(case):
    """Kinds with the number that NVIDIA's listings give."""
    held = hardware(case)
    return (*held.counts.items(), *([(WHOLE, 1)] if held.whole else []))


@pytest.mark.parametrize("case", COUNTED, ids=str)
def test_pods_get_as_many_of_one_profile_as_nvidia_says(verdicts, case):
    for number, (kind, most) in enumerate(counts(case)):
        said = [verdicts[pod_of(case, f"count-{number}", pod)] for pod in range(most + 1)]
        assert sum(verdict.fits for verdict in said) == most, kind
        assert [REFUSED in verdict.reason for verdict in said if not verdict.fits] == [True]
        devices = [device for verdict in said for device in verdict.devices]
        assert len(set(devices)) == most
        assert {kind_of(case, device) for device in devices} == {kind}


# --- where ----------------------------------------------------------------------------------------------


def ask_of_places(questions, stage, case):
    for number, places in enumerate(hardware(case).cover):
        names = [[device_at(case, each)] for each in places]
        questions.fits(case, pod_of(case, "places", number), of_names(stage, *names))
    for device, others in rivals(case).items():
        questions.is_too_much(case, f"{case}-rivals-{device}", of_names(stage, [device], others))


def rivals(case):
    """For each device those that cannot exist beside it."""
    held = hardware(case)
    found = {}
    for device in offered(case).devices:
        own = place(case, device)
        others = [other for other in offered(case).devices if other != device]
        found[device] = [
            other
            for other in others
            if own is None or (theirs := place(case, other)) is None or not held.holds([own, theirs])
        ]
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_two_partitions_that_the_hardware_holds_together_are_allocated_together(verdicts, case):
    for number, places in enumerate(hardware(case).cover):
        verdict = verdicts[pod_of(case, "places", number)]
        assert tuple(place(case, device) for device in verdict.devices) == places, verdict


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_two_devices_that_exclude_each_other_are_allocated_together(verdicts, case):
    """For each device all those at once that cannot exist beside it: none of them may be given with it."""
    for device, others in rivals(case).items():
        verdict = verdicts[f"{case}-rivals-{device}"]
        assert REFUSED in verdict.reason, (device, others, verdict)


# --- one after another ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [Case("1xh100-80gb"), Case("1xrtx-pro-6000")], ids=str)
def test_a_whole_gpu_and_its_partitions_wait_for_each_other(admin, control_plane, case):
    kinds = dict(enumerate(hardware(case).names.values()))
    with Stage(admin, control_plane.kubeconfig) as stage, stage.scheduler():
        stage.add_nodes({str(number): slices(case) for number in kinds})

        def add(pod, wanted):
            pods = {f"{pod}-{n}": (str(n), [of_kind(stage, "one", wanted or kind, 1)]) for n, kind in kinds.items()}
            stage.add_pods(pods)
            return list(pods)

        partitions = add("partition", None)
        stage.placed(partitions)
        wholes = add("whole", WHOLE)
        assert all(REFUSED in verdict.reason for verdict in stage.verdicts(wholes).values())
        stage.remove_pods(partitions)
        assert {verdict.devices for verdict in stage.placed(wholes).values()} == {("gpu-0",)}
        late = add("late", None)
        assert all(REFUSED in verdict.reason for verdict in stage.verdicts(late).values())
        stage.remove_pods(wholes)
        assert not any("gpu-0" in verdict.devices for verdict in stage.placed(late).values())
