"""From GPUs to the devices of the node's pool: a pure function, the only one that decides what is offered."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dradriver import api
from dradriver.gpu import attributes, counters, names, sharing
from dradriver.gpu.devices import OfferedDevice, left_over_devices, wanted_devices
from dradriver.gpu.health import EFFECTS, Effect, Mark, Marks, Place, marks_of
from dradriver.gpu.model import Gpu
from dradriver.gpu.order import in_order, regroup
from dradriver.gpu.policy import Detail, GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceGroup,
    InvalidPoolError,
    Layout,
    Pool,
    Taint,
    lay_out,
    validate,
)
from dradriver.resource.limits import TAINTS_PER_DEVICE, TAINTS_PER_DEVICE_1_34


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What holds on the node and in the cluster at this moment, beside what the node has.

    Attributes:
        held: names of devices that claims hold, and the UUID of the MIG instance behind each, "" where there is none
            or it is not known. These stay published whatever is wanted: without them the scheduler would give their
            memory to somebody else.
        absent: UUIDs of GPUs that do not answer.
        layout: where the API server wants counter sets; None where it keeps none, so that partitions which share a
            GPU with anything else cannot be offered.
        taints: the API server keeps taints; otherwise a device that would have one is withheld, unless it is held.
        informational: it keeps taints of effect None, too; otherwise those are left out.
        marks: what GPUs deserve for their health.
        shareable: the API server keeps what tells that several claims may have a device; otherwise none is shared.
        shares: names of the devices of `held` that claims hold in shares, and how many shares.
    """

    held: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    layout: Layout | None = Layout.APART
    taints: bool = True
    informational: bool = True
    marks: Marks = field(default_factory=dict)
    shareable: bool = True
    shares: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The pool to publish, and what its device names stand for.

    Attributes:
        pool: what is published.
        devices: by name; also those that are withheld from the pool for the moment.
        gpus: number to GPU, of all that were given.
        plain: names of the published devices that would be published just so if no claim held them.
        kept: names of the published devices that are there for the sake of their claims, or may come back.
        dynamic: UUIDs of the GPUs on which partitions are made when claims are prepared.
        static: UUIDs of the GPUs whose partitions an administrator makes, and only he.
        shared: names of the published devices that several claims may have at once.
        unshared: UUIDs of the GPUs that are to be shared and are not, since they are cut for claims.
        refused: UUIDs of GPUs that are left out because the API server would refuse them, and why.
        unmarked: the pool as it would be if all GPUs were well, and the names in `plain` then.
    """

    pool: Pool
    devices: Mapping[str, OfferedDevice]
    gpus: Mapping[int, Gpu] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    dynamic: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    unshared: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unmarked: tuple[Pool, frozenset[str]] | None = None

    def find(self, name: str) -> OfferedDevice | None:
        """Find what a name stands for, offered or not: an earlier process may have offered other devices."""
        if (device := self.devices.get(name)) is not None:
            return device
        possible = (left_over_devices(gpu, number, {name: ""}, ()) for number, gpu in self.gpus.items())
        return next((found[0] for found in possible if found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One GPU's part of the offer, before it is put in order.

    Attributes:
        shares: names of the devices that several claims may have at once, and how many.
        unwished: names of the devices that are offered otherwise than the rule wants, for the sake of their claims.
    """

    gpu: Gpu
    rule: GpuRule
    wanted: tuple[OfferedDevice, ...]
    left_over: tuple[OfferedDevice, ...]
    counter_set: CounterSet | None
    engines: tuple[str, ...]
    shares: Mapping[str, int]
    unwished: frozenset[str]

    @property
    def devices(self) -> tuple[OfferedDevice, ...]:
        """In no order that matters, the whole GPU last."""
        return tuple(sorted((*self.wanted, *self.left_over), key=lambda device: device.profile is None))


