import pytest

from controller.bridges.configs import problem_of

VERSION = {"apiVersion": "resource.nvidia.com/v1beta1"}
GOOD = VERSION | {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}


@pytest.mark.parametrize("configs", [[], [GOOD], [GOOD, VERSION | {"kind": "MigDeviceConfig"}]])
def test_what_the_driver_understands(configs):
    assert problem_of(configs) == ""


def test_every_mistake_has_its_path():
    found = problem_of([GOOD, GOOD | {"sharing": {"strategy": "None", "more": 1}}, VERSION | {"kind": "Other"}])
    assert "spec.config[1].sharing.more: unknown field" in found
    assert "spec.config[1].sharing.strategy: Input should be 'TimeSlicing' or 'MPS'" in found
    assert "spec.config[2]: kind must be GpuConfig or MigDeviceConfig" in found


@pytest.mark.parametrize(
    ("kind", "sharing", "said"),
    [
        ("GpuConfig", {"strategy": "MPS"}, "sharing.strategy MPS is not supported"),
        ("MigDeviceConfig", {"strategy": "MPS"}, "sharing.strategy MPS is not supported"),
        (
            "GpuConfig",
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            "sharing.strategy TimeSlicing with interval Long is not supported",
        ),
        ("GpuConfig", {"strategy": "TimeSlicing"}, ""),
        ("MigDeviceConfig", {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}, ""),
    ],
)
def test_what_the_driver_would_refuse_to_prepare_is_a_problem(kind, sharing, said):
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    problem = problem_of([{**config, "sharing": None}, config])
    assert problem.startswith(f"spec.config[1].{said}" if said else "")
    assert bool(problem) == bool(said)
