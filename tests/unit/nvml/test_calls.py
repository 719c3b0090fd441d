import pynvml
import pytest

from dradriver.nvml.calls import call, optional, walk_enum
from dradriver.nvml.errors import GpuLost, InUse, NotSupported, Uninitialized, translate


def raising(code):
    def function():
        raise pynvml.NVMLError(code)

    return function


def test_a_call_gives_what_the_function_gives():
    assert call("GPU-1", lambda one, *, two: (one, two), 1, two=2) == (1, 2)


def test_a_failed_call_names_function_and_gpu_and_keeps_nothing_of_pynvml():
    with pytest.raises(InUse, match=r"^function for GPU-1 failed: it is in use") as caught:
        call("GPU-1", raising(19))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_exceptions_pass_as_they_are():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call(None, broken)


def test_a_function_that_the_driver_lacks_counts_as_not_supported(fake):
    fake.missing.add("nvmlDeviceGetCount_v2")
    with pytest.raises(NotSupported, match="nvmlDeviceGetCount failed: this driver's library has no such function"):
        call(None, pynvml.nvmlDeviceGetCount)


def scripted(answers):
    def read(index):
        answer = answers[index] if index < len(answers) else 2
        if isinstance(answer, int):
            raise translate("f", answer)
        return answer

    return read


def test_an_enumeration_skips_gaps_and_ends_at_invalid_argument():
    assert list(walk_enum(scripted(["a", 3, "b", 3, 2, "never"]))) == [(0, "a"), (2, "b")]


def test_an_enumeration_that_never_ends_is_given_up():
    asked = []

    def read(index):
        asked.append(index)
        raise translate("f", 3)

    assert list(walk_enum(read)) == []
    assert 18 < len(asked) < 1000


def test_other_errors_end_an_enumeration():
    walk = walk_enum(scripted(["a", 15]))
    assert next(walk) == (0, "a")
    with pytest.raises(GpuLost):
        next(walk)


@pytest.mark.parametrize("code", [3, 4, 6, 10, 13, 999])
def test_an_optional_fact_is_none_whatever_nvml_says(code):
    assert optional(lambda: call("GPU-1", raising(code))) is None


@pytest.mark.parametrize(("code", "kind"), [(15, GpuLost), (1, Uninitialized)])
def test_a_gone_gpu_is_no_answer_about_an_optional_fact(code, kind):
    with pytest.raises(kind):
        optional(lambda: call("GPU-1", raising(code)))
