"""The instants between two side effects, by name, so that tests can end the process at each of them."""

from collections.abc import Callable
from enum import StrEnum


class Boundary(StrEnum):
    """What has just been done."""

    RECORD_TEMPORARY_WRITTEN = "record-temporary-written"
    PREPARING_RECORDED = "preparing-recorded"
    MODE_SWITCHED_ON = "mode-switched-on"
    GPU_INSTANCE_CREATED = "gpu-instance-created"
    COMPUTE_INSTANCE_CREATED = "compute-instance-created"
    SPEC_WRITTEN = "spec-written"
    PREPARED_RECORDED = "prepared-recorded"
    UNPREPARING_RECORDED = "unpreparing-recorded"
    COMPUTE_INSTANCE_DESTROYED = "compute-instance-destroyed"
    GPU_INSTANCE_DESTROYED = "gpu-instance-destroyed"
    MODE_SWITCHED_OFF = "mode-switched-off"
    SPEC_REMOVED = "spec-removed"
    RECORD_REMOVED = "record-removed"


_hook: Callable[[Boundary], None] | None = None


def passed(boundary: Boundary) -> None:
    """Say that a boundary is reached. Nobody listens but tests."""
    if _hook is not None:
        _hook(boundary)


def watch(hook: Callable[[Boundary], None] | None) -> None:
    """Be told of every boundary; None ends it."""
    global _hook  # noqa: PLW0603 (one process, one listener)
    _hook = hook
