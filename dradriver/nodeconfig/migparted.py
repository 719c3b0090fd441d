"""Makes node configurations of a file for NVIDIA's mig-parted (`version: v1`), which the GPU operator uses, too.

There a configuration says which instances each GPU is cut into beforehand; here, which profiles are offered, to be made
on demand. So profiles are taken over and counts are not. The entries of a configuration are applied one after the other
there, so that the last one for a GPU decides; here it is the first rule.

mig-parted's rules for its own files hold here too: unknown fields, missing ones and empty lists are mistakes.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dradriver.api import PROFILE_NAME
from dradriver.api.node_config import API_VERSION, HIGHEST_INDEX, KIND, MOST_RULES, NO_NAME, is_name
from dradriver.api.problems import Problem, Step, show_path, show_value
from dradriver.api.text import TextError, parse

VERSION: Final = "v1"

_FIELDS: Final = ("device-filter", "devices", "mig-enabled", "mig-devices")
_REQUIRED: Final = ("devices", "mig-enabled")
_DEVICE_ID: Final = re.compile(r"(0x[0-9a-f]{8})(:0x[0-9a-f]{8})?", re.IGNORECASE)
_COMPUTE_INSTANCE: Final = re.compile(r"[0-9]+c\.(.+)")

_GENERAL: Final = (
    "counts are not taken over: a partition is made when a claim asks for it, as long as there is room",
    "GPUs whose MIG mode the driver can switch itself are offered whole, too, until a partition is made on them",
)
Rule = dict[str, Any]
"""A rule of a node configuration, as it is written."""
_Path = tuple[Step, ...]


class MigPartedError(ValueError):
    """A file that cannot be taken over.

    Attributes:
        problems: all mistakes.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of a file.

    Attributes:
        document: node configurations, as plain data.
        notices: what is not as it was, each a sentence.
    """

    document: Mapping[str, Any]
    notices: tuple[str, ...]


def import_mig_parted(data: bytes) -> Imported:
    """Read a file for mig-parted.

    Raises:
        MigPartedError: it has mistakes, or asks for what this driver does not have.
    """
    try:
        text = parse(data)
    except TextError as error:
        raise MigPartedError((Problem(text=str(error)),)) from error
    work = _Work(text.problems)
    configs = work.configs(text.value)
    if work.problems:
        raise MigPartedError(tuple(work.problems))
    return Imported(
        document={"apiVersion": API_VERSION, "kind": KIND, "configs": configs}, notices=tuple(work.all_notices())
    )


class _Work:
    """One import: goes on after a mistake, so that all are told."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        self._notices: list[str] = []
        self._dynamic = False

    def all_notices(self) -> list[str]:
        return [*(_GENERAL if self._dynamic else ()), *self._notices]

    def wrong(self, path: _Path, text: str) -> None:
        self.problems.append(Problem(path=path, text=text))

    def notice(self, path: _Path, text: str) -> None:
        self._notices.append(f"{show_path(path)}: {text}")

    # --- document and configurations --------------------------------------------------------------

    def configs(self, document: object) -> dict[str, Any]:
        if not isinstance(document, dict):
            self.wrong((), f"is {show_value(document)}; must be a mapping")
            return {}
        self._unknown((), document, ("version", "mig-configs"))
        if document.get("version") != VERSION:
            self.wrong(("version",), f"is {show_value(document.get('version'))}; must be {VERSION}")
        configs = document.get("mig-configs")
        if not isinstance(configs, dict) or not configs:
            self.wrong(("mig-configs",), "must be a mapping with at least one configuration")
            return {}
        return {name: {"gpus": self._config(name, entries)} for name, entries in configs.items()}

    def _config(self, name: str, entries: object) -> list[Rule]:
        path = ("mig-configs", name)
        if not is_name(name):
            self.wrong(path, NO_NAME)
        if not isinstance(entries, list) or not entries:
            self.wrong(path, "must be a list with at least one entry")
            return []
        if len(entries) >= MOST_RULES:
            self.wrong(path, f"has {len(entries)} entries; fewer than {MOST_RULES} can be taken over")
        found = [self._entry((*path, index), entry) for index, entry in enumerate(entries)]
        return self._in_our_order(path, found)

    def _in_our_order(self, path: _Path, found: list[Rule | None]) -> list[Rule]:
        """Turn the order around; leave out what never had an effect, and leave other GPUs as they are."""
        rules: list[Rule] = []
        for index, rule in reversed(list(enumerate(found))):
            if rules and "filter" not in rules[-1]:
                self.notice((*path, index), "left out: an entry behind it is for all GPUs and is applied later")
            elif rule is not None:
                rules.append(rule)
        return rules if rules and "filter" not in rules[-1] else [*rules, {"mig": "static"}]

    # --- entries ----------------------------------------------------------------------------------

    def _entry(self, path: _Path, entry: object) -> Rule | None:
        """Make a rule; None for one that is for no GPU, or wrong."""
        if not isinstance(entry, dict):
            self.wrong(path, f"is {show_value(entry)}; must be a mapping")
            return None
        self._unknown(path, entry, _FIELDS)
        for name in _REQUIRED:
            if name not in entry:
                self.wrong((*path, name), "is missing")
        found = self._filter(path, entry)
        if entry.get("devices") == []:
            self.notice((*path, "devices"), "left out: the entry is for no GPU")
            return None
        return ({"filter": found} if found else {}) | self._offer(path, entry)

    def _filter(self, path: _Path, entry: dict[str, Any]) -> Rule:
        found: Rule = {}
        devices = entry.get("devices", "all")
        if isinstance(devices, list) and all(_is_index(index) for index in devices):
            found["indices"] = devices
        elif devices != "all":
            self.wrong((*path, "devices"), f"must be all, or a list of numbers from 0 to {HIGHEST_INDEX}")
        given = entry.get("device-filter") or []
        ids = [
            self._device_id((*path, "device-filter"), one) for one in (given if isinstance(given, list) else [given])
        ]
        if ids:
            found["deviceIDs"] = list(dict.fromkeys(ids))
        return found

    def _device_id(self, path: _Path, text: object) -> str:
        found = _DEVICE_ID.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            self.wrong(path, f"is {show_value(text)}; must be device and vendor id, such as 0x233010DE")
            return ""
        if found[2]:
            self.notice(path, f"the subsystem {found[2][1:]} is not looked at: the rule is for every {found[1]}")
        return "0x" + found[1][2:].upper()

    def _offer(self, path: _Path, entry: dict[str, Any]) -> Rule:
        enabled, devices = entry.get("mig-enabled"), entry.get("mig-devices")
        if "mig-enabled" in entry and not isinstance(enabled, bool):
            self.wrong((*path, "mig-enabled"), f"is {show_value(enabled)}; must be true or false")
        path = (*path, "mig-devices")
        if devices is not None and not isinstance(devices, dict):
            self.wrong(path, f"is {show_value(devices)}; must be a mapping of profiles to counts")
            return {}
        if enabled is True:
            return self._enabled(path, devices)
        if devices:
            self.wrong(path, "must be left out where mig-enabled is false")
        return {"mig": "off"}

    def _enabled(self, path: _Path, devices: dict[str, Any] | None) -> Rule:
        if devices is None:
            self.wrong(path, "is missing, and needed where mig-enabled is true")
            return {}
        if not devices:
            self.notice(path, "is empty: MIG instances that somebody makes are offered; dynamic would make them")
            return {"mig": "static"}
        counts = {name: count for name, count in devices.items() if self._is_count((*path, name), count)}
        if len(counts) == len(devices) and not any(counts.values()):
            self.wrong(path, "all counts are 0")
        profiles = self._profiles(path, [name for name, count in devices.items() if count != 0])
        self._dynamic = True
        return {"mig": "dynamic", "profiles": profiles}

    def _is_count(self, path: _Path, count: object) -> bool:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            self.wrong(path, f"is {show_value(count)}; must be a count")
            return False
        return True

    def _profiles(self, path: _Path, names: list[str]) -> list[str]:
        found = []
        for name in names:
            part = _COMPUTE_INSTANCE.fullmatch(name)
            if PROFILE_NAME.fullmatch(name):
                found.append(name)
            elif part is None or not PROFILE_NAME.fullmatch(part[1]):
                self.wrong((*path, name), "is not a MIG profile such as 1g.10gb or 1g.10gb+me")
            else:
                self.notice((*path, name), f"left out: of a GPU instance this driver offers the whole, {part[1]}")
        if names and not found and not self.problems:
            self.wrong(path, "has nothing that this driver offers: it makes no parts of GPU instances")
        return found

    def _unknown(self, path: _Path, given: dict[str, Any], known: tuple[str, ...]) -> None:
        for name in given:
            if name not in known:
                self.wrong((*path, name), f"is not known; allowed are {', '.join(known)}")


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= HIGHEST_INDEX
