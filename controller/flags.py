"""Flags of the controller, each with an environment variable."""

import argparse
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.api import BaseKeeping, Mode
from dradriver.observe.logs import LOG_FORMATS, LOG_LEVELS, LogFormat, LogLevel

_OFF: Final = "off"
_WHEN_UNOWNED: Final = "WhenUnowned"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the controller was told.

    Attributes:
        kubeconfig: file, or None for what the environment says.
        namespace: of the Lease.
        identity: of this process among those that would lead.
        discovery: mode of bridges that are made for every MIG profile found; None if none are.
        base_classes: what is done with base classes that somebody else made; None if none are looked at.
        http_endpoint: `host:port` of metrics and probes; "" for none.
        log_level: lines below are dropped.
        log_format: how lines look.
        labels: whether nodes get the labels of GPU feature discovery that nobody else holds.
    """

    kubeconfig: Path | None
    namespace: str
    identity: str
    discovery: Mode | None
    base_classes: BaseKeeping | None
    http_endpoint: str
    log_level: LogLevel
    log_format: LogFormat
    labels: bool


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Options:
    """Read command line and environment; a flag wins over its variable.

    Exits with status 2 and one sentence on a mistake, as argparse does.
    """
    parser = _parser(environment)
    values = parser.parse_args(arguments)
    for flag, value, known in (
        ("node-labels", values.node_labels, (_OFF, _WHEN_UNOWNED)),
        ("log-level", values.log_level, LOG_LEVELS),
        ("log-format", values.log_format, LOG_FORMATS),
        ("discover-mig-profiles", values.discover_mig_profiles, (_OFF, *map(str, Mode))),
        ("base-classes", values.base_classes, (*map(str, BaseKeeping), _OFF)),
    ):
        if value not in known:
            parser.error(f"--{flag}: {value!r} is none of {', '.join(known)}")
    if not _NAMESPACE.fullmatch(values.namespace):
        parser.error(f"--namespace (or POD_NAMESPACE) must be the name of a namespace, not {values.namespace!r}")
    return Options(
        kubeconfig=Path(values.kubeconfig).absolute() if values.kubeconfig else None,
        namespace=values.namespace,
        # A pod's container that is restarted has the same name, but may not believe that it leads still.
        identity=f"{values.identity or socket.gethostname()}_{secrets.token_hex(4)}",
        discovery=None if values.discover_mig_profiles == _OFF else Mode(values.discover_mig_profiles),
        base_classes=None if values.base_classes == _OFF else BaseKeeping(values.base_classes),
        http_endpoint=values.http_endpoint,
        log_level=values.log_level,
        log_format=values.log_format,
        labels=values.node_labels == _WHEN_UNOWNED,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dradriver-controller",
        description="Controller of the DRA driver for NVIDIA GPUs: gives extended resource names their DeviceClasses.",
        allow_abbrev=False,
    )

    def add(flag: str, variable: str, default: str, text: str) -> None:
        shown = f" (default: {default})" if default else ""
        value = environment.get(variable) or default
        parser.add_argument(f"--{flag}", default=value, help=f"{text}{shown} [{variable}]")

    # Not by a variable here: KUBECONFIG may name several files, which the connection reads itself.
    parser.add_argument("--kubeconfig", default="", help="file; else those in KUBECONFIG, or the pod's service account")
    add("namespace", "POD_NAMESPACE", "dradriver", "namespace of the Lease dradriver-controller, by which one leads")
    add("identity", "POD_NAME", "", "beginning of this process's name in the Lease; the host's name if empty")
    add(
        "discover-mig-profiles",
        "DISCOVER_MIG_PROFILES",
        _OFF,
        f"make a bridge nvidia.com/mig-<profile> for every MIG profile that nodes publish: its mode, which is one of "
        f"{', '.join(Mode)}, or {_OFF}",
    )
    add(
        "base-classes",
        "BASE_CLASSES",
        BaseKeeping.KEEP,
        "keep: make the DeviceClasses gpu.nvidia.com and mig.nvidia.com if they are missing, and keep those that were "
        f"made so; adopt: also take over those of somebody else; or {_OFF}",
    )
    add("http-endpoint", "HTTP_ENDPOINT", ":8080", "host:port for /metrics, /healthz and /readyz; none if empty")
    add("log-level", "LOG_LEVEL", "info", f"how much is logged: {', '.join(LOG_LEVELS)}")
    add("log-format", "LOG_FORMAT", "json", f"how it is logged: {' or '.join(LOG_FORMATS)}")
    add(
        "node-labels",
        "NODE_LABELS",
        _OFF,
        f"{_WHEN_UNOWNED}: label nodes from slices as GPU feature discovery would, where nobody else does; or {_OFF}",
    )
    return parser
