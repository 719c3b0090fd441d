"""Names of extended resources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.importing import names

PAIRS = [
    ("1g.10gb", "nvidia.com/mig-1g.10gb"),
    ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
    ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
    ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
    ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
    ("7g.80gb", "nvidia.com/mig-7g.80gb"),
]


@pytest.mark.parametrize(("profile", "resource"), PAIRS)
def test_a_profile_has_one_name_and_the_name_one_profile(profile, resource):
    assert names.resource_of(profile) == resource
    assert names.profile_of(resource) == profile
    assert names.profile_of(names.shared(resource)) == profile
    assert names.is_ours(resource)
    assert names.is_ours(names.shared(resource))


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/mig-1c.3g.20gb", "nvidia.com/mig-x", "amd.com/gpu", ""],
)
def test_other_names_have_no_profile(resource):
    assert names.profile_of(resource) is None


def test_whole_gpus_are_ours_and_other_things_are_not():
    assert names.is_ours("nvidia.com/gpu")
    assert names.is_ours("nvidia.com/gpu.shared")
    assert not names.is_ours("nvidia.com/gpumem")
    assert not names.is_ours("amd.com/gpu")
    assert not names.is_ours("cpu")


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("nvidia.com/gpu", "nvidia.com/gpu"),
        ("mig-1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("example.com/gpu", None),
        ("GPU", None),
        ("", None),
        ("gpu.", None),
        ("g" * 52, "nvidia.com/" + "g" * 52),
        ("g" * 53, None),
    ],
)
def test_names_get_their_domain_or_are_refused(given, whole):
    assert names.qualify(given) == whole


def test_classes_have_gpu_in_their_name_so_that_kai_counts_them():
    assert names.class_of("nvidia.com/mig-1g.10gb") == "mig-1g.10gb.gpu.dradriver.dev"
    assert names.class_of("nvidia.com/gpu.shared") == "gpu.shared.gpu.dradriver.dev"
    assert names.bridge_of("nvidia.com/gpu") == "gpu"


@given(st.text(max_size=80))
def test_no_text_is_too_strange(text):
    whole = names.qualify(text)
    assert whole is None or len(whole) <= 63
    profile = names.profile_of(text)
    assert profile is None or names.unshared(text) == names.resource_of(profile)
