import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.nvml import names

MIB = 1 << 20


def codes(prefix):
    return {name: code for name, code in vars(pynvml).items() if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("code", "name"),
    [(6, "Turing"), (7, "Ampere"), (8, "Ada Lovelace"), (9, "Hopper"), (10, "Blackwell"), (13, "Rubin")],
)
def test_architectures_are_spelled_as_nvidias_driver_does(code, name):
    assert names.architecture_name(code) == name


@pytest.mark.parametrize(("code", "name"), [(2, "Tesla"), (13, "NvidiaRTX"), (14, "Nvidia"), (5, "GeForce")])
def test_brands_are_spelled_as_nvidias_driver_does(code, name):
    assert names.brand_name(code) == name


@given(st.integers(min_value=-1))
def test_a_number_newer_than_the_tables_is_never_an_error(code):
    assert names.architecture_name(code)
    assert names.brand_name(code)
    assert names.addressing_mode_name(code) in {"None", "HMM", "ATS", None}


def test_tables_agree_with_the_constants_of_pynvml():
    for name, code in codes("NVML_DEVICE_ARCH_").items():
        spelled = names.architecture_name(code)
        assert spelled == names.UNKNOWN or name.removeprefix("NVML_DEVICE_ARCH_") == spelled.split()[0].upper()
    for name, code in codes("NVML_DEVICE_ADDRESSING_MODE_").items():
        assert (names.addressing_mode_name(code) or "").upper() == name.removeprefix("NVML_DEVICE_ADDRESSING_MODE_")


@pytest.mark.parametrize(
    ("architecture", "resetless"),
    [(7, False), (8, False), (9, True), (10, True), (13, True), (0xFFFFFFFF, False), (-1, False)],
)
def test_mig_mode_switches_without_reset_from_hopper_on_and_not_where_unknown(architecture, resetless):
    assert names.switches_mig_without_reset(architecture) is resetless


@pytest.mark.parametrize(
    ("nvml", "sysfs"), [("00000000:C1:00.0", "0000:c1:00.0"), ("00010000:01:00.0", "10000:01:00.0")]
)
def test_bus_ids_are_written_as_the_kernel_does(nvml, sysfs):
    assert names.sysfs_bus_id(nvml) == sysfs


addresses = st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))


@given(st.lists(addresses))
def test_bus_ids_sort_by_their_numbers_also_with_long_domains(found):
    written = {names.sysfs_bus_id(f"{d:08X}:{b:02X}:{s:02X}.{f}"): (d, b, s, f) for d, b, s, f in found}
    assert [written[one] for one in sorted(written, key=names.bus_order)] == sorted(written.values())


@pytest.mark.parametrize(
    ("index", "slices", "memory", "total", "name"),
    [
        (0x00, 1, 4864, 40960, "1g.5gb"),
        (0x09, 1, 9984, 40960, "1g.10gb"),
        (0x02, 3, 20096, 40960, "3g.20gb"),
        (0x07, 1, 9984, 81559, "1g.10gb+me"),
        (0x04, 7, 81152, 81559, "7g.80gb"),
        (0x00, 1, 11008, 95830, "1g.12gb"),
        (0x02, 3, 47488, 95830, "3g.47gb"),
        (0x00, 1, 5952, 24576, "1g.6gb"),
        (0x0A, 1, 24192, 97887, "1g.24gb+gfx"),
        (0x0E, 2, 48512, 97887, "2g.48gb-me"),
        (0x10, 2, 48512, 97887, "2g.48gb+me.all"),
        (0x40, 1, 9984, 81559, "1g.10gb"),
    ],
)
def test_computed_profile_names_equal_nvidias(index, slices, memory, total, name):
    assert names.profile_name(index, slices=slices, memory_mib=memory, total_bytes=total * MIB) == name


def test_a_profile_is_named_by_its_own_memory_where_the_gpus_is_unknown():
    assert names.profile_name(0, slices=1, memory_mib=9984, total_bytes=None) == "1g.10gb"


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_a_profile_is_never_named_larger_than_its_gpu(memory, total):
    name = names.profile_name(0, slices=1, memory_mib=min(memory, total), total_bytes=total * MIB)
    assert 0 <= int(name.removeprefix("1g.").removesuffix("gb")) <= -(-total // 1024)
