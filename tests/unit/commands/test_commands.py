"""Words behind `dradriver`."""

import subprocess
import sys
from importlib import import_module

import pytest

from dradriver import commands
from dradriver.__main__ import run


@pytest.mark.parametrize("word", commands.COMMANDS)
def test_each_word_has_its_function(word):
    module, _, function = commands.COMMANDS[word].partition(":")
    assert callable(getattr(import_module(module), function))


def test_a_word_that_is_none_is_told_with_those_that_are(capsys):
    assert run(["confg", "check"]) == 2
    assert capsys.readouterr().err == (
        f"dradriver: no such command: 'confg'; there is {', '.join(commands.COMMANDS)}, and without one the plugin\n"
    )


def test_the_words_behind_are_passed_on_and_the_status_comes_back(monkeypatch, tmp_path, capsys):
    (tmp_path / "doings.py").write_text("def main(arguments):\n    print(arguments)\n    return 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(commands.COMMANDS, "do", "doings:main")
    assert run(["do", "this", "--that"]) == 7
    assert capsys.readouterr().out == "['this', '--that']\n"


def modules_after(*arguments):
    """What a process has loaded at its end."""
    program = (
        "import sys; from dradriver.__main__ import run\n"
        "try:\n    run(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print('\\n'.join(sys.modules))"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines())


def test_the_plugin_pays_nothing_for_commands():
    assert not {
        name for name in modules_after("--help") if name.startswith(("dradriver.commands", "dradriver.nodeconfig"))
    }


def test_a_command_does_not_load_the_plugin():
    loaded = modules_after("config", "--help")
    assert "dradriver.commands.config" in loaded
    assert not loaded & {"dradriver.daemon", "dradriver.runtime", "grpc", "pynvml", "kubernetes"}
