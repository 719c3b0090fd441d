"""What `dradriver slices` and `dradriver nodes template` print, as kubectl, API server and scheduler take it."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml
from doubles.machines import simulation_main
from support.manifests import request
from support.stage import REFUSED, Stage, Verdict

from dradriver.kube import RESOURCE_SLICES, Client, Selector
from dradriver.resource import same_content

pytestmark = pytest.mark.control_plane

DYNAMIC = ("--mig", "dynamic")


def printed(*words: object) -> str:
    command = [sys.executable, "-m", "dradriver", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def specs(documents) -> dict[str, dict]:
    return {one["metadata"]["name"]: one["spec"] for one in documents}


@pytest.fixture
def kubectl(control_plane):
    def run(*words: str, text: str = "") -> str:
        command = [control_plane.programs / "kubectl", "--kubeconfig", control_plane.kubeconfig, *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def accepted(kubectl):
    """Give what the API server would store; it stores nothing."""

    def ask(text: str) -> dict[str, dict]:
        answer = json.loads(kubectl("apply", "--dry-run=server", "-f", "-", "-o", "json", text=text))
        return specs(answer.get("items", [answer]))

    return ask


def assert_same(stored: dict[str, dict], text: str) -> None:
    wanted = specs(yaml.safe_load_all(text))
    assert stored.keys() == wanted.keys()
    for name, spec in wanted.items():
        assert same_content(stored[name], spec), name
        assert stored[name]["pool"] == spec["pool"]
        assert stored[name]["nodeName"] == spec["nodeName"]


@pytest.mark.parametrize(
    "words",
    [
        ("8xh100-80gb", *DYNAMIC),
        ("8xh100-80gb", *DYNAMIC, "--order", "spread", "--publish", "lean"),
        ("2xa100-40gb,2xa30,1xt4,1xgb10", *DYNAMIC, "--profiles", "all", "--order", "nvidia"),
        ("16xrtx-pro-6000", *DYNAMIC, "--profiles", "all"),
        ("4xgb200,4xb200", *DYNAMIC),
        ("16xl4",),
    ],
    ids=" ".join,
)
def test_the_server_takes_a_template_and_changes_nothing_in_it(accepted, words):
    text = printed("nodes", "template", *words)
    assert_same(accepted(text), text)


def test_json_is_taken_as_yaml_is(accepted):
    words = ("nodes", "template", "2xh100-80gb", *DYNAMIC)
    assert accepted(printed(*words, "-o", "json")) == accepted(printed(*words))


def test_the_server_takes_what_a_node_has_with_taints_and_instances(accepted, tmp_path):
    node = tmp_path / "gpus"
    for words in (
        ("create", "2xh100-80gb", "--mig", "on"),
        ("instance", "create", "3g.40gb", "--start", "4"),
        ("instance", "create", "1g.10gb+me", "--gpu", "1"),
    ):
        assert simulation_main(["--state", str(node), *words]) == 0
    for mig in ("static", "dynamic"):
        text = printed("slices", "--simulation", node, "--node-name", "node-x", "--mig", mig)
        assert_same(accepted(text), text)
        assert ("taints:" in text) is (mig == "dynamic")


# --- stored ---------------------------------------------------------------------------------------


@pytest.fixture
def stage(admin: Client, control_plane) -> Iterator[Stage]:
    with Stage(admin, control_plane.kubeconfig) as made:
        yield made


def test_a_scheduler_works_with_a_template_as_with_a_node(admin, kubectl, stage):
    stage.add_nodes({"template": ()})
    node = stage.node("template")
    text = printed("nodes", "template", "2xh100-80gb", *DYNAMIC, "--node-name", node)
    # Under a driver of this test's own, for whose devices there are classes.
    text = text.replace("gpu.nvidia.com", stage.driver)
    try:
        kubectl("apply", "-f", "-", text=text)
        stored = admin.list(RESOURCE_SLICES, selector=Selector(fields=f"spec.nodeName={node}")).items
        assert_same(specs(stored), text)
        wants = {
            "one": [request("r", stage.mig, f"{stage.attribute('profile')} == '1g.10gb'")],
            "seven": [request("r", stage.mig, f"{stage.attribute('profile')} == '7g.80gb'")],
        }
        with stage.scheduler():
            stage.add_pods({"first": (None, wants["one"])})
            first = stage.verdicts({"first"})["first"]
            stage.add_pods({"second": (None, wants["seven"])})
            second = stage.verdicts({"second"})["second"]
            stage.add_pods({"third": (None, wants["seven"])})
            third = stage.verdicts({"third"})["third"]
        assert first == Verdict(devices=("gpu-0-mig-1g10gb-19-6",))
        assert second == Verdict(devices=("gpu-1-mig-7g80gb-0-0",))
        assert REFUSED in third.reason
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", text=text)
