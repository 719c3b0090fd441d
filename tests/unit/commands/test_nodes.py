"""`dradriver nodes`, as a person uses it."""

import pytest
import yaml
from doubles.machines import gpus

from dradriver.commands.nodes import as_template, main
from dradriver.gpu.model import MigMode
from dradriver.gpu.policy import GpuFilter, GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.simulation.models import MODELS

CONFIGS = """
apiVersion: dradriver.dev/v1alpha1
kind: NodeConfigs
configs:
  default: {gpus: [{mig: dynamic, profiles: [1g.10gb]}]}
  lean: {publish: lean, order: nvidia}
  broken: {order: x}
"""


@pytest.fixture
def template(run):
    """Run `template`; gives the devices and the summary."""

    def do(*words):
        status, out, err = run(main, "template", *words)
        assert status == 0, err
        documents = list(yaml.safe_load_all(out))
        assert {one["spec"]["pool"]["resourceSliceCount"] for one in documents} == {len(documents)}
        return [device for one in documents for device in one["spec"].get("devices", [])], err

    return do


def names(devices):
    return {device["name"] for device in devices}


@pytest.fixture
def configs(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(CONFIGS)
    return path


# --- template -------------------------------------------------------------------------------------


def test_whole_gpus(template):
    devices, told = template("8xh100-80gb")
    assert [device["name"] for device in devices] == [f"gpu-{n}" for n in range(8)]
    assert told == "dradriver nodes template: 1 slice, 8 devices, 0 counter sets of 8 GPUs, in pool template\n"


def test_two_runs_say_the_same(run):
    words = ("template", "2xh100-80gb,1xa30,1xl4", "--mig", "dynamic")
    assert run(main, *words) == run(main, *words)


def test_uuids_are_plain(template):
    devices, _ = template("2xl4")
    assert [device["attributes"]["uuid"]["string"] for device in devices] == [
        "GPU-00000000-0000-0000-0000-000000000000",
        "GPU-00000000-0000-0000-0000-000000000001",
    ]


@pytest.mark.parametrize("machine", [f"1x{name}" for name, model in MODELS.items() if model.mig_capable])
def test_partitions_are_offered_of_every_gpu_that_has_them(template, machine):
    devices, told = template(machine, "--mig", "dynamic")
    assert [one for one in devices if "mig" in one["name"]]
    assert "offers nothing" not in told
    # Older GPUs are in MIG mode for it, and cannot be offered whole then.
    assert ("gpu-0" in names(devices)) is not MODELS[machine[2:]].mig_needs_reset


@pytest.mark.parametrize("machine", [f"1x{name}" for name in MODELS])
def test_whole_gpus_are_offered_of_every_machine(template, machine):
    devices, told = template(machine)
    assert names(devices) == {"gpu-0"}
    assert "offers nothing" not in told


def test_the_flags_of_the_plugin(template):
    devices, _ = template("1xh100-80gb", "--mig", "dynamic", "--profiles", "1g.10gb,7g.80gb", "--order", "nvidia")
    profiles = {device["attributes"].get("profile", {}).get("string") for device in devices}
    assert profiles == {"1g.10gb", "7g.80gb", None}
    assert devices[0]["name"] == "gpu-0"


def test_lean_devices_say_less(template):
    full, lean = template("1xt4")[0], template("1xt4", "--publish", "lean")[0]
    assert lean[0]["attributes"].items() < full[0]["attributes"].items()


def test_both_layouts(run):
    found = {}
    for layout in ("apart", "together"):
        status, out, _ = run(main, "template", "1xh100-80gb", "--mig", "dynamic", "--layout", layout)
        assert status == 0
        found[layout] = [sorted(set(one["spec"]) & {"devices", "sharedCounters"}) for one in yaml.safe_load_all(out)]
    assert found == {"apart": [["sharedCounters"], ["devices"]], "together": [["devices", "sharedCounters"]]}


def test_the_node_may_have_a_name(run):
    _, out, err = run(main, "template", "1xt4", "--node-name", "pool-a.example")
    (slice_,) = yaml.safe_load_all(out)
    assert slice_["metadata"]["name"] == "00000-gpu.nvidia.com-pool-a.example"
    assert slice_["spec"]["nodeName"] == slice_["spec"]["pool"]["name"] == "pool-a.example"
    assert "in pool pool-a.example" in err


def test_the_name_of_this_node_is_not_that_of_the_template(monkeypatch, template):
    monkeypatch.setenv("NODE_NAME", "this-node")
    assert "in pool template" in template("1xt4")[1]


def test_the_driver_may_have_a_version(template):
    devices, _ = template("1xt4", "--driver-version", "595.10.01")
    assert devices[0]["attributes"]["driverVersion"] == {"version": "595.10.1"}


def test_a_machine_file(template, tmp_path):
    path = tmp_path / "machine.yaml"
    path.write_text("gpus: [{gpu: a30, mig: off, numa: 5}]")
    devices, _ = template(path, "--mig", "dynamic")
    assert "gpu-0-mig-1g6gb-14-0" in names(devices)
    assert devices[0]["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 5}


def test_profiles_that_nothing_has_are_told(template):
    devices, told = template("1xt4", "--mig", "dynamic", "--profiles", "1g.10gb")
    assert names(devices) == {"gpu-0"}
    assert "dradriver nodes template: no GPU for which they are wanted has the profiles 1g.10gb" in told


# --- configurations -------------------------------------------------------------------------------


def test_the_configuration_of_nodes_without_a_label(template, configs):
    devices, _ = template("1xh100-80gb", "--node-config", configs)
    assert {name.partition("-19-")[0] for name in names(devices)} == {"gpu-0", "gpu-0-mig-1g10gb"}


def test_a_configuration_by_name_and_the_rest_by_flags(template, configs):
    devices, _ = template("1xh100-80gb", "--node-config", configs, "--config", "lean", "--mig", "dynamic")
    assert devices[0]["name"] == "gpu-0", "in the order nvidia"
    assert len(devices) > 8, "dynamic"
    assert "driverVersion" not in devices[0]["attributes"], "lean"


def test_the_file_may_come_from_the_environment(template, configs, monkeypatch):
    monkeypatch.setenv("NODE_CONFIG", str(configs))
    assert len(template("1xh100-80gb")[0]) == 8
    monkeypatch.setenv("NODE_CONFIG", "")
    assert len(template("1xh100-80gb")[0]) == 1


def test_without_a_default_the_flags_hold(template, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text("apiVersion: dradriver.dev/v1alpha1\nkind: NodeConfigs\nconfigs: {a: {gpus: [{mig: dynamic}]}}\n")
    assert names(template("1xh100-80gb", "--node-config", path)[0]) == {"gpu-0"}


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["--config", "a"], 2, "--config a is looked up in a file: name it with --node-config FILE"),
        (["--node-config", "{}", "--config", "a"], 2, "{} has no configuration 'a'; there is broken, default, lean"),
        (["--node-config", "{}", "--config", "broken"], 1, "{}: configs.broken.order: is 'x'; allowed: packed, spread"),
        (["--node-config", "/nowhere"], 1, "/nowhere: it cannot be read: No such file or directory"),
    ],
)
def test_configurations_that_cannot_be_had(run, configs, words, status, sentence):
    told = run(main, "template", "1xt4", *(word.replace("{}", str(configs)) for word in words))
    assert told[:2] == (status, "")
    assert told[2].startswith(f"dradriver nodes: {sentence.replace('{}', str(configs))}")


