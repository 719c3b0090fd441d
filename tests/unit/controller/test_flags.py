import re

import pytest

from controller.api import BaseKeeping, Mode
from controller.flags import parse


def test_defaults():
    options = parse([], {})
    assert (options.kubeconfig, options.namespace, options.http_endpoint) == (None, "dradriver", ":8080")
    assert (options.log_level, options.log_format) == ("info", "json")
    assert options.discovery is None


def test_discovery_has_the_mode_of_its_bridges():
    assert parse(["--discover-mig-profiles", "WhenReady"], {}).discovery is Mode.WHEN_READY
    assert parse([], {"DISCOVER_MIG_PROFILES": "off"}).discovery is None


def test_base_classes():
    assert parse([], {}).base_classes is BaseKeeping.KEEP
    assert parse(["--base-classes", "adopt"], {}).base_classes is BaseKeeping.ADOPT
    assert parse([], {"BASE_CLASSES": "off"}).base_classes is None


def test_no_two_processes_have_the_same_identity():
    one, other = (parse(["--identity", "pod"], {}).identity for _ in range(2))
    assert one != other
    assert re.fullmatch(r"pod_[0-9a-f]{8}", one)


def test_a_flag_wins_over_its_variable():
    environment = {"POD_NAMESPACE": "a", "POD_NAME": "p", "HTTP_ENDPOINT": "", "LOG_LEVEL": "debug"}
    options = parse(["--namespace", "b"], environment)
    assert (options.namespace, options.log_level) == ("b", "debug")
    assert options.identity.startswith("p_")


def test_a_kubeconfig_is_an_absolute_path():
    assert parse(["--kubeconfig", "file"], {}).kubeconfig.is_absolute()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--node-labels", "on"], "none of off, WhenUnowned"),
        (["--log-level", "loud"], "none of debug"),
        (["--log-format", "xml"], "none of json"),
        (["--discover-mig-profiles", "true"], "none of off, Enabled, WhenReady, Disabled"),
        (["--base-classes", "take"], "none of keep, adopt, off"),
        (["--namespace", "No Good"], "must be the name of a namespace"),
        (["--unknown", "x"], "unrecognized"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments, reason, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(arguments, {})
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err


def test_every_flag_names_its_variable(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    text = capsys.readouterr().out
    for word in ("POD_NAMESPACE", "POD_NAME", "HTTP_ENDPOINT", "LOG_LEVEL", "LOG_FORMAT"):
        assert f"[{word}]" in text


def test_labels_are_asked_for():
    assert parse(["--node-labels", "WhenUnowned"], {}).labels is True
    assert parse([], {"NODE_LABELS": "WhenUnowned"}).labels is True
    assert parse([], {}).labels is False
    assert parse(["--node-labels", "off"], {"NODE_LABELS": "WhenUnowned"}).labels is False
