import pytest
from doubles.bridgeworld import bridge

from controller.api import Select
from controller.bridges.refusals import why_refused
from dradriver.kube import ForbiddenError, InvalidError, UnreachableError

TARGET = "PATCH /apis/resource.k8s.io/v1/deviceclasses/gpu.gpu.dradriver.dev"
HEAD = 'DeviceClass.resource.k8s.io "gpu.gpu.dradriver.dev" is invalid: '
BY_EXPRESSION = bridge(select=Select(cel="device.driver =="))


def invalid(message):
    return InvalidError(status=422, reason="Invalid", message=message, target=TARGET)


@pytest.mark.parametrize("index", [0, 1])
def test_a_mistake_in_an_expression_is_told_without_the_class(index):
    field = f"spec.selectors[{index}].cel.expression"
    quoted = r'"device.driver == \"a\"\n && (device.driver ==\n)"'
    message = (
        f"{HEAD}{field}: Invalid value: {quoted}: compilation failed: ERROR: <input>:2:1: Syntax error: x\n | )\n | ^"
    )
    assert why_refused(invalid(message), BY_EXPRESSION) == (
        "the API server refuses spec.select.cel: compilation failed: ERROR: <input>:2:1: Syntax error: x | ) | ^; "
        "correct the expression"
    )


def test_an_expression_that_is_too_long_or_too_dear():
    message = f"{HEAD}spec.selectors[0].cel.expression: Too long: may not be more than 10240 bytes"
    assert why_refused(invalid(message), BY_EXPRESSION).startswith(
        "the API server refuses spec.select.cel: may not be more than 10240 bytes; "
    )
    assert len(why_refused(invalid(message + "x" * 5000), BY_EXPRESSION)) < 600


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (invalid(f"{HEAD}spec.config: Invalid value: 3"), BY_EXPRESSION),
        (invalid(f"{HEAD}spec.selectors[0].cel.expression: Invalid value: 3: x"), bridge()),
        (ForbiddenError(status=403, reason="Forbidden", message="no", target=TARGET), BY_EXPRESSION),
        (UnreachableError("gone"), BY_EXPRESSION),
    ],
)
def test_other_refusals_are_told_as_they_are(error, whose):
    assert why_refused(error, whose) == f"{error}; correct the bridge, or the rights of the controller"
