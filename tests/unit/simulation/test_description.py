"""Machine descriptions, good and bad."""

import pytest

from dradriver.simulation.description import build, read_machine
from dradriver.simulation.errors import BadInput
from dradriver.simulation.models import MODELS


def write(tmp_path, text):
    path = tmp_path / "machine.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [1, 8, 16])
def test_short_names(model, count):
    state = build(read_machine(f"{count}x{model}"), mig=True)
    assert [gpu.model for gpu in state.gpus] == [model] * count
    assert {gpu.mig for gpu in state.gpus} == {MODELS[model].mig_capable}
    assert [gpu.minor for gpu in state.gpus] == list(range(count))


def test_mig_is_off_unless_asked_for():
    assert not build(read_machine("1xh100-80gb")).gpus[0].mig


def test_no_two_machines_are_alike():
    one, other = (build(read_machine("1xl4")) for _ in range(2))
    assert one.gpus[0].uuid != other.gpus[0].uuid
    assert one.boot_id != other.boot_id


def test_a_mixture(tmp_path):
    machine = read_machine(
        write(
            tmp_path,
            """
            driver: "595.10.01"
            gpus:
              - {gpu: h100-80gb, count: 2, mig: on, numa: 1}
              - gpu: gb200
                profiles:
                  19: {name: 1g.24gb, memory_mib: 20480}
              - gpu: t4
            """,
        )
    )
    state = build(machine)
    assert state.driver == "595.10.01"
    assert [(gpu.model, gpu.mig, gpu.numa_node) for gpu in state.gpus] == [
        ("h100-80gb", True, 1),
        ("h100-80gb", True, 1),
        ("gb200", False, 1),
        ("t4", False, 1),
    ]
    renamed = state.gpus[2].profile(19)
    assert (renamed.name, renamed.memory_mib, renamed.slices) == ("1g.24gb", 20480, 1)
    assert state.gpus[2].profile(14).name == "2g.47gb"


def test_the_option_counts_where_the_file_does_not_say(tmp_path):
    path = write(tmp_path, "gpus: [{gpu: a30}, {gpu: a30, mig: off}, {gpu: l4}]")
    assert [gpu.mig for gpu in build(read_machine(path), mig=True).gpus] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected a mapping with driver, gpus"),
        ("[]", "expected a mapping"),
        ("{gpus: []}", "at least one entry"),
        ("{gpus: {gpu: l4}}", "gpus must be a list"),
        ("{gpus: [l4]}", "expected a mapping with gpu"),
        ("{gpus: [{count: 1}]}", "unknown gpu None: it is one of a30"),
        ("{gpus: [{gpu: [l4]}]}", "unknown gpu"),
        ("{gpus: [{gpu: h900}]}", "unknown gpu 'h900': it is one of a30, a100-40gb"),
        ("{gpus: [{gpu: l4, colour: red}]}", "unknown colour; allowed are gpu, count"),
        ("{gpu: l4}", "unknown gpu; allowed are driver, gpus"),
        ("{gpus: [{gpu: l4, count: 17}]}", "count of l4 is 17: it is a number from 1 to 16"),
        ("{gpus: [{gpu: l4, count: 0}]}", "from 1 to 16"),
        ("{gpus: [{gpu: l4, count: true}]}", "from 1 to 16"),
        ("{gpus: [{gpu: l4, count: many}]}", "from 1 to 16"),
        ("{gpus: [{gpu: l4, count: 9}, {gpu: t4, count: 9}]}", "1 to 16 GPUs, not 18"),
        ("{gpus: [{gpu: l4, mig: on}]}", "this GPU has no MIG"),
        ("{gpus: [{gpu: a30, mig: maybe}]}", "it is on or off"),
        ("{gpus: [{gpu: a30, mig: [1]}]}", "it is on or off"),
        ("{gpus: [{gpu: a30, numa: x}]}", "numa of a30"),
        ("{gpus: [{gpu: a30, profiles: [1]}]}", "expected a mapping from profile id"),
        ("{gpus: [{gpu: a30, profiles: {19: {name: x}}}]}", "no id 19; it has 14, 21, 5, 6, 0"),
        ("{gpus: [{gpu: a30, profiles: {14: x}}]}", "expected a mapping with name, memory_mib"),
        ("{gpus: [{gpu: a30, profiles: {14: {name: 7}}}]}", "not a text"),
        ("{gpus: [{gpu: a30, profiles: {14: {memory_mib: -1}}}]}", "memory_mib of profile 14"),
        ("{driver: 580.1, gpus: [{gpu: l4}]}", "in quotes"),
        ("{driver: '../x', gpus: [{gpu: l4}]}", "driver version"),
        ("{gpus: [", "cannot be read"),
        ("\x00", "cannot be read"),
    ],
)
def test_bad_files_are_told_in_a_sentence(tmp_path, text, sentence):
    with pytest.raises(BadInput) as told:
        build(read_machine(write(tmp_path, text)))
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("0xh100-80gb", "neither <count>x<gpu>, such as 8xh100-80gb or 4xa30,2xl4, nor a file; gpu is one of"),
        ("4xa30,", "neither"),
        ("4xa30, 2xl4", "neither"),
        ("4xa30,2xl5", "unknown gpu 'l5'"),
        ("8xl4,9xt4", "1 to 16 GPUs"),
        (",".join(["1xl4"] * 99), "1 to 16 GPUs"),
        ("17xl4", "1 to 16 GPUs"),
        (f"{10**30}xl4", "1 to 16 GPUs"),
        ("8xh100", "unknown gpu 'h100'"),
        ("h100-80gb", "neither"),
        ("/nowhere.yaml", "neither"),
        ("/", "neither"),
    ],
)
def test_bad_names_are_told_in_a_sentence(name, sentence):
    with pytest.raises(BadInput, match=sentence):
        build(read_machine(name))


def test_several_kinds_in_one_word(tmp_path, monkeypatch):
    state = build(read_machine("4xa30,2xl4,1xt4"))
    assert [gpu.model for gpu in state.gpus] == ["a30"] * 4 + ["l4"] * 2 + ["t4"]
    assert len({gpu.bus_id for gpu in state.gpus}) == 7
    # A file of that name comes first.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "4xa30,2xl4").write_text("gpus: [{gpu: h200}]")
    assert [gpu.model for gpu in build(read_machine("4xa30,2xl4")).gpus] == ["h200"]
