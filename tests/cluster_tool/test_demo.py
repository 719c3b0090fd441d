# SPDX-License-Identifier: Apache-2.0
"""What the demo may touch, whom it talks to, and how it says that something is wrong."""

import http.server
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from demonstration import cli, expectations, identity, world
from demonstration.expectations import Allocated
from demonstration.world import DemoError, World
from localcluster import spec
from localcluster.common import Layout, wait_for
from localcluster.slots import Slot
from localcluster.spec import Wish

LAUNCHER = Path(world.__file__).parents[1] / "demo"


@pytest.fixture
def demo(tmp_path):
    return World(folder=tmp_path / "demo")


@pytest.fixture
def as_root(monkeypatch):
    monkeypatch.setattr(cli.os, "geteuid", lambda: 0)


def kubectl(demo, script):
    """Put a kubectl of ours where the cluster's would be."""
    program = demo.cluster / "bin" / "kubectl"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def cluster(demo, *, nodes):
    """Write down a cluster, as `hack/cluster up` does, without booting it."""
    demo.cluster.mkdir(parents=True, exist_ok=True)
    layout = Layout(Path(os.path.realpath(demo.cluster)))
    spec.save(layout, spec.placed(spec.fresh(Wish(nodes=nodes), token="t"), Slot(4)))
    return layout


# --- whom it talks to ----------------------------------------------------------------------------


