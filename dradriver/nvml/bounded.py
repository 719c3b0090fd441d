"""Calls that may hang in the driver, and do not take the caller with them.

A call that hangs in NVML cannot be ended. So it is made in a thread of its own, which is left behind with it; the
caller goes on when the time is over.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from dradriver.nvml.errors import TIMEOUT, Hanging, NvmlError

T = TypeVar("T")

PATIENCE: Final = 1.0
"""Seconds that `Bounded.each` waits for one call before it begins the next beside it."""


class _Job(Generic[T]):
    """One call: what is to be done, about which GPU, and what came of it."""

    def __init__(self, key: str | None, seconds: float, work: Callable[[], T]) -> None:
        self.key = key
        self.work = work
        self.thread = 0
        self.since = datetime.now(UTC)
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.over = False
        self.hanging: tuple[str, str] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        # Held until there is an answer. A plain lock is the cheapest thing that a thread can wait for.
        self._open = threading.Lock()
        self._open.acquire()

    def do(self) -> None:
        self.thread = threading.get_ident()
        try:
            self._answer = self.work()
        except BaseException as error:  # noqa: BLE001 -- It is raised where the call was asked for.
            self._error = error

    def finish(self) -> None:
        self._open.release()

    def wait(self, until: float) -> bool:
        """Wait for the end of the call, until a time (monotonic); tells whether it came."""
        if not self._open.acquire(timeout=max(0.0, until - time.monotonic())):
            return False
        self._open.release()
        return True

    def answer(self) -> T:
        if self._error is not None:
            raise self._error
        answer: T = self._answer
        return answer


class Bounded:
    """Makes calls in threads, each for a key and for so many seconds at most.

    A call that takes longer raises Hanging, and so does every further call for its key, at once, until it returns:
    one GPU that hangs costs no more threads than had calls about it under way. Threads are used again and end with the
    process, which does not wait for them, or with `close`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._idle: list[_Worker] = []
        self._late: dict[str | None, list[_Job[Any]]] = {}

    def run(self, key: str | None, seconds: float, work: Callable[[], T]) -> T:
        """Make a call and give its answer.

        Args:
            key: name of the GPU that it is about, as errors have it; None for calls about no GPU.
            seconds: how long it may take.
            work: the call; goes on for as long as it hangs, so it must do no harm when it comes back late.

        Raises:
            Hanging: it did not end in time, or an earlier one for this key still hangs.
            BaseException: whatever `work` raised.
        """
        return self._collect(self._begin(key, seconds, work))

    def each(self, calls: Iterable[tuple[str | None, float, Callable[[], T]]]) -> list[T | NvmlError]:
        """Make one call after another (key, seconds, work), and beside one that takes long the next.

        Returns:
            Answers in the order of the calls, and NvmlError in place of those that raised one.
        """
        begun = [self._begin_patiently(*one) for one in calls]
        return [one if isinstance(one, NvmlError) else self._result(one) for one in begun]

    def hangs(self, key: str | None) -> Hanging | None:
        """Tell that a call for this key hangs; None where none does."""
        with self._lock:
            late = self._late.get(key)
            return _hanging(late[0]) if late else None

    def close(self) -> None:
        """Let threads end that have nothing to do, and others once they have; calls can be made as before."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.take(None)

    def _begin(self, key: str | None, seconds: float, work: Callable[[], T]) -> _Job[T]:
        hanging = self.hangs(key)
        if hanging is not None:
            raise hanging
        job = _Job(key, seconds, work)
        self._worker().take(job)
        return job

    def _begin_patiently(self, key: str | None, seconds: float, work: Callable[[], T]) -> _Job[T] | NvmlError:
        try:
            job = self._begin(key, seconds, work)
        except NvmlError as error:
            return error
        job.wait(min(job.deadline, time.monotonic() + PATIENCE))
        return job

    def _result(self, job: _Job[Any]) -> Any:
        try:
            return self._collect(job)
        except NvmlError as error:
            return error

    def _collect(self, job: _Job[T]) -> T:
        if not job.wait(job.deadline) and self._is_late(job):
            raise _hanging(job)
        return job.answer()

    def _is_late(self, job: _Job[Any]) -> bool:
        with self._lock:
            if not job.over:
                job.hanging = job.hanging or (_function(job.thread), f"{job.since:%Y-%m-%d %H:%M:%S} UTC")
                self._late.setdefault(job.key, []).append(job)
            return not job.over

    def _worker(self) -> "_Worker":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Worker(self._done)

    def _done(self, worker: "_Worker", job: _Job[Any]) -> None:
        with self._lock:
            job.over = True
            late = [one for one in self._late.pop(job.key, ()) if one is not job]
            if late:
                self._late[job.key] = late
            if self._closed:
                worker.take(None)
            else:
                self._idle.append(worker)
        # Only now, so that whoever calls again at once finds this thread idle.
        job.finish()


class _Worker:
    """A thread that makes one call after another."""

    def __init__(self, done: "Callable[[_Worker, _Job[Any]], None]") -> None:
        self._done = done
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def take(self, job: _Job[Any] | None) -> None:
        """Make this call next; None ends the thread."""
        self._jobs.put(job)

    def _run(self) -> None:
        # No name here keeps the last answer alive.
        while self._make(self._jobs.get()):
            pass

    def _make(self, job: _Job[Any] | None) -> bool:
        if job is None:
            return False
        job.do()
        self._done(self, job)
        return True


def _hanging(job: _Job[Any]) -> Hanging:
    function, since = job.hanging or ("NVML", "a while ago")
    return Hanging(function, TIMEOUT, job.key, cause=f"it was called at {since} and has not come back")


def _function(thread: int) -> str:
    """Name the NVML function that a thread is in, by its stack; `NVML` where it is in none."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 -- Asked of a thread that cannot tell any more.
    while frame is not None:
        if frame.f_code.co_name.startswith("nvml"):
            return frame.f_code.co_name
        frame = frame.f_back
    return "NVML"
