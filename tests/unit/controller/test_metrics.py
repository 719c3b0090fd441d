import pytest
from prometheus_client import generate_latest

from controller.api import BridgeStatus, Condition, ConditionType
from controller.metrics import Metrics


@pytest.fixture
def metrics():
    return Metrics(version="1.2.3", wall_clock=lambda: 1000.0)


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def status(**holds):
    return BridgeStatus(
        conditions=tuple(
            Condition(type=ConditionType(kind), holds=held, reason="R", message="") for kind, held in holds.items()
        )
    )


def test_labels(metrics):
    for outcome in ("written", "written", "conflict"):
        metrics.label_written(outcome)
    assert value(metrics, "dradriver_controller_label_writes_total", outcome="written") == 2
    assert value(metrics, "dradriver_controller_label_writes_total", outcome="conflict") == 1
    metrics.set_labelled(5, 2)
    assert value(metrics, "dradriver_controller_labelled_nodes", labels="ours") == 5
    assert value(metrics, "dradriver_controller_labelled_nodes", labels="foreign") == 2
    assert value(metrics, "dradriver_last_success_timestamp_seconds", loop="labels") == 1000.0


def test_bridges_are_counted_by_the_worst_that_holds(metrics):
    metrics.set_bridges(
        [
            status(Ready=True, Conflict=False),
            status(Ready=True, Degraded=True),
            status(Ready=False, Degraded=True, Conflict=True),
            status(Ready=False),
            status(),
        ]
    )
    counted = {
        state: value(metrics, "dradriver_controller_bridges", state=state)
        for state in ("ready", "conflict", "degraded", "other")
    }
    assert counted == {"ready": 1, "conflict": 1, "degraded": 1, "other": 2}
    metrics.set_bridges([])
    assert value(metrics, "dradriver_controller_bridges", state="other") == 0


def test_work_and_leadership(metrics):
    metrics.set_leading(leads=True)
    metrics.acted("ApplyClass")
    metrics.acted("ApplyClass")
    metrics.failed("ConflictError")
    metrics.succeeded("reconcile")
    assert value(metrics, "dradriver_controller_leader") == 1
    assert value(metrics, "dradriver_controller_actions_total", action="ApplyClass") == 2
    assert value(metrics, "dradriver_controller_failures_total", reason="ConflictError") == 1
    assert value(metrics, "dradriver_last_success_timestamp_seconds", loop="reconcile") == 1000
    assert value(metrics, "dradriver_build_info", version="1.2.3") == 1
    metrics.set_leading(leads=False)
    assert value(metrics, "dradriver_controller_leader") == 0


def test_the_page_can_be_written(metrics):
    assert b"dradriver_controller_bridges" in generate_latest(metrics.registry)


def test_base_classes_and_pods_that_wait(metrics):
    metrics.set_base_classes(["kept", "differs"])
    metrics.set_base_classes(["kept", "kept"])
    metrics.set_pending(3)
    counted = {
        state: value(metrics, "dradriver_controller_base_classes", state=state)
        for state in ("kept", "foreign", "differs", "bridge")
    }
    assert counted == {"kept": 2, "foreign": 0, "differs": 0, "bridge": 0}
    assert value(metrics, "dradriver_controller_pending_pods") == 3
