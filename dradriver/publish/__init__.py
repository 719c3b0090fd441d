"""Keeps the API server's ResourceSlices equal to the offered pool, and asks what the server can hold."""

from dradriver.publish.errors import (
    ContestedError,
    DroppedFieldsError,
    NameTakenError,
    NodeMissingError,
    PublishError,
    WriteError,
)
from dradriver.publish.features import Features, probe_features
from dradriver.publish.names import slice_name
from dradriver.publish.publisher import Publisher
from dradriver.publish.status import Meter, NoMeter, Phase, Status

__all__ = [
    "ContestedError",
    "DroppedFieldsError",
    "Features",
    "Meter",
    "NameTakenError",
    "NoMeter",
    "NodeMissingError",
    "Phase",
    "PublishError",
    "Publisher",
    "Status",
    "WriteError",
    "probe_features",
    "slice_name",
]
