"""`kubectl dra plan` as a person runs it."""

import importlib
import io
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from doubles.deviceplugin import node, pod, quota
from hypothesis import given, settings
from hypothesis import strategies as st

import controller
from controller.cli import COMMANDS, run, usage
from controller.cli import __main__ as program
from controller.cli.printing import plain, remark, some
from dradriver.api.node_config import decode

CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: dp, namespace: gpu-operator}
data:
  default: |
    flags: {migStrategy: mixed, typo: 1}
  shared: |
    sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}
"""
PLAIN = "version: v1"


@pytest.fixture
def files(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


@pytest.fixture
def planned(files, capsys):
    def call(text, *words, status=0):
        assert run(["plan", "--device-plugin-config", files("dp.yaml", text), *words]) == status
        return capsys.readouterr()

    return call


# --- for kubectl ----------------------------------------------------------------------------------


def documents(text):
    return list(yaml.safe_load_all(text))


def test_the_manifests_are_what_kubectl_takes(planned):
    found = documents(planned(CONFIG_MAP, "-o", "yaml", "--profile", "1g.10gb").out)
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [
        ("ExtendedResourceBridge", "gpu"),
        ("ExtendedResourceBridge", "gpu.shared"),
        ("ExtendedResourceBridge", "mig-1g.10gb"),
        ("ConfigMap", "dradriver-node-config"),
    ]
    assert found[1]["spec"] == {
        "resourceName": "nvidia.com/gpu.shared",
        "select": {"type": "gpu", "renamed": True},
        "mode": "WhenReady",
    }


def test_the_node_configurations_are_those_that_the_plugin_reads(planned):
    (made,) = [one for one in documents(planned(CONFIG_MAP, "-o", "yaml").out) if one["kind"] == "ConfigMap"]
    assert made["metadata"]["namespace"] == "dradriver"
    decoded = decode(yaml.safe_load(made["data"]["nodes.yaml"]))
    assert decoded.all_problems() == ()
    assert {name: config.gpus[0].mig for name, config in decoded.configs.items()} == {
        "default": "static",
        "shared": "off",
    }


def test_everything_else_is_a_remark(planned, files):
    cluster = files("objects.json", {"kind": "List", "items": [node("n1", config="shared", gpu=8)]})
    out = planned(CONFIG_MAP, "-o", "yaml", "--objects", cluster).out
    assert re.match("# Made of .*dp.yaml by `kubectl dra plan`. Nothing has been changed", out)
    assert "# Where there is a ConfigMap dradriver/dradriver-node-config already" in out
    assert "# What will not be as it was" in out
    assert "# kubectl label node n1 dradriver.dev/config=shared\n" in out
    assert "# Kueue: into its Configuration" in out
    assert "#   deviceClassMappings:" in out
    assert "# - apiGroups:" in out
    assert "#       nvidia.com/gpu.shared: '1'" in out
    assert [one for one in documents(out) if one is None] == []


def test_quotas_to_add_are_among_the_manifests(planned, files):
    cluster = files("objects.json", {"kind": "List", "items": [quota("q", {"requests.nvidia.com/gpu": 8})]})
    (found,) = [
        one
        for one in documents(planned(PLAIN, "-o", "yaml", "--objects", cluster).out)
        if one["kind"] == "ResourceQuota"
    ]
    assert found["spec"]["hard"] == {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "8"}


# --- for people -----------------------------------------------------------------------------------


def test_the_tables_show_bridges_configurations_nodes_and_gaps(planned, files):
    items = [
        node("n1", config="shared", gpu=8),
        node("n2", gpu=1, mig_1g_10gb=7),
        pod("p", {"nvidia.com/gpu.shared": 1}),
    ]
    cluster = files("objects.json", {"kind": "List", "items": [*items, quota("q", {"requests.nvidia.com/gpu": 8})]})
    out = planned(CONFIG_MAP, "--objects", cluster).out
    lines = [line.split("   ") for line in out.split("\n")]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["mig-1g.10gb", "nvidia.com/mig-1g.10gb", "WhenReady", "type: mig, profile: 1g.10gb, renamed: false"] in rows
    assert ["default", "static", "-", "spread"] in rows
    assert ["n1", "shared", "shared"] in rows
    assert ["n2", "default", "-"] in rows
    assert ["q-claims", "ml", "gpu.nvidia.com.deviceclass.resource.k8s.io/devices=8"] in rows
    assert "[breaks] pods find no MPS" in out
    assert "    pods:    Pod ml/p" in out
    assert max(map(len, out.split("\n"))) <= 120


def test_the_environment_decides(planned):
    out = planned(CONFIG_MAP.partition("  shared:")[0], "--env", "MIG_STRATEGY=none").out
    assert "off" in out
    assert "no bridge is made for MIG profiles" not in out


def test_the_side_cars_words_decide(planned, files):
    cluster = files("objects.yaml", yaml.safe_dump_all([node("n1", gpu=8), node("n2", config="shared", gpu=8)]))
    assert "n1     shared" in planned(CONFIG_MAP, "--objects", cluster, "--default-config", "shared").out
    assert "n1     (empty)" in planned(CONFIG_MAP, "--objects", cluster, "--fallbacks", "empty").out


def test_standard_input_will_do(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONFIG_MAP.encode())))
    assert run(["plan", "--device-plugin-config", "-"]) == 0
    assert "nvidia.com/gpu.shared" in capsys.readouterr().out


# --- mistakes -------------------------------------------------------------------------------------


def test_mistakes_are_told_and_the_rest_is_planned(planned):
    told = planned(CONFIG_MAP.replace("replicas: 2", "replicas: 1").replace("mixed", "none"), status=1)
    assert told.err.endswith("dp.yaml: data.shared: sharing.mps.resources[0].replicas: is 1; must be 2 or more\n")
    assert "nvidia.com/gpu " in told.out
    assert "gpu.shared" not in told.out


def test_a_file_that_is_all_mistakes_makes_an_empty_plan(planned):
    told = planned("version: v9", "-o", "yaml", status=1)
    assert told.err.endswith("dp.yaml: version: is 'v9'; allowed: v1\n")
    assert documents(told.out) in ([], [None])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--objects", "/nowhere"], "/nowhere: it cannot be read: No such file or directory"),
        (["--env", "HOME=/"], "'HOME=/' is not NAME=VALUE with a name of MIG_STRATEGY,"),
        (["--env", "MIG_STRATEGY"], "is not NAME=VALUE"),
        (["--profile", "1g"], "'1g' is not a MIG profile such as 1g.10gb or 1g.10gb+me"),
        (["--fallbacks", "first"], "'first' is not a list of named, single, empty"),
        (["-o", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_words_that_cannot_be_are_told(files, capsys, words, told):
    try:
        assert run(["plan", "--device-plugin-config", files("dp", PLAIN), *words]) == 1
    except SystemExit as end:
        assert end.code == 2  # noqa: PT017 (what argparse does)
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "it is neither JSON nor YAML: "),
        ("[1]", "a list has no `kind`"),
        ("a: &a [*a]\n---\nb: !x 1", "it is neither JSON nor YAML: "),
        ("[" * 100_000, "it is neither JSON nor YAML: "),
    ],
)
def test_objects_that_are_none_are_told(planned, files, content, told):
    assert told in planned(PLAIN, "--objects", files("objects", content), status=1).err


def test_what_is_no_config_map_is_told(planned):
    assert "it is of kind 'Secret'; give a ConfigMap" in planned("kind: Secret", status=1).err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is empty, so there is nothing to plan for"),
        ("# nothing\n---\n\n", "it is empty, so there is nothing to plan for"),
        ("foo: bar", "it has none of the fields of a configuration (version, flags, resources, sharing, imex)"),
        ("{}", "it has none of the fields of a configuration"),
        ("apiVersion: v1\nmetadata: {name: x}", "it has none of the fields of a configuration"),
        ("{kind: List, items: []}", "it is of kind 'List'; give a ConfigMap"),
        ("{kind: Pod, metadata: {name: p}}", "it is of kind 'Pod'; give a ConfigMap"),
        ("{kind: ConfigMap, metadata: {name: x}}", "the ConfigMap has no data"),
        (
            "{kind: ConfigMap, metadata: {name: other}, data: {a: 'foo: 1', b: 'bar: 1'}}",
            "no entry of the ConfigMap other (a, b) has a field of the device plugin's configuration",
        ),
    ],
)
def test_a_plan_of_nothing_is_a_mistake(planned, text, told):
    said = planned(text, status=1)
    assert said.out == ""
    assert said.err.startswith("kubectl dra plan: ")
    assert f"dp.yaml: {told}" in said.err
    assert any(step in said.err for step in ("see that it is the ConfigMap of the device plugin", "; give "))


def test_a_pipe_without_anything_in_it_is_told(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert run(["plan", "--device-plugin-config", "-"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kubectl dra plan: standard input: it is empty, so there is nothing to plan for; see ")
    assert "kubectl get configmaps -A" in said.err
    assert "write `version: v1` for a configuration of defaults" in said.err


@pytest.mark.parametrize(
    "text",
    [
        "version: v1",
        "flags: {}",
        "{kind: ConfigMap, metadata: {name: x}, data: {default: ''}}",
        "{kind: ConfigMap, metadata: {name: x}, data: {default: 'version: v1', other: 'foo: 1'}}",
    ],
)
def test_a_configuration_of_defaults_is_one(planned, text):
    said = planned(text)
    assert said.err == ""
    assert "nvidia.com/gpu" in said.out


def test_a_slip_of_the_pen_in_a_name_is_told_as_such(planned):
    assert "dp.yaml: Flags: is written flags\n" in planned("Flags: {migStrategy: mixed}", status=1).err


@pytest.mark.parametrize("content", ["", "---\n", '{"kind": "List", "items": []}', "kind: NodeList\nitems: []"])
def test_a_cluster_without_any_object_is_a_mistake(planned, files, content):
    said = planned(PLAIN, "--objects", files("objects", content), status=1)
    assert said.out == ""
    assert "objects: there is no object in it" in said.err
    assert "kubectl get nodes,pods -A -o json" in said.err


def test_a_file_that_is_not_there_is_told(capsys):
    assert run(["plan", "--device-plugin-config", "/nowhere"]) == 1
    assert capsys.readouterr().err == "kubectl dra plan: /nowhere: it cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("words", "told"), [([], "kubectl dra: say what to do\n"), (["x"], "kubectl dra: no such command: 'x'\n")]
)
def test_other_commands_are_none(capsys, words, told):
    assert run(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{told}\n{usage()}")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_lists_what_there_is(capsys, words):
    assert run(words) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (usage(), "")
    assert [line.split()[0] for line in said.out.splitlines() if line.startswith("  ")] == [*COMMANDS]


@pytest.mark.parametrize("words", [["plan", "--help"], ["plan", "-h"], ["help", "plan"]])
def test_help_of_one_command_tells_its_flags_and_statuses(capsys, words):
    with pytest.raises(SystemExit) as end:
        run(words)
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: kubectl dra plan ")
    assert "--accept-gaps" in said
    assert "Exit status" in said


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version_is_the_packages(capsys, words):
    assert run(words) == 0
    assert capsys.readouterr().out == f"kubectl-dra {version('dradriver')}\n"


def test_the_version_takes_no_words(capsys):
    assert run(["version", "x"]) == 2
    assert "'x' means nothing here" in capsys.readouterr().err
    assert run(["version", "--help"]) == 0


def test_a_command_for_a_label_is_safe_to_paste(planned, files):
    cluster = files("objects.json", {"kind": "List", "items": [node("n; reboot", config="shared", gpu=8)]})
    out = planned(CONFIG_MAP, "-o", "yaml", "--objects", cluster).out
    assert "# kubectl label node 'n; reboot' dradriver.dev/config=shared\n" in out


def test_names_cannot_steer_the_terminal_or_leave_a_remark(planned, files):
    evil = node("n\nkind: Evil\x1b[2J", config="x\n---\nkind: Evil", gpu=1)
    cluster = files("objects.json", {"kind": "List", "items": [evil, pod("p\n---", {"nvidia.com/x\n---\nkind: E": 1})]})
    for output in ("yaml", "table"):
        out = planned(CONFIG_MAP, "--objects", cluster, "-o", output).out
        assert "\x1b" not in out
        assert "\nkind: Evil" not in out
    assert {one["kind"] for one in documents(planned(CONFIG_MAP, "--objects", cluster, "-o", "yaml").out)} <= {
        "ExtendedResourceBridge",
        "ConfigMap",
    }


# --- the rest -------------------------------------------------------------------------------------


def test_text_is_made_harmless():
    assert plain("a\x1b\nb\u202ec") == "a??b?c"
    assert remark("a\n\n\rb") == "# a\n#\n# ?b\n"
    assert some(["a", "b", "c"], most=2) == "a, b and 1 more"


@settings(max_examples=40)
@given(st.binary(max_size=200))
def test_no_file_is_too_strange(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("x") / "f"
    path.write_bytes(data)
    assert run(["plan", "--device-plugin-config", str(path)]) in (0, 1)
    assert run(["plan", "--device-plugin-config", str(path), "--objects", str(path), "-o", "yaml"]) in (0, 1)


def test_the_program_gets_installed():
    project = tomllib.loads((Path(controller.__path__[0]).parent / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["kubectl-dra"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_a_reader_who_has_seen_enough_is_no_error(files):
    words = [sys.executable, "-m", "controller.cli", "plan", "--device-plugin-config", files("dp.yaml", CONFIG_MAP)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        started.stdout.close()
        assert (started.stderr.read(), started.wait()) == (b"", 0)


def test_who_interrupts_it_sees_no_traceback(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_a_few_lines_that_mean_more_objects_than_any_cluster_has(files, capsys):
    levels = ["a0: &a0 {kind: Node, metadata: {name: n}}"]
    for level in range(1, 9):
        items = ", ".join([f"*a{level - 1}"] * 10)
        levels.append(f"a{level}: &a{level} {{kind: List, items: [{items}]}}")
    text = "\n".join([*levels, "kind: List", "items: [*a8]"])
    assert (
        run(["plan", "--device-plugin-config", files("dp.yaml", CONFIG_MAP), "--objects", files("bomb.yaml", text)])
        == 1
    )
    assert "more than 1,000,000 objects" in capsys.readouterr().err


def test_the_program_runs_by_itself(files):
    words = [sys.executable, "-m", "controller.cli", "plan", "--device-plugin-config", files("dp.yaml", CONFIG_MAP)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "WHAT WILL NOT BE AS IT WAS" in done.stdout
