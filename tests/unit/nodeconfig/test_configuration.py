"""The whole: a real file, an API server, and what is told to whoever follows it."""

import json
import subprocess
import sys
import threading

import pytest
import structlog
from doubles.apiserver import PATIENCE, Fault

from dradriver.gpu.health import HealthWishes
from dradriver.gpu.policy import OfferPolicy, Order
from dradriver.kube import Backoff, Pace
from dradriver.nodeconfig import NodeConfiguration, file

NODE = "node-a"
FLAGS = OfferPolicy(order=Order.NVIDIA)
QUICK = Pace(backoff=Backoff(initial=0.01, maximum=0.05))


def document(**orders):
    configs = {name: {"order": order} for name, order in orders.items()}
    return json.dumps({"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": configs})


def with_health(policy, **config):
    configs = {"a": {"healthPolicy": "patient"} | config}
    whole = {"apiVersion": "dradriver.dev/v1alpha1", "kind": "NodeConfigs", "configs": configs}
    return json.dumps(whole | {"healthPolicies": {"patient": policy}})


def swap(path, content):
    """Replace the file in one step: half a file would be told as a broken one."""
    path.with_suffix(".new").write_text(content)
    path.with_suffix(".new").rename(path)


class Follower:
    """Follows the configuration, and keeps all that it was told."""

    def __init__(self, folder, *, path, on_change=lambda _wanted: None):
        self.told = []
        self.changed = threading.Condition()
        self.also = on_change
        self.configuration = NodeConfiguration(
            path,
            remembered=folder / "node-config.json",
            node_name=NODE,
            defaults=FLAGS,
            on_change=self.note,
            pace=QUICK,
        )

    def note(self, wanted):
        with self.changed:
            self.told.append(wanted)
            self.changed.notify_all()
        self.also(wanted)

    def wait(self, condition):
        with self.changed:
            return self.changed.wait_for(lambda: any(map(condition, self.told[-1:])), PATIENCE)

    @property
    def orders(self):
        with self.changed:
            return [str(wanted.policy.order) for wanted in self.told]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nodes.yaml"


@pytest.fixture
def follow(client, tmp_path, path):
    made = []

    def start(*, given=True, load=True, **options):
        follower = Follower(tmp_path, path=path if given else None, **options)
        made.append(follower)
        if load:
            follower.configuration.load()
        follower.configuration.start(client)
        return follower

    yield start
    for follower in made:
        assert follower.configuration.stop(PATIENCE)
        assert not follower.configuration.alive


def test_file_and_label_are_followed_and_every_change_is_told_once(path, label, follow):
    swap(path, document(a="packed", b="spread"))
    label(config="a")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled and wanted.name == "a")
    label(config="b")
    assert follower.wait(lambda wanted: wanted.name == "b")
    swap(path, document(b="packed", more="packed"))
    assert follower.wait(lambda wanted: wanted.policy.order is Order.PACKED)
    assert follower.orders == ["packed", "spread", "packed"]
    assert follower.configuration.current == follower.told[-1]
    assert follower.configuration.alive


def test_what_changes_nothing_is_not_told(server, path, label, follow):
    swap(path, document(a="packed", b="spread"))
    label(config="a")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    server.edit("nodes", NODE, lambda node: node["metadata"]["labels"].update(unrelated="1"))
    swap(path, document(a="packed", b="spread", c="?"))
    label(config="a", allocation="dra")
    label(config="b")
    assert follower.wait(lambda wanted: wanted.name == "b")
    assert [wanted.name for wanted in follower.told] == ["a", "b"]


def test_a_health_policy_is_followed(path, label, follow):
    swap(path, with_health({"xids": {"31": "warn"}}))
    label(config="a")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    swap(path, with_health({"xids": {"31": "ignore"}}))
    assert follower.wait(lambda wanted: wanted.health != follower.told[0].health)
    assert [wanted.health.xids for wanted in follower.told] == [{31: "warn"}, {31: "ignore"}]


def test_the_annotation_is_told_whenever_it_changes_and_not_remembered(tmp_path, label, follow):
    label(clear="all")
    follower = follow(given=False)
    assert follower.wait(lambda wanted: wanted.clear == "all")
    kept = file.look(tmp_path / "node-config.json")
    label(clear="gpu-0")
    assert follower.wait(lambda wanted: wanted.clear == "gpu-0")
    assert follower.configuration.current.clear == "gpu-0"
    label()
    assert follower.wait(lambda wanted: wanted.clear == "")
    assert [wanted.clear for wanted in follower.told] == ["all", "gpu-0", ""]
    assert len({(wanted.policy, wanted.settled, wanted.problems) for wanted in follower.told}) == 1
    assert file.look(tmp_path / "node-config.json") == kept
    label(clear="all")
    assert follower.wait(lambda wanted: wanted.clear == "all")
    assert restarted(tmp_path, None).clear is None


