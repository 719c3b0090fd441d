"""Labels of nodes on a real API server: what becomes of them when others write the same ones."""

import random
import time

import pytest
from support.bridging import bridge, install, unique
from support.labelling import EIGHT, LabelledNode, LabelReferee, whole
from support.waiting import wait_for

from controller.labelling import LABEL_MANAGER, Labeller
from controller.labelling.labeller import Terms
from controller.labelling.pacing import Pace
from controller.watching import Watcher
from dradriver.kube import NODES, ConflictError
from dradriver.kube.connection import connect

NFD = "nfd-master"


@pytest.fixture
def node(admin):
    made = LabelledNode(admin)
    yield made
    made.remove()


@pytest.fixture
def referee(node):
    made = LabelReferee(node)
    yield made
    made.stop()


class Running:
    """A labeller in this process, with short times."""

    def __init__(self, kubeconfig, **terms):
        self.client = connect(kubeconfig)
        self.watcher = Watcher(self.client, on_change=lambda _is_small: None)
        self.outcomes = []
        times = {"grace": 600.0, "gather": 0.02, "between": 0.0, "pace": Pace(least=0.02, most=0.5)}
        self.labeller = Labeller(
            self.client,
            self.watcher,
            may_act=lambda: True,
            on_write=self.outcomes.append,
            terms=Terms(**times | terms),
        )
        self.watcher.start()
        wait_for(lambda: self.watcher.has_synced, "the lists")
        self.labeller.start()

    def stop(self):
        self.labeller.stop()
        self.watcher.stop()
        self.client.close()


@pytest.fixture
def run(control_plane, server):
    install(server)
    made = []

    def start(**terms):
        made.append(Running(control_plane.kubeconfig, **terms))
        return made[-1]

    yield start
    for each in made:
        each.stop()


def settled(seconds=0.6):
    """Give whoever would write something wrong the time for it."""
    time.sleep(seconds)


# --- with the program and its rights --------------------------------------------------------------


def test_the_controller_labels_a_node_with_its_own_rights(controllers, server, node):
    controllers.start("--node-labels", "WhenUnowned")
    node.publish(*(whole(index) for index in range(8)))
    node.wait(gpu_count="8")
    assert node.labels() == EIGHT
    assert node.managers("gpu.product") == {LABEL_MANAGER}
    shown = server.kubectl("get", "node", node.name, "-L", "nvidia.com/gpu.product,nvidia.com/gpu.count")
    assert "NVIDIA-H100-80GB-HBM3   8" in shown
    found = server.kubectl("get", "nodes", "-l", "nvidia.com/gpu.family=hopper,nvidia.com/gpu.count=8", "-o", "name")
    assert f"node/{node.name}" in found.split()


def test_nothing_is_labelled_unless_it_is_asked_for(controllers, node):
    controllers.start()
    node.publish(whole(0))
    controllers.add(bridge(unique("seen"), f"nvidia.com/{node.name}", select={"type": "gpu"}))
    wait_for(lambda: controllers.carriers(f"nvidia.com/{node.name}"), "the controller to have worked")
    assert node.labels() == {}


def test_labels_outlive_the_controller_and_the_next_one_writes_nothing(controllers, node, referee):
    first = controllers.start("--node-labels", "WhenUnowned")
    node.publish(whole(0), whole(1))
    node.wait(gpu_count="2")
    first.stop()
    second = controllers.start("--node-labels", "WhenUnowned")
    metric = 'dradriver_controller_labelled_nodes{labels="ours"} 1.0'
    wait_for(lambda: metric in second.page("/metrics"), "the second to have looked", state=second.log)
    assert "dradriver_controller_label_writes_total" in second.page("/metrics")
    assert 'outcome="written"' not in second.page("/metrics")
    assert referee.writes_of_ours() == 1


def test_without_the_right_to_patch_nodes_bridges_are_served_and_the_log_tells(controllers, server, node):
    server.kubectl("delete", "clusterrolebinding", "dradriver-controller-labels")
    controllers.start("--node-labels", "WhenUnowned")
    node.publish(whole(0))
    wait_for(lambda: "will try again to label" in controllers.log(), "the log to tell", seconds=60)
    assert "cannot patch resource" in controllers.log()
    controllers.add(bridge(unique("seen"), f"nvidia.com/{node.name}", select={"type": "gpu"}))
    wait_for(lambda: controllers.carriers(f"nvidia.com/{node.name}"), "the bridge to be served", seconds=60)