# --- what it cannot do ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["8xh100"], "unknown gpu 'h100': it is one of a30, a100-40gb"),
        (["99xt4"], "a machine has 1 to 16 GPUs"),
        (["1xt4", "--driver-version", "new"], "driver version 'new': give one like"),
        (["1xt4", "--mig", "dynamc"], "argument --mig: 'dynamc' is none of static, dynamic, off"),
        (["1xt4", "--layout", "x"], "'x' is none of apart, together"),
        (["1xt4", "-o", "xml"], "'xml' is none of yaml, json, table"),
        (["1xt4", "--profiles", "x"], "'x' is not a MIG profile"),
        (["1xt4", "--node-name", "A_B"], "'A_B' is not the name of a Kubernetes node"),
        ([], "arguments are required: MACHINE"),
    ],
)
def test_mistakes_in_the_words(run, words, sentence):
    status, out, err = run(main, "template", *words)
    assert (status, out) == (2, "")
    assert sentence in err.splitlines()[-1]


def test_a_wrong_variable_is_a_mistake_too(run, monkeypatch):
    monkeypatch.setenv("MIG", "on")
    assert run(main, "template", "1xt4")[0] == 2


# --- machines -------------------------------------------------------------------------------------


def test_machines_are_listed(run):
    status, out, err = run(main, "machines")
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0].split() == ["NAME", "PRODUCT", "MEMORY", "MIG"]
    assert [line.split()[0] for line in lines[1:]] == list(MODELS)
    by_name = {line.split()[0]: line for line in lines[1:]}
    assert "   NVIDIA H100 80GB HBM3   " in by_name["h100-80gb"]
    assert by_name["gb10"].split()[-2:] == ["-", "no"]


def test_help_names_the_gpus(run):
    _, out, _ = run(main, "template", "--help")
    assert all(name in " ".join(out.split()) for name in MODELS)


# --- the parts ------------------------------------------------------------------------------------


def test_mig_mode_is_what_the_offer_of_each_gpu_needs():
    found = gpus("2xa30,1xt4", mig="on")
    policy = OfferPolicy(rules=(GpuRule(filter=GpuFilter(indices=frozenset({1})), mig=MigOffer.DYNAMIC),))
    made = list(as_template(found, policy))
    on, off = MigMode(current=True, pending=True), MigMode(current=False, pending=False)
    assert [gpu.mig_mode for gpu in made] == [off, on, None]
    assert [gpu.pci_bus_id for gpu in made] == [gpu.pci_bus_id for gpu in found]
