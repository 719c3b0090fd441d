"""What becomes of `sharing`: which shares a node configuration can say, and what is otherwise for pods that share."""

from collections.abc import Iterator
from typing import Final

from controller.importing import names
from controller.importing.bridges import Offer
from controller.importing.case import Case, Rule, note
from controller.importing.gaps import Gap, Weight
from controller.importing.shares import Fit, present
from dradriver.api.node_config import MOST_REPLICAS


def _shared(case: Case) -> frozenset[str]:
    return frozenset(offer.resource for offer in case.offers if offer.strategy != "none")


def _field(case: Case) -> str:
    return "sharing.mps" if case.config.strategy == "mps" else "sharing.timeSlicing"


def _replicas(case: Case) -> Iterator[Gap]:
    """Tell what a node configuration cannot say."""
    told = _UNSAID.get(case.shares.fit)
    if told is None:
        return
    weight, why, todo = told
    for offer in present(case.assigned, case.offers):
        if offer.replicas > max(case.shares.replicas, 1):
            yield case.weighed(
                weight,
                users=case.users(of=frozenset({offer.resource})),
                limits=case.cluster.limiting(offer.resource),
                place=f"{_field(case)}.resources",
                what=_lost(offer, case.shares.replicas),
                why=why,
                todo=todo,
            )


_RULE_SHARES: Final = "a rule of a node configuration shares a GPU, or all of its MIG instances, by one number"
_UNSAID: Final = {
    Fit.MPS: (
        Weight.BREAKS,
        "this driver has no MPS; each device goes to one claim, and counts as not shared",
        "keep these nodes on the device plugin, or plan with timeSlicing in place of mps",
    ),
    Fit.PARTLY: (
        Weight.BREAKS,
        f"{_RULE_SHARES}; as only some resources of these nodes are shared today, none is: nobody shares unasked",
        "share all resources of these nodes alike, or give nodes with MIG instances their own configuration",
    ),
    Fit.TOO_MANY: (
        Weight.BREAKS,
        f"a node configuration shares a device {MOST_REPLICAS} times at most",
        "ask for fewer shares; a node runs 110 pods unless its kubelet says otherwise",
    ),
    Fit.UNEVEN: (
        Weight.DIFFERS,
        f"{_RULE_SHARES}; the least number is taken",
        "give nodes with MIG instances their own configuration, or add rules with a filter by hand",
    ),
}


def _lost(offer: Offer, replicas: int) -> str:
    if replicas:
        return f"{offer.resource} will have {replicas} pods for each device instead of {offer.replicas}"
    if offer.resource == offer.base:
        return f"{offer.resource} will have one pod for each device instead of {offer.replicas}"
    return (
        f"{offer.resource} will have no devices, while today each has {offer.replicas} shares: without shares they "
        f"count as {offer.base}"
    )


def _version(case: Case) -> Iterator[Gap]:
    """Tell what shares need of Kubernetes."""
    version, shared = case.cluster.version, _shared(case)
    if not case.shares.replicas or (version is not None and version >= _FIRST_SHARES):
        return
    known = f", and this is {version[0]}.{version[1]}" if version else ""
    yield case.weighed(
        Weight.BREAKS if version else Weight.DIFFERS,
        users=case.users(of=shared),
        limits=case.cluster.limiting(*shared),
        place=f"{_field(case)}.resources",
        what=f"shares of {', '.join(sorted(shared))} need Kubernetes 1.36 or newer{known}",
        why="a share is a part of a device's consumable capacity (feature gate DRAConsumableCapacity), which is on by "
        "default from 1.36; where an API server drops it, each device is for one pod",
        todo="upgrade before these nodes move, or keep them on the device plugin",
    )


_FIRST_SHARES: Final = (1, 36)


def _isolation(case: Case) -> Iterator[Gap]:
    if not case.shares.replicas:
        return
    place = f"{_field(case)}.resources"
    yield note(
        case,
        place,
        "pods that share a device are kept apart in nothing, as today: each sees all of its memory",
        "time-slicing is what the GPU does by itself when several processes use it",
        "use MIG instances where pods must not disturb one another",
    )
    yield case.gap(
        users=[],
        place=place,
        what="a claim of the class gpu.nvidia.com or mig.nvidia.com may get a share of a device, not the whole",
        why="shared devices are devices of these classes, too, and a claim that asks for no capacity gets one share",
        todo="let such claims select devices whose attribute sharing is none, or ask for all of the capacity shares",
    )


def _not_offered(case: Case) -> Iterator[Gap]:
    bases = {offer.base for offer in case.offers}
    for name in case.config.replicas():
        if name not in bases:
            yield note(
                case,
                f"{_field(case)}.resources",
                f"{name} is not shared, since no device has that name under the strategy "
                f"{case.config.flags.mig_strategy}",
                "the device plugin passes over it without a word",
                "take it out",
            )


def _both(case: Case) -> Iterator[Gap]:
    if case.config.sharing.mps and case.config.sharing.time_slicing:
        yield note(
            case,
            "sharing.timeSlicing",
            "sharing.timeSlicing has no effect today either, since sharing.mps is given",
            "the device plugin takes MPS where both are given, without a word",
            "take one of the two out",
        )


