"""The demo, step by step."""

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from localcluster.common import ClusterError, state_dir

from demonstration import pictures
from demonstration.expectations import (
    Allocated,
    allocated,
    check,
    check_examples,
    check_status,
    look_inside,
    status_of,
)
from demonstration.world import MACHINE, NAMESPACE, REPOSITORY, DemoError, World, wait_for

EXAMPLES = REPOSITORY / "deploy/examples"
BRIDGES = REPOSITORY / "deploy/bridges"
PROGRAMS = REPOSITORY / ".venv/bin"


def main(arguments: Sequence[str]) -> int:
    """Run the demo, or end it; returns the exit status. What goes wrong is told in a sentence."""
    parser = argparse.ArgumentParser(prog="hack/demo", description="Run pods on eight simulated GPUs of a real node.")
    parser.add_argument("--dir", type=Path, help="folder of the demo (default: ~/.local/state/dradriver/demo)")
    parser.add_argument("--down", action="store_true", help="end the demo and remove all it made")
    parser.add_argument("--env", action="store_true", help="print what a shell needs to play with the running demo")
    options = parser.parse_args(arguments)
    act = _down if options.down else _print_environment if options.env else _demo
    try:
        act(World(folder=(options.dir or state_dir() / "demo").absolute()))
    except (DemoError, ClusterError, OSError) as error:
        print(f"\ndemo: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; `make demo-down` ends what was begun", file=sys.stderr)
        return 130
    return 0


def _down(world: World) -> None:
    """End the demo; where its folder is lost, still take back from the machine what is left of its cluster."""
    ours = world.marker.exists()
    if world.folder.exists() and not ours:
        raise DemoError(f"{world.folder} is no demo's folder: nothing in it was touched")
    if ours:
        world.stop_programs()
    world.cluster_down()
    if ours:
        world.clear()
    print("demo: ended")


def _print_environment(world: World) -> None:
    """Print the cluster's variables, the folder of the simulated GPUs and a PATH with the project's programs."""
    if not world.marker.exists():
        raise DemoError("no demo is running: start it with `make demo`")
    found = world.environment
    names = (
        "KUBECONFIG",
        "NODE_NAME",
        "CDI_ROOT",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
    )
    variables = {name: found[name] for name in names} | {
        "SIMULATION": str(world.gpus),
        "MIG": "dynamic",
        "NODE_CONFIG": str(world.node_config),
        "PLUGIN_LOG": str(world.folder / "plugin.log"),
        "CONTROLLER_LOG": str(world.folder / "controller.log"),
        "PATH": f"{PROGRAMS}:{found['PATH']}",
    }
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")


def _demo(world: World) -> None:
    if os.geteuid():
        raise DemoError("a Kubernetes node needs root's rights: run the demo as root")
    started = time.monotonic()
    world.claim()
    _step("A real Kubernetes node")
    world.cluster_up()
    _start_over(world)
    _step(f"The plugin, on a simulated node with {MACHINE.replace('x', ' x ', 1)}")
    _show_endpoint(world.start_plugin(), world.folder / "plugin.log")
    _show_slices(world)
    _show_bridges(world)
    _step("The GPUs before")
    print(pictures.layout(world.show_gpus()))
    _run_examples(world)
    devices = _show_devices(world)
    _step("The GPUs meanwhile")
    print(pictures.layout(world.show_gpus()))
    _look_inside(world, devices)
    _show_claims(world, devices)
    _step("Checks")
    check_examples(devices)
    _end_examples(world)
    seconds = time.monotonic() - started
    print(f"\n{seconds:.0f} s. The cluster and the plugin stay, see README.md; `make demo-down` ends them.")
    print("\ndemo: ok")


def _step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def _start_over(world: World) -> None:
    """Leave nothing of an earlier demo on this cluster: pods first, while their plugin can still unprepare them."""
    world.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    _refuse_to_pull_gpus(world)
    world.stop_programs()
    shutil.rmtree(world.gpus, ignore_errors=True)
    world.simulation("create", MACHINE)
    # All that an administrator applies, and not the folder of examples in it.
    world.kubectl("apply", "-f", str(REPOSITORY / "deploy/crds"), "-f", str(REPOSITORY / "deploy"))


def _refuse_to_pull_gpus(world: World) -> None:
    """Stop where pods of the user's use the simulated GPUs, which are about to be replaced by new ones."""
    claims = world.get("resourceclaims", "-A")["items"]
    users = sorted(
        f"{claim['metadata']['namespace']}/{user['name']}"
        for claim in claims
        for user in claim.get("status", {}).get("reservedFor", [])
    )
    if users:
        raise DemoError(f"pods use the GPUs of the running demo: delete {', '.join(users)}, or end it: make demo-down")


