"""`Nvml.readings` on a scripted driver: what is told, what is not, and what goes wrong meanwhile."""

import pynvml
import pytest

from dradriver.nvml import access
from dradriver.nvml.errors import GpuLost, Hanging, NotFound, NvmlError, ResetRequired, Uninitialized, is_fatal
from dradriver.nvml.readings import FIELDS, fabric_word
from dradriver.nvml.records import Readings
from dradriver.nvml.session import LOST_PAUSE

CODES = sorted(
    {code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(code, int)} | {12345}
)
MEMORY, FIELD_VALUES, ROWS = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows"
RETIRED, SRAM, FABRIC = (
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetGpuFabricInfoV",
)
OPENING = ("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID")
INIT = "nvmlInitWithFlags"
RECOVERY, PENDING, FAILURE, RETIRED_PENDING = 230, 144, 145, 31
FULL = Readings(recovery=2, remap_pending=True, remap_failure=False, sram_exceeded=True, fabric="healthy")


@pytest.fixture
def gpu(fake):
    """A GPU that tells everything."""
    gpu = fake.gpus[0]
    gpu.fields = {RECOVERY: 2, PENDING: 1, FAILURE: 0}
    gpu.sram, gpu.fabric = 1, (3, 0, 0)
    return gpu


def test_a_gpu_that_tells_everything(gpu, nvml):
    assert nvml.readings("GPU-0") == FULL


def test_a_gpu_that_tells_nothing(nvml):
    assert nvml.readings("GPU-1") == Readings()


def test_all_fields_are_read_by_one_call_and_the_hardware_is_reached(gpu, fake, nvml):
    nvml.readings("GPU-0")
    assert (fake.calls[FIELD_VALUES], fake.calls[MEMORY]) == (1, 1)
    assert set(FIELDS) == {RECOVERY, PENDING, FAILURE, RETIRED_PENDING}


@pytest.mark.parametrize("action", range(8))
def test_every_recovery_action_is_told(gpu, nvml, action):
    gpu.fields[RECOVERY] = action
    assert nvml.readings("GPU-0").recovery == action


@pytest.mark.parametrize("rows", [(0, 3, 0, 0), (0, 0, 1, 0), (2, 0, 0, 1)])
def test_rows_are_asked_for_where_fields_do_not_tell(gpu, nvml, rows):
    gpu.fields, gpu.remapped = {}, rows
    readings = nvml.readings("GPU-0")
    assert (readings.remap_pending, readings.remap_failure) == (bool(rows[2]), bool(rows[3]))


def test_one_of_the_two_fields_is_better_than_nothing(gpu, nvml):
    del gpu.fields[FAILURE]
    readings = nvml.readings("GPU-0")
    assert (readings.remap_pending, readings.remap_failure) == (True, None)
    gpu.fields = {FAILURE: 1}
    readings = nvml.readings("GPU-0")
    assert (readings.remap_pending, readings.remap_failure) == (None, True)


@pytest.mark.parametrize("pending", [0, 1])
@pytest.mark.parametrize("how", ["field", "call"])
def test_before_ampere_pages_wait_to_be_retired(gpu, nvml, pending, how):
    gpu.fields = {RETIRED_PENDING: pending} if how == "field" else {}
    gpu.retired = None if how == "field" else pending
    readings = nvml.readings("GPU-0")
    assert (readings.remap_pending, readings.remap_failure) == (bool(pending), None)


@pytest.mark.parametrize(
    ("state", "status", "health", "word"),
    [
        (0, 0, 0, None),
        (0, 999, 0x1, None),
        (1, 0, 0, "joining"),
        (2, 0, 0, "joining"),
        (3, 0, 0, "healthy"),
        (3, 0, 0b10_10_10_10, "healthy"),  # No bandwidth lost, no recovery, no bad route, no time-out.
        (3, 0, 0x100, "healthy"),  # Configured without mistake.
        (3, 0, 0x2_000, "healthy"),  # Of no partition: its links are as good as ever.
        (3, 999, 0, "unhealthy"),
        (3, 0, 0x01, "unhealthy"),  # Bandwidth.
        (3, 0, 0x04, "unhealthy"),  # A route that recovers.
        (3, 0, 0x10, "unhealthy"),  # A route that is unhealthy.
        (3, 0, 0x40, "unhealthy"),  # Time-outs.
        (3, 0, 0x200, "unhealthy"),  # Configured wrongly.
        (3, 0, 0x800, "unhealthy"),
        (3, 0, 0b10_10_10_01, "unhealthy"),
        (4, 0, 0, "unhealthy"),
    ],
)
def test_the_fabric_in_one_word(gpu, nvml, state, status, health, word):
    assert fabric_word(state, status, health) == word
    gpu.fabric = state, status, health
    assert nvml.readings("GPU-0").fabric == word


