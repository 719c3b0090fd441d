"""Names of slices."""

import hashlib
import re

_LIMIT = 253
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def slice_name(index: int, *, driver: str, node_name: str) -> str:
    """Name of the slice at that place in the pool: `00003-gpu.nvidia.com-node-a`.

    The number comes first because the scheduler takes the slices of a pool in the order of their names. The name is
    the same after every restart, so that two instances cannot both create it. Where driver and node would make a
    name that is too long or no DNS subdomain, a hash takes the place of the node's end.
    """
    plain = f"{index:05d}-{driver}-{node_name}"
    if len(plain) <= _LIMIT and _SUBDOMAIN.fullmatch(plain):
        return plain
    digest = hashlib.sha256(f"{driver}/{node_name}".encode()).hexdigest()[:16]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{driver}-{node_name}".lower())[: _LIMIT - 24].strip("-")
    return f"{index:05d}-{readable}-{digest}" if readable else f"{index:05d}-{digest}"
