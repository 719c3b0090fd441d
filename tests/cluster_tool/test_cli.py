# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcluster import cli, lifecycle, spec, status
from localcluster.common import ClusterError
from localcluster.slots import Slot
from localcluster.status import Row

LAUNCHER = Path(cli.__file__).parents[1] / "cluster"
TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40)


@pytest.fixture
def kept(layout, made):
    placed = spec.placed(made, Slot(4))
    spec.save(layout, placed)
    return placed


def run(*words):
    return subprocess.run([sys.executable, LAUNCHER, *words], capture_output=True, text=True, check=False)


def test_the_launcher_needs_nothing_but_python():
    answer = subprocess.run([sys.executable, "-I", LAUNCHER, "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0
    assert "up" in answer.stdout


@pytest.mark.parametrize("command", [["env"], ["status"], ["restart", "kubelet"], ["stop", "etcd"], ["start", "etcd"]])
def test_no_cluster_is_one_line_and_no_traceback(command, tmp_path):
    answer = run(*command, "--dir", str(tmp_path / "none"))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "there is no cluster in" in answer.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [["status"], ["env"], ["down"]])
def test_with_a_directory_no_home_is_needed(command, tmp_path):
    script = (
        "import os, pwd, sys\n"
        "def unknown(_): raise KeyError\n"
        "pwd.getpwuid = unknown\n"
        f"sys.path.insert(0, {str(LAUNCHER.parent)!r})\n"
        "from localcluster.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", script, *command]
    environment = {"PATH": os.environ["PATH"]}
    where = ["--dir", str(tmp_path / "none")]
    answer = subprocess.run([*words, *where], capture_output=True, text=True, check=False, env=environment)
    assert "Traceback" not in answer.stderr
    assert command == ["down"] or "there is no cluster in" in answer.stderr
    answer = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)
    assert "set XDG_STATE_HOME" in answer.stderr


def test_down_of_nothing_is_well_and_makes_nothing(tmp_path):
    answer = run("down", "--dir", str(tmp_path / "none"))
    assert answer.returncode == 0, answer.stderr
    assert not (tmp_path / "none").exists()


def test_contradicting_options_are_refused(tmp_path, capsys):
    assert cli.main(["up", "--dir", str(tmp_path), "--nodes", "2", "--control-plane-only"]) == 1
    assert "exclude each other" in capsys.readouterr().err


def test_without_root_there_is_the_control_plane_only(monkeypatch, capsys):
    monkeypatch.setattr(cli.preflight, "is_root", lambda: False)
    options = cli.parser().parse_args(["up"])
    assert cli._nodes(options) == 0
    assert "control plane alone" in capsys.readouterr().err
    with pytest.raises(ClusterError, match="need root's rights"):
        cli._nodes(cli.parser().parse_args(["up", "--nodes", "1"]))


def test_with_root_what_is_asked_for_counts(monkeypatch):
    monkeypatch.setattr(cli.preflight, "is_root", lambda: True)
    assert cli._nodes(cli.parser().parse_args(["up", "--nodes", "3"])) == 3
    assert cli._nodes(cli.parser().parse_args(["up"])) is None
    assert cli._nodes(cli.parser().parse_args(["build", "--control-plane-only"])) == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ClusterError("it is so"), "error: it is so"),
        (PermissionError(13, "Permission denied", "/x"), "another user"),
        (OSError(28, "No space left on device"), "No space left"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_every_failure_is_a_sentence(error, text, tmp_path, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr(lifecycle, "down", fail)
    assert cli.main(["down", "--dir", str(tmp_path)]) in {1, 130}
    assert text in capsys.readouterr().err


def test_env_gives_the_kubeconfig_and_our_programs_first(layout, kept, monkeypatch):
    monkeypatch.setenv("PATH", f"/usr/bin:{layout.bin}:/bin")
    values = status.environment(layout, kept, None)
    assert values == {"KUBECONFIG": str(layout.kubeconfig), "PATH": f"{layout.bin}:/usr/bin:/bin"}


def test_env_of_a_node_gives_the_plugin_its_folders(layout, kept):
    values = status.environment(layout, kept, "node-b")
    assert values["NODE_NAME"] == "node-b"
    assert values["CDI_ROOT"] == str(layout.cdi("node-b"))
    assert values["KUBELET_PLUGINS_DIRECTORY_PATH"] == str(layout.short / "node-b" / "plugins")
    assert values["KUBELET_REGISTRAR_DIRECTORY_PATH"] == str(layout.short / "node-b" / "plugins_registry")


def test_env_of_a_foreign_node_names_those_there_are(layout, kept):
    with pytest.raises(ClusterError, match="no node node-x; this cluster has node-a, node-b"):
        status.environment(layout, kept, "node-x")


@given(value=TEXT)
def test_a_shell_reads_back_what_env_prints(value):
    assert shlex.split(status.exports({"NAME": value})) == ["export", f"NAME={value}"]


@given(value=st.text("ab '\"$`\\;&|", max_size=20))
def test_no_value_escapes_its_quotes(value):
    script = status.exports({"NAME": value}) + '\nprintf %s "$NAME"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == value


def test_components_are_named_with_their_node(layout, kept):
    assert lifecycle.component(kept, layout, "kubelet", None) == "kubelet-node-a"
    assert lifecycle.component(kept, layout, "containerd", "node-b") == "containerd-node-b"
    assert lifecycle.component(kept, layout, "etcd", None) == "etcd"
    with pytest.raises(ClusterError, match="there is no kubelet-node-c"):
        lifecycle.component(kept, layout, "kubelet", "node-c")


def test_a_dead_cluster_is_shown_as_such(layout, kept, capsys):
    assert cli.main(["status", "--dir", str(layout.root)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["COMPONENT", "PID", "STATE", "ADDRESS"]
    assert len(shown) == 1 + 5 + 3 * 2
    assert all("not running" in line for line in shown[1:])


def test_json_tells_the_same(layout, kept, capsys):
    assert cli.main(["status", "--dir", str(layout.root), "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["id"] == layout.id
    assert {each["component"] for each in document["components"]} >= {"etcd", "kubelet-node-b", "node-a"}


def test_columns_are_aligned():
    rows = [
        Row(component="etcd", pid=1, ok=True, note="running", address="127.0.0.1:1"),
        Row(component="kube-apiserver", pid=None, ok=False, note="not running", address=""),
    ]
    lines = status.table(rows).splitlines()
    assert lines[1].index("running") == lines[2].index("not running")


def test_an_unfinished_up_gives_way_to_other_options(layout, kept, monkeypatch):
    cleared = []
    monkeypatch.setattr(lifecycle, "_clear", cleared.append)
    assert lifecycle._existing(layout, spec.Wish(emulate="1.35")) is None
    assert cleared == [layout]


def test_a_finished_one_does_not(layout, kept, monkeypatch):
    spec.save(layout, dataclasses.replace(kept, complete=True))
    monkeypatch.setattr(lifecycle, "_clear", lambda _: pytest.fail("a running cluster was cleared"))
    with pytest.raises(ClusterError, match="was made with --emulate"):
        lifecycle._existing(layout, spec.Wish(emulate="1.35"))
