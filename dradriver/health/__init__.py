"""How the GPUs are: from what they report and say when asked, to the taints that they deserve.

::

    policy.toml, policy   what errors and readings mean; what an administrator wants otherwise
    condition             what was found about one GPU, and what each new finding changes
    verdict               the taints that it deserves, in words
    memory                what is kept over restarts
    requests              how an administrator names GPUs, and asks to forget
    endings               what ends a cause, in words
    monitor               the thread that asks, and what is done with what is heard
"""

from dradriver.health.monitor import TYPES, Around, Monitor

__all__ = ["TYPES", "Around", "Monitor"]
