# ruff: noqa: N818 -- The tree's root ends in Error; its branches say what is the matter.
"""What can go wrong with a simulated node as such (what its hardware refuses is `codes.Refused`).

SimulationError
├── BadInput            a name, number, option or file that cannot be used; says what is allowed
├── StateMissing        the folder holds no simulated node
├── StateExists         the folder already holds one
├── FolderForeign       the folder holds something else, which is not ours to overwrite
└── StateDamaged        the state file is not one that this version writes
"""


class SimulationError(Exception):
    """Base of this room's errors; its text is one sentence for the person who asked."""


class BadInput(SimulationError):
    """Something the user gave cannot be used."""


class StateMissing(SimulationError):
    """There is no simulated node in this folder."""


class StateExists(SimulationError):
    """There already is a simulated node in this folder."""


class FolderForeign(SimulationError):
    """There is something in this folder that no simulated node has put there."""


class StateDamaged(SimulationError):
    """The state file cannot be read."""