def _show_slices(world: World) -> None:
    items = world.get("resourceslices")["items"]
    _step(f"The {len(items)} ResourceSlices it publishes")
    print(pictures.summary(items))
    print("\n    The last one, as `kubectl describe resourceslices` shows it:")
    print(pictures.slices(world.kubectl("describe", "resourceslice", items[-1]["metadata"]["name"])))


def _show_endpoint(endpoint: str, log: Path) -> None:
    print(f"    ready: http://{endpoint}/readyz, metrics: http://{endpoint}/metrics, log: {log}")


def _show_bridges(world: World) -> None:
    """Start the controller, and wait until pods with `limits: nvidia.com/gpu: 1` get their GPU from this driver."""
    _step("The controller, and the bridges from extended resources to DeviceClasses")
    _show_endpoint(world.start_controller(), world.folder / "controller.log")
    world.kubectl("apply", "-f", str(BRIDGES))
    wait_for("the bridges to be ready", lambda: _are_ready(world, {"gpu", "mig-1g.10gb"}), seconds=30)
    print(pictures.indented(world.kubectl("get", "extendedresourcebridges")))


def _are_ready(world: World, names: set[str]) -> bool:
    bridges = world.get("extendedresourcebridges")["items"]
    ready = {each["metadata"]["name"] for each in bridges if _is_ready(each)}
    return names <= ready and len(ready) == len(bridges)


def _is_ready(bridge: Mapping[str, Any]) -> bool:
    conditions = bridge.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _run_examples(world: World) -> None:
    _step(f"The pods of {EXAMPLES.relative_to(REPOSITORY)}")
    world.kubectl("create", "namespace", NAMESPACE)
    # Namespaced pods need the service account of their namespace, which a controller makes.
    wait_for("the namespace's service account", lambda: _exists(world, "serviceaccount", "default"))
    world.kubectl("apply", "-n", NAMESPACE, "-f", str(EXAMPLES))
    wait_for("all pods to run", lambda: _all_running(world), seconds=120)
    print(pictures.indented(world.kubectl("get", "pods", "-n", NAMESPACE)))


def _exists(world: World, kind: str, name: str) -> bool:
    try:
        world.kubectl("get", kind, name, "-n", NAMESPACE)
    except DemoError:
        return False
    return True


def _all_running(world: World) -> bool:
    pods = world.get("pods", "-n", NAMESPACE)["items"]
    return all(
        container.get("ready") for pod in pods for container in pod["status"].get("containerStatuses") or [{}]
    ) and bool(pods)


def _show_devices(world: World) -> list[Allocated]:
    devices = allocated(world)
    _step("Which container got which device")
    rows = [("POD", "CONTAINER", "DEVICE", "UUID")]
    rows += [(device.pod, device.container, device.device, device.uuid) for device in devices]
    print(pictures.table(rows))
    return devices


def _look_inside(world: World, devices: list[Allocated]) -> None:
    _step("Inside the containers")
    for (pod, container), group in groupby(devices, key=lambda device: (device.pod, device.container)):
        seen = look_inside(world, pod, container)
        print(f"    {pod}/{container}$ ls -l /dev/nvidia*; env")
        print(pictures.indented(seen.listing, spaces=8))
        print(
            pictures.indented(
                "\n".join(f"{name}={value}" for name, value in sorted(seen.environment.items())), spaces=8
            )
        )
        check(seen, list(group))
        print("        checked: its own devices, all of them, and nothing else\n")


def _show_claims(world: World, devices: list[Allocated]) -> None:
    """Show what the plugin has written into the claims, and make sure that it is true."""
    _step("What the claims' status says")
    wanted = {device.claim: {each.uuid for each in devices if each.claim == device.claim} for device in devices}
    wait_for("the claims' device status", lambda: all(status_of(world, claim) for claim in wanted), seconds=30)
    rows = [("CLAIM", "DEVICE", "READY", "UUID")]
    for claim, uuids in sorted(wanted.items()):
        told = status_of(world, claim)
        check_status(claim, told, uuids)
        rows += [(claim, *each) for each in told]
    print(pictures.table(rows))
    print("    checked: every claim says that its devices are ready, and which they are")


def _end_examples(world: World) -> None:
    _step("The GPUs after the pods are gone")
    world.kubectl("delete", "-n", NAMESPACE, "-f", str(EXAMPLES), "--now")
    wait_for("the claims to be gone", lambda: not world.get("resourceclaims", "-n", NAMESPACE)["items"])
    print(pictures.layout(world.show_gpus()))
    left = [instance for gpu in world.show_gpus() for instance in gpu["instances"]]
    if left:
        raise DemoError(f"{len(left)} MIG instances are left: {left}")
    specs = list(Path(world.environment["CDI_ROOT"]).glob("*"))
    if specs:
        raise DemoError(f"CDI specs are left: {specs}")
    print("    checked: no MIG instance and no CDI spec is left")
