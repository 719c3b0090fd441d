"""The program itself, as far as that goes without a cluster."""

import os
import subprocess
import sys

import pytest


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "controller", *arguments],
        env={**os.environ, "KUBECONFIG": "", "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_without_a_kubeconfig_it_says_so_in_a_sentence():
    done = run()
    assert done.returncode == 1
    assert "does not exist; set KUBECONFIG or give --kubeconfig" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_endpoint_that_is_none_is_told(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"apiVersion": "v1", "kind": "Config", "current-context": "x", '
        '"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], '
        '"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], '
        '"users": [{"name": "u", "user": {"token": "t"}}]}'
    )
    done = run("--kubeconfig", str(kubeconfig), "--http-endpoint", "nowhere")
    assert done.returncode == 1
    assert "HTTP endpoint 'nowhere' is not understood" in done.stderr


@pytest.mark.parametrize("module", ["grpc", "pynvml", "dradriver.prepare", "dradriver.nvml", "rich"])
def test_what_it_does_not_need_is_not_loaded(module):
    code = (
        "import sys; from dradriver.observe import early; early.without_rich(); import controller.manager; "
        f"sys.exit(sys.modules.get({module!r}) is not None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