# --- others who write -----------------------------------------------------------------------------


def test_labels_of_others_are_left_alone_each_by_itself(node, referee, run):
    node.write("kubectl-label", gpu_product="my-own-name", gpu_memory="81559")
    run()
    node.publish(whole(0))
    node.wait(gpu_count="1")
    assert node.labels()["gpu.product"] == "my-own-name"
    # Before anybody has applied to an object, the API server does not note who wrote what; then it is all others'.
    assert LABEL_MANAGER not in node.managers("gpu.product") | node.managers("gpu.memory")
    assert node.managers("gpu.count") == {LABEL_MANAGER}
    assert set(node.ours()) == set(EIGHT) - {"gpu.product", "gpu.memory"}
    assert referee.taken_by_us("gpu.product") == []


@pytest.mark.parametrize("way", ["merge", "json", "forced apply"])
def test_another_value_that_comes_later_stays(node, referee, run, way):
    running = run()
    node.publish(whole(0))
    node.wait_manager("gpu.product", LABEL_MANAGER)
    match way:
        case "merge":
            node.write(NFD, gpu_product="theirs")
        case "json":
            node.write_json(NFD, "add", "gpu.product", "theirs")
        case _:
            node.apply(NFD, gpu_product="theirs", force=True)
    settled()
    assert node.labels()["gpu.product"] == "theirs"
    assert node.managers("gpu.product") == {NFD}
    # What the hardware says next does not bring it back either.
    node.publish(whole(1), generation=2)
    node.wait(gpu_count="1")
    settled()
    assert node.labels()["gpu.product"] == "theirs"
    assert referee.taken_by_us("gpu.product") == []
    assert "failed" not in running.outcomes


def test_the_same_value_written_by_others_changes_nothing(node, referee, run):
    """The API server does not even note it: a patch that changes nothing has no manager."""
    running = run()
    node.publish(whole(0))
    node.wait_manager("gpu.count", LABEL_MANAGER)
    writes = len(running.outcomes)
    node.write(NFD, gpu_count="1")
    node.write_json(NFD, "add", "gpu.family", "hopper")
    settled()
    assert node.managers("gpu.count") == node.managers("gpu.family") == {LABEL_MANAGER}
    assert len(running.outcomes) == writes


def test_the_same_value_applied_by_another_is_theirs_alone_from_then_on(node, referee, run):
    run()
    node.publish(whole(0))
    node.wait_manager("gpu.count", LABEL_MANAGER)
    node.apply("administrator", gpu_count="1")
    node.wait_manager("gpu.count", "administrator")
    # So it may have another value without a conflict with us.
    node.apply("administrator", gpu_count="7")
    settled()
    assert node.labels()["gpu.count"] == "7"
    assert None not in {value for value, _ in referee.history("gpu.count")[1:]}


def test_who_applies_another_value_without_force_is_told_of_us(node, run):
    run()
    node.publish(whole(0))
    node.wait_manager("gpu.count", LABEL_MANAGER)
    with pytest.raises(ConflictError, match=LABEL_MANAGER):
        node.apply("administrator", gpu_count="7")


def test_a_label_that_its_owner_removes_is_written(node, referee, run):
    node.write(NFD, gpu_product="theirs", gpu_count="4")
    run()
    node.publish(whole(0))
    node.wait(gpu_family="hopper")
    node.write_json(NFD, "remove", "gpu.product")
    node.wait(gpu_product="NVIDIA-H100-80GB-HBM3", gpu_count="4")
    node.write(NFD, gpu_count=None)
    node.wait(gpu_count="1")
    assert referee.taken_by_us("gpu.product") == referee.taken_by_us("gpu.count") == []


def test_a_label_of_ours_that_somebody_removes_is_put_back_less_and_less_often(node, referee, run):
    running = run(pace=Pace(least=0.1, most=100.0))
    node.publish(whole(0))
    node.wait_manager("gpu.count", LABEL_MANAGER)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if "gpu.count" in node.labels():
            node.write("stripper", gpu_count=None)
        time.sleep(0.02)
    # 0.1 + 0.2 + 0.4 + 0.8 + 1.6 s are over 3 s.
    assert 3 <= len(running.outcomes) <= 7
    assert set(running.outcomes) == {"written"}