def _greater_than_one(case: Case) -> Iterator[Gap]:
    shared = _shared(case)
    if not shared:
        return
    place = f"{_field(case)}.failRequestsGreaterThanOne"
    listed = ", ".join(sorted(shared))
    asking = [user for user in case.users(of=shared) if any(user.requests.get(name, 0) > 1 for name in shared)]
    if case.config.at_most_one:
        yield case.gap(
            users=asking,
            limits=case.cluster.limiting(*shared),
            place=place,
            what=f"a container that asks for more than one {listed} is not refused any more",
            why="the device plugin fails such a pod with UnexpectedAdmissionError; the scheduler gives it as many "
            "different devices, or leaves it pending where there are not as many",
            todo="limit each container to 1 by a LimitRange in each namespace; the plan has one to copy",
        )
    else:
        yield case.gap(
            users=asking,
            limits=case.cluster.limiting(*shared),
            place=place,
            what=f"a container that asks for several {listed} gets shares of different devices, or waits",
            why="the device plugin may give it several shares of one device; a claim's request never gets one twice",
            todo="let such pods ask for 1: more shares never meant more of a device",
        )


def _mps(case: Case) -> Iterator[Gap]:
    if case.config.strategy != "mps":
        return
    counts = sorted({str(offer.replicas) for offer in case.offers if offer.strategy == "mps"}) or ["N"]
    yield case.weighed(
        Weight.BREAKS,
        users=case.users(of=_shared(case)),
        place="sharing.mps",
        what="pods find no MPS: no CUDA_MPS_PIPE_DIRECTORY, no control daemon, no compute mode EXCLUSIVE_PROCESS",
        why="this driver does not start MPS; a claim or class that asks for it is refused when it is prepared",
        todo="keep these nodes on the device plugin, or let MIG instances take the place of MPS",
    )
    yield case.weighed(
        Weight.BREAKS,
        users=case.users(of=_shared(case)),
        place="sharing.mps",
        what=f"no pod is held to 1/{', 1/'.join(counts)} of a GPU's memory and threads",
        why="those limits are set by the MPS control daemon",
        todo="as above; MIG instances hold pods to their part",
    )
    if case.config.flags.mps_root is not None:
        yield note(case, "flags.mpsRoot", "flags.mpsRoot has no counterpart", "there is no MPS control daemon")


def _mig_and_mps(case: Case) -> Iterator[Gap]:
    if case.config.strategy == "mps" and case.config.flags.mig_strategy == "single":
        yield note(
            case,
            "sharing.mps",
            "nodes of this configuration whose GPUs are cut into MIG instances serve nothing today",
            "the device plugin refuses MPS on MIG instances",
            "decide for such nodes what they are for before they move",
        )


def _shared_mig(case: Case) -> Iterator[Gap]:
    cut = frozenset(offer.resource for offer in case.offers if offer.strategy != "none" and offer.devices != "gpu")
    if cut and case.shares.replicas:
        yield case.gap(
            users=[],
            place=f"{_field(case)}.resources",
            what=f"MIG instances behind {', '.join(sorted(cut))} can be shared only while their layout is fixed",
            why="a device that is shared must not draw on counters of its GPU, too: schedulers have been seen to "
            "count them wrong",
            todo="leave `mig: static` in the node configuration; `dynamic` and sharing exclude each other on a GPU",
        )
    if case.shares.replicas and case.config.flags.mig_strategy == "mixed":
        yield note(
            case,
            f"{_field(case)}.resources",
            "whole GPUs and MIG instances of every profile of these nodes are shared alike, those made later, too",
            "a rule of a node configuration shares a GPU, whatever it is cut into",
            "add rules with a filter by hand where some GPUs shall not be shared",
        )


def _policy(case: Case) -> Iterator[Gap]:
    policy = case.config.flags.plugin.shared_devices_allocation_policy
    spreads = policy == "distributed"
    if not spreads and case.config.flags.mig_strategy == "none" and not _shared(case):
        yield note(
            case,
            "flags.plugin.sharedDevicesAllocationPolicy",
            "packed has no effect here, today either",
            _NOTHING_SHARED,
        )
    if spreads and case.shares.replicas:
        yield case.gap(
            users=[],
            place="flags.plugin.sharedDevicesAllocationPolicy",
            what="pods that come at the same moment may land on one shared device before the next one is used",
            why="the scheduler takes the first device that fits; `order: spread` puts the one with most free shares "
            "first, a moment after a share was given out",
            todo="nothing, or `order: packed` where GPUs shall be filled one after the other",
        )
    elif spreads and case.config.flags.mig_strategy != "none":
        yield case.gap(
            users=[],
            place="flags.plugin.sharedDevicesAllocationPolicy",
            what="pods spread over a node's GPUs in a fixed order, not to the one that is used least",
            why="the scheduler takes the first device that fits, in the order of the slices; `order: spread` sorts "
            "them",
            todo="nothing, or `order: packed` where GPUs shall be filled one after the other",
        )


_NOTHING_SHARED: Final = "it chooses among shares and MIG instances, of which there are none"


def _renames(case: Case) -> Iterator[Gap]:
    sharer = case.config.sharer
    for index, one in enumerate(sharer.resources if sharer else ()):
        place = f"{_field(case)}.resources[{index}]"
        usual = names.shared(one.name) if sharer and sharer.rename_by_default else None
        if one.rename not in (None, usual):
            yield note(
                case,
                f"{place}.rename",
                f"{place}.rename has no effect today either",
                "the device plugin reads it and takes the name that renameByDefault gives",
                "take it out; a bridge can have any name if you want another one: add it by hand",
            )
        if one.devices != "all":
            yield note(
                case,
                f"{place}.devices",
                f"{place}.devices has no effect today either: all devices are shared",
                "the device plugin reads it and takes all",
                "take it out; this driver's node configurations can choose GPUs by a filter",
            )


RULES: Final[tuple[Rule, ...]] = (
    _replicas, _version, _isolation, _not_offered, _both, _greater_than_one, _mps, _mig_and_mps, _shared_mig, _policy,
    _renames,
)  # fmt: skip
