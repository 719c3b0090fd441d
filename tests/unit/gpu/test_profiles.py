import pytest
from doubles.machines import gpus

from dradriver.gpu.profiles import ProfileChoice, missing, parse_choice


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        ("1xh100-80gb", ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
        ("1xa100-40gb", ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
        ("1xa30", ["1g.6gb", "2g.12gb", "4g.24gb"]),
        ("1xrtx-pro-6000", ["1g.24gb", "2g.48gb", "4g.96gb"]),
        ("1xt4", []),
    ],
)
def test_standard_leaves_out_variants_and_double_memory(machine, names):
    mig = "" if machine == "1xt4" else "on"
    assert [profile.name for profile in ProfileChoice().select(gpus(machine, mig=mig)[0])] == names


def test_all_offers_everything_small_first():
    names = [profile.name for profile in parse_choice("all").select(gpus("1xh100-80gb")[0])]
    assert names == ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]


def test_a_list_offers_what_it_names():
    choice = parse_choice("3g.40gb, 1g.10gb+me")
    assert [profile.name for profile in choice.select(gpus("1xh100-80gb")[0])] == ["1g.10gb+me", "3g.40gb"]


def test_a_name_with_several_attributes_is_one_name():
    assert parse_choice("1g.5gb+me,gfx,2g.10gb").names == {"1g.5gb+me,gfx", "2g.10gb"}


@pytest.mark.parametrize("text", ["", "some", "1g", "10gb", "1g.10gb,", "1g.10gb;3g.40gb", "nvidia.com/mig-1g.10gb"])
def test_what_is_no_choice_is_told(text):
    with pytest.raises(ValueError, match="is not a MIG profile: use standard, all, or names"):
        parse_choice(text)


def test_names_that_no_gpu_has_are_found():
    assert missing(parse_choice("1g.10gb,1g.5gb"), gpus("2xh100-80gb")) == {"1g.5gb"}
    assert missing(parse_choice("all"), gpus("2xh100-80gb")) == frozenset()
