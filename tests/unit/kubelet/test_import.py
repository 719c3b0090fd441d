"""The sockets have to be up before anything heavy is loaded."""

import subprocess
import sys

HEAVY = ("kubernetes", "pydantic", "prometheus_client", "structlog", "pynvml", "yaml", "urllib3", "requests")


def run(program):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_nothing_heavy_is_imported():
    found = run("import sys, dradriver.kubelet; print(*sorted({name.split('.')[0] for name in sys.modules}))")
    assert not set(HEAVY) & set(found.split())


def test_what_grpc_and_protobuf_do_not_need_is_put_off():
    put_off = ("asyncio.events", "grpc.aio._channel", "google.protobuf.text_format")
    assert run(f"import sys, dradriver.kubelet; print([name for name in {put_off} if name in sys.modules])") == "[]"


def test_what_was_put_off_is_there_for_those_who_ask():
    assert run("import dradriver.kubelet, grpc; print(grpc.aio.server.__module__)") == "grpc.aio._server"
    assert run("import dradriver.kubelet; from grpc.aio import Channel; print(Channel.__name__)") == "Channel"
    text = "from google.protobuf import text_format; print(text_format.Parse('name: \"x\"', Claim()).name)"
    assert run(f"import dradriver.kubelet; from dradriver.proto.dra_v1_pb2 import Claim; {text}") == "x"


def test_asyncio_works_for_those_who_use_it():
    program = "import dradriver.kubelet, asyncio; print(asyncio.run(asyncio.sleep(0, 'slept')))"
    assert run(program) == "slept"
    assert run("import dradriver.kubelet, asyncio.subprocess; print(asyncio.subprocess.PIPE)") == "-1"


def test_an_imported_module_is_not_replaced():
    assert run("import grpc.aio, dradriver.kubelet; print(grpc.aio.__spec__.name)") == "grpc.aio"


def test_a_stranger_looking_for_marks_wakes_nothing():
    marks = "getattr(sys.modules['grpc.aio'], '__warningregistry__', 'none')"
    program = f"import sys, dradriver.kubelet; print({marks}, 'grpc.aio._channel' in sys.modules)"
    assert run(program) == "none False"


def test_grpc_is_silenced_before_it_is_imported():
    variables = "os.environ['GRPC_VERBOSITY'], os.environ['GRPC_ENABLE_FORK_SUPPORT']"
    assert run(f"import os, dradriver.kubelet; print({variables})") == "NONE 0"
