"""The simulated libnvidia-ml: an object whose attributes are NVML's C functions, to be assigned to `pynvml.nvmlLib`.

A function that is not here is missing, as it would be in an older driver: pynvml then raises
NVMLError_FunctionNotFound.
"""

from functools import partial
from pathlib import Path
from typing import Any

from dradriver.simulation import health, identity, mig
from dradriver.simulation.codes import Return
from dradriver.simulation.session import Function, Session

FUNCTIONS: dict[str, Function] = {
    **identity.TABLE.functions,
    **mig.TABLE.functions,
    **health.TABLE.functions,
}
"""Every NVML function of the simulation by its C name."""


class Library:
    """One process's copy of the library."""

    def __init__(self, folder: Path) -> None:
        """Load it for the node in `folder`.

        Raises:
            StateMissing, StateDamaged: there is no usable node.
        """
        self._session = Session(folder)
        for name, function in FUNCTIONS.items():
            setattr(self, name, partial(_call, self._session, name, function))
        # Callers set the type of its result, which a bound method would not let them do.
        self.nvmlErrorString = partial(_error_string)


def _call(session: Session, name: str, function: Function, *arguments: Any) -> int:
    return session.run(name, function, arguments)


def _error_string(code: Any) -> bytes:
    try:
        return Return(int(getattr(code, "value", code))).name.replace("_", " ").capitalize().encode()
    except ValueError:
        return b"Unknown error code"
