"""What the plugin says when it cannot run: one clear sentence and a failure, never a traceback."""

import os
import re
import socket
import subprocess
import sys

import pytest
from support.plugin import Plugin
from support.simulated import SimulatedNode
from support.waiting import wait_for


@pytest.fixture
def surroundings(keeper, tmp_path):
    """Everything that a plugin needs, of its own, so that a test can take one thing away."""
    simulation = SimulatedNode(tmp_path / "simulation")
    simulation.run("create", "1xh100-80gb")
    for name in ("plugins", "registry", "cdi"):
        (tmp_path / name).mkdir()
    return {
        "NODE_NAME": "node-a",
        "KUBECONFIG": str(keeper.kubeconfig),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(tmp_path / "plugins"),
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(tmp_path / "registry"),
        "CDI_ROOT": str(tmp_path / "cdi"),
        "SIMULATION": str(simulation.folder),
    }


def run(surroundings, *arguments):
    """Run it to its end; gives status and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "dradriver", *arguments],
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def expect_refusal(surroundings, pattern, *arguments):
    status, said = run(surroundings, *arguments)
    assert status in {1, 2}, said
    assert "Traceback" not in said, said
    sentence = next(line for line in reversed(said.splitlines()) if line.startswith("dradriver: "))
    assert re.search(pattern, sentence), sentence
    assert len(sentence) < 400


FLAGS = {
    "no node name": (("--node-name", ""), "NODE_NAME"),
    "a node name that is none": (("--node-name", "Node_A!"), "Node_A!"),
    "a MIG offer that is none": (("--mig", "sometimes"), "sometimes.*static"),
    "a profile that is none": (("--profiles", "9x.big"), "9x.big.*standard"),
    "a simulation that is none": (("--simulation", "/nowhere"), "/nowhere.*create"),
    "an endpoint that is none": (("--http-endpoint", "somewhere"), "somewhere.*host:port"),
    "a port that is none": (("--http-endpoint", "127.0.0.1:99999"), "99999"),
    "a log level that is none": (("--log-level", "loud"), "loud"),
    "a flag that is none": (("--turbo",), "turbo"),
    "an argument that is none": (("start",), "start"),
    "a kubeconfig that is missing": (("--kubeconfig", "/nowhere/config"), "/nowhere/config"),
    "a registry that is missing": (("--kubelet-registrar-directory-path", "/nowhere/registry"), "/nowhere/registry"),
}


@pytest.mark.parametrize(("arguments", "pattern"), FLAGS.values(), ids=FLAGS)
def test_flags(arguments, pattern, surroundings):
    expect_refusal(surroundings, pattern, *arguments)


KUBECONFIGS = {
    "empty": "",
    "no YAML": "{{{",
    "a list": "- 1\n",
    "no context": "apiVersion: v1\nkind: Config\n",
    "binary": "\x00\x01",
    "certificate that is none": (
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        "clusters:\n- name: a\n  cluster:\n    server: 'https://127.0.0.1:1'\n    certificate-authority-data: bm8K\n"
        "users: [{name: a, user: {token: t}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"
    ),
}


@pytest.mark.parametrize("text", KUBECONFIGS.values(), ids=KUBECONFIGS)
def test_a_broken_kubeconfig(text, surroundings, tmp_path):
    file = tmp_path / "broken.kubeconfig"
    file.write_text(text)
    expect_refusal(surroundings, re.escape(str(file)), "--kubeconfig", str(file))


def test_a_port_that_is_taken(surroundings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        expect_refusal(surroundings, f"{endpoint}.*in use", "--http-endpoint", endpoint)


def test_a_second_plugin_on_the_node(surroundings, tmp_path):
    first = Plugin(environment=surroundings, arguments=(), log=tmp_path / "first.log")
    first.start()
    try:
        wait_for(lambda: first.page("/healthz"), "the first to serve", state=first.log)
        expect_refusal(surroundings, "dra.sock")
    finally:
        assert first.stop() == 0


def test_a_plugins_folder_that_is_a_file(surroundings, tmp_path):
    file = tmp_path / "file"
    file.touch()
    expect_refusal(surroundings, re.escape(str(file)), "--kubelet-plugins-directory-path", str(file))


def test_a_plugins_folder_whose_name_is_too_long(surroundings, tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    expect_refusal(surroundings, "dra.sock", "--kubelet-plugins-directory-path", str(folder))


# --- what may still come right: the plugin runs on, and tells what it waits for -------------------------


@pytest.fixture
def waiting(surroundings, tmp_path):
    """Start a plugin that cannot become ready; gives what /readyz says once a pattern is in it."""
    plugins = []

    def start(pattern, *arguments):
        plugin = Plugin(environment=surroundings, arguments=arguments, log=tmp_path / "plugin.log")
        plugins.append(plugin)
        plugin.start()
        return wait_for(
            lambda: re.search(pattern, plugin.page("/readyz")), f"{pattern!r} at /readyz", state=plugin.log, seconds=60
        )

    yield start
    for plugin in plugins:
        assert plugin.stop() == 0
        assert "Traceback" not in plugin.log()


def test_a_node_that_does_not_exist(waiting):
    assert waiting(r"published: .*no-such-node", "--node-name", "no-such-node")


def test_an_api_server_that_does_not_answer(waiting, keeper, tmp_path):
    file = tmp_path / "dead.kubeconfig"
    address = keeper.server.cluster["server"]
    file.write_text(keeper.kubeconfig.read_text().replace(address, "https://127.0.0.1:9"))
    assert waiting(r"published: .*127\.0\.0\.1:9", "--kubeconfig", str(file))


def test_a_token_that_is_not_accepted(waiting, keeper, tmp_path):
    file = tmp_path / "stranger.kubeconfig"
    file.write_text(keeper.server.kubeconfig_for("not-a-token"))
    assert waiting(r"published: .*(401|Unauthorized)", "--kubeconfig", str(file))


def test_rights_that_are_missing(waiting, keeper, tmp_path):
    file = tmp_path / "powerless.kubeconfig"
    token = keeper.server.kubectl("create", "token", "default", "-n", "default").strip()
    file.write_text(keeper.server.kubeconfig_for(token))
    assert waiting(r"published: .*(403|[Ff]orbidden)", "--kubeconfig", str(file))


def test_a_kubelet_that_does_not_come(waiting):
    assert waiting(r"(?s)\[-\] registered: .*\[\+\] published")


def test_a_driver_that_is_missing(waiting, surroundings, tmp_path):
    broken = tmp_path / "no-driver"
    broken.mkdir()
    surroundings["SIMULATION"] = ""
    assert waiting(r"published: no GPUs: .*", "--nvidia-driver-root", str(broken))
