from doubles.publications import gpu, part, published

from controller.labelling import LABEL_MANAGER, Facts, HeldLabels, plan, project_labels
from controller.labelling.names import is_known


def node(labels, *managed):
    """A node with labels, and who holds which: manager, operation, names."""
    fields = [
        {
            "manager": manager,
            "operation": operation,
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:nvidia.com/{name}": {} for name in names} | {".": {}}}},
        }
        for manager, operation, names in managed
    ]
    return {
        "metadata": {
            "name": "n",
            "labels": {f"nvidia.com/{name}": value for name, value in labels.items()},
            "managedFields": [*fields, {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}],
        }
    }


def held(*mine, foreign=()):
    return HeldLabels(
        mine=tuple((f"nvidia.com/{name}", value) for name, value in mine),
        foreign=tuple((f"nvidia.com/{name}", value) for name, value in foreign),
    )


def test_labels_by_who_holds_them():
    item = node(
        {"gpu.count": "1", "gpu.family": "x", "gpu.product": "p", "gpu.memory": "3"},
        (LABEL_MANAGER, "Apply", ["gpu.count", "gpu.product"]),
        ("nfd-master", "Update", ["gpu.family", "gpu.product"]),
    )
    # The memory is nobody's: somebody wrote it before the API server began to note such things.
    assert project_labels(item) == held(
        ("gpu.count", "1"),
        ("gpu.product", "p"),
        foreign=[("gpu.family", "x"), ("gpu.memory", "3"), ("gpu.product", "p")],
    )


def test_what_somebody_wrote_under_our_name_but_did_not_apply_is_not_ours():
    item = node({"gpu.count": "1"}, (LABEL_MANAGER, "Update", ["gpu.count"]))
    assert project_labels(item) == held(foreign=[("gpu.count", "1")])


def test_labels_that_are_never_ours_are_not_kept():
    item = node({"gfd.timestamp": "1", "gpu.machine": "m", "gpu.deploy.driver": "true", "mig.config": "all-1g.5gb"})
    item["metadata"]["labels"]["kubernetes.io/hostname"] = "n"
    assert project_labels(item) == HeldLabels()
    assert project_labels({"metadata": {"name": "bare"}}) == HeldLabels()


def test_equal_labels_of_different_nodes_are_there_once():
    one, other = (project_labels(node({"gpu.count": "8"}, (LABEL_MANAGER, "Apply", ["gpu.count"]))) for _ in range(2))
    assert one is other


def test_equal_facts_of_different_nodes_are_there_once():
    one, other = (published(gpu(0), gpu(1), node=name).facts for name in ("a", "b"))
    assert one is other
    assert one[0] is one[1]


def test_facts():
    (facts,) = published(
        part(0, shares=3, renamed=True, sharing="time-slicing", capacity={"multiprocessors": 16, "decoders": 0})
    ).facts
    assert facts == Facts(
        architecture="Hopper",
        compute="9.0.0",
        driver="580.65.6",
        cuda="13.0.0",
        shares=3,
        is_renamed=True,
        capacities=(("decoders", 0), ("multiprocessors", 16)),
    )


def test_names_may_have_the_driver_s_domain_and_be_missing():
    device = {"name": "d", "attributes": {"gpu.nvidia.com/architecture": {"string": "Ampere"}}}
    assert published(device).facts == (Facts(architecture="Ampere"),)
    assert published({"name": "d"}).facts == (Facts(),)


def test_shares_of_a_device_that_only_one_can_have_do_not_count():
    device = {"name": "d", "capacity": {"shares": {"value": "4"}}}
    assert published(device).facts[0].shares == 1


def test_which_labels_are_known():
    known = ["gpu.present", "gpu.count", "gpu.slices.gi", "mig-1g.10gb.count", "mig-1g.10gb.me.engines.ofa"]
    known += ["cuda.driver.rev", "cuda.runtime-version.full", "mig.strategy", "mig-4g.71gb-me.product"]
    unknown = ["gpu.machine", "gpu.mode", "gpu.clique", "gfd.timestamp", "vgpu.present", "mig.config", "gpu"]
    unknown += ["device-plugin.config", "mig-1g.10gb", "gpu.deploy.count", "mig.config.state", "gpu.countx"]
    assert [name for name in known if not is_known(f"nvidia.com/{name}")] == []
    assert [name for name in unknown if is_known(f"nvidia.com/{name}")] == []
    assert not is_known("gpu.count")


def test_what_nobody_holds_is_applied():
    assert plan({"nvidia.com/gpu.count": "1"}, held()) == {"nvidia.com/gpu.count": "1"}


def test_what_is_as_it_should_be_is_not_written():
    assert plan({"nvidia.com/gpu.count": "1"}, held(("gpu.count", "1"))) is None
    assert plan({}, held()) is None
    assert plan({"nvidia.com/gpu.count": "1"}, held(foreign=[("gpu.count", "2")])) is None


def test_all_of_ours_is_applied_where_one_differs():
    wanted = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.family": "hopper"}
    assert plan(wanted, held(("gpu.count", "1"), ("gpu.family", "hopper"))) == wanted


def test_what_others_hold_is_left_out_and_given_up_where_we_hold_it_too():
    wanted = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.family": "hopper"}
    foreign = [("gpu.count", "2")]
    assert plan(wanted, held(foreign=foreign)) == {"nvidia.com/gpu.family": "hopper"}
    both = held(("gpu.count", "2"), ("gpu.family", "hopper"), foreign=foreign)
    assert plan(wanted, both) == {"nvidia.com/gpu.family": "hopper"}


def test_what_is_not_wanted_any_more_goes():
    assert plan({}, held(("gpu.count", "1"))) == {}
    assert plan({}, held(("gpu.count", "1"), foreign=[("gpu.count", "1")])) == {}