# --- what goes wrong ------------------------------------------------------------------------------


def answer(nvml):
    try:
        return nvml.readings("GPU-0")
    except NvmlError as error:
        return error


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", [MEMORY, FIELD_VALUES, SRAM, FABRIC, ROWS, RETIRED, *OPENING, INIT])
def test_whatever_goes_wrong_there_are_readings_or_an_error_of_nvml(gpu, fake, nvml, name, code):
    if name in {ROWS, RETIRED}:
        gpu.fields = {}
    fake.failures[name] = code
    if name == INIT:
        nvml.renew()
    assert isinstance(answer(nvml), (Readings, NvmlError))
    fake.failures.clear()
    assert isinstance(answer(nvml), Readings)


@pytest.mark.parametrize("code", [code for code in CODES if code not in {1, 9, 12, 15, 16, 18}])
@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        (MEMORY, {}),
        (FIELD_VALUES, {"recovery": None, "remap_pending": None, "remap_failure": None}),
        (SRAM, {"sram_exceeded": None}),
        (FABRIC, {"fabric": None}),
    ],
)
def test_an_error_of_one_reading_never_hides_the_others(gpu, fake, nvml, name, hidden, code):
    fake.failures[name] = code
    told = {"recovery": 2, "remap_pending": True, "remap_failure": False, "sram_exceeded": True, "fabric": "healthy"}
    assert nvml.readings("GPU-0") == Readings(**told | hidden)


@pytest.mark.parametrize("code", [4, 999])
def test_a_gpu_that_answers_nothing_but_errors_does_not_say_how_it_is(gpu, fake, nvml, code):
    for name in (MEMORY, FIELD_VALUES, ROWS, RETIRED, SRAM, FABRIC):
        fake.failures[name] = code
    with pytest.raises(NvmlError) as caught:
        nvml.readings("GPU-0")
    assert (caught.value.call, caught.value.code) == (MEMORY, code)
    del fake.failures[SRAM]
    assert nvml.readings("GPU-0") == Readings(sram_exceeded=True)


def test_a_gpu_that_supports_no_question_tells_nothing(gpu, fake, nvml):
    for name in (MEMORY, FIELD_VALUES, ROWS, RETIRED, SRAM, FABRIC):
        fake.failures[name] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.readings("GPU-0") == Readings()


@pytest.mark.parametrize("code", [code for code in CODES if code not in {1, 9, 12, 15, 16, 18}])
def test_an_error_of_one_field_never_hides_the_others(gpu, nvml, code):
    gpu.fields[RECOVERY] = (code,)
    assert nvml.readings("GPU-0") == Readings(
        remap_pending=True, remap_failure=False, sram_exceeded=True, fabric="healthy"
    )


@pytest.mark.parametrize("name", [FIELD_VALUES, SRAM, FABRIC])
def test_a_driver_that_lacks_the_function_does_not_tell(gpu, fake, nvml, name):
    fake.missing.add(name)
    assert isinstance(nvml.readings("GPU-0"), Readings)


@pytest.mark.parametrize("code", [1, 9, 12, 15, 18])
@pytest.mark.parametrize("name", [MEMORY, FIELD_VALUES, SRAM, FABRIC, "field"])
def test_what_says_that_the_gpu_or_the_session_is_gone_passes(gpu, fake, nvml, name, code):
    if name == "field":
        gpu.fields[PENDING] = (code,)
    else:
        fake.failures[name] = code
    error = answer(nvml)
    assert isinstance(error, NvmlError)
    assert is_fatal(error)
    assert (error.code, error.gpu) == (code, "GPU-0")


