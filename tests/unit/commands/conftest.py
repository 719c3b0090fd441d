"""Commands as a person runs them: in this process where that does no harm, and nothing of it is left behind."""

import logging
import sys
import threading

import pynvml
import pytest
import structlog

VARIABLES = (
    "MIG", "PROFILES", "NODE_NAME", "NODE_CONFIG", "SIMULATION", "KUBELET_PLUGINS_DIRECTORY_PATH",
    "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level, hook, thread_hook = root.handlers[:], root.level, sys.excepthook, threading.excepthook
    library = pynvml.nvmlLib
    yield
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    root.handlers[:], sys.excepthook, threading.excepthook = handlers, hook, thread_hook
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.fixture
def run(capsys):
    """Run a command's function; gives exit status, stdout and stderr."""

    def do(main, *words):
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return do
