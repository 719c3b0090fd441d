"""Slices as text: manifests that kubectl takes, and a table for people."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from dradriver import api
from dradriver.gpu.offer import Offer
from dradriver.kube import RESOURCE_SLICES
from dradriver.resource import CounterConsumption, Device, Slice, slice_spec
from dradriver.resource.wire import quantity

_HEAD: Final = ("SLICE", "DEVICE", "TYPE", "PROFILE", "GPU", "MEMORY", "SHARES", "COUNTERS", "TAINTS")
_NUMBERED: Final = re.compile(r"(.*?)(\d+)")
# libyaml is ten times as fast, and not everywhere.
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

Manifest = dict[str, Any]


def manifests(slices: Mapping[str, Slice], *, node_name: str) -> list[Manifest]:
    """Write the slices of a node's pool as objects of the API, generation 1, owned by nobody."""
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": len(slices)}
    return [
        {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name},
            "spec": slice_spec(content, driver=api.DRIVER_NAME, node_name=node_name, pool=pool),
        }
        for name, content in slices.items()
    ]


def as_yaml(documents: Iterable[Manifest]) -> str:
    """Write objects as a stream of YAML documents."""
    return str(yaml.dump_all(documents, Dumper=_DUMPER, sort_keys=False, explicit_start=True, width=120))


def as_json(documents: Iterable[Manifest]) -> str:
    """Write objects as one List in JSON."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [*documents]}, indent=2) + "\n"


def table(slices: Mapping[str, Slice], offer: Offer) -> str:
    """Write a line for each device; a column for shares is there if any device has some."""
    rows = [_HEAD, *_rows(slices, offer)]
    shared = any(device.shared for content in slices.values() for device in content.devices)
    column = _HEAD.index("SHARES")
    return aligned(rows if shared else [(*row[:column], *row[column + 1 :]) for row in rows])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Write rows as columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def write(text: str) -> None:
    """Print on stdout; a reader who has seen enough is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _rows(slices: Mapping[str, Slice], offer: Offer) -> Iterator[tuple[str, ...]]:
    for name, content in slices.items():
        for device in content.devices:
            yield name, *_cells(device, offer)


def _cells(device: Device, offer: Offer) -> tuple[str, ...]:
    found = offer.find(device.name)
    return (
        device.name,
        str(device.attributes.get("type", "-")),
        str(device.attributes.get("profile", "-")),
        found.gpu.uuid if found else "-",
        quantity(device.capacity["memory"]) if "memory" in device.capacity else "-",
        quantity(device.capacity[api.Capacity.SHARES]) if device.shared else "-",
        " ".join(map(_consumption, device.consumes)) or "-",
        " ".join(f"{taint.key}{f'={taint.value}' * bool(taint.value)}:{taint.effect}" for taint in device.taints)
        or "-",
    )


def _consumption(consumption: CounterConsumption) -> str:
    """Write `memory-slice-0..3,ofa-engines=2`: neighbours of which one is taken become a range."""
    parts: list[str] = []
    run: tuple[str, int, int] | None = None
    for name, value in consumption.counters.items():
        match = _NUMBERED.fullmatch(name)
        if match is None or value != 1:
            parts.append(name if value == 1 else f"{name}={quantity(value)}")
            continue
        stem, number = match[1], int(match[2])
        if run is not None and run[0] == stem and run[2] == number - 1:
            run = (stem, run[1], number)
            parts[-1] = f"{stem}{run[1]}..{number}"
        else:
            run = (stem, number, number)
            parts.append(name)
    return ",".join(parts)
