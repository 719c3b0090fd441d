# SPDX-License-Identifier: Apache-2.0
"""The command line of hack/cluster."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from localcluster import build, lifecycle, preflight, slots, spec, status
from localcluster.common import DEFAULT_KUBERNETES, ClusterError, Layout, state_dir, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localcluster.spec import Spec

    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  it has no public name
    _Run = Callable[[Layout, argparse.Namespace], int]

_COMPONENTS = (
    "kubelet",
    "containerd",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "api-service",
)


def parser() -> argparse.ArgumentParser:
    """The options of every command."""
    top = argparse.ArgumentParser(prog="hack/cluster", description="A real Kubernetes on this machine.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_build(commands)
    _add_up(commands)
    env = _command(commands, "env", 'print what a shell needs: eval "$(hack/cluster env)"', _env)
    env.add_argument("--node", help="also what the plugin needs to run as if on this node")
    _command(commands, "down", "end the cluster and remove all it has, logs apart", _down)
    state = _command(commands, "status", "tell what runs; exit code 0 when all is well", _status)
    state.add_argument("-o", "--output", choices=("table", "json"), default="table")
    for verb, run in (("restart", _restart), ("stop", _stop), ("start", _start)):
        one = _command(commands, verb, f"{verb} one component; pods keep running", run)
        one.add_argument("component", choices=_COMPONENTS)
        one.add_argument("--node", help="whose kubelet or containerd (default: node-a)")
        if verb != "start":
            one.add_argument("--kill", action="store_true", help="by SIGKILL instead of SIGTERM")
    return top


def _command(commands: _Commands, name: str, text: str, run: _Run) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    command.add_argument(
        "--dir",
        type=Path,
        help="the cluster's directory, which is also its name (default: ~/.local/state/dradriver/cluster)",
    )
    return command


def _add_version(command: argparse.ArgumentParser) -> None:
    known = ", ".join(build.versions())
    command.add_argument("--kubernetes", metavar="VERSION", help=f"{known} (default: {DEFAULT_KUBERNETES})")
    command.add_argument(
        "--control-plane-only", action="store_true", help="no nodes; the default without root's rights"
    )


def _add_build(commands: _Commands) -> None:
    command = _command(commands, "build", "build the programs, which happens once", _build)
    _add_version(command)
    command.add_argument(
        "--prune", action="store_true", help="also remove other programs that were not used for 30 days"
    )


def _add_up(commands: _Commands) -> None:
    up = _command(commands, "up", "bring the cluster up (building first when needed); repeat it freely", _up)
    _add_version(up)
    up.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: 1)")
    up.add_argument("--emulate", metavar="1.35", help="the version that the control plane behaves as")
    up.add_argument("--feature-gates", metavar="A=true,B=false", help="for all components")
    up.add_argument("--runtime-config", metavar="resource.k8s.io/v1alpha3=true", help="API versions served")


def _nodes(options: argparse.Namespace) -> int | None:
    if options.control_plane_only:
        if getattr(options, "nodes", None):
            raise ClusterError("--nodes and --control-plane-only exclude each other")
        return 0
    asked = getattr(options, "nodes", None)
    if preflight.is_root():
        return asked
    if asked:
        raise ClusterError("nodes need root's rights; without them there is only the control plane")
    tell("not root: the control plane alone (nodes need root's rights)")
    return 0


def _build(_: Layout, options: argparse.Namespace) -> int:
    nodes = _nodes(options)
    folders = build.ensure(options.kubernetes or DEFAULT_KUBERNETES, nodes=nodes != 0)
    for folder in folders:
        tell(f"ready: {folder}")
    if options.prune:
        for folder in build.prune(folders, slots.directories()):
            tell(f"removed: {folder}")
    return 0


def _up(layout: Layout, options: argparse.Namespace) -> int:
    wish = spec.Wish(
        kubernetes=options.kubernetes,
        nodes=_nodes(options),
        emulate=options.emulate,
        feature_gates=options.feature_gates,
        runtime_config=options.runtime_config,
    )
    lifecycle.up(layout, wish)
    where = "" if options.dir is None else f" --dir {layout.root}"
    tell(f'now: eval "$(hack/cluster env{where})"; kubectl get nodes')
    return 0


def _existing(layout: Layout) -> Spec:
    made = spec.load(layout)
    if made is None:
        raise ClusterError(f"there is no cluster in {layout.root}; `hack/cluster up` makes one")
    return made


def _env(layout: Layout, options: argparse.Namespace) -> int:
    print(status.exports(status.environment(layout, _existing(layout), options.node)))
    return 0


def _down(layout: Layout, _: argparse.Namespace) -> int:
    lifecycle.down(layout)
    return 0


def _status(layout: Layout, options: argparse.Namespace) -> int:
    made = _existing(layout)
    found = status.rows(layout, made)
    print(status.table(found) if options.output == "table" else status.document(layout, made, found))
    return 0 if all(row.ok for row in found) else 1


def _one(layout: Layout, options: argparse.Namespace) -> tuple[Spec, str]:
    made = _existing(layout)
    return made, lifecycle.component(made, layout, options.component, options.node)


def _restart(layout: Layout, options: argparse.Namespace) -> int:
    made, name = _one(layout, options)
    with lifecycle.changing(layout):
        lifecycle.stop(layout, name, kill=options.kill)
        lifecycle.start(layout, made, name)
    return 0


def _stop(layout: Layout, options: argparse.Namespace) -> int:
    _, name = _one(layout, options)
    with lifecycle.changing(layout):
        lifecycle.stop(layout, name, kill=options.kill)
    return 0


def _start(layout: Layout, options: argparse.Namespace) -> int:
    made, name = _one(layout, options)
    with lifecycle.changing(layout):
        lifecycle.start(layout, made, name)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; what goes wrong is one line on standard error."""
    options = parser().parse_args(arguments)
    try:
        layout = Layout(Path(os.path.realpath(options.dir or state_dir() / "cluster")))
        code: int = options.run(layout, options)
    except ClusterError as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"cluster: error: {error}; does the cluster belong to another user?", file=sys.stderr)
        return 1
    except (OSError, subprocess.SubprocessError) as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ncluster: interrupted; `hack/cluster down` clears what was begun", file=sys.stderr)
        return 130
    return code
