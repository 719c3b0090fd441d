import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import structlog

from dradriver.observe import early, logs


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level, hook, thread_hook = root.handlers[:], root.level, sys.excepthook, threading.excepthook
    yield
    root.handlers[:], sys.excepthook, threading.excepthook = handlers, hook, thread_hook
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    for name in ("grpc", "urllib3", "kubernetes"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def log():
    """Configure the log and return a function that reads its lines."""

    def configure(**options):
        stream = io.StringIO()
        logs.configure(stream=stream, **options)
        return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]

    return configure


def test_a_line_is_json_with_time_level_and_event_in_front(log):
    lines = log()
    structlog.get_logger().info("published", slices=9)
    (line,) = lines()
    assert list(line)[:3] == ["ts", "level", "event"]
    assert (line["level"], line["event"], line["slices"]) == ("info", "published", 9)
    when = datetime.fromisoformat(line["ts"])
    assert when.utcoffset() == timedelta(0)


def test_stdlib_lines_look_the_same(log):
    lines = log()
    logging.getLogger("dradriver.kubelet").warning("lost %s", "dra.sock", extra={"claim_uid": "u"})
    (line,) = lines()
    assert list(line)[:3] == ["ts", "level", "event"]
    assert line["event"] == "lost dra.sock"
    assert (line["level"], line["logger"], line["claim_uid"]) == ("warning", "dradriver.kubelet", "u")


def test_lines_about_a_claim_carry_its_fields_in_both_ways_of_logging(log):
    lines = log()
    with logs.about_claim(namespace="team", name="training", uid="1"):
        structlog.get_logger().info("one")
        logging.getLogger("x").info("two")
    structlog.get_logger().info("three")
    one, two, three = lines()
    for line in (one, two):
        assert (line["claim_namespace"], line["claim_name"], line["claim_uid"]) == ("team", "training", "1")
    assert not {"claim_namespace", "claim_name", "claim_uid"} & three.keys()


def test_each_thread_has_a_claim_of_its_own(log):
    lines = log()
    both = threading.Barrier(2, timeout=60)

    def work(uid):
        with logs.about_claim(namespace="team", name="c", uid=uid):
            both.wait()
            structlog.get_logger().info(uid)

    threads = [threading.Thread(target=work, args=(uid,)) for uid in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((line["event"], line["claim_uid"]) for line in lines()) == [("a", "a"), ("b", "b")]


@pytest.mark.parametrize(("level", "expected"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lines_below_the_level_are_dropped(log, level, expected):
    lines = log(level=level)
    for name in logs.LOG_LEVELS:
        getattr(structlog.get_logger(), name)("one")
        getattr(logging.getLogger("x"), name)("two")
    assert [line["event"] for line in lines()].count("one") == expected
    assert [line["event"] for line in lines()].count("two") == expected


def test_chatty_libraries_only_warn(log):
    lines = log(level="debug")
    logging.getLogger("urllib3.connectionpool").debug("GET /")
    logging.getLogger("urllib3.connectionpool").warning("retry")
    assert [line["event"] for line in lines()] == ["retry"]


def test_an_exception_is_one_line(log):
    lines = log()
    try:
        Decimal(1) / Decimal(0)
    except ZeroDivisionError:
        structlog.get_logger().exception("crashed")
        logging.getLogger("x").exception("crashed too")
    for line in lines():
        assert line["level"] == "error"
        assert "decimal.DivisionByZero" in line["exception"]
        assert "test_logs.py" in line["exception"]
    assert len(lines()) == 2


def test_warnings_and_values_that_are_no_json_are_lines_too(log):
    lines = log()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", UserWarning, stacklevel=1)
    structlog.get_logger().info("odd", path="\udcff", thing=object())
    warned, odd = lines()
    assert "old thing" in warned["event"]
    assert odd["path"] == "\udcff"
    assert "object" in odd["thing"]


def test_lines_of_the_first_moments_are_kept_with_their_time(log):
    early.hold_back()
    logging.getLogger("dradriver.kubelet").info("removed a socket", extra={"path": "/x"})
    logging.getLogger("dradriver.kubelet").debug("too much")
    logging.getLogger("urllib3").info("chatter")
    before = datetime.now(UTC)
    lines = log()
    logging.getLogger("dradriver.kubelet").info("later")
    first, second = lines()
    assert (first["event"], first["path"], first["level"]) == ("removed a socket", "/x", "info")
    assert datetime.fromisoformat(first["ts"]) <= before <= datetime.fromisoformat(second["ts"])


def test_of_too_many_first_lines_the_last_ones_are_kept(log):
    early.hold_back()
    for number in range(1500):
        logging.getLogger("x").warning("%d", number)
    events = [line["event"] for line in log()()]
    assert (len(events), events[-1]) == (1000, "1499")


def test_holding_back_needs_nothing_heavy():
    program = (
        "import sys, dradriver.observe.early; print('structlog' in sys.modules, 'prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("log_format", logs.LOG_FORMATS)
def test_the_log_works_without_rich(log_format):
    program = f"""
import sys
from dradriver.observe.early import without_rich
without_rich()
from dradriver.observe import logs
logs.configure(log_format={log_format!r})
try:
    1 / 0
except ZeroDivisionError:
    logs.structlog.get_logger().exception("crashed")
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert not {"rich.console", "pygments"} & set(done.stdout.split())


def test_text_is_for_people():
    stream = io.StringIO()
    logs.configure(log_format="text", stream=stream)
    structlog.get_logger().warning("published", slices=9)
    logging.getLogger("x").error("lost", extra={"claim_uid": "u"})
    first, second = stream.getvalue().splitlines()
    assert "published" in first
    assert "slices=9" in first
    assert "claim_uid=u" in second
    assert "\x1b" not in stream.getvalue()


def test_nothing_but_json_reaches_stderr_even_when_nobody_handles_an_error():
    program = """
import threading
from dradriver.observe import early, logs
logs.configure()
def crash(): raise RuntimeError("in a thread")
thread = threading.Thread(target=crash); thread.start(); thread.join()
raise RuntimeError("in main")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["critical", "critical"]
    assert "in a thread" in lines[0]["exception"]
    assert "in main" in lines[1]["exception"]
    assert done.returncode == 1
    assert done.stdout == ""
