"""`dradriver health table`, and the tables of docs/health.md, which it has written."""

import json
import re
from pathlib import Path

import pytest

from dradriver import api
from dradriver.api.node_config import HealthPolicy
from dradriver.commands.health import main
from dradriver.commands.policies import legend, markdown, rows
from dradriver.gpu.health import EFFECTS, HealthWishes
from dradriver.health.condition import LASTING, ORIGINS, RECOVERY
from dradriver.health.policy import IGNORE, WORDS, Until, default_policy

POLICY = default_policy()
DOCS = Path(__file__).parents[3] / "docs/health.md"
FILE = """
apiVersion: dradriver.dev/v1alpha1
kind: NodeConfigs
healthPolicies:
  patient: {xids: {13: noSchedule, 79: ignore}, unknownXids: warn, expirySeconds: 60}
  broken: {xids: {13: perhaps}}
configs: {}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def table(run):
    """Run it; gives the rows by what they are about."""

    def do(*words):
        status, out, err = run(main, "table", "-o", "json", *words)
        assert (status, err) == (0, "")
        return {row["error"]: row for row in json.loads(out)}

    return do


def numbers(rows):
    """Xids that rows of the printed table name."""
    found = []
    for error in rows:
        if error.startswith("Xid "):
            for part in error.removeprefix("Xid ").split(", "):
                first, _, last = part.partition("-")
                found += range(int(first), int(last or first) + 1)
    return found


def test_every_xid_stands_in_one_row(table):
    found = numbers(table())
    assert sorted(found) == sorted(POLICY.xids)


def test_every_row_says_what_the_policy_says(table):
    for error, row in table().items():
        for number in numbers([error]):
            rule = POLICY.of_xid(number)
            assert row["class"] == rule.kind
            assert row["effect"].partition(";")[0] == rule.effect
            assert row["step"] == rule.step
            assert all(any(f"{key}={value}" == one for one in row["taints"]) for key, value in rule.taints)


def test_what_is_no_xid_stands_there_too(table):
    found = table()
    assert {"any other Xid", "event fatal-poison", "event gpu-unavailable"} <= found.keys()
    assert found["recovery action 2, 7"]["taints"] == ["dradriver.dev/recovery=node-reboot"]
    assert "recovery action of any other number" in found
    says = [row for row in found.values() if row["until"] == "says"]
    assert len(says) == len(ORIGINS - {"xid", "event", RECOVERY}) + len(set(POLICY.recovery.values()))


def test_what_lasts_is_taken_seriously(table):
    found = table()
    assert found["the GPU is not there any more"]["effect"] == f"NoSchedule; NoExecute after {LASTING['missing']:.0f} s"
    assert found["the GPU does not say how it is"]["effect"] == "None; NoSchedule after 60 s"
    assert found["the GPU is lost"]["effect"] == "NoExecute"


def test_what_other_errors_change(table):
    found = {number: row for error, row in table().items() for number in numbers([error])}
    assert found[13]["effect"] == "None; NoSchedule if suspect"
    assert found[48]["effect"] == "NoSchedule; None with Xid 94"
    assert table()["memory waits for a reset to be repaired"]["effect"] == "None; NoSchedule if strict"


def test_what_is_ignored_has_no_taints(table):
    (row,) = [row for row in table().values() if row["effect"] == IGNORE]
    assert (row["taints"], row["hits"], row["until"]) == ([], "-", "-")


def test_every_word_is_explained():
    explained = legend(POLICY)
    used = {word for row in rows(POLICY) for word in re.findall(r"[a-z]+", row.until)}
    assert used <= explained.keys()
    assert {str(until) for until in Until} | {"says", "suspect", "strict"} == explained.keys()
    assert explained["expiry"].startswith(f"{POLICY.expiry} s ")


# --- another policy -------------------------------------------------------------------------------


def test_a_policy_of_a_file(table, file):
    found = {number: row for error, row in table("--node-config", file, "--policy", "patient").items()
             for number in numbers([error])}  # fmt: skip
    assert found[13]["effect"] == "NoSchedule"
    assert found[31]["effect"] == table()["any other Xid"]["effect"].replace(
        "NoSchedule", "None; NoSchedule if suspect"
    )
    assert found[79]["effect"] == IGNORE
    assert table("--node-config", file, "--policy", "patient")["any other Xid"]["effect"] == "None"


def test_the_time_of_a_policy_is_told(run, file):
    _, out, _ = run(main, "table", "--node-config", file, "--policy", "patient")
    assert re.search(r"^expiry: +60 s after it was reported last", out, re.MULTILINE)


def test_built_in_policies_need_no_file(table):
    assert table("--policy", "default") == table()
    strict = table("--policy", "strict")["memory waits for a reset to be repaired"]
    assert strict["effect"] == "NoSchedule"


def test_the_file_of_the_plugin_is_looked_into(table, file, monkeypatch):
    monkeypatch.setenv("NODE_CONFIG", str(file))
    assert table("--policy", "patient")["any other Xid"]["effect"] == "None"
    assert table()["any other Xid"]["effect"] == "NoSchedule", "only where it is named"


def test_a_policy_that_is_none(run, file):
    status, out, err = run(main, "table", "--policy", "patient")
    assert (status, out) == (2, "")
    assert err == (
        "dradriver health: there is no health policy 'patient' without --node-config FILE; there is default, strict\n"
    )
    _, _, err = run(main, "table", "--node-config", file, "--policy", "calm")
    assert f"no health policy 'calm' in {file}; there is broken, default, patient, strict" in err


def test_a_policy_with_mistakes(run, file):
    status, _, err = run(main, "table", "--node-config", file, "--policy", "broken")
    assert status == 2
    assert f"{file}: healthPolicies.broken.xids.13: is 'perhaps'" in err


def test_a_file_that_is_not_there(run, tmp_path):
    status, _, err = run(main, "table", "--node-config", tmp_path / "none", "--policy", "strict")
    assert (status, err) == (2, f"dradriver health: {tmp_path}/none: it cannot be read: No such file or directory\n")


@pytest.mark.parametrize("word", WORDS)
def test_any_effect_for_any_xid_can_be_printed(word):
    policy = POLICY.adapted(HealthWishes(xids=dict.fromkeys(POLICY.xids, word), unknown_xids=word))
    every = [row for row in rows(policy) if "Xid" in row.error]
    assert {row.effect.partition(";")[0] for row in every} == {WORDS[word]}
    assert HealthPolicy.model_fields.keys() >= {"xids", "unknown_xids"}


# --- as a person reads it -------------------------------------------------------------------------


def test_as_a_table(run):
    status, out, err = run(main, "table")
    assert (status, err) == (0, "")
    head, *lines = out.split("\n\n")[0].splitlines()
    assert head.split() == ["ERROR", "CLASS", "EFFECT", "HITS", "UNTIL", "TAINTS", "NEXT", "STEP"]
    assert len(lines) == len(list(rows(POLICY)))
    (lost,) = [line for line in lines if line.startswith("Xid 79 ")]
    assert lost.split()[2:4] == ["lost", "NoExecute"]


@pytest.mark.parametrize("words", [["-o", "yaml"], ["more"]])
def test_mistakes_in_the_words(run, words):
    assert run(main, "table", *words)[0] == 2


# --- docs/health.md -------------------------------------------------------------------------------

BEGIN, END = "<!-- `dradriver health table -o markdown` -->\n", "<!-- end of the table -->\n"


def test_the_tables_of_the_manual_are_up_to_date():
    _, _, rest = DOCS.read_text().partition(BEGIN)
    written, end, _ = rest.partition(END)
    assert end, f"{DOCS} has no table"
    assert written == markdown(POLICY), "write it anew with `dradriver health table -o markdown`"


def test_the_manual_has_a_section_for_every_key():
    text = DOCS.read_text()
    for key in (
        api.TaintKey.XID,
        api.TaintKey.GPU_LOST,
        api.TaintKey.UNMONITORED,
        api.TaintKey.RECOVERY,
        api.TaintKey.MEMORY,
    ):
        assert f"### `{key}`" in text
    values = {reading.value for reading in (*POLICY.recovery.values(), *POLICY.readings.values())}
    values |= {value for rule in POLICY.xids.values() for _, value in rule.taints}
    assert not {value for value in values if f"`{value}`" not in text}, "each value is told what to do about"


def test_tables_have_the_same_number_of_columns_everywhere(run):
    _, out, _ = run(main, "table", "-o", "markdown")
    for part in out.split("\n\n"):
        counts = {line.count(" | ") for line in part.splitlines()}
        assert len(counts) == 1
    assert "`gpu.nvidia.com/xid=<Xid>`" in out
    assert "<" not in re.sub(r"`[^`]*`", "", out), "a browser would take it for a tag"
    assert all(f" {effect}" in out for effect in EFFECTS)
