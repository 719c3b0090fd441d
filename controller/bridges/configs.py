"""Whether the driver will understand, and can do, a bridge's configuration, found out before its class has it."""

from collections.abc import Iterable, Mapping
from typing import Any


def problem_of(configs: Iterable[Mapping[str, Any]]) -> str:
    """Say what is wrong, with the path of each mistake in the bridge; "" if all is understood."""
    return "; ".join(filter(None, (_problem(index, each) for index, each in enumerate(configs))))


def _problem(index: int, config: Mapping[str, Any]) -> str:
    # The library that checks takes 15 MiB, and few bridges have a configuration.
    from dradriver.api.config import InvalidConfigError, decode, why_unsupported  # noqa: PLC0415

    try:
        why = why_unsupported(decode(config))
    except InvalidConfigError as error:
        return "; ".join(f"spec.config[{index}]{_suffix(mistake)}" for mistake in str(error).split("; "))
    return f"spec.config[{index}].{why}" if why else ""


def _suffix(mistake: str) -> str:
    whole = mistake.removeprefix("parameters: ")
    return f".{mistake}" if whole == mistake else f": {whole}"
