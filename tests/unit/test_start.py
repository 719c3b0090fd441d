"""What a start loads, and what becomes of the search for garbage."""

import gc
import subprocess
import sys

import pytest

from dradriver.__main__ import run

NOT_NEEDED = (
    "asyncio.events",
    "kubernetes.client.rest",
    "kubernetes.dynamic.client",
    "oauthlib.oauth2.rfc6749",
    "pydantic",
    "requests",
)


def output(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_the_whole_plugin_loads_none_of_what_it_does_not_use():
    # Through main: structlog takes rich where it is installed, as it is for developers, unless it is kept from that.
    program = f"""
import dradriver.__main__ as program, sys
def run(arguments):
    import dradriver.daemon, dradriver.runtime, dradriver.kube.connection, dradriver.nvml.opening
    print([name for name in {(*NOT_NEEDED, "rich.console")} if name in sys.modules])
    return 0
program.run = run
program.main()
"""
    assert output(program) == "[]"


def test_a_configuration_in_a_claim_loads_what_reads_it():
    loaded = "import sys, dradriver.runtime; before = 'pydantic' in sys.modules; import dradriver.api.config"
    assert output(f"{loaded}; print(before, 'pydantic' in sys.modules)") == "False True"


SETTLE = (
    "import ctypes, gc, sys; from dradriver.runtime import Runtime; gc.disable(); exec(sys.argv[1]); "
    "Runtime.settle(None); print(gc.isenabled(), gc.get_freeze_count() > 1000)"
)


@pytest.mark.parametrize("before", ["", "ctypes.CDLL = lambda _name: object()"], ids=["glibc", "musl"])
def test_garbage_is_not_looked_for_during_the_start_only(before):
    assert output(SETTLE, before) == "True True"


def test_a_start_that_fails_leaves_the_search_on(tmp_path, capsys):
    too_long = tmp_path / ("x" * 120)
    assert run(["--node-name", "node-a", "--kubelet-plugins-directory-path", str(too_long)]) == 1
    assert gc.isenabled()
    assert "dradriver: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--node-name", "NOT A NAME"], ["--mig", "perhaps"]])
def test_bad_flags_leave_the_search_on(arguments, capsys):
    with pytest.raises(SystemExit):
        run(arguments)
    assert gc.isenabled()
    assert "error: " in capsys.readouterr().err
