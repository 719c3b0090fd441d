import copy
import pickle

import pynvml
import pytest

from dradriver.nvml import errors
from dradriver.nvml.errors import NvmlError, translate

CODES = {name: code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(code, int)}


@pytest.mark.parametrize(("name", "code"), sorted(CODES.items()))
def test_every_code_has_a_text_that_names_call_gpu_cause_and_next_step(name, code):
    error = translate("nvmlDeviceGetUUID", code, "GPU-1")
    assert (error.call, error.code, error.gpu) == ("nvmlDeviceGetUUID", code, "GPU-1")
    text = str(error)
    assert text.startswith("nvmlDeviceGetUUID for GPU-1 failed: ")
    assert f"(NVML code {code}); {error.step}" in text
    assert error.cause in text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_UNINITIALIZED, errors.Uninitialized),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, errors.InvalidArgument),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, errors.NotSupported),
        (pynvml.NVML_ERROR_NO_PERMISSION, errors.NoPermission),
        (pynvml.NVML_ERROR_NOT_FOUND, errors.NotFound),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, errors.DriverNotLoaded),
        (pynvml.NVML_ERROR_TIMEOUT, errors.TimedOut),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, errors.LibraryMissing),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, errors.NotSupported),
        (pynvml.NVML_ERROR_GPU_IS_LOST, errors.GpuLost),
        (pynvml.NVML_ERROR_RESET_REQUIRED, errors.ResetRequired),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, errors.DriverMismatch),
        (pynvml.NVML_ERROR_IN_USE, errors.InUse),
        (pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES, errors.InsufficientResources),
        (pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, errors.NotSupported),
        (pynvml.NVML_ERROR_DEPRECATED, errors.NotSupported),
        (pynvml.NVML_ERROR_GPU_NOT_FOUND, errors.NotFound),
        (pynvml.NVML_ERROR_UNKNOWN, errors.UnknownError),
        (123456, errors.UnknownError),
    ],
)
def test_codes_become_their_class(code, kind):
    assert type(translate("f", code)) is kind


def test_codes_that_share_a_class_tell_their_own_cause():
    texts = {translate("f", code).cause for code in (3, 13, 25, 26)}
    assert len(texts) == 4


def test_a_call_about_no_gpu_names_none():
    assert str(translate("nvmlInitWithFlags", 9)).startswith("nvmlInitWithFlags failed: the NVIDIA kernel module")


def test_our_errors_can_be_hashed_and_compared_unlike_pynvmls():
    error = translate("f", 19, "GPU-1")
    assert {error: "found"}[error] == "found"
    assert error != None  # noqa: E711 -- pynvml's raises AttributeError here.


def test_the_driver_group_is_what_no_gpu_can_be_asked_without():
    group = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, NvmlError)}
    below = {kind for kind in group if issubclass(kind, errors.DriverUnavailable)} - {errors.DriverUnavailable}
    assert below == {
        errors.LibraryMissing,
        errors.DriverNotLoaded,
        errors.DriverMismatch,
        errors.SimulationUnusable,
    }
    assert all(kind.__name__ in errors.__doc__ for kind in group)


@pytest.mark.parametrize(
    ("code", "session", "fatal"), [(1, True, True), (9, True, True), (15, False, True), (3, False, False)]
)
def test_what_an_error_is_about(code, session, fatal):
    error = translate("f", code)
    assert (errors.is_session_gone(error), errors.is_fatal(error)) == (session, fatal)


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_copying_with_its_text(copied):
    error = translate("f", 13, "GPU-1")
    again = copied(error)
    assert (type(again), str(again), again.gpu) == (errors.NotSupported, str(error), "GPU-1")
