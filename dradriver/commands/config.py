"""`dradriver config`: checks files of node configurations, and makes them of others."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from dradriver.api.node_config import BUILT_IN_POLICIES
from dradriver.api.text import MOST_BYTES
from dradriver.nodeconfig.file import decode_bytes, read_bytes
from dradriver.nodeconfig.manifest import Part, documents
from dradriver.nodeconfig.migparted import Imported, MigPartedError, import_mig_parted

_FILE_HELP = "the file, or - for standard input; the manifest of a ConfigMap with the file in it will do"


class _CommandError(Exception):
    """Why it cannot be done: one sentence for the person who asked."""


def main(arguments: Sequence[str]) -> int:
    """Do what the words say; returns the exit status: 1 for mistakes in a file, 2 for mistakes in the words."""
    try:
        values = _parser().parse_args(arguments)
        status: int = values.do(values)
    except _CommandError as error:
        print(f"dradriver config: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dradriver config", description=__doc__, allow_abbrev=False)
    verbs = parser.add_subparsers(required=True, metavar="check | import-mig-parted")
    check = verbs.add_parser("check", help="check a file of node configurations", allow_abbrev=False)
    check.add_argument("file", metavar="FILE", help=_FILE_HELP)
    check.set_defaults(do=_check)
    taken = verbs.add_parser(
        "import-mig-parted", help="make node configurations of a file for mig-parted", allow_abbrev=False
    )
    taken.add_argument("file", metavar="FILE", help=_FILE_HELP)
    taken.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="where to write them (default: standard output)"
    )
    taken.set_defaults(do=_import)
    return parser


def _check(values: argparse.Namespace) -> int:
    parts = documents(_read(values.file))
    if not parts:
        raise _CommandError(f"{values.file}: the ConfigMap has no data")
    return max([_check_part(values.file, part) for part in parts])


def _check_part(file: str, part: Part) -> int:
    decoded = decode_bytes(part.data)
    where = _where(file, part)
    problems = decoded.all_problems()
    _tell(f"{where}: {problem}" for problem in problems)
    if problems:
        return 1
    names = ", ".join(sorted(decoded.configs)) or "none"
    policies = ", ".join(sorted(decoded.policies.keys() - BUILT_IN_POLICIES.keys()))
    health = f"; health policies: {policies}" if policies else ""
    print(f"{where}: no mistakes; configurations: {names}{health}")
    return 0


def _import(values: argparse.Namespace) -> int:
    parts = documents(_read(values.file))
    if len(parts) != 1:
        raise _CommandError(f"{values.file}: the ConfigMap must have one entry in its data, not {len(parts)}")
    where = _where(values.file, parts[0])
    try:
        imported = import_mig_parted(parts[0].data)
    except MigPartedError as error:
        _tell(f"{where}: {problem}" for problem in error.problems)
        return 1
    _write(values.output, _written(where, imported))
    _tell(f"note: {notice}" for notice in imported.notices)
    return 0


def _written(where: str, imported: Imported) -> str:
    remarks = [f"# Made of {where} by `dradriver config import-mig-parted`."]
    remarks += [f"# - {notice}" for notice in imported.notices]
    body = yaml.safe_dump(dict(imported.document), sort_keys=False, default_flow_style=None, width=120)
    return "\n".join(remarks) + "\n" + body


def _where(file: str, part: Part) -> str:
    name = "standard input" if file == "-" else file
    return f"{name}: {part.place}" if part.place else name


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read(MOST_BYTES + 1) if file == "-" else read_bytes(Path(file))
    except OSError as error:
        raise _CommandError(f"{file}: it cannot be read: {error.strerror}") from error


def _write(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _CommandError(f"{file}: it cannot be written: {error.strerror}") from error


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
