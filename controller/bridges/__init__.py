"""What bridges mean: pure functions from what is known of the cluster to what is to be done."""

from controller.bridges.actions import (
    Action,
    AddFinalizer,
    ApplyClass,
    ClearName,
    DeleteClass,
    ReleaseClass,
    RemoveFinalizer,
)
from controller.bridges.base import BaseDecision, BaseState, Notice, keep_base_classes
from controller.bridges.deciding import decide
from controller.bridges.discovery import Discovery, discover
from controller.bridges.owning import owners_of
from controller.bridges.selection import expressions, matches
from controller.bridges.situation import Decision, Situation, Telling, Waiting

__all__ = [
    "Action",
    "AddFinalizer",
    "ApplyClass",
    "BaseDecision",
    "BaseState",
    "ClearName",
    "Decision",
    "DeleteClass",
    "Discovery",
    "Notice",
    "ReleaseClass",
    "RemoveFinalizer",
    "Situation",
    "Telling",
    "Waiting",
    "decide",
    "discover",
    "expressions",
    "keep_base_classes",
    "matches",
    "owners_of",
]
