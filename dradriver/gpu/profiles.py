"""How MIG is offered, and which of a GPU's profiles."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dradriver import api
from dradriver.gpu.model import Gpu, MigProfile

_PLAIN = re.compile(r"\d+g\.\d+gb")

STANDARD: Final = "standard"
ALL: Final = "all"


class MigOffer(StrEnum):
    """How MIG is offered.

    `static`: instances that an administrator made, and whole GPUs whose MIG mode is off.
    `dynamic`: every possible partition; it is made when a claim is prepared.
    `off`: whole GPUs only; a GPU in MIG mode is not offered.
    """

    STATIC = "static"
    DYNAMIC = "dynamic"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChoice:
    """What an administrator wants offered.

    Attributes:
        names: profile names; None stands for the rule in `rule`.
        rule: `standard` (no suffix variants, and of profiles with equally many compute slices only the
            one with the least memory) or `all`.
    """

    rule: str = STANDARD
    names: frozenset[str] | None = None

    def select(self, gpu: Gpu) -> tuple[MigProfile, ...]:
        """Choose from the profiles a GPU has, smallest first."""
        usable = sorted((profile for profile in gpu.profiles if profile.placements), key=_by_size)
        if self.names is not None:
            return tuple(profile for profile in usable if profile.name in self.names)
        return tuple(usable) if self.rule == ALL else _standard(usable)


def parse_choice(text: str) -> ProfileChoice:
    """Read the value of `--profiles`: `standard`, `all`, or profile names separated by commas.

    Raises:
        ValueError: it is none of these; the message says what is allowed.
    """
    text = text.strip()
    if text in (STANDARD, ALL):
        return ProfileChoice(rule=text)
    # A comma also separates the attributes of one name (`1g.5gb+me,gfx`): only one before a digit ends a name.
    names = [name.strip() for name in re.split(r",(?=\s*\d)", text)]
    for name in names:
        if not api.PROFILE_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a MIG profile: use {STANDARD}, {ALL}, "
                "or names separated by commas such as 1g.10gb,3g.40gb"
            )
    return ProfileChoice(names=frozenset(names))


def missing(choice: ProfileChoice, gpus: Iterable[Gpu]) -> frozenset[str]:
    """Tell which of the wanted names no GPU of the node has."""
    present = {profile.name for gpu in gpus for profile in gpu.profiles}
    return (choice.names or frozenset()) - present


def _by_size(profile: MigProfile) -> tuple[int, int, bool, str]:
    return profile.placements[0].size, profile.compute_slices, not _PLAIN.fullmatch(profile.name), profile.name


def _standard(profiles: Iterable[MigProfile]) -> tuple[MigProfile, ...]:
    plain = [profile for profile in profiles if _PLAIN.fullmatch(profile.name)]
    least: dict[int, int] = {}
    for profile in plain:
        size = profile.placements[0].size
        least[profile.compute_slices] = min(size, least.get(profile.compute_slices, size))
    return tuple(profile for profile in plain if profile.placements[0].size == least[profile.compute_slices])