def test_discovery_comes_back_and_goes_and_there_is_no_write_loop(node, referee, run):
    running = run()
    node.publish(*(whole(index) for index in range(8)))
    node.wait_manager("gpu.count", LABEL_MANAGER)
    # It writes all of its labels, of which some differ.
    theirs = EIGHT | {"gpu.product": "H100-by-discovery", "gpu.memory": "81000", "cuda.driver.rev": "6"}
    labels = {f"nvidia.com/{name}": value for name, value in theirs.items()}
    node.client.patch(NODES, node.name, {"metadata": {"labels": labels}}, field_manager=NFD)
    settled(1.0)
    before, writes = node.labels(), len(running.outcomes)
    assert before == theirs
    settled(1.0)
    assert (node.labels(), len(running.outcomes)) == (before, writes)
    node.client.patch(NODES, node.name, {"metadata": {"labels": dict.fromkeys(labels)}}, field_manager=NFD)
    node.wait(**{name.replace(".", "_"): value for name, value in EIGHT.items() if "-" not in name})
    assert node.labels() == EIGHT
    for label in EIGHT:
        assert referee.taken_by_us(label) == []
    assert "failed" not in running.outcomes


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_a_value_of_others_is_never_overwritten(node, referee, run, seed):
    """Two who write at random, and a labeller that has to follow: some of what it tries is late, and a conflict."""
    run(pace=Pace(least=0.0, most=0.0))
    dice = random.Random(seed)
    node.publish(whole(0))
    for step in range(60):
        label = dice.choice(["gpu_count", "gpu_product", "gpu_family"])
        match dice.randrange(6):
            case 0 | 1:
                node.write(NFD, **{label: f"nfd-{step}"})
            case 2:
                node.write("kubectl-label", **{label: None})
            case 3:
                node.apply("administrator", force=True, **{label: f"admin-{step}"})
            case 4:
                node.withdraw()
                node.publish(*(whole(index) for index in range(dice.randrange(1, 4))))
            case _:
                time.sleep(dice.random() * 0.05)
    for label in ("gpu_count", "gpu_product", "gpu_family"):
        node.write("kubectl-label", **{label: None})
    node.wait(gpu_product="NVIDIA-H100-80GB-HBM3", gpu_family="hopper")
    for label in ("gpu.count", "gpu.product", "gpu.family"):
        assert referee.taken_by_us(label) == []
    assert len(referee.states) > 30


# --- slices that change ---------------------------------------------------------------------------


def test_an_incomplete_pool_says_nothing(node, run):
    run()
    node.publish(whole(0), total=2)
    settled()
    assert node.labels() == {}
    node.publish(whole(1), total=2)
    node.wait(gpu_count="2")


def test_a_driver_that_restarts_does_not_make_labels_flap(node, referee, run):
    running = run()
    node.publish(whole(0), whole(1))
    node.wait_manager("gpu.count", LABEL_MANAGER)
    for _ in range(3):
        node.withdraw()
        settled(0.2)
        node.publish(whole(0), total=2)
        settled(0.1)
        node.publish(whole(1), total=2)
        settled(0.2)
    assert referee.writes_of_ours() == 1
    assert running.outcomes == ["written"]


def test_labels_go_with_the_pool_but_those_of_others_stay(node, run):
    node.write("kubectl-label", gpu_product="theirs", gpu_machine="box")
    run(grace=0.5)
    node.publish(whole(0))
    node.wait(gpu_count="1")
    node.withdraw()
    node.wait_count(0)
    assert node.labels() == {"gpu.product": "theirs", "gpu.machine": "box"}
    node.publish(whole(0))
    node.wait(gpu_count="1")


def test_what_is_left_of_an_earlier_controller_goes_too(node, run):
    first = run()
    node.publish(whole(0))
    node.wait_manager("gpu.count", LABEL_MANAGER)
    first.stop()
    node.withdraw()
    run(grace=0.3)
    node.wait_count(0)


def test_the_way_by_hand_to_take_the_labels_off(node, server, run):
    """As docs/labels.md tells it."""

    first = run()
    node.publish(whole(0))
    node.write("kubectl-label", gpu_machine="box")
    node.wait_manager("gpu.count", LABEL_MANAGER)
    first.stop()
    document = f'{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{node.name}"}}}}'
    server.kubectl("apply", "--server-side", f"--field-manager={LABEL_MANAGER}", "-f", "-", text=document)
    assert node.labels() == {"gpu.machine": "box"}
