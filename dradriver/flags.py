"""Flags of the kubelet plugin, each with an environment variable; names are those of NVIDIA's chart where it has one.

Imports nothing heavy: the sockets are to be up before anything else is loaded.
"""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dradriver.gpu.profiles import MigOffer, ProfileChoice, parse_choice

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_UID = re.compile(r"[A-Za-z0-9-]{1,63}")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the plugin was told; paths are absolute."""

    node_name: str
    kubeconfig: Path | None
    plugins_folder: Path
    registry_folder: Path
    cdi_root: Path
    driver_root: Path
    driver_root_here: Path
    cdi_hook: str
    proc_devices: Path | None
    http_endpoint: str
    mig: MigOffer
    profiles: ProfileChoice
    node_config: Path | None
    simulation: Path | None
    pod_uid: str
    reclaim_unknown_mig: bool
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["json", "text"]


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Options:
    """Read command line and environment; a flag wins over its variable.

    Exits with status 2 and one sentence on a mistake, as argparse does.
    """
    parser = _parser(environment)
    values = parser.parse_args(arguments)
    if not _NODE_NAME.fullmatch(values.node_name or ""):
        parser.error(f"--node-name (or NODE_NAME) must be the name of this Kubernetes node, not {values.node_name!r}")
    simulation = _path(values.simulation)
    if simulation is not None and not simulation.is_dir():
        parser.error(
            f"--simulation {simulation}: no such folder; "
            f"make one with `python -m dradriver.simulation --state {simulation} create 8xh100-80gb`"
        )
    return _options(values, simulation)


def _options(values: argparse.Namespace, simulation: Path | None) -> Options:
    root = simulation / "root" if simulation is not None else Path(values.nvidia_driver_root)
    here = root if simulation is not None or not values.container_driver_root else Path(values.container_driver_root)
    return Options(
        node_name=values.node_name,
        kubeconfig=_path(values.kubeconfig),
        plugins_folder=Path(values.kubelet_plugins_directory_path).absolute(),
        registry_folder=Path(values.kubelet_registrar_directory_path).absolute(),
        cdi_root=Path(values.cdi_root).absolute(),
        driver_root=root.absolute(),
        driver_root_here=here.absolute(),
        cdi_hook=values.nvidia_cdi_hook_path,
        proc_devices=_path(values.alt_proc_devices_path),
        http_endpoint=values.http_endpoint,
        mig=MigOffer(values.mig),
        profiles=values.profiles,
        node_config=_path(values.node_config),
        simulation=simulation,
        pod_uid=values.pod_uid,
        reclaim_unknown_mig=values.reclaim_unknown_mig == "true",
        log_level=values.log_level,
        log_format=values.log_format,
    )


def _path(text: str) -> Path | None:
    return Path(text).absolute() if text else None


def _profiles(text: str) -> ProfileChoice:
    try:
        return parse_choice(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _pod_uid(text: str) -> str:
    if text and not _UID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the UID of a pod")
    return text


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Check a value; unlike argparse's own choices this also looks at what comes from the environment."""

    def check(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return check


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dradriver",
        description="Kubelet plugin of the DRA driver for NVIDIA GPUs. Each flag can be given as an environment "
        "variable: the flag's name in capitals, with underscores, unless another one is named.",
        allow_abbrev=False,
    )

    def add(flag: str, default: str, text: str, **more: object) -> None:
        variable = str(more.pop("variable", flag.upper().replace("-", "_")))
        value = environment.get(variable) or default
        shown = f" (default: {default})" if default else ""
        parser.add_argument(f"--{flag}", default=value, help=f"{text}{shown} [{variable}]", **more)  # type: ignore[arg-type]  # passed on as they are

    _add_surroundings(add)
    _add_offer(add)
    add("simulation", "", "folder of a simulated node (python -m dradriver.simulation) to use instead of real GPUs")
    add("log-level", "info", f"how much is logged: {', '.join(LOG_LEVELS)}", type=_one_of(LOG_LEVELS))
    add("log-format", "json", f"how it is logged: {' or '.join(LOG_FORMATS)}", type=_one_of(LOG_FORMATS))
    return parser


def _add_surroundings(add: Callable[..., None]) -> None:
    """Add what is around the plugin on its node."""
    add("node-name", "", "name of the Kubernetes node this runs on")
    add("kubeconfig", "", "kubeconfig file; without one the pod's service account is used")
    add("kubelet-plugins-directory-path", "/var/lib/kubelet/plugins", "the kubelet's folder of plugins")
    add("kubelet-registrar-directory-path", "/var/lib/kubelet/plugins_registry", "the kubelet's registration folder")
    add("cdi-root", "/var/run/cdi", "folder of CDI specs that the container runtime reads")
    add("nvidia-driver-root", "/", "where the NVIDIA driver's files lie on the host")
    add(
        "container-driver-root",
        "",
        "the same root as this process sees it; empty: at the same path",
        variable="DRIVER_ROOT_CTR_PATH",
    )
    add("nvidia-cdi-hook-path", "", "host path of nvidia-cdi-hook; empty: looked for in the driver root")
    add("alt-proc-devices-path", "", "file to read device majors from instead of /proc/devices")
    add("http-endpoint", "", "host:port of /metrics, /healthz and /readyz; empty: none")
    add(
        "pod-uid",
        "",
        "UID of the pod this runs in: two pods of a rolling update then serve side by side, each at its own sockets",
        type=_pod_uid,
    )


def _add_offer(add: Callable[..., None]) -> None:
    """Add what is offered, and how partitions are dealt with."""
    add(
        "mig",
        MigOffer.STATIC.value,
        "static: whole GPUs and MIG instances that exist; dynamic: every possible partition, made when a claim "
        "is prepared; off: whole GPUs only",
        type=_one_of([choice.value for choice in MigOffer]),
    )
    add(
        "profiles",
        "standard",
        "MIG profiles that `dynamic` offers: standard, all, or names such as 1g.10gb,3g.40gb",
        type=_profiles,
    )
    add(
        "node-config",
        "",
        "file of node configurations, of which the node label dradriver.dev/config names one; it is read again when it "
        "changes, and what it leaves out is as the other flags say",
    )
    add(
        "reclaim-unknown-mig",
        "false",
        "destroy MIG instances that this driver has no record of: true or false; only with --mig dynamic",
        type=_one_of(["true", "false"]),
    )
