"""What a person wants to see: slices, MIG layouts, who got what. Text in, text out."""

from collections.abc import Iterable, Mapping
from typing import Any

MEMORY_SLICES = 8


def slices(described: str, *, lines: int = 34) -> str:
    """Shorten the output of `kubectl describe` to the beginning of one slice."""
    kept = described.rstrip().splitlines()
    shown = [f"    {line}" for line in kept[:lines]]
    return "\n".join([*shown, f"    ... and {len(kept) - lines} lines more"] if len(kept) > lines else shown)


def summary(items: Iterable[Mapping[str, Any]]) -> str:
    """Say what each slice holds."""
    rows = [("SLICE", "HOLDS")]
    for item in items:
        spec = item["spec"]
        sets, devices = spec.get("sharedCounters") or [], spec.get("devices") or []
        if sets:
            names = f"{sets[0]['name']} to {sets[-1]['name']}"
            rows.append((item["metadata"]["name"], f"{len(sets)} counter sets: {names}"))
        else:
            rows.append((item["metadata"]["name"], f"{len(devices)} devices: {_range(devices)}"))
    return table(rows)


def _range(devices: list[Mapping[str, Any]]) -> str:
    names = [device["name"] for device in devices]
    return f"{names[0]} ... {names[-1]}" if len(names) > 1 else "".join(names)


def layout(gpus: Iterable[Mapping[str, Any]]) -> str:
    """Draw the memory slices of each GPU."""
    return "\n".join(f"    GPU {gpu['minor']}  {_bar(gpu)}" for gpu in gpus)


def _bar(gpu: Mapping[str, Any]) -> str:
    if not gpu["mig"]["current"]:
        return "MIG off"
    cells = ["  .  "] * MEMORY_SLICES
    for instance in gpu["instances"]:
        start, size = instance["placement"]["start"], instance["placement"]["size"]
        cells[start : start + size] = [f"{instance['profile']:^{5 * size + (size - 1)}}", *[""] * (size - 1)]
    text = "|".join(cell for cell in cells if cell)
    return f"MIG on   |{text}|"


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Lay rows out in columns."""
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def indented(text: str, *, spaces: int = 4) -> str:
    """Indent what a program printed."""
    return "\n".join(" " * spaces + line for line in text.rstrip().splitlines())
