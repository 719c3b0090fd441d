"""From a configuration as it is written to the policy that the offer is made by, and the wishes for GPUs' health."""

from typing import TypeVar

from dradriver.api.node_config import GpuFilter as WrittenFilter
from dradriver.api.node_config import GpuRule as WrittenRule
from dradriver.api.node_config import HealthPolicy, NodeConfig, SharingRule
from dradriver.gpu.health import HealthWishes
from dradriver.gpu.policy import Detail, GpuFilter, GpuRule, OfferPolicy, Order, Sharing
from dradriver.gpu.profiles import MigOffer, ProfileChoice

_T = TypeVar("_T")


def make_policy(config: NodeConfig, defaults: OfferPolicy) -> OfferPolicy:
    """Take what the configuration names, and the rest from the flags.

    Args:
        config: from the file.
        defaults: what the flags say; its rules are not used.
    """
    rules = config.gpus or []
    filtered = tuple(_rule(rule, rule.filter, defaults.default) for rule in rules if rule.filter is not None)
    # There is at most one without a filter, and it is the last.
    others = next((_rule(rule, None, defaults.default) for rule in rules if rule.filter is None), defaults.default)
    return OfferPolicy(
        rules=filtered,
        default=others,
        order=defaults.order if config.order is None else Order(config.order),
        detail=defaults.detail if config.publish is None else Detail(config.publish),
    )


def make_wishes(policy: HealthPolicy | None) -> HealthWishes:
    """Take what a health policy names; without one everything is as the driver's own table says."""
    if policy is None:
        return HealthWishes()
    return HealthWishes(
        xids=dict(policy.xids or {}),
        unknown_xids=policy.unknown_xids,
        strict_memory=policy.memory == "strict",
        expiry_seconds=policy.expiry_seconds,
    )


def _rule(written: WrittenRule, chosen: WrittenFilter | None, defaults: GpuRule) -> GpuRule:
    return GpuRule(
        filter=GpuFilter() if chosen is None else _filter(chosen),
        mig=defaults.mig if written.mig is None else MigOffer(written.mig),
        profiles=defaults.profiles if written.profiles is None else _choice(written.profiles),
        sharing=defaults.sharing if written.sharing is None else _sharing(written.sharing),
    )


def _sharing(written: SharingRule) -> Sharing:
    return Sharing(replicas=written.replicas, renamed=bool(written.rename))


def _choice(written: str | list[str]) -> ProfileChoice:
    return ProfileChoice(rule=written) if isinstance(written, str) else ProfileChoice(names=frozenset(written))


def _filter(written: WrittenFilter) -> GpuFilter:
    return GpuFilter(
        uuids=_set(written.uuids),
        indices=_set(written.indices),
        pci_bus_ids=_set(written.pci_bus_ids),
        product_names=None if written.product_names is None else tuple(written.product_names),
        device_ids=None if written.device_ids is None else frozenset(int(text, 16) for text in written.device_ids),
    )


def _set(values: list[_T] | None) -> frozenset[_T] | None:
    return None if values is None else frozenset(values)
