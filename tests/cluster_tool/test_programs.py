# SPDX-License-Identifier: Apache-2.0
"""The small programs of our own, as built for the images."""

import http.client
import json
import signal
import socket
import ssl
import subprocess

import pytest
from localcluster import build, controlplane, images, lifecycle, processes, slots, spec
from localcluster.common import wait_for
from localcluster.slots import Slot
from localcluster.spec import Wish

pytestmark = pytest.mark.control_plane

HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def tools():
    group = build.groups("1.37.2", nodes=False)[0]
    if not group.output().exists():
        build._build(group)
    return group.output()


@pytest.fixture(scope="module")
def box(tools, tmp_path_factory):
    """A folder with a link for each command, as in the image."""
    folder = tmp_path_factory.mktemp("bin")
    for name in images.APPLETS:
        (folder / name).symlink_to(tools / "toolbox")
    return folder


@pytest.fixture
def run(box, tmp_path):
    def call(*words, given=""):
        return subprocess.run(
            [box / words[0], *words[1:]],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": str(box)},
            cwd=tmp_path,
        )

    return call


def test_every_command_of_the_image_is_known_to_the_program(run):
    for name in images.APPLETS:
        given = ["infinity-and-more"] if name == "sleep" else []
        assert run(name, *given).returncode != 127, name


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("echo $((1 + 2))", "3\n"),
        ('echo "$0 $1 $#"', "sh  0\n"),
        ("for i in a b; do echo $i; done | wc -l", "2\n"),
        ("x=1; [ $x -eq 1 ] && test -n word && echo yes", "yes\n"),
        ("if [ -e /nowhere ]; then echo a; else echo b; fi", "b\n"),
        ("echo one > f; cat f; echo two >> f; tail -n 1 f", "one\ntwo\n"),
        ("printf '%s-%d\\n' a 7", "a-7\n"),
        ("env A=1 printenv A", "1\n"),
        ("echo b a c | tr x y 2>/dev/null || echo no tr", "no tr\n"),
        ("touch d1 d2; ls d*", "d1\nd2\n"),
        ("echo abc | grep -o b; echo abc | grep -q z || echo none", "b\nnone\n"),
        ("printf 'b\\na\\nb\\n' | sort -u | head -n 1", "a\n"),
        ("mkdir -p a/b; stat -c '%F' a/b; rm -r a; ls", "directory\n"),
        ("f() { return 3; }; f; echo $?", "3\n"),
        ("cat <<X\nword\nX", "word\n"),
    ],
)
def test_scripts(run, script, output):
    answer = run("sh", "-c", script)
    assert answer.stdout == output, answer.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [("true", 0), ("false", 1), ("exit 7", 7), ("set -e; false; exit 9", 1), ("nothere", 127), ("if", 2)],
)
def test_exit_codes(run, script, code):
    assert run("sh", "-c", script).returncode == code


def test_sh_takes_flags_arguments_files_and_input(run, tmp_path):
    assert run("sh", "-ec", "false; echo no").stdout == ""
    assert run("sh", "-c", 'echo "$1"', "name", "word").stdout == "word\n"
    (tmp_path / "script").write_text('echo "$1"')
    assert run("sh", "script", "arg").stdout == "arg\n"
    assert run("sh", given="echo from input; exit 5").returncode == 5


def test_a_device_is_listed_as_coreutils_do(run):
    words = run("ls", "-l", "/dev/null").stdout.split()
    assert words[0].startswith("crw")
    assert words[4:6] == ["1,", "3"]
    assert run("stat", "-c", "%F %t %T %n", "/dev/null").stdout == "character special file 1 3 /dev/null\n"


@pytest.mark.parametrize(("words", "code"), [(["-c", "/dev/null"], 0), (["-d", "/dev/null"], 1), (["-e", "/no"], 1)])
def test_test_tells_by_its_exit_code(run, words, code):
    assert run("test", *words).returncode == code
    assert run("[", *words, "]").returncode == code


def test_what_is_missing_is_named(run):
    for command in ("cat", "ls", "stat", "wc", "head"):
        answer = run(command, "/no/such")
        assert answer.returncode
        assert answer.stderr == f"{command}: /no/such: no such file or directory\n"


@pytest.mark.parametrize("command", [["sleep", "600"], ["sleep", "infinity"], ["sh", "-c", "sleep 600"]])
def test_long_runners_end_at_sigterm(box, command):
    process = subprocess.Popen([box / command[0], *command[1:]], env={"PATH": str(box)})
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in {128 + signal.SIGTERM, -signal.SIGTERM}