def make_offer(
    gpus: Iterable[Gpu],
    *,
    pool: str,
    policy: OfferPolicy,
    numbers: Mapping[str, int],
    situation: Situation = Situation(),
) -> Offer:
    """Decide which devices a node offers, in the order in which the scheduler shall try them.

    Args:
        gpus: what the node has, and what it had and claims still hold; of their MIG instances, those that this driver
            has not made for claims.
        pool: name of the pool.
        policy: what the administrator wants.
        numbers: UUID to the number in device names, of every GPU.
        situation: what else is to be heeded.
    """
    ordered = in_bus_order(gpus)
    rules = [policy.rule(gpu, index) for index, gpu in enumerate(ordered)]
    parts = [_part(gpu, numbers[gpu.uuid], rule, situation) for gpu, rule in zip(ordered, rules, strict=True)]
    uniform = attributes.uniform_optionals(device for part in parts for device in part.devices)
    telling = policy.shares or any(part.shares for part in parts)
    deserved = [_described(part, policy.detail, uniform, situation, telling=telling) for part in parts]
    described = [_kept_by_server(devices, situation) for devices in deserved]
    problems = {
        part.gpu.uuid: found
        for part, devices in zip(parts, described, strict=True)
        if (found := _problems(part, devices, situation.layout))
    }
    sound = [part for part in parts if part.gpu.uuid not in problems]
    published = {device.name: device for devices in described for device in devices}
    # What is left over from earlier is never chosen anew, and so has no part in the order.
    arranged = in_order([part.wanted for part in sound], policy.order, free=_free(sound, situation))
    offer = Offer(
        pool=Pool(name=pool, groups=regroup(_groups(sound, published), arranged)),
        devices={device.name: device for part in parts for device in part.devices},
        gpus={numbers[gpu.uuid]: gpu for gpu in ordered},
        plain=frozenset(published.keys() & {one.name for devices in deserved for one in devices if not one.taints}),
        kept=frozenset(published.keys() & {name for part in parts for name in _kept(part, situation)}),
        dynamic=frozenset(part.gpu.uuid for part in parts if part.rule.mig is MigOffer.DYNAMIC),
        static=frozenset(gpu.uuid for gpu, rule in zip(ordered, rules, strict=True) if rule.mig is MigOffer.STATIC),
        shared=frozenset(name for name, device in published.items() if device.shared),
        unshared=frozenset(
            gpu.uuid
            for gpu, rule in zip(ordered, rules, strict=True)
            if rule.sharing is not None and sharing.is_partitioned(gpu, rule)
        ),
        refused=problems,
    )
    return mark_offer(replace(offer, unmarked=(offer.pool, offer.plain)), situation)


def mark_offer(offer: Offer, situation: Situation) -> Offer:
    """Give devices the taints that their GPUs deserve for their health; all else stays.

    Args:
        offer: by `make_offer`, in the same situation but for the marks.
        situation: with the marks that count now.
    """
    assert offer.unmarked is not None  # noqa: S101 (make_offer gives it)
    pool, plain = offer.unmarked
    groups = (replace(group, devices=_marked(group.devices, offer, situation)) for group in pool.groups)
    pool = replace(pool, groups=tuple(group for group in groups if group.devices))
    if situation.taints:
        return replace(offer, pool=pool, plain=plain)
    sick = {
        name for name, device in offer.devices.items() if any(one.gravity for one in device_marks(device, situation))
    }
    return replace(offer, pool=pool, plain=plain - sick)


def device_marks(device: OfferedDevice, situation: Situation) -> tuple[Mark, ...]:
    """Give the marks that count for a device and that the API server keeps, the gravest first."""
    deserved = situation.marks.get(device.gpu.uuid)
    if not deserved:
        return ()
    place = None
    if device.profile is not None and device.placement is not None:
        place = Place(profile_id=device.profile.id, placement=device.placement)
    marks = marks_of(deserved, place)
    return marks if situation.informational else tuple(mark for mark in marks if mark.effect != Effect.NONE)


def _marked(devices: tuple[Device, ...], offer: Offer, situation: Situation) -> tuple[Device, ...]:
    found = ((device, device_marks(offer.devices[device.name], situation)) for device in devices)
    if situation.taints:
        return tuple(_tainted(device, marks, situation) if marks else device for device, marks in found)
    return tuple(
        device for device, marks in found if device.name in situation.held or not any(mark.gravity for mark in marks)
    )


