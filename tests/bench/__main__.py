"""`make bench`: how fast and how small the plugin is, against a real API server. Prints figures, judges nothing.

    PYTHONPATH=tests python -m bench [--rounds 200] [--starts 10] [--seeds 10] [--kubeconfig FILE]
    PYTHONPATH=tests python -m bench --scheduler [--cycles 3] [--percent 100] [--kubeconfig FILE]
    PYTHONPATH=tests python -m bench --controller [--nodes 5000] [--rounds 200] [--idle 10] [--kubeconfig FILE]

boots a control plane of its own, unless it is told to use another. GPUs are simulated, the kubelet is a double, the
node exists in the API server only, and claims are allocated by this program: nobody else on a cluster is disturbed.
"""

import argparse
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from bench import burst, calls, controller, health, installed, packing, podstatus, process, publishing, scheduler
from bench.aims import Aims
from bench.figures import Figure, show
from bench.process import Program
from bench.split import composed, split
from bench.world import PROFILE, Caller, Cluster, Devices, Folders, NoClusterError, api_server, make_folders, until

from dradriver.kube.connection import connect
from dradriver.kube.errors import KubeError


def main() -> int:
    options = _options()
    try:
        # Short: a socket's path has at most 107 bytes.
        with (
            tempfile.TemporaryDirectory(prefix="bn", ignore_cleanup_errors=True) as folder,
            # The controller manager would go on for hours to write that thousands of kubelets are silent.
            api_server(
                options.kubeconfig, without=["kube-controller-manager"] if options.controller else []
            ) as options.kubeconfig,
        ):
            if options.scheduler:
                _measure_scheduler(options)
            elif options.controller:
                _measure_controller(options)
            else:
                _run(options, Path(folder))
    except (KubeError, NoClusterError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure the kubelet plugin.")
    parser.add_argument("--kubeconfig", default="", help="an administrator's, of a cluster to use (default: boot one)")
    parser.add_argument("--machine", default="8xh100-80gb", help="simulated machine (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=10, help="starts measured (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="calls measured of each kind (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of idleness (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=packing.runs, default=packing.SEEDS, help="runs of each mix for packing (default: %(default)s)"
    )
    parser.add_argument(
        "--here", action="store_true", help="use this environment instead of one like an installation's"
    )
    parser.add_argument(
        "--scheduler",
        action="store_true",
        help="measure what our slices cost the scheduler, and nothing else: half an hour",
    )
    parser.add_argument(
        "--controller",
        action="store_true",
        help="measure the controller in a large cluster, and nothing else: ten minutes",
    )
    parser.add_argument("--nodes", type=int, default=5000, help="of that cluster (default: %(default)s)")
    parser.add_argument(
        "--node-rounds",
        type=int,
        default=4,
        help="errors measured up to a pod's status, on a whole node that is booted for it; 0: none, no root needed "
        "(default: %(default)s)",
    )
    parser.add_argument("--cycles", type=int, default=3, help="of the scheduler's layouts (default: %(default)s)")
    parser.add_argument("--percent", type=int, default=100, help="of its nodes and pods (default: %(default)s)")
    return parser.parse_args()


def _run(options: argparse.Namespace, folder: Path) -> None:
    folders, aims = make_folders(folder, options.machine), Aims()
    print(f"{options.machine} (simulated), {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}")
    with closing(connect(Path(options.kubeconfig))) as client, Cluster(client=client) as cluster:
        program = _program(options, folder, folders, cluster)
        try:
            _measure_starts(program, folders, cluster, aims, rounds=options.starts)
            with program.running() as running:
                until(folders.socket.exists)
                until(cluster.devices, interval=0.1)
                _measure_idle(running.pid, aims, seconds=options.idle)
                _measure_calls(running.pid, folders, cluster, aims, rounds=options.rounds)
                _measure_bursts(folders, cluster, aims, rounds=max(1, options.rounds // 50))
                _measure_health(folders, cluster, aims, kubeconfig=options.kubeconfig, rounds=options.rounds // 5)
                print(f"  RSS of the plugin after all these calls: {process.rss(running.pid):.1f} MiB")
        except (TimeoutError, RuntimeError):
            print(program.log.read_text()[-4000:], file=sys.stderr)
            raise
        _measure_parts(folders, cluster, aims, kubeconfig=options.kubeconfig, rounds=options.rounds)
        kubeconfig = Path(options.kubeconfig)
        publishing.show(publishing.measure(cluster, kubeconfig, rounds=max(1, options.rounds // 20)))
    if options.node_rounds:
        show("Health on a node of its own", [podstatus.measure(rounds=options.node_rounds)])
    packing.measure(seeds=options.seeds)
    aims.show()


def _measure_health(folders: Folders, cluster: Cluster, aims: Aims, *, kubeconfig: str, rounds: int) -> None:
    figures = health.measure(folders, cluster, Path(kubeconfig), rounds=max(1, rounds))
    look, count = health.monitor(folders.simulation, rounds=max(1, rounds))
    show("Health", [*figures, look])
    print(f"  the monitor looks at {count} GPUs each 5 s: {look.median / 5:.2f} ms of processor time/s")
    aims.note("Xid 79 -> all devices tainted", figures[0])


def _measure_scheduler(options: argparse.Namespace) -> None:
    kubeconfig = Path(options.kubeconfig)
    with closing(connect(kubeconfig)) as client:
        scheduler.run(client, kubeconfig, cycles=options.cycles, percent=options.percent)


def _measure_controller(options: argparse.Namespace) -> None:
    kubeconfig = Path(options.kubeconfig)
    rounds = max(1, options.rounds // 20)
    with closing(connect(kubeconfig)) as client:
        controller.run(client, kubeconfig, nodes=options.nodes, rounds=rounds, idle=options.idle)


def _program(options: argparse.Namespace, folder: Path, folders: Folders, cluster: Cluster) -> Program:
    python = sys.executable if options.here else str(installed.install(folder / "env"))
    return Program(
        command=[python, "-m", "dradriver", *folders.arguments(cluster.name, kubeconfig=options.kubeconfig)],
        environment=installed.environment(folder),
        log=folder / "log",
    )


def _measure_starts(program: Program, folders: Folders, cluster: Cluster, aims: Aims, *, rounds: int) -> None:
    figures = process.starts(program, folders, cluster, rounds=rounds)
    show("Start", figures)
    aims.note("exec -> DRA socket up", figures[0])
    aims.note("exec -> slices visible", figures[-1])


def _measure_idle(pid: int, aims: Aims, *, seconds: float) -> None:
    found = process.idle(pid, settle=seconds, seconds=seconds)
    print(
        f"\nIdle\n  RSS {found.rss:.1f} MiB, PSS {found.pss:.1f}, anonymous {found.anonymous:.1f}; "
        f"{found.threads} threads, {found.wakeups:.1f} wake-ups/s, {found.cpu_per_second:.2f} ms of processor time/s"
    )
    aims.note("idle RSS", Figure(what="RSS", values=(found.rss,), unit="MiB"))


def _measure_calls(pid: int, folders: Folders, cluster: Cluster, aims: Aims, *, rounds: int) -> None:
    devices = Devices(cluster.devices())
    gpus = [cluster.claim(device) for device in devices.gpus]
    parts = [cluster.claim(device) for device in devices.partitions]
    with closing(Caller(folders.socket)) as caller:
        bases = [
            calls.floor(caller, rounds=rounds),
            calls.claim_gets(cluster, gpus[0], rounds=rounds),
            calls.first(caller, gpus[0]),
        ]
        before = process.cpu_milliseconds(pid)
        whole = calls.singles(caller, "whole GPU", gpus, rounds=rounds)
        spent = (process.cpu_milliseconds(pid) - before) / rounds
        first = calls.singles(caller, f"first {PROFILE} of a GPU", parts, rounds=rounds)
        neighbour = cluster.claim(devices.neighbour)
        caller.prepare([neighbour])
        second = calls.singles(caller, f"second {PROFILE} of a GPU", parts[:1], rounds=rounds)
        caller.unprepare([neighbour])
        many = calls.together(caller, "whole GPU", gpus, rounds=rounds // 4)
        many_parts = calls.together(caller, PROFILE, parts, rounds=rounds // 4)
    show("Calls over the socket", [*bases, *whole, *first, *second, *many, *many_parts])
    print(f"  processor time of the plugin for Prepare, repeated Prepare and Unprepare of a whole GPU: {spent:.2f} ms")
    aims.note("Prepare of a whole GPU", whole[0])
    aims.note("repeated Prepare", whole[1])
    aims.note("8 Prepares at once", many[0])
    aims.note("8 Unprepares at once", many[1])


def _measure_bursts(folders: Folders, cluster: Cluster, aims: Aims, *, rounds: int) -> None:
    groups = [[cluster.claim(device) for device in group] for group in Devices(cluster.devices()).all_partitions]
    with closing(Caller(folders.socket)) as caller:
        bursts = burst.measure(caller, folders.simulation, groups, rounds=rounds)
    show("Bursts", [figure for each in bursts for figure in (each.prepare, each.unprepare)])
    print("\n".join(line for each in bursts for line in each.lines()))
    few, all_of_them, _ = bursts
    aims.note("8 slow partitions at once", few.ratio)
    aims.note("56 slow partitions at once", all_of_them.ratio)
    aims.note("overhead for each of the 56", all_of_them.overhead)


def _measure_parts(folders: Folders, cluster: Cluster, aims: Aims, *, kubeconfig: str, rounds: int) -> None:
    devices = Devices(cluster.devices())
    with composed(folders, cluster.name, kubeconfig) as (preparer, clock):
        for what, names in (("whole GPU", devices.gpus), (f"first {PROFILE} of a GPU", devices.partitions)):
            claims = [cluster.claim(device) for device in names]
            for verb, figures in split(preparer, clock, claims, rounds=rounds).items():
                show(f"Parts of {verb} {what}", figures)
                if (verb, what) == ("Prepare", "whole GPU"):
                    aims.note("own overhead of that", figures[-2])
                    aims.note("record on disk, of a Prepare", next(each for each in figures if "record" in each.what))


if __name__ == "__main__":
    sys.exit(main())