@pytest.mark.parametrize("name", [MEMORY, FIELD_VALUES, SRAM, FABRIC])
@pytest.mark.parametrize(("told", "recovery"), [({}, 1), ({RECOVERY: 0}, 1), ({RECOVERY: 4}, 4)])
def test_a_gpu_that_refuses_before_a_reset_says_what_it_needs(gpu, fake, nvml, name, told, recovery):
    if name == FIELD_VALUES:
        recovery = 1
    gpu.fields = told
    fake.failures[name] = 16
    assert nvml.readings("GPU-0").recovery == recovery


def test_one_that_cannot_even_be_opened_before_a_reset_is_an_error(fake, nvml):
    fake.failures |= {"nvmlDeviceGetHandleByIndex_v2": 16, "nvmlDeviceGetHandleByUUID": 16}
    with pytest.raises(ResetRequired, match="GPU-0"):
        nvml.readings("GPU-0")


def test_an_unknown_gpu_is_not_found(nvml):
    with pytest.raises(NotFound, match="GPU-9"):
        nvml.readings("GPU-9")


def test_a_closed_session_is_told(nvml):
    nvml.close()
    with pytest.raises(Uninitialized, match="closed"):
        nvml.readings("GPU-0")


# --- a GPU that was reset -------------------------------------------------------------------------


def test_a_reset_does_not_show(gpu, fake, nvml):
    nvml.readings("GPU-0")
    fake.failures[MEMORY] = [15, 15]
    assert nvml.readings("GPU-0") == FULL
    assert (fake.calls[INIT], nvml.returns("GPU-0"), nvml.returns("GPU-1")) == (2, 1, 0)


def test_a_gpu_that_stays_lost_is_lost_and_leads_to_a_session_now_and_then(gpu, fake, nvml, clock):
    nvml.readings("GPU-0")
    fake.failures[MEMORY] = 15
    started = []
    for seconds in (0, 1, LOST_PAUSE - 2, 1, 1):
        clock.now += seconds
        with pytest.raises(GpuLost):
            nvml.readings("GPU-0")
        started.append(fake.calls[INIT])
    assert started == [2, 2, 2, 3, 3]
    assert nvml.returns("GPU-0") == 0
    fake.failures.clear()
    assert nvml.readings("GPU-0") == FULL
    assert nvml.returns("GPU-0") == 1


def test_a_reset_shortly_after_another_session_began_does_not_show_either(gpu, fake, nvml, clock):
    nvml.readings("GPU-0")
    nvml.renew()
    nvml.readings("GPU-0")
    fake.failures[MEMORY] = [15, 15]
    assert nvml.readings("GPU-0") == FULL
    assert nvml.returns("GPU-0") == 1


def test_a_driver_that_was_loaded_anew_brings_back_all_gpus(gpu, fake, nvml):
    nvml.readings("GPU-0")
    nvml.readings("GPU-1")
    fake.failures[MEMORY] = [1, 1]
    assert nvml.readings("GPU-0") == FULL
    assert [nvml.returns("GPU-0"), nvml.returns("GPU-1")] == [1, 0]
    nvml.readings("GPU-1")
    assert nvml.returns("GPU-1") == 1


def test_a_session_that_was_made_anew_on_request_brings_nobody_back(gpu, nvml):
    for _ in range(3):
        nvml.readings("GPU-0")
        nvml.renew()
    nvml.inventory()
    assert (nvml.returns("GPU-0"), nvml.returns("GPU-1")) == (0, 0)


def test_a_gpu_that_must_be_reset_did_not_come_back_by_being_listed(gpu, fake, nvml):
    nvml.readings("GPU-0")
    fake.failures[SRAM] = 16
    for _ in range(3):
        assert nvml.readings("GPU-0").recovery == 2
        nvml.inventory()
    assert nvml.returns("GPU-0") == 0
    assert fake.calls[INIT] == 2
    fake.failures.clear()
    nvml.inventory()
    assert nvml.readings("GPU-0") == FULL
    assert nvml.returns("GPU-0") == 1