def test_pause_ends_at_sigterm(tools):
    process = subprocess.Popen([tools / "pause"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in {0, -signal.SIGTERM}


@pytest.fixture
def runtime(tools, tmp_path):
    """runc-without-seccomp beside a runc that tells what it was given."""
    (tmp_path / "runc-without-seccomp").symlink_to(tools / "runc-without-seccomp")
    runc = tmp_path / "runc"
    runc.write_text('#!/bin/sh\necho "$@"\n')
    runc.chmod(0o755)
    return tmp_path / "runc-without-seccomp"


def bundle(tmp_path, linux):
    folder = tmp_path / "bundle"
    folder.mkdir()
    config = {"ociVersion": "1.3.0", "big": 2**63 + 1, "linux": linux}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_filter_is_taken_out_and_all_else_kept(runtime, tmp_path):
    folder = bundle(tmp_path, {"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"}, "devices": [{"major": 195}]})
    words = ["--root", "/r", "create", "--bundle", str(folder), "id"]
    answer = subprocess.run([runtime, *words], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == words
    config = json.loads((folder / "config.json").read_text())
    assert config == {"ociVersion": "1.3.0", "big": 2**63 + 1, "linux": {"devices": [{"major": 195}]}}


def test_a_bundle_without_filter_is_not_touched(runtime, tmp_path):
    folder = bundle(tmp_path, {"devices": []})
    before = (folder / "config.json").stat().st_mtime_ns
    subprocess.run([runtime, "create", "--bundle", str(folder), "id"], check=True, capture_output=True)
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_other_commands_pass(runtime):
    answer = subprocess.run([runtime, "state", "id"], capture_output=True, text=True, check=True)
    assert answer.stdout == "state id\n"


def test_certificates_are_of_one_authority(tools, tmp_path):
    subprocess.run([tools / "certs", tmp_path, "localhost", "127.0.0.1"], check=True)
    names = {file.name for file in tmp_path.iterdir()}
    assert {"ca.crt", "apiserver.crt", "apiserver-kubelet.key", "service-account.pub"} <= names
    assert "etcd-ca.key" not in names, "no one else gets a certificate of etcd's authority"
    keys = [file for file in tmp_path.iterdir() if file.suffix == ".key"]
    assert all(file.stat().st_mode & 0o077 == 0 for file in keys)
    answer = subprocess.run([tools / "certs"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (2, "usage: certs DIR HOST...\n")


def test_the_relay_passes_both_ways_and_half_closed(tools):
    with socket.create_server(("127.0.0.1", 0)) as target, socket.create_server(("127.0.0.1", 0)) as free:
        listen = free.getsockname()[1]
        free.close()
        listens = [f"127.0.0.1:{listen}", f"127.0.0.2:{listen}"]
        words = [tools / "relay", *listens, f"127.0.0.1:{target.getsockname()[1]}"]
        process = subprocess.Popen(words)
        try:
            assert wait_for(lambda: not any(can_bind(host, listen) for host in HOSTS), seconds=60)
            for host in HOSTS:
                exchange(host, listen, target)
        finally:
            process.kill()
            process.wait()


def exchange(host, port, target):
    with socket.create_connection((host, port)) as caller:
        called, _ = target.accept()
        with called, called.makefile("rb") as heard, caller.makefile("rb") as answered:
            caller.sendall(b"question")
            caller.shutdown(socket.SHUT_WR)
            assert heard.read() == b"question"
            called.sendall(b"answer")
            called.shutdown(socket.SHUT_WR)
            assert answered.read() == b"answer"


def test_a_relay_that_cannot_listen_everywhere_ends(tools):
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        ports = [taken.getsockname()[1], free.getsockname()[1]]
        free.close()
        words = [tools / "relay", *(f"127.0.0.1:{port}" for port in reversed(ports)), "127.0.0.1:1"]
        answer = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 1
    assert "address already in use" in answer.stderr


def can_bind(host, port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


@pytest.fixture
def etcd(layout):
    """Etcd as a cluster starts it."""
    slot = next(slot for slot in map(Slot, range(100)) if slots.ports_free(slot))
    made = spec.placed(spec.fresh(Wish(nodes=0), token="t"), slot)
    lifecycle._link_programs(layout, build.ensure(made.kubernetes, nodes=False))
    controlplane.prepare(layout, made)
    processes.start(layout, "etcd", controlplane.commands(layout, made)["etcd"])
    try:
        assert wait_for(lambda: processes.listens(layout, "etcd", made.ports.etcd), seconds=60)
        yield slot
    finally:
        processes.stop(layout, "etcd", kill=True)


def health(port, authority=None, *, certificate=None):
    """What etcd answers to one who trusts it and shows this certificate."""
    context = ssl.create_default_context(cafile=authority)
    if authority is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    try:
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_etcd_serves_the_api_servers_certificate(etcd, layout):
    answer = health(etcd.etcd, layout.certs / "etcd-ca.crt", certificate=layout.certs / "etcd-client.crt")
    assert answer["health"] == "true"


@pytest.mark.parametrize("certificate", [None, "apiserver-kubelet.crt", "apiserver.crt"])
@pytest.mark.parametrize("port", ["etcd", "etcd_peer"])
def test_etcd_turns_away_everyone_else(etcd, layout, certificate, port):
    shown = None if certificate is None else layout.certs / certificate
    # How the handshake ends is TLS's choice: an alert, a reset, an end of file.
    with pytest.raises(OSError):
        health(getattr(etcd, port), certificate=shown)
    assert health(etcd.etcd, certificate=layout.certs / "etcd-client.crt")["health"] == "true"


@pytest.mark.parametrize("port", ["etcd", "etcd_peer"])
def test_etcd_speaks_to_nobody_in_the_clear(etcd, layout, port):
    connection = http.client.HTTPConnection("127.0.0.1", getattr(etcd, port), timeout=60)
    connection.request("GET", "/health")
    with pytest.raises(ConnectionError):
        connection.getresponse()
    connection.close()
    assert health(etcd.etcd, certificate=layout.certs / "etcd-client.crt")["health"] == "true"
