"""`dradriver config`, as a person uses it."""

import io
import subprocess
import sys

import pytest
import yaml

from dradriver.commands.config import main

GOOD = "apiVersion: dradriver.dev/v1alpha1\nkind: NodeConfigs\nconfigs:\n  b: {order: packed}\n  a: {}\n"
MIG_PARTED = """version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-1g.10gb:
    - devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 7}
"""


def config_map(**data):
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "data": data})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nodes.yaml"

    def write(text):
        path.write_text(text)
        return str(path)

    return write


# --- check ----------------------------------------------------------------------------------------


def test_a_good_file(file, capsys):
    path = file(GOOD)
    assert main(["check", path]) == 0
    assert capsys.readouterr() == (f"{path}: no mistakes; configurations: a, b\n", "")


def test_mistakes_are_told_on_stderr_one_a_line(file, capsys):
    path = file(GOOD + "  c: {mig: off, order: x}\n")
    assert main(["check", path]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        f"{path}: configs.c.order: is 'x'; allowed: packed, spread, nvidia",
        f"{path}: configs.c.mig: is not known; allowed are gpus, order, publish, healthPolicy",
    ]


POLICIES = "healthPolicies:\n  patient: {xids: {31: noSchedule}}\n  lax: {memory: default}\n"


def test_health_policies_are_shown(file, capsys):
    path = file(GOOD + "  c: {healthPolicy: strict}\n" + POLICIES)
    assert main(["check", path]) == 0
    told = f"{path}: no mistakes; configurations: a, b, c; health policies: lax, patient\n"
    assert capsys.readouterr() == (told, "")


def test_mistakes_in_health_policies_are_told_once(file, capsys):
    path = file(GOOD + "  c: {healthPolicy: bad}\n  d: {healthPolicy: bad}\n" + POLICIES + "  bad: {xids: {0: warn}}\n")
    assert main(["check", path]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        f"{path}: healthPolicies.bad.xids.0: is not the number of an Xid: a whole number from 1 to 999",
        f"{path}: configs.c.healthPolicy: is 'bad'; this health policy has mistakes: correct healthPolicies.bad",
        f"{path}: configs.d.healthPolicy: is 'bad'; this health policy has mistakes: correct healthPolicies.bad",
    ]


def test_mistakes_at_the_top_hide_none_inside(file, capsys):
    path = file(GOOD + "  c: {order: x}\nversion: 2\nkind: NodeConfigs\n")
    assert main(["check", path]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: kind: stands there twice, the second time at line 8",
        f"{path}: version: is not known; allowed are apiVersion, kind, configs, healthPolicies",
        f"{path}: configs.c.order: is 'x'; allowed: packed, spread, nvidia",
    ]


def test_a_config_map_will_do(file, capsys):
    path = file(config_map(good=GOOD, bad="configs: {}"))
    assert main(["check", path]) == 1
    told = capsys.readouterr()
    assert told.out == f"{path}: data.good: no mistakes; configurations: a, b\n"
    assert told.err.splitlines() == [f"{path}: data.bad: apiVersion: is missing", f"{path}: data.bad: kind: is missing"]


def test_standard_input_will_do(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert main(["check", "-"]) == 0
    assert capsys.readouterr().out == "standard input: no mistakes; configurations: a, b\n"


def test_no_configurations_are_none(file, capsys):
    assert main(["check", file("apiVersion: dradriver.dev/v1alpha1\nkind: NodeConfigs\nconfigs: {}\n")]) == 0
    assert capsys.readouterr().out.endswith("configurations: none\n")


@pytest.mark.parametrize("verb", ["check", "import-mig-parted"])
def test_a_file_that_is_not_there(verb, tmp_path, capsys):
    assert main([verb, str(tmp_path / "x")]) == 1
    assert capsys.readouterr().err == (
        f"dradriver config: {tmp_path / 'x'}: it cannot be read: No such file or directory\n"
    )


def test_an_empty_config_map(file, capsys):
    path = file("kind: ConfigMap\n")
    assert main(["check", path]) == 1
    assert capsys.readouterr().err == f"dradriver config: {path}: the ConfigMap has no data\n"


@pytest.mark.parametrize("arguments", [[], ["chek", "x"], ["check"], ["check", "x", "y"], ["check", "--x", "y"]])
def test_wrong_words(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: dradriver config" in capsys.readouterr().err


# --- import ---------------------------------------------------------------------------------------


def test_an_import_is_a_good_file_and_says_what_is_not_as_it_was(file, tmp_path, capsys):
    out = tmp_path / "out.yaml"
    path = file(MIG_PARTED)
    assert main(["import-mig-parted", path, "-o", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    notes = [line.removeprefix("note: ") for line in told.err.splitlines()]
    assert notes[0].startswith("counts are not taken over")
    remarks = [line for line in out.read_text().splitlines() if line.startswith("#")]
    assert remarks == [f"# Made of {path} by `dradriver config import-mig-parted`."] + [f"# - {note}" for note in notes]
    assert main(["check", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: no mistakes; configurations: all-1g.10gb, all-disabled\n"


def test_an_import_goes_to_standard_output_by_itself(file, capsys):
    assert main(["import-mig-parted", file(MIG_PARTED)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["configs"] == {
        "all-disabled": {"gpus": [{"mig": "off"}]},
        "all-1g.10gb": {"gpus": [{"mig": "dynamic", "profiles": ["1g.10gb"]}]},
    }


def test_the_operator_s_config_map_will_do(file, capsys):
    assert main(["import-mig-parted", file(config_map(**{"config.yaml": MIG_PARTED}))]) == 0
    assert "all-disabled" in capsys.readouterr().out
    path = file(config_map(a=MIG_PARTED, b=MIG_PARTED))
    assert main(["import-mig-parted", path]) == 1
    assert capsys.readouterr().err == (
        f"dradriver config: {path}: the ConfigMap must have one entry in its data, not 2\n"
    )


def test_nothing_is_written_where_there_are_mistakes(file, tmp_path, capsys):
    path = file(MIG_PARTED.replace("all\n", "some\n"))
    assert main(["import-mig-parted", path, "-o", str(tmp_path / "out.yaml")]) == 1
    assert not (tmp_path / "out.yaml").exists()
    told = capsys.readouterr().err.splitlines()
    assert told[0] == (f"{path}: mig-configs.all-disabled[0].devices: must be all, or a list of numbers from 0 to 1023")
    assert len(told) == 2


def test_a_place_that_cannot_be_written(file, tmp_path, capsys):
    out = tmp_path / "nowhere" / "out.yaml"
    assert main(["import-mig-parted", file(MIG_PARTED), "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"dradriver config: {out}: it cannot be written: No such file or directory\n"


def test_as_a_program(file):
    command = [sys.executable, "-m", "dradriver", "config", "check", file(GOOD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert done.stdout.endswith("configurations: a, b\n")
