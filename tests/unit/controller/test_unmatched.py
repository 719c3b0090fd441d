import pytest

from controller.api import Select, Sharing
from controller.bridges import why_unmatched
from controller.watching import DeviceKind

GIB = 1 << 30
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"
KINDS = (
    DeviceKind(type="gpu", product_name=H100, memory=80 * GIB),
    DeviceKind(type="gpu", product_name=A100, memory=40 * GIB),
    DeviceKind(type="mig", product_name=H100, profile="1g.10gb", memory=10 * GIB),
    DeviceKind(type="mig", product_name=H100, profile="7g.80gb", memory=80 * GIB),
    DeviceKind(type="mig", product_name=A100, profile="1g.5gb", memory=5 * GIB),
)


@pytest.mark.parametrize(
    ("select", "said"),
    [
        (Select(type="gpu", product_name="H100"), f"productName H100 is not published, but {H100}, {A100}"),
        (Select(profile="1g.11gb"), "profile 1g.11gb is not published, but 1g.10gb, 1g.5gb, 7g.80gb"),
        (Select(profile="1g.10gb", product_name=A100), "profile 1g.10gb is not published, but 1g.5gb"),
        (
            Select(type="mig", profiles=("1g.11gb", "2g.2gb")),
            "profiles 1g.11gb or 2g.2gb is not published, but 1g.10gb, 1g.5gb, 7g.80gb",
        ),
        (Select(type="any", product_name="H100"), f"productName H100 is not published, but {H100}, {A100}"),
        (Select(type="mig", memory_min=100 * GIB), "has the memory of spec.select.memory"),
        (Select(type="gpu", sharing=Sharing.MPS), "this driver publishes no device with spec.select.sharing mps"),
        (Select(type="gpu", sharing=Sharing.TIME_SLICING), "has all of what spec.select wants"),
    ],
)
def test_the_field_is_named_that_no_device_has(select, said):
    assert said in why_unmatched(select, KINDS)


def test_a_type_that_nobody_publishes():
    assert why_unmatched(Select(type="mig", profile="1g.10gb"), KINDS[:2]) == (
        "no device with spec.select.type mig is published"
    )
    assert why_unmatched(Select(profile="1g.10gb"), KINDS[:2]) == "spec.select.profile 1g.10gb is not published"


def test_what_matches_needs_no_word():
    assert why_unmatched(Select(type="gpu"), KINDS) == ""
    assert why_unmatched(Select(cel="false"), KINDS) == ""
    assert why_unmatched(Select(type="mig", profiles=("1g.11gb", "1g.5gb")), KINDS) == ""
    assert why_unmatched(Select(type="any", profiles=("1g.11gb",)), KINDS) == ""


def test_where_nothing_is_published_no_field_is_at_fault():
    assert why_unmatched(Select(type="gpu", product_name="H100"), ()) == ""
    assert "mps" in why_unmatched(Select(type="gpu", sharing=Sharing.MPS), ())


def test_the_list_is_bounded_and_begins_with_what_is_alike():
    kinds = [DeviceKind(type="gpu", product_name=f"NVIDIA Tesla {letter}") for letter in "ABCDEFG"] + list(KINDS)
    said = why_unmatched(Select(type="gpu", product_name="nvidia h100"), kinds)
    assert "is not published, but NVIDIA" in said
    assert said.index(H100) < said.index("Tesla A") or "Tesla A" not in said
    assert (said.count(","), said.endswith(" and 4 more")) == (5, True)
