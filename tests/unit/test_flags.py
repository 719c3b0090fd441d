from pathlib import Path

import pytest

from dradriver.flags import parse
from dradriver.gpu.profiles import MigOffer, ProfileChoice

NAMED = ["--node-name", "node-a"]


def test_defaults_are_those_of_a_real_node():
    options = parse(NAMED, {})
    assert options.plugins_folder == Path("/var/lib/kubelet/plugins")
    assert options.registry_folder == Path("/var/lib/kubelet/plugins_registry")
    assert options.cdi_root == Path("/var/run/cdi")
    assert options.driver_root == options.driver_root_here == Path("/")
    assert options.mig is MigOffer.STATIC
    assert options.profiles == ProfileChoice()
    assert options.kubeconfig is options.simulation is options.proc_devices is options.node_config is None
    assert options.http_endpoint == ""


def test_variables_are_the_flags_in_capitals():
    options = parse(
        [],
        {
            "NODE_NAME": "node-b",
            "KUBECONFIG": "/etc/kubeconfig",
            "CDI_ROOT": "/cdi",
            "KUBELET_PLUGINS_DIRECTORY_PATH": "/p",
            "KUBELET_REGISTRAR_DIRECTORY_PATH": "/r",
            "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
            "DRIVER_ROOT_CTR_PATH": "/driver-root",
            "NVIDIA_CDI_HOOK_PATH": "/usr/bin/nvidia-cdi-hook",
            "ALT_PROC_DEVICES_PATH": "/fake/devices",
            "HTTP_ENDPOINT": ":8080",
            "MIG": "dynamic",
            "PROFILES": "1g.10gb",
            "NODE_CONFIG": "/etc/dradriver/nodes.yaml",
            "LOG_LEVEL": "debug",
            "LOG_FORMAT": "text",
        },
    )
    assert options.node_name == "node-b"
    assert options.kubeconfig == Path("/etc/kubeconfig")
    assert (options.cdi_root, options.plugins_folder, options.registry_folder) == (Path("/cdi"), Path("/p"), Path("/r"))
    assert (options.driver_root, options.driver_root_here) == (Path("/run/nvidia/driver"), Path("/driver-root"))
    assert options.cdi_hook == "/usr/bin/nvidia-cdi-hook"
    assert options.proc_devices == Path("/fake/devices")
    assert (options.http_endpoint, options.mig, options.profiles.names) == (":8080", MigOffer.DYNAMIC, {"1g.10gb"})
    assert options.node_config == Path("/etc/dradriver/nodes.yaml")
    assert (options.log_level, options.log_format) == ("debug", "text")


def test_a_flag_wins_over_its_variable():
    assert parse(["--node-name", "flag"], {"NODE_NAME": "variable"}).node_name == "flag"


def test_an_empty_variable_is_as_good_as_none():
    assert parse(NAMED, {"MIG": "", "CDI_ROOT": ""}).mig is MigOffer.STATIC


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = parse([*NAMED, "--cdi-root", "cdi", "--kubeconfig", "config"], {})
    assert (options.cdi_root, options.kubeconfig) == (tmp_path / "cdi", tmp_path / "config")


def test_a_simulation_brings_its_own_driver_root(tmp_path):
    options = parse([*NAMED, "--simulation", str(tmp_path), "--nvidia-driver-root", "/other"], {})
    assert options.driver_root == options.driver_root_here == tmp_path / "root"


@pytest.mark.parametrize(
    ("arguments", "environment", "problem"),
    [
        ([], {}, "--node-name (or NODE_NAME) must be the name of this Kubernetes node"),
        (["--node-name", "Node_A"], {}, "'Node_A'"),
        (["--node-name", "a" * 254], {}, "--node-name"),
        ([*NAMED, "--mig", "sometimes"], {}, "'sometimes' is none of static, dynamic, off"),
        (NAMED, {"MIG": "sometimes"}, "sometimes"),
        ([*NAMED, "--profiles", "large"], {}, "'large' is not a MIG profile: use standard, all, or names"),
        (NAMED, {"PROFILES": "large"}, "'large' is not a MIG profile"),
        ([*NAMED, "--simulation", "/nowhere"], {}, "--simulation /nowhere: no such folder; make one with"),
        ([*NAMED, "--nosuch"], {}, "--nosuch"),
        ([*NAMED, "--log-level", "loud"], {}, "'loud' is none of debug, info, warning, error"),
        (NAMED, {"LOG_FORMAT": "xml"}, "xml"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(arguments, environment, problem, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(arguments, environment)
    assert caught.value.code == 2
    assert problem in capsys.readouterr().err