def test_a_broken_file_is_told_and_its_correction_too(path, label, follow):
    swap(path, document(a="spread"))
    label(config="a")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    swap(path, document(a="sprea"))
    assert follower.wait(lambda wanted: wanted.problems)
    assert follower.told[-1].problems[0] == (f"{path}: configs.a.order: is 'sprea'; allowed: packed, spread, nvidia")
    swap(path, document(a="packed"))
    assert follower.wait(lambda wanted: not wanted.problems)
    assert follower.orders == ["spread", "spread", "packed"]


def test_a_file_that_vanishes_and_comes_back(path, label, follow):
    swap(path, document(a="spread"))
    label(config="a")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    path.unlink()
    assert follower.wait(lambda wanted: wanted.problems)
    assert follower.orders[-1] == "spread"
    swap(path, document(a="packed"))
    assert follower.wait(lambda wanted: not wanted.problems)
    assert follower.orders[-1] == "packed"


def test_a_file_that_cannot_be_read_for_a_while_is_tried_again(path, label, follow, monkeypatch):
    swap(path, document(a="spread"))
    label(config="a")
    broken = threading.Event()
    broken.set()
    real = file.read_bytes

    def read(found):
        if broken.is_set():
            raise OSError(5, "Input/output error")
        return real(found)

    monkeypatch.setattr(file, "read_bytes", read)
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    assert follower.told[-1].problems[0] == f"{path}: it cannot be read: Input/output error"
    broken.clear()
    assert follower.wait(lambda wanted: wanted.name == "a" and not wanted.problems)


def test_without_a_file_the_labels_still_count(label, follow):
    label(allocation="hold")
    follower = follow(given=False)
    assert follower.wait(lambda wanted: wanted.hold)
    assert (follower.told[-1].policy, follower.told[-1].problems) == (FLAGS, ())
    label(allocation="dra", config="a")
    assert follower.wait(lambda wanted: not wanted.hold)
    assert "without --node-config" in follower.told[-1].problems[0]


# --- starting -------------------------------------------------------------------------------------


def test_nothing_is_settled_before_the_node_has_been_read(server, path, label, follow):
    swap(path, document(a="spread", default="packed"))
    label(config="a")
    server.fail(Fault(status=503), times=float("inf"))
    follower = follow()
    assert server.wait(lambda: bool(follower.told))
    assert not follower.configuration.current.settled
    assert follower.configuration.current.policy == FLAGS
    assert "are not known yet" in follower.configuration.current.problems[0]
    server.heal()
    assert follower.wait(lambda wanted: wanted.settled)
    assert (follower.told[-1].name, follower.told[-1].problems) == ("a", ())


def test_that_it_is_settled_is_told_even_where_nothing_else_changes(path, label, follow):
    label()
    swap(path, document())
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    assert follower.told[-1].policy == FLAGS


def restarted(tmp_path, path):
    """What a new process knows before it has asked anybody."""
    return Follower(tmp_path, path=path).configuration.load()


def test_a_restart_knows_what_held(tmp_path, path, label, follow):
    swap(path, document(a="spread"))
    label(config="a", allocation="hold")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    again = restarted(tmp_path, path)
    assert (again.name, again.policy.order, again.hold, again.settled) == ("a", Order.SPREAD, True, False)
    swap(path, "{")
    again = restarted(tmp_path, path)
    assert (again.name, again.policy.order) == ("a", Order.SPREAD)
    assert again.problems[0].startswith(f"{path}: it is not YAML")
    path.unlink()
    assert restarted(tmp_path, path).policy == FLAGS
    assert restarted(tmp_path, None).hold


def test_a_restart_with_a_broken_file_goes_on_with_what_held(path, label, follow):
    swap(path, document(a="spread"))
    label(config="a")
    first = follow()
    assert first.wait(lambda wanted: wanted.settled)
    assert first.configuration.stop(PATIENCE)
    swap(path, document(a="?"))
    second = follow()
    assert second.wait(lambda wanted: wanted.settled)
    assert (second.told[-1].name, second.told[-1].policy.order) == ("a", Order.SPREAD)
    swap(path, document(a="packed"))
    assert second.wait(lambda wanted: wanted.policy.order is Order.PACKED)


PATIENT = HealthWishes(xids={31: "warn"})