def _tainted(device: Device, marks: Iterable[Mark], situation: Situation) -> Device:
    """Add taints, the graver where there are two with one key."""
    taints = {taint.key: taint for taint in device.taints}
    for mark in marks:
        if mark.key not in taints or EFFECTS.index(taints[mark.key].effect) < mark.gravity:
            taints[mark.key] = mark.taint
    # Whoever does not know the effect None is of 1.34, which takes four.
    most = TAINTS_PER_DEVICE if situation.informational else TAINTS_PER_DEVICE_1_34
    gravest = sorted(taints.values(), key=lambda taint: -EFFECTS.index(taint.effect))
    return replace(device, taints=tuple(gravest[:most]))


def in_bus_order(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Put GPUs in the order of their PCI bus ids, in which a policy counts them."""
    return sorted(gpus, key=lambda gpu: (gpu.pci_bus_id, gpu.uuid))


def _groups(parts: Iterable[_Part], published: Mapping[str, Device]) -> Iterable[DeviceGroup]:
    for part in parts:
        devices = tuple(published[device.name] for device in part.devices if device.name in published)
        if devices:
            yield DeviceGroup(devices=devices, counter_sets=_sets(part))


def _sets(part: _Part) -> tuple[CounterSet, ...]:
    return () if part.counter_set is None else (part.counter_set,)


def _free(parts: Iterable[_Part], situation: Situation) -> Mapping[str, int]:
    """Tell how many shares of each shared device are free."""
    return {name: shares - situation.shares.get(name, 0) for part in parts for name, shares in part.shares.items()}


# --- one GPU --------------------------------------------------------------------------------------


def _part(gpu: Gpu, number: int, rule: GpuRule, situation: Situation) -> _Part:
    wished = sharing.wish(gpu, rule) if situation.shareable else None
    if situation.layout is None and rule.mig is MigOffer.DYNAMIC:
        rule = replace(rule, mig=MigOffer.STATIC)
    wanted = wanted_devices(gpu, number, rule)
    left_over = left_over_devices(gpu, number, situation.held, wanted)
    held_shares = situation.shares if situation.shareable else {}
    sharing_here = wished is not None or any(device.name in held_shares for device in (*wanted, *left_over))
    counting = bool(left_over) or any(device.is_made_here for device in wanted)
    if counting and (sharing_here or situation.layout is None):
        # Without counters nothing else may be offered of a GPU that is partly taken, and what is shared has none.
        wanted = [device for device in wanted if device.name in situation.held]
    shares = sharing.shares(wanted, left_over, wished=wished, held=situation.held, held_shares=held_shares)
    counted = (*wanted, *left_over) if counting and not shares and situation.layout is not None else ()
    counter_set, engines = _counters(gpu, number, counted)
    return _Part(
        gpu=gpu,
        rule=rule,
        wanted=tuple(wanted),
        left_over=tuple(left_over),
        counter_set=counter_set,
        engines=engines,
        shares=shares,
        unwished=sharing.unwished(wanted, wished, held=situation.held, held_shares=situation.shares),
    )


def _counters(gpu: Gpu, number: int, devices: Iterable[OfferedDevice]) -> tuple[CounterSet | None, tuple[str, ...]]:
    """Give what partitions of a GPU have to share, and which of its engines that are; None where there are none."""
    profiles = list(dict.fromkeys(device.profile for device in devices if device.profile is not None))
    if not profiles:
        return None, ()
    totals = counters.engine_totals(gpu.profiles)
    engines = counters.binding_engines(profiles, totals)
    held = counters.set_counters(profiles, engines, totals)
    return CounterSet(name=names.counter_set_name(number), counters=held), engines


def _described(
    part: _Part, detail: Detail, uniform: Mapping[str, frozenset[str]], situation: Situation, *, telling: bool
) -> list[Device]:
    """Write the devices of one GPU, with the taints that they deserve.

    Args:
        part: of the offer.
        detail: how much they say.
        uniform: by type, optional attributes that they have.
        situation: what else is to be heeded.
        telling: they say whether they are shared.
    """
    return [_device(device, part, detail, uniform, situation, telling=telling) for device in part.devices]


def _kept_by_server(devices: Iterable[Device], situation: Situation) -> list[Device]:
    """Leave out what cannot be published as it deserves: taints, and for want of them devices that nobody holds."""
    if situation.taints:
        return list(devices)
    return [replace(device, taints=()) for device in devices if not device.taints or device.name in situation.held]


def _device(
    device: OfferedDevice,
    part: _Part,
    detail: Detail,
    uniform: Mapping[str, frozenset[str]],
    situation: Situation,
    *,
    telling: bool,
) -> Device:
    dynamic = part.rule.mig is MigOffer.DYNAMIC
    optional = attributes.optional_attributes(device.gpu)
    uniform_here = uniform[attributes.device_type(device)]
    # The instance of a device that exists only for its claim is not read from the GPU any more.
    left_over = device in part.left_over and device.profile is not None and not dynamic
    every = attributes.attributes(device, uuid=situation.held.get(device.name, "") if left_over else "")
    every |= {name: value for name, value in optional.items() if name in uniform_here}
    if telling:
        every |= sharing.attributes(part.rule, shared=device.name in part.shares)
    told = attributes.said(detail, every)
    capacity = attributes.fitting(told, _capacity(device, part, detail))
    return Device(
        name=device.name,
        attributes=told,
        capacity=capacity,
        consumes=_consumption(device, part),
        taints=tuple(_taints(device, part, situation)),
        policies=sharing.policies(capacity) if device.name in part.shares else {},
    )


def _capacity(device: OfferedDevice, part: _Part, detail: Detail) -> dict[str, int]:
    dynamic = part.rule.mig is MigOffer.DYNAMIC
    partitionable = dynamic and any(one.profile for one in part.wanted)
    capacity = attributes.capacity(device, partitionable=partitionable)
    shares = part.shares.get(device.name)
    return attributes.said(detail, capacity if shares is None else capacity | {api.Capacity.SHARES: shares})


def _kept(part: _Part, situation: Situation) -> Iterable[str]:
    devices = part.devices if part.gpu.uuid in situation.absent else part.left_over
    return (*part.unwished, *(device.name for device in devices))


def _consumption(device: OfferedDevice, part: _Part) -> tuple[CounterConsumption, ...]:
    if part.counter_set is None:
        return ()
    taken = part.counter_set.counters
    if device.profile is not None and device.placement is not None:
        taken = counters.partition_counters(device.profile, device.placement, part.engines)
    return (CounterConsumption(counter_set=part.counter_set.name, counters=taken),)


def _taints(device: OfferedDevice, part: _Part, situation: Situation) -> Iterable[Taint]:
    if part.gpu.uuid in situation.absent:
        yield Taint(key=api.TaintKey.GPU_LOST, effect="NoSchedule")
    if device in part.left_over or device.name in part.unwished:
        yield Taint(key=api.TaintKey.NOT_OFFERED, effect="NoSchedule")
    if part.rule.mig is MigOffer.DYNAMIC and _is_occupied(device):
        yield Taint(key=api.TaintKey.FOREIGN_INSTANCE, effect="NoSchedule")


def _is_occupied(device: OfferedDevice) -> bool:
    """Tell whether an instance that is not ours lies where the device would be made."""
    place = device.placement
    return any(place is None or place.overlaps(foreign.placement) for foreign in device.gpu.instances)


def _problems(part: _Part, devices: Sequence[Device], layout: Layout | None) -> tuple[str, ...]:
    """Say why the API server would refuse a GPU, so that one does not hide the others."""
    form = layout or Layout.APART
    group = DeviceGroup(devices=tuple(devices), counter_sets=_sets(part))
    try:
        validate(lay_out(Pool(name="", groups=(group,)), form), form)
    except InvalidPoolError as error:
        return error.problems
    return ()
