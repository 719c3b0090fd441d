"""What we count and measure, for Prometheus.

Metrics that NVIDIA's driver has too carry its names and labels, so that dashboards and alerts keep
working; ours alone start with `dradriver_`. No label ever holds a claim, pod or device name: every value
is one of a few that stand in the code, or the number of an Xid. Their series exist from the start, but for those of
`dradriver_slice_failures_total` (one for each class of error that was met), of loops, and of Xids.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

Operation: TypeAlias = Literal["prepare", "unprepare"]
ErrorType: TypeAlias = Literal[
    "lock_acquire", "prepare_devices", "unprepare_devices", "publish_resources", "claim_get", "internal"
]
"""The first four are NVIDIA's."""
SliceWrite: TypeAlias = Literal["create", "update", "delete"]
MigOperation: TypeAlias = Literal["create", "destroy"]
GpuEvent: TypeAlias = Literal["xid", "fatal-poison", "gpu-unavailable", "recovery-action", "mig-config", "other"]
"""What GPUs tell by themselves."""

DEVICE_TYPES: Final = ("gpu", "mig")
TAINT_CAUSES: Final = ("xid", "gpu-lost", "recovery", "memory", "unmonitored")
"""What stands behind the domain in the keys of taints for the health of GPUs."""
TAINT_EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
GREATEST_XID: Final = 999
"""Whatever number is above it is none, and is counted as `other`, so that a driver gone mad makes no series."""

REQUEST_BUCKETS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02),
    # From here on NVIDIA's, 0.05 s * 2^n, and at last the kubelet's deadline.
    *(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8),
    *(25.6, 45.0),
)
"""Seconds. A prepare takes a few milliseconds, which all fall into the first of NVIDIA's buckets."""


class Request:
    """A call of the kubelet that is being answered."""

    def __init__(self) -> None:
        self.failed = False

    def fail(self) -> None:
        """Keep it out of the durations, which are those of successes, as NVIDIA's are."""
        self.failed = True


