from typing import get_args

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dradriver import api
from dradriver.gpu.health import EFFECTS
from dradriver.nvml import EventType
from dradriver.observe.metrics import REQUEST_BUCKETS, TAINT_CAUSES, TAINT_EFFECTS, GpuEvent, Metrics

DRIVER = "gpu.nvidia.com"


class Clock:
    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics(clock):
    return Metrics(node="node-a", driver=DRIVER, version="1.2.3", clock=clock, wall_clock=lambda: 1.5e9)


def exposed(metrics):
    """What a scrape gives, by sample name and labels."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def value(metrics, name, **labels):
    return exposed(metrics)[(name, *sorted(labels.items()))]


def test_names_and_labels_that_nvidias_driver_has_are_kept(metrics):
    names = {
        name: tuple(label for label, _ in labels)
        for name, *labels in exposed(metrics)
        if name.startswith("nvidia_dra_") and not name.endswith("_bucket")
    }
    assert names == {
        "nvidia_dra_requests_total": ("driver", "operation"),
        "nvidia_dra_requests_inflight": ("driver", "operation"),
        "nvidia_dra_request_duration_seconds_count": ("driver", "operation"),
        "nvidia_dra_request_duration_seconds_sum": ("driver", "operation"),
        "nvidia_dra_prepared_devices": ("device_type", "driver", "node"),
        "nvidia_dra_node_prepare_errors_total": ("driver", "error_type"),
        "nvidia_dra_node_unprepare_errors_total": ("driver", "error_type"),
    }


def test_nvidias_buckets_are_among_ours():
    assert {0.05 * 2**n for n in range(9)} <= set(REQUEST_BUCKETS)
    assert list(REQUEST_BUCKETS) == sorted(set(REQUEST_BUCKETS))


def test_series_exist_before_anything_happens(metrics):
    assert value(metrics, "nvidia_dra_requests_total", driver=DRIVER, operation="unprepare") == 0
    assert value(metrics, "dradriver_mig_operations_total", operation="create", result="error") == 0
    assert value(metrics, "dradriver_slice_writes_total", operation="update") == 0


def test_a_request_is_counted_and_timed(metrics, clock):
    with metrics.request("prepare"):
        clock.now += 0.003
        assert value(metrics, "nvidia_dra_requests_inflight", driver=DRIVER, operation="prepare") == 1
        assert value(metrics, "nvidia_dra_requests_inflight", driver=DRIVER, operation="unprepare") == 0
    found = {"driver": DRIVER, "operation": "prepare"}
    assert value(metrics, "nvidia_dra_requests_inflight", **found) == 0
    assert value(metrics, "nvidia_dra_requests_total", **found) == 1
    assert value(metrics, "nvidia_dra_request_duration_seconds_sum", **found) == pytest.approx(0.003)
    assert value(metrics, "nvidia_dra_request_duration_seconds_bucket", **found, le="0.002") == 0
    assert value(metrics, "nvidia_dra_request_duration_seconds_bucket", **found, le="0.005") == 1


def test_failed_requests_are_counted_but_not_timed(metrics):
    with metrics.request("unprepare") as request:
        request.fail()
    with pytest.raises(ZeroDivisionError), metrics.request("unprepare"):
        raise ZeroDivisionError
    found = {"driver": DRIVER, "operation": "unprepare"}
    assert value(metrics, "nvidia_dra_requests_total", **found) == 2
    assert value(metrics, "nvidia_dra_requests_inflight", **found) == 0
    assert value(metrics, "nvidia_dra_request_duration_seconds_count", **found) == 0


def test_failed_claims_are_counted_by_cause(metrics):
    metrics.claim_failed("prepare", "claim_get")
    metrics.claim_failed("prepare", "claim_get")
    metrics.claim_failed("unprepare", "lock_acquire")
    assert value(metrics, "nvidia_dra_node_prepare_errors_total", driver=DRIVER, error_type="claim_get") == 2
    assert value(metrics, "nvidia_dra_node_unprepare_errors_total", driver=DRIVER, error_type="lock_acquire") == 1


def test_a_cause_that_is_not_on_the_list_makes_no_series(metrics):
    with pytest.raises(KeyError):
        metrics.claim_failed("prepare", "claim team/training failed")


def test_prepared_devices_are_a_state_not_a_sum(metrics):
    labels = {"node": "node-a", "driver": DRIVER}
    metrics.set_prepared_devices({"gpu": 2, "mig": 3})
    assert value(metrics, "nvidia_dra_prepared_devices", **labels, device_type="mig") == 3
    metrics.set_prepared_devices({"gpu": 1})
    assert value(metrics, "nvidia_dra_prepared_devices", **labels, device_type="gpu") == 1
    assert value(metrics, "nvidia_dra_prepared_devices", **labels, device_type="mig") == 0


def test_slices_migs_and_loops(metrics):
    metrics.set_slices_published(9)
    metrics.slice_written("create")
    metrics.slice_failed("ConflictError")
    metrics.mig_operation("create")
    metrics.mig_operation("destroy", failed=True)
    metrics.succeeded("publish")
    assert value(metrics, "dradriver_slices_published") == 9
    assert value(metrics, "dradriver_slice_writes_total", operation="create") == 1
    assert value(metrics, "dradriver_slice_failures_total", reason="ConflictError") == 1
    assert value(metrics, "dradriver_mig_operations_total", operation="create", result="ok") == 1
    assert value(metrics, "dradriver_mig_operations_total", operation="destroy", result="error") == 1
    assert value(metrics, "dradriver_last_success_timestamp_seconds", loop="publish") == 1.5e9


def test_tainted_devices_are_counted_by_cause_and_effect(metrics):
    xid, lost = ("gpu.nvidia.com/xid", "NoExecute"), ("gpu.nvidia.com/gpu-lost", "NoSchedule")
    metrics.set_tainted_devices([xid, xid, lost, ("gpu.nvidia.com/xid", "None"), ("dradriver.dev/memory", "None")])
    assert value(metrics, "dradriver_tainted_devices", cause="xid", effect="NoExecute") == 2
    assert value(metrics, "dradriver_tainted_devices", cause="xid", effect="None") == 1
    assert value(metrics, "dradriver_tainted_devices", cause="gpu-lost", effect="NoSchedule") == 1
    assert value(metrics, "dradriver_tainted_devices", cause="memory", effect="None") == 1
    metrics.set_tainted_devices([lost])
    assert value(metrics, "dradriver_tainted_devices", cause="xid", effect="NoExecute") == 0
    assert value(metrics, "dradriver_tainted_devices", cause="gpu-lost", effect="NoSchedule") == 1


def test_taints_that_are_not_for_health_are_not_counted(metrics):
    before = exposed(metrics).keys()
    metrics.set_tainted_devices([(api.TaintKey.NOT_OFFERED, "NoSchedule"), ("example.com/mine", "NoExecute")])
    found = exposed(metrics)
    assert found.keys() == before
    assert not any(number for (name, *_), number in found.items() if name == "dradriver_tainted_devices")


def test_the_causes_are_those_of_our_taints():
    keys = {value for name, value in vars(api.TaintKey).items() if not name.startswith("_")}
    others = {api.TaintKey.NOT_OFFERED, api.TaintKey.FOREIGN_INSTANCE}
    assert {key.partition("/")[2] for key in keys - others} == set(TAINT_CAUSES)
    assert set(TAINT_EFFECTS) == set(EFFECTS)


def test_events_of_gpus_are_counted_and_the_last_is_dated(metrics):
    assert value(metrics, "dradriver_last_gpu_event_timestamp_seconds") == 0
    assert value(metrics, "dradriver_gpu_events_total", type="gpu-unavailable") == 0
    metrics.gpu_event("xid", xid=79)
    metrics.gpu_event("xid", xid=79)
    metrics.gpu_event("xid", xid=13)
    metrics.gpu_event("recovery-action")
    assert value(metrics, "dradriver_gpu_events_total", type="xid") == 3
    assert value(metrics, "dradriver_gpu_events_total", type="recovery-action") == 1
    assert value(metrics, "dradriver_gpu_xids_total", xid="79") == 2
    assert value(metrics, "dradriver_gpu_xids_total", xid="13") == 1
    assert value(metrics, "dradriver_last_gpu_event_timestamp_seconds") == 1.5e9


def test_numbers_and_types_that_nobody_knows_make_one_series(metrics):
    for xid in (1000, 2**63, -1):
        metrics.gpu_event("xid", xid=xid)
    metrics.gpu_event("pstate")
    found = exposed(metrics)
    assert [labels for name, *labels in found if name == "dradriver_gpu_xids_total"] == [[("xid", "other")]]
    assert value(metrics, "dradriver_gpu_xids_total", xid="other") == 3
    assert value(metrics, "dradriver_gpu_events_total", type="other") == 1


def test_types_of_events_are_named_as_nvml_names_them():
    known = {kind.name.lower().replace("_", "-") for kind in EventType}
    assert set(get_args(GpuEvent)) - {"other"} <= known


def test_gpus_unheard_and_pods_not_evicted_are_states(metrics):
    assert value(metrics, "dradriver_gpus_unmonitored") == value(metrics, "dradriver_pods_not_evicted") == 0
    metrics.set_gpus_unmonitored(2)
    metrics.set_pods_not_evicted(3)
    assert value(metrics, "dradriver_gpus_unmonitored") == 2
    metrics.set_pods_not_evicted(0)
    assert value(metrics, "dradriver_pods_not_evicted") == 0


def test_the_version_and_the_process_are_told(metrics):
    found = exposed(metrics)
    assert found["dradriver_build_info", ("version", "1.2.3")] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_there_are_no_creation_times_and_registries_do_not_mix(metrics):
    Metrics(node="node-b", driver=DRIVER, version="2")
    found = exposed(metrics)
    assert not [name for name, *_ in found if name.endswith("_created")]
    assert not [labels for _, *labels in found if ("node", "node-b") in labels]
