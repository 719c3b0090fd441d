"""How the process comes to its end: asked by a signal, and then without waiting for threads that hang in the driver."""

import atexit
import logging
import os
import queue
import sys
from typing import NoReturn


class Ending:
    """Whether the process is to end; can be asked for by a signal handler, whatever the thread it interrupts holds.

    An Event cannot: its lock may be held by the very wait that the handler interrupts, which then waits for ever.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Ask for it, from any thread or a signal handler."""
        self._asked.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until it is asked for, at most that long; returns whether it is."""
        try:
            self._asked.get(timeout=seconds)
        except queue.Empty:
            return False
        # Whoever asks next is to be told the same.
        self._asked.put(None)
        return True


def last_acts() -> None:
    """Do what the interpreter does at its end, but for waiting for threads."""
    # Keys of a kubeconfig lie in temporary files that the kubernetes package removes so.
    atexit._run_exitfuncs()  # noqa: SLF001 (nothing public runs them)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def leave(status: int) -> NoReturn:
    """End the process at once.

    The interpreter would wait for the threads of every executor, and one of them may hang in NVML or in fsync for
    good; the kubelet would kill us only after the pod's grace period, and no successor could start before.
    """
    last_acts()
    os._exit(status)