class Metrics:
    """Every metric of one process, in a registry of its own.

    Series exist from the start with the value 0 where their labels are known, since a rate cannot see the first
    increment otherwise.
    """

    def __init__(
        self,
        *,
        node: str,
        driver: str,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Make all series.

        Args:
            node: this node's name.
            driver: the driver's name, as in ResourceSlices.
            version: of this program.
            clock: seconds, for durations.
            wall_clock: Unix time in seconds.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's last untyped function
        self.registry = CollectorRegistry()
        self._clock = clock
        self._wall_clock = wall_clock
        self._requests_of(driver)
        self._devices_of(node, driver)
        self._slices_and_loops()
        self._health()
        Gauge("dradriver_build_info", "Constant 1; what is running.", ["version"], registry=self.registry).labels(
            version
        ).set(1)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    @contextmanager
    def request(self, operation: Operation) -> Iterator[Request]:
        """Count and time one call of the kubelet; an exception counts as a failure."""
        request = Request()
        self._requests[operation].inc()
        self._inflight[operation].inc()
        start = self._clock()
        try:
            yield request
        except BaseException:
            request.fail()
            raise
        finally:
            self._inflight[operation].dec()
            if not request.failed:
                self._durations[operation].observe(self._clock() - start)

    def claim_failed(self, operation: Operation, error_type: ErrorType) -> None:
        """Count a claim that could not be prepared or unprepared."""
        self._errors[operation][error_type].inc()

    def set_prepared_devices(self, counts: Mapping[str, int]) -> None:
        """State how many devices are prepared now, by type (`gpu`, `mig`); a type left out has none."""
        for device_type, gauge in self._prepared.items():
            gauge.set(counts.get(device_type, 0))

    def set_slices_published(self, count: int) -> None:
        """State how many ResourceSlices of ours the API server has."""
        self._slices.set(count)

    def slice_written(self, operation: SliceWrite) -> None:
        """Count a ResourceSlice created, updated or deleted."""
        self._slice_writes[operation].inc()

    def slice_failed(self, reason: str) -> None:
        """Count a failed attempt to publish; reasons are names of exception classes, so they are few."""
        self._slice_failures.labels(reason).inc()

    def mig_operation(self, operation: MigOperation, *, failed: bool = False) -> None:
        """Count a MIG instance created or destroyed, or the attempt."""
        self._mig[operation, "error" if failed else "ok"].inc()

    def set_foreign_instances(self, count: int) -> None:
        """Set how many MIG instances this driver has no record of; each takes the place of a partition of ours."""
        self._foreign.set(count)

    def gpu_event(self, kind: str, *, xid: int | None = None) -> None:
        """Count what a GPU tells by itself.

        Args:
            kind: see GpuEvent; one that is not known is counted as `other`.
            xid: its number, where it is one.
        """
        self._gpu_events[kind if kind in self._gpu_events else "other"].inc()
        self._last_gpu_event.set(self._wall_clock())
        if xid is not None:
            self._xids.labels(str(xid) if 0 <= xid <= GREATEST_XID else "other").inc()

    def set_tainted_devices(self, taints: Iterable[tuple[str, str]]) -> None:
        """State which taints the published devices have now.

        Args:
            taints: key and effect of each taint of each device; keys that are not for health are left out.
        """
        counts = Tally((key.rpartition("/")[2], effect) for key, effect in taints)
        for labels, gauge in self._tainted.items():
            gauge.set(counts[labels])

    def set_gpus_unmonitored(self, count: int) -> None:
        """State how many GPUs nobody hears, or do not say how they are."""
        self._unmonitored.set(count)

    def set_pods_not_evicted(self, count: int) -> None:
        """State how many pods ought to be evicted for the health of their devices, and are not."""
        self._not_evicted.set(count)

    def succeeded(self, loop: str) -> None:
        """Note that a loop has done its work just now. Loops are few and their names fixed in the code."""
        self._last_success.labels(loop).set(self._wall_clock())

    def _requests_of(self, driver: str) -> None:
        labels, operations = ["driver", "operation"], get_args(Operation)
        requests = Counter("nvidia_dra_requests_total", "Calls of the kubelet.", labels, registry=self.registry)
        inflight = Gauge("nvidia_dra_requests_inflight", "Calls being answered now.", labels, registry=self.registry)
        durations = Histogram(
            "nvidia_dra_request_duration_seconds",
            "Duration of calls without a failed claim.",
            labels,
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._requests = {operation: requests.labels(driver, operation) for operation in operations}
        self._inflight = {operation: inflight.labels(driver, operation) for operation in operations}
        self._durations = {operation: durations.labels(driver, operation) for operation in operations}
        self._errors = {operation: self._errors_of(driver, operation) for operation in operations}

    def _errors_of(self, driver: str, operation: str) -> dict[str, Counter]:
        counter = Counter(
            f"nvidia_dra_node_{operation}_errors_total",
            f"Claims that failed to {operation}.",
            ["driver", "error_type"],
            registry=self.registry,
        )
        return {error_type: counter.labels(driver, error_type) for error_type in get_args(ErrorType)}

    def _devices_of(self, node: str, driver: str) -> None:
        prepared = Gauge(
            "nvidia_dra_prepared_devices",
            "Devices prepared now.",
            ["node", "driver", "device_type"],
            registry=self.registry,
        )
        mig = Counter(
            "dradriver_mig_operations_total",
            "MIG instances created and destroyed.",
            ["operation", "result"],
            registry=self.registry,
        )
        self._foreign = Gauge(
            "dradriver_foreign_mig_instances",
            "MIG instances that this driver has no record of, where it makes partitions.",
            registry=self.registry,
        )
        self._prepared = {kind: prepared.labels(node, driver, kind) for kind in DEVICE_TYPES}
        self._mig = {
            (operation, result): mig.labels(operation, result)
            for operation in get_args(MigOperation)
            for result in ("ok", "error")
        }

    def _slices_and_loops(self) -> None:
        self._slices = Gauge(
            "dradriver_slices_published", "ResourceSlices that the API server has.", registry=self.registry
        )
        writes = Counter(
            "dradriver_slice_writes_total", "ResourceSlices written.", ["operation"], registry=self.registry
        )
        self._slice_writes = {operation: writes.labels(operation) for operation in get_args(SliceWrite)}
        self._slice_failures = Counter(
            "dradriver_slice_failures_total", "Failed attempts to publish.", ["reason"], registry=self.registry
        )
        self._last_success = Gauge(
            "dradriver_last_success_timestamp_seconds",
            "Unix time at which a loop last did its work.",
            ["loop"],
            registry=self.registry,
        )

    def _health(self) -> None:
        tainted = Gauge(
            "dradriver_tainted_devices",
            "Published devices with a taint for the health of their GPU.",
            ["cause", "effect"],
            registry=self.registry,
        )
        self._tainted = {
            (cause, effect): tainted.labels(cause, effect) for cause in TAINT_CAUSES for effect in TAINT_EFFECTS
        }
        events = Counter(
            "dradriver_gpu_events_total", "What GPUs told by themselves.", ["type"], registry=self.registry
        )
        self._gpu_events = {kind: events.labels(kind) for kind in get_args(GpuEvent)}
        self._xids = Counter("dradriver_gpu_xids_total", "Xids that GPUs told of.", ["xid"], registry=self.registry)
        self._last_gpu_event = Gauge(
            "dradriver_last_gpu_event_timestamp_seconds",
            "Unix time at which a GPU last told something by itself; 0 as long as none has.",
            registry=self.registry,
        )
        self._unmonitored = Gauge(
            "dradriver_gpus_unmonitored", "GPUs that nobody hears, or that do not answer.", registry=self.registry
        )
        self._not_evicted = Gauge(
            "dradriver_pods_not_evicted",
            "Pods that ought to be evicted for the health of their devices, and are not.",
            registry=self.registry,
        )