def test_kubectl_is_the_clusters_own_with_its_own_kubeconfig(demo, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kubectl").write_text("#!/bin/sh\necho another kubectl")
    (elsewhere / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{elsewhere}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", "/the/users/own")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    kubectl(demo, 'echo "$@ [$KUBECONFIG$KUBERNETES_SERVICE_HOST] $KUBERC"; cat')
    said = demo.kubectl("get", "pods", stdin="given")
    assert said == f"--kubeconfig={demo.cluster}/kubeconfig get pods [] off\ngiven"


def test_without_a_cluster_nothing_is_asked_of_the_users_own(demo, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/the/users/own")
    with pytest.raises(DemoError, match="there is no cluster in"):
        _ = demo.environment
    with pytest.raises(DemoError, match=r"demo/cluster/bin/kubectl cannot be run: No such file or directory"):
        demo.kubectl("delete", "namespace", "precious")


def test_a_cluster_without_nodes_is_refused(demo, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/the/users/own")
    cluster(demo, nodes=0)
    with pytest.raises(DemoError, match="there is no node node-a"):
        _ = demo.environment


def test_the_environment_is_the_nodes_and_is_asked_for_once(demo, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/the/users/own")
    layout = cluster(demo, nodes=1)
    asked = []
    run = World.run
    monkeypatch.setattr(World, "run", lambda self, command, **more: asked.append(command) or run(self, command, **more))
    found = demo.environment
    assert found is demo.environment
    assert len(asked) == 1
    assert found["KUBECONFIG"] == str(layout.kubeconfig)
    assert found["NODE_NAME"] == "node-a"


def test_without_root_one_sentence_and_nothing_made(demo, monkeypatch, capsys):
    monkeypatch.setattr(cli.os, "geteuid", lambda: 1000)
    assert cli.main(["--dir", str(demo.folder)]) == 1
    assert capsys.readouterr().err == ("\ndemo: failed: a Kubernetes node needs root's rights: run the demo as root\n")
    assert not demo.folder.exists()


# --- what it touches -----------------------------------------------------------------------------


@pytest.fixture
def foreign(demo):
    """A folder of somebody, with names that the demo uses too and a living process in plugin.pid."""
    for name in ("cluster/notes", "gpus/list", "other"):
        (demo.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (demo.folder / name).write_text("theirs")
    (demo.folder / "plugin.pid").write_text(f"{os.getpid()} {world._start_time(os.getpid())}")
    return demo


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


@pytest.mark.parametrize("option", [["--down"], []])
def test_a_folder_of_others_is_left_alone(foreign, option, as_root, monkeypatch, capsys):
    monkeypatch.setattr(World, "cluster_up", lambda _: pytest.fail("a cluster was booted there"))
    monkeypatch.setattr(World, "cluster_down", lambda _: pytest.fail("a cluster there was ended"))
    monkeypatch.setattr(world.os, "kill", lambda *_: pytest.fail("a process of others was ended"))
    before = names(foreign.folder)
    assert cli.main(["--dir", str(foreign.folder), *option]) == 1
    assert names(foreign.folder) == before
    assert "is no demo's folder" in capsys.readouterr().err


def test_down_removes_what_the_demo_made_and_only_that(demo, monkeypatch, capsys):
    monkeypatch.setattr(World, "cluster_down", lambda _: None)
    demo.claim()
    for name in ("cluster/logs/x", "gpus/state", "plugin.log", "plugin.kubeconfig", "mine/notes"):
        (demo.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (demo.folder / name).write_text("")
    assert cli.main(["--dir", str(demo.folder), "--down"]) == 0
    assert names(demo.folder) == ["mine", "mine/notes"]
    assert "demo: ended" in capsys.readouterr().out


def test_down_of_a_demo_leaves_no_folder_and_may_be_repeated(demo, monkeypatch):
    ended = []
    monkeypatch.setattr(World, "cluster_down", lambda demo: ended.append(demo.folder))
    demo.claim()
    assert cli.main(["--dir", str(demo.folder), "--down"]) == 0
    assert not demo.folder.exists()
    assert cli.main(["--dir", str(demo.folder), "--down"]) == 0, "what the machine still has is taken back"
    assert len(ended) == 2


def test_a_link_is_removed_and_not_what_it_leads_to(demo, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    demo.claim()
    (demo.folder / "gpus").symlink_to(precious)
    demo.clear()
    assert names(precious) == ["file"]
    assert not demo.folder.exists()


def test_a_demo_may_be_repeated_in_its_folder(demo):
    demo.claim()
    (demo.folder / "plugin.log").touch()
    demo.claim()
    assert demo.marker.exists()


@pytest.mark.parametrize("name", ["plugin", "controller"])
def test_the_programs_of_an_earlier_demo_are_stopped(demo, name):
    demo.claim()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        (demo.folder / f"{name}.pid").write_text(f"{process.pid} {world._start_time(process.pid)}")
        demo.stop_programs()
        reaper.join(60)
        assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("text", ["", "12", "{pid} ", "{pid} 1", "x y z"])
def test_a_record_that_names_no_process_of_ours_ends_none(demo, text, monkeypatch):
    monkeypatch.setattr(world.os, "kill", lambda *_: pytest.fail("a process of others was ended"))
    demo.claim()
    (demo.folder / "plugin.pid").write_text(text.format(pid=os.getpid()))
    demo.stop_programs()
    assert not (demo.folder / "plugin.pid").exists()


# --- the plugin's identity -----------------------------------------------------------------------

ANSWERS = """
case "$*" in
*"config view"*) echo '{"users": [{"name": "admin", "user": {"token": "the administrator"}}]}';;
*"get pod"*) echo the-uid;;
*"create token"*) echo "$@" > "$(dirname "$0")/asked"; echo the-token;;
*apply*) cat > "$(dirname "$0")/pod";;
esac
"""


def test_the_plugin_gets_a_token_bound_to_a_pod_on_its_node(demo):
    demo.claim()
    kubectl(demo, ANSWERS)
    left = demo.folder / "plugin.kubeconfig"
    left.touch(0o644)
    token = identity.bound_token(demo.kubectl, "node-a")
    config = json.loads(demo._kubeconfig("plugin", token).read_text())
    assert [user["user"] for user in config["users"]] == [{"token": "the-token"}]
    assert stat.S_IMODE(left.stat().st_mode) == 0o600, "a file from before keeps no mode of its own"
    pod = json.loads((demo.cluster / "bin/pod").read_text())
    assert pod["spec"]["nodeName"] == "node-a"
    assert pod["spec"]["serviceAccountName"] == identity.ACCOUNT
    asked = (demo.cluster / "bin/asked").read_text()
    assert f"--bound-object-kind Pod --bound-object-name {pod['metadata']['name']} --bound-object-uid the-uid" in asked


# --- the log -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "endpoint"),
    [
        ("", ""),
        ('{"event": "a"}\n{"endpoint": "127.0.0.1:1"}\n', "127.0.0.1:1"),
        ('{"event": "a", "more": {"b": 1}', ""),
        ('{"event": {"endpoint": "half"}\n{"endpoint": "127.0.0.1:2"}', "127.0.0.1:2"),
        ('Traceback {x}\n["endpoint"]\n5\n', ""),
    ],
)
def test_the_endpoint_is_read_from_whole_lines_only(tmp_path, log, endpoint):
    file = tmp_path / "log"
    file.write_text(log)
    assert world._endpoint(file) == endpoint


def test_readiness_is_asked_of_this_machine_whatever_proxy_is_set(tmp_path, monkeypatch):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    log = tmp_path / "log"
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        log.write_text(json.dumps({"endpoint": f"127.0.0.1:{server.server_port}"}))
        assert wait_for(lambda: world._is_ready(log), seconds=60)
        thread.join(60)


def test_without_an_endpoint_it_is_not_ready(tmp_path):
    (tmp_path / "log").write_text("")
    assert not world._is_ready(tmp_path / "log")


# --- sentences -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [DemoError("it is so"), FileNotFoundError(2, "it is so", "/x"), PermissionError(13, "it is so", "/x")]
)
def test_every_failure_is_a_sentence(error, demo, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr(cli, "_down", fail)
    assert cli.main(["--dir", str(demo.folder), "--down"]) == 1
    assert "it is so" in capsys.readouterr().err


def test_no_demo_to_play_with_is_a_sentence(demo):
    words = [sys.executable, LAUNCHER, "--env", "--dir", str(demo.folder)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.strip() == "demo: failed: no demo is running: start it with `make demo`"


@pytest.mark.parametrize("said", ["", "not json", '{"half":'])
def test_an_answer_that_is_no_json_is_a_sentence(demo, said):
    kubectl(demo, f"printf %s '{said}'")
    with pytest.raises(DemoError, match="kubectl get pods printed no JSON"):
        demo.get("pods")


def test_a_failing_kubectl_is_told_with_what_it_said(demo):
    kubectl(demo, "echo forbidden >&2; exit 3")
    with pytest.raises(DemoError, match=r"kubectl .* get pods.*failed:\nforbidden"):
        demo.kubectl("get", "pods")


def device(pod, container, number, *, instance=None):
    return Allocated(
        pod=pod,
        container=container,
        claim=pod,
        device=f"gpu-{number}",
        gpu={"uuid": f"GPU-{number}", "minor": number},
        instance=instance,
        capabilities={},
    )


def partition(name, *, memory=9984, profile="1g.10gb"):
    return {
        "profile": profile,
        "memory_mib": memory,
        "gpu_instance_id": 7,
        "compute_instances": [{"uuid": f"MIG-{name}", "compute_instance_id": 0}],
    }


def good():
    return [
        device("whole-gpu", "app", 2),
        device("small-1", "app", 0, instance=partition("a")),
        device("small-2", "app", 1, instance=partition("b")),
        device("same-gpu", "one", 0, instance=partition("c")),
        device("same-gpu", "two", 0, instance=partition("d")),
        device("shared-claim", "one", 1, instance=partition("e")),
        device("shared-claim", "two", 1, instance=partition("e")),
        device("any-30gib", "app", 0, instance=partition("f", memory=40192, profile="3g.40gb")),
        device("limits-gpu", "app", 3),
        device("limits-mig", "app", 1, instance=partition("g")),
    ]


def test_what_is_as_it_should_be_is_well(capsys):
    expectations.check_examples(good())
    assert capsys.readouterr().out.count("checked:") == 12


@pytest.mark.parametrize("index", range(10))
def test_a_missing_device_is_a_sentence(index, capsys):
    devices = good()
    gone = devices.pop(index)
    with pytest.raises(DemoError, match=rf"pod {gone.pod} has \d devices, it should have \d"):
        expectations.check_examples(devices)


@pytest.mark.parametrize(
    ("index", "instead"),
    [
        (0, device("whole-gpu", "app", 2, instance=partition("x"))),
        (1, device("small-1", "app", 1, instance=partition("b"))),
        (4, device("same-gpu", "two", 3, instance=partition("d"))),
        (6, device("shared-claim", "two", 1, instance=partition("x"))),
        (7, device("any-30gib", "app", 3)),
        (7, device("any-30gib", "app", 3, instance=partition("f"))),
        (7, device("any-30gib", "app", 2, instance=partition("f", memory=40192))),
        (8, device("limits-gpu", "app", 2)),
        (8, device("limits-gpu", "app", 0)),
        (8, device("limits-gpu", "app", 3, instance=partition("x"))),
        (9, device("limits-mig", "app", 4)),
        (9, device("limits-mig", "app", 1, instance=partition("x", profile="2g.20gb"))),
    ],
)
def test_what_is_wrong_is_a_sentence(index, instead, capsys):
    devices = good()
    devices[index] = instead
    with pytest.raises(DemoError, match="not so: "):
        expectations.check_examples(devices)


@pytest.mark.parametrize(
    ("pod", "claims", "said"),
    [
        ({"spec": {"resourceClaims": []}}, {}, "pod p's list of claims has no gpu, only nothing"),
        ({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}}, {}, "has no c, only nothing"),
        (
            {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}},
            {"c": {"metadata": {"name": "c"}, "status": {}}},
            "claim c is not allocated",
        ),
    ],
)
def test_a_claim_that_is_not_as_it_should_be_is_a_sentence(pod, claims, said):
    body = {"metadata": {"name": "p"}, "status": {}, **pod}
    body["spec"]["containers"] = [{"name": "app", "resources": {"claims": [{"name": "gpu"}]}}]
    with pytest.raises(DemoError, match=said):
        list(expectations._uses(body, claims))


def test_a_pod_without_claims_has_no_devices():
    assert list(expectations._uses({"metadata": {"name": "p"}, "spec": {"containers": [{}]}, "status": {}}, {})) == []


def test_what_a_pod_asks_for_as_extended_resources_is_found():
    mappings = [("app", "r1"), ("init", "r1"), ("more", "r2")]
    status = {
        "resourceClaimName": "p-extended-resources-x",
        "requestMappings": [{"containerName": name, "requestName": request} for name, request in mappings],
    }
    results = [{"request": "r1", "device": "gpu-1"}, {"request": "r2", "device": "gpu-2"}]
    claim = {"metadata": {"name": "c"}, "status": {"allocation": {"devices": {"results": results}}}}
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": []},
        "status": {"extendedResourceClaimStatus": status},
    }
    found = list(expectations._uses(body, {"p-extended-resources-x": claim}))
    assert [(container, device) for container, _, device in found] == [
        ("app", "gpu-1"),
        ("init", "gpu-1"),
        ("more", "gpu-2"),
    ]
    assert {claim for _, claim, _ in found} == {"p-extended-resources-x"}


# --- the claims' status --------------------------------------------------------------------------


def test_the_status_of_a_claim_is_read(demo):
    kubectl(demo, "echo gpu-1 True GPU-1; echo gpu-2 False; echo")
    told = expectations.status_of(demo, "c")
    assert told == [("gpu-1", "True", "GPU-1"), ("gpu-2", "False", ""), ("", "", "")]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([], "tells of"),
        ([("gpu-1", "True", "GPU-2")], r"tells of \['GPU-2'\], its devices are \['GPU-1'\]"),
        ([("gpu-1", "True", "GPU-1"), ("gpu-2", "True", "GPU-2")], "tells of"),
        ([("gpu-1", "False", "GPU-1")], "says that gpu-1 is not ready"),
        ([("gpu-1", "", "GPU-1")], "says that gpu-1 is not ready"),
    ],
)
def test_a_status_that_is_not_true_is_a_sentence(told, said):
    with pytest.raises(DemoError, match=said):
        expectations.check_status("c", told, {"GPU-1"})


def test_a_status_that_is_true_is_well():
    expectations.check_status("c", [("gpu-1", "True", "GPU-1")], {"GPU-1"})
