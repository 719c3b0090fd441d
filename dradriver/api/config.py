"""Opaque device configurations that a claim or DeviceClass may carry: `resource.nvidia.com/v1beta1`.

Names, fields and meaning are those of NVIDIA's driver, so that a manifest written for it is understood here.
Unknown fields are errors: a typing mistake must not silently change what a user gets.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

API_VERSION: Final = "resource.nvidia.com/v1beta1"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


class TimeSlicingConfig(_Model):
    """How long one process runs before another gets the GPU."""

    interval: Literal["Default", "Short", "Medium", "Long"] = "Default"


class MpsConfig(_Model):
    """Limits of processes that share a GPU through MPS."""

    default_active_thread_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: dict[str, str] | None = None
    multi_user: bool | None = None


class Sharing(_Model):
    """How several containers share one device."""

    strategy: Literal["TimeSlicing", "MPS"]
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class GpuConfig(_Model):
    """Configuration of whole GPUs."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig"]
    sharing: Sharing | None = None


class MigDeviceConfig(_Model):
    """Configuration of MIG partitions."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["MigDeviceConfig"]
    sharing: Sharing | None = None


DeviceConfig = GpuConfig | MigDeviceConfig

_ADAPTER: TypeAdapter[DeviceConfig] = TypeAdapter(Annotated[DeviceConfig, Field(discriminator="kind")])


class InvalidConfigError(ValueError):
    """An opaque configuration that is not understood; the message names each path and what is wrong there."""


def decode(parameters: object) -> DeviceConfig:
    """Read the `opaque.parameters` of a claim or DeviceClass.

    Raises:
        InvalidConfigError: unknown kind or field, wrong type or value; all of them at once.
    """
    try:
        return _ADAPTER.validate_python(parameters)
    except ValidationError as error:
        problems = (f"{_path(problem['loc'])}: {_cause(problem)}" for problem in error.errors())
        raise InvalidConfigError("; ".join(problems)) from error


def why_unsupported(config: DeviceConfig) -> str:
    """Say what of a configuration this driver cannot do, and what to do about it; "" if it can do all.

    Time slices of GPUs have their own length only if it is asked for, and those of partitions cannot be set by anybody.
    """
    sharing = config.sharing
    if sharing is None:
        return ""
    interval = sharing.time_slicing_config.interval if sharing.time_slicing_config else "Default"
    if sharing.strategy == "TimeSlicing" and (interval == "Default" or config.kind == "MigDeviceConfig"):
        return ""
    detail = f" with interval {interval}" if sharing.strategy == "TimeSlicing" else ""
    return (
        f"sharing.strategy {sharing.strategy}{detail} is not supported by this driver; "
        "remove `sharing`, or share one claim between the pods"
    )


def _cause(problem: Mapping[str, Any]) -> str:
    """Say what is wrong in the words of the API's users."""
    match problem["type"]:
        case "extra_forbidden":
            return "unknown field"
        case "union_tag_invalid" | "union_tag_not_found":
            return "kind must be GpuConfig or MigDeviceConfig"
        case _:
            return str(problem["msg"])


def _path(location: tuple[int | str, ...]) -> str:
    # The first element is the kind that the discriminator chose, not a field.
    words = [str(word) for word in location if word not in ("GpuConfig", "MigDeviceConfig")]
    return ".".join(words) or "parameters"