def test_a_restart_knows_the_health_policy_that_held(tmp_path, path, label, follow):
    swap(path, with_health({"xids": {"31": "warn"}}))
    label(config="a")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    swap(path, with_health({"xids": {"31": "?"}}))
    again = restarted(tmp_path, path)
    assert (again.name, again.health_policy, again.health) == ("a", "patient", PATIENT)


def test_a_restart_without_news_leaves_the_file_as_it_is(tmp_path, path, label, follow):
    swap(path, with_health({"xids": {"31": "warn"}, "memory": "strict", "expirySeconds": 1}))
    label(config="a")
    first = follow()
    assert first.wait(lambda wanted: wanted.settled)
    assert first.configuration.stop(PATIENCE)
    kept = file.look(tmp_path / "node-config.json")
    second = follow()
    assert second.wait(lambda wanted: wanted.settled)
    assert second.told[-1] == first.told[-1]
    assert file.look(tmp_path / "node-config.json") == kept


@pytest.mark.parametrize(
    ("name", "health", "wishes"),
    [
        ("patient", {"xids": {"31": "warn"}}, PATIENT),
        ("patient", None, HealthWishes()),
        ("patient", {"later": 1}, HealthWishes()),
        ("strict", None, HealthWishes(strict_memory=True)),
        ("strict", {"later": 1}, HealthWishes(strict_memory=True)),
    ],
    ids=["this version", "an earlier one", "a later one", "an earlier one, built in", "a later one, built in"],
)
def test_what_another_version_remembered_is_understood_as_far_as_possible(tmp_path, path, name, health, wishes):
    document = {
        "version": 1,
        "labels": {"config": "a", "allocation": ""},
        "allocation": "dra",
        "name": "a",
        "config": {"order": "spread", "healthPolicy": name},
    }
    (tmp_path / "node-config.json").write_text(json.dumps(document | ({} if health is None else {"health": health})))
    swap(path, "{")
    wanted = restarted(tmp_path, path)
    assert (wanted.name, wanted.policy.order, wanted.health_policy) == ("a", Order.SPREAD, name)
    assert wanted.health == wishes


def test_nothing_is_remembered_before_anything_is_settled(server, tmp_path, path, label, follow):
    swap(path, document(default="spread"))
    server.fail(Fault(status=503), times=float("inf"))
    follower = follow()
    assert server.wait(lambda: bool(follower.told))
    assert not (tmp_path / "node-config.json").exists()


def test_a_damaged_memory_does_not_matter(tmp_path, path, label, follow):
    (tmp_path / "node-config.json").write_text("{")
    swap(path, document(a="spread"))
    label(config="a")
    follower = follow()
    assert follower.wait(lambda wanted: wanted.name == "a")
    assert json.loads((tmp_path / "node-config.json").read_text())["name"] == "a"


def test_only_a_file_takes_what_reads_files():
    program = (
        "import sys, pathlib; from dradriver.nodeconfig import NodeConfiguration; "
        "from dradriver.gpu.policy import OfferPolicy; path = pathlib.Path(sys.argv[1]) if sys.argv[1] else None; "
        "NodeConfiguration(path, remembered=pathlib.Path('/nowhere/m'), node_name='a', defaults=OfferPolicy()).load(); "
        "print([name in sys.modules for name in ('pydantic', 'yaml')])"
    )

    def loaded(argument):
        command = [sys.executable, "-c", program, argument]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    assert loaded("") == "[False, False]"
    assert loaded("/nowhere") == "[False, False]"
    assert loaded(__file__) == "[True, True]"


# --- going wrong ----------------------------------------------------------------------------------


def test_who_fails_to_take_a_change_is_told_again(path, label, follow):
    calls = []

    def fail_once(_wanted):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("made to fail")

    swap(path, document(a="spread"))
    label(config="a")
    with structlog.testing.capture_logs() as logs:
        follower = follow(on_change=fail_once)
        assert follower.wait(lambda _wanted: len(follower.told) == 2)
    assert follower.told[0] == follower.told[1]
    assert follower.configuration.alive
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [
        "defect in following the node configuration"
    ]


def test_stop_before_start_is_harmless(tmp_path, path):
    follower = Follower(tmp_path, path=path)
    assert not follower.configuration.alive
    assert follower.configuration.stop()
    follower.configuration.load()
    assert follower.configuration.stop()


def test_a_broken_thread_is_noticed(path, label, follow):
    label()
    follower = follow()
    assert follower.wait(lambda wanted: wanted.settled)
    assert follower.configuration.alive
    assert follower.configuration._labels.stop(PATIENCE)
    assert not follower.configuration.alive