def test_beside_one_that_must_be_reset_no_other_goes_unnoticed(gpu, fake, nvml):
    nvml.inventory()
    # Its own reading, then all are asked before the session is made anew: itself, and the other, whose handle died.
    fake.failures |= {SRAM: [16, 16], MEMORY: [0, 0, 15]}
    nvml.readings("GPU-0")
    nvml.readings("GPU-1")
    assert (fake.calls[INIT], nvml.returns("GPU-0"), nvml.returns("GPU-1")) == (2, 0, 1)


def test_a_mode_that_waits_for_a_reset_is_no_dead_handle(fake, nvml):
    nvml.readings("GPU-0")
    fake.gpus[0].architecture = 7
    with pytest.raises(ResetRequired):
        nvml.set_mig_mode("GPU-0", enabled=False)
    nvml.readings("GPU-0")
    assert (fake.calls[INIT], nvml.returns("GPU-0")) == (1, 0)


@pytest.mark.parametrize("code", [1, 15])
def test_one_call_that_fails_as_if_a_handle_were_dead_and_then_no_more_proves_nothing(code, gpu, fake, nvml):
    nvml.readings("GPU-0")
    for name in (MEMORY, FIELD_VALUES, SRAM, FABRIC):
        fake.failures[name] = [code]
        assert nvml.readings("GPU-0") == FULL
    fake.failures[SRAM] = [16]
    assert nvml.readings("GPU-0") == FULL
    assert (fake.calls[INIT], nvml.returns("GPU-0"), nvml.returns("GPU-1")) == (1, 0, 0)


def test_while_calls_keep_the_session_from_being_made_anew_nobody_knows_whether_a_gpu_is_lost(
    gpu, fake, nvml, monkeypatch
):
    monkeypatch.setattr(access, "RENEWAL_SECONDS", 0.05)
    nvml.readings("GPU-0")
    fake.failures[MEMORY] = 15
    with nvml._session.use():
        with pytest.raises(Hanging, match="a call that hangs in the driver keeps that from it"):
            nvml.readings("GPU-0")
        assert fake.calls[INIT] == 1
    fake.failures.clear()
    assert nvml.readings("GPU-0") == FULL
    assert (fake.calls[INIT], nvml.returns("GPU-0")) == (2, 1)


# --- a GPU that hangs -----------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(access, "READINGS_SECONDS", 1.5)
    monkeypatch.setattr(access, "FIRST_READ_SECONDS", 1.5)


@pytest.mark.parametrize("name", [MEMORY, FIELD_VALUES, SRAM, FABRIC, OPENING[1]])
def test_a_gpu_that_hangs_is_told_and_the_others_are_read(gpu, fake, nvml, hang, soon, name):
    nvml.inventory()
    nvml.renew()
    nvml.inventory()
    if name == OPENING[1]:
        nvml._cache.forget_devices()
    hang(name, 0)
    for _ in range(2):
        with pytest.raises(Hanging, match=f"^{name.removesuffix('_v2')} for GPU-0 failed: it was called at "):
            nvml.readings("GPU-0")
        assert nvml.readings("GPU-1") == Readings()
    hang.leave()


def test_a_gpu_that_comes_back_from_hanging_is_read_again(gpu, nvml, hang, soon):
    nvml.readings("GPU-0")
    began = hang(SRAM, 0)
    with pytest.raises(Hanging):
        nvml.readings("GPU-0")
    assert began.is_set()
    hang.leave()
    while nvml._bounded.hangs("GPU-0"):
        pass
    assert nvml.readings("GPU-0") == FULL


def test_nvml_is_not_shut_down_under_a_reading_that_hangs(gpu, fake, nvml, hang, soon):
    nvml.readings("GPU-0")
    hang(SRAM, 0)
    with pytest.raises(Hanging):
        nvml.readings("GPU-0")
    nvml.renew()
    nvml.readings("GPU-1")
    assert (fake.calls[INIT], fake.calls["nvmlShutdown"]) == (1, 0)
    nvml.close()
    assert fake.calls["nvmlShutdown"] == 0
    hang.leave()
    while nvml._bounded.hangs("GPU-0"):
        pass
    assert fake.calls["nvmlShutdown"] == 1
