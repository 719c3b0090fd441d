"""A node to which everything happens: seeded random operations with failures, kills and meddling, and what must hold.

A `World` is one node and the kubelet, scheduler and administrator around it. Operations are plain data,
`(name, a, b, c)` with small numbers that are taken modulo what there is, so that any sublist of a run is a run too:
that is what `shrunk` lives on. `Chaos` makes the n-th NVML call, file operation or boundary fail, or ends the process
there. No time passes: clock and sleep are injected.
"""

import errno
import io
import itertools
import json
import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

from doubles.preparing import POOL, PreparingNode, allocation

from dradriver import api
from dradriver.kube.errors import ForbiddenError, ServerError, UnreachableError
from dradriver.kubelet import ClaimReference, Failed, Prepared
from dradriver.nvml import NvmlError
from dradriver.prepare import Preparer, boundaries, locks, preparer
from dradriver.prepare.errors import RecordError
from dradriver.prepare.locks import Locks
from dradriver.prepare.patience import Patience
from dradriver.prepare.reconciler import GRACE_SECONDS, Reconciler, Surroundings
from dradriver.prepare.records import Records, decode
from dradriver.simulation import administration, hardware
from dradriver.simulation.codes import Refused, Return
from dradriver.simulation.session import Session
from dradriver.simulation.state import Process
from dradriver.simulation.store import Store

Operation = tuple[str, int, int, int]

CALL_SECONDS = 6.0
"""Of the injected clock, for a call: enough for several attempts."""


class Killed(BaseException):
    """The process was ended here; only what is on disk and in the GPUs is left."""


class Clock:
    """Time that passes when somebody waits, and only then."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """What happens at the n-th event of a kind: `early` before its effect, `late` after it, `short` half way.

    `error` is an errno for files and an nvmlReturn_t for NVML; None ends the process.
    """

    kind: str
    after: int
    when: str = "early"
    error: int | None = None
    times: int = 1


READ_ERRORS = (Return.UNKNOWN, Return.TIMEOUT, Return.GPU_IS_LOST, Return.UNINITIALIZED)
CHANGE_ERRORS = (*READ_ERRORS, Return.IN_USE, Return.INSUFFICIENT_RESOURCES, Return.NO_PERMISSION)
"""What NVML may answer though nothing is wrong for long. That something does not exist, or may never be seen by this
process, is no such answer: it is believed, as it must be."""
CHANGES = ("nvmlDeviceSetMigMode", "nvmlDeviceCreateGpu", "nvmlGpuInstanceCreate", "Destroy")
FILE_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)


class Chaos:
    """Stands between the driver and what it works with. One at a time in a process."""

    def __init__(self, folder: Path) -> None:
        self._prefixes = tuple(str(folder / name) for name in ("claims", "cdi", "locks"))
        self._guard = threading.Lock()
        self._shots: list[Shot] = []
        self.dead = False
        self.fired: list[str] = []
        self._off = threading.local()

    def arm(self, shot: Shot) -> None:
        self._shots.append(shot)

    def disarm(self) -> None:
        self._shots.clear()
        self.dead = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Nothing happens to what the harness itself does."""
        before, self._off.on = getattr(self._off, "on", False), True
        try:
            yield
        finally:
            self._off.on = before

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, patched in self._patches():
                stack.enter_context(mock.patch(name, patched))
            boundaries.watch(self._boundary)
            stack.callback(boundaries.watch, None)
            yield

    # --- events ----------------------------------------------------------------------------------

    def _event(self, kind: str, what: str) -> Shot | None:
        if getattr(self._off, "on", False):
            return None
        if self.dead:
            raise Killed(what)
        with self._guard:
            for index, shot in enumerate(self._shots):
                if shot.kind != kind:
                    continue
                if shot.after:
                    self._shots[index] = replace(shot, after=shot.after - 1)
                    continue
                self._shots[index : index + 1] = [] if shot.times == 1 else [replace(shot, times=shot.times - 1)]
                self.fired.append(f"{what} {shot.when} {shot.error}")
                return shot
        return None

    def _kill(self, what: str) -> None:
        self.dead = True
        raise Killed(what)

    def _boundary(self, boundary: boundaries.Boundary) -> None:
        if self._event("boundary", boundary) is not None:
            self._kill(boundary)

    def _nvml(self, session: Session, name: str, function: Any, arguments: tuple[Any, ...]) -> int:
        shot = self._event("nvml", name)
        if shot is None or shot.when == "late":
            code = _run_call(session, name, function, arguments)
            if shot is None:
                return code
        if shot.error is None:
            self._kill(name)
        changes = any(part in name for part in CHANGES)
        codes = CHANGE_ERRORS if changes else READ_ERRORS
        return int(codes[shot.error % len(codes)])

    def _file(self, what: str, path: Any, act: Callable[[], Any]) -> Any:
        if not isinstance(path, int) and not os.fspath(path).startswith(self._prefixes):
            return act()
        shot = self._event("file", f"{what} {path}")
        if shot is None:
            return act()
        done = act() if shot.when == "late" else None
        if isinstance(done, int) and what == "open":
            os.close(done)
        elif hasattr(done, "close"):
            done.close()
        if shot.error is None:
            self._kill(what)
        number = FILE_ERRORS[shot.error % len(FILE_ERRORS)]
        raise OSError(number, os.strerror(number), str(path))

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        opened = self._file("io.open", file, lambda: _io_open(file, mode, *args, **kwargs))
        ours = isinstance(file, int) or os.fspath(file).startswith(self._prefixes)
        return _Writer(opened, self) if ours and "w" in mode else opened

    def _patches(self) -> Iterator[tuple[str, Any]]:
        for name in ("open", "unlink", "mkdir", "fsync", "scandir", "stat"):
            yield f"os.{name}", self._patched(name, getattr(os, name))
        yield "os.replace", self._patched("replace", os.replace)
        yield "io.open", self._open_file
        chaos = self

        def run(session: Session, name: str, function: Any, arguments: tuple[Any, ...]) -> int:
            return chaos._nvml(session, name, function, arguments)

        yield "dradriver.simulation.session.Session.run", run

    def _patched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path=".", *args, **kwargs: self._file(name, path, lambda: original(path, *args, **kwargs))

    def written(self, file: Any, text: str) -> int:
        """Write, or half of it."""
        shot = self._event("write", "write")
        if shot is None:
            return file.write(text)
        file.write(text if shot.when == "late" else text[: len(text) // 2])
        file.flush()
        if shot.error is None:
            self._kill("write")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_run_call = Session.run
_io_open = io.open


class _Writer:
    """A file whose writes may stop half way."""

    def __init__(self, file: Any, chaos: Chaos) -> None:
        self._file, self._chaos = file, chaos

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        return self._chaos.written(self._file, text)


# --- the node ------------------------------------------------------------------------------------


@dataclass
class ChaosNode(PreparingNode):
    """A preparing node whose time is injected, with a reconciler; `shared` as during an update, with two processes."""

    chaos: Any = None
    clock: Clock = field(default_factory=Clock)
    shared: bool = False
    reclaim: bool = False
    told: list = field(default_factory=list)
    _processes: list = field(default_factory=list)

    def restart(self) -> None:
        self.end()
        self.nvml_error = None
        try:
            super().restart()
        except NvmlError as error:
            # As the plugin does: it serves without GPUs, and tries again.
            self.nvml_error = error
            self._without_gpus()
        self._processes = [self._process() for _ in range(1 + self.shared)]
        for process in self._processes:
            process.reconciler.recover_records()
        self.records = self._processes[0].records

    def _without_gpus(self) -> None:
        node, self._node = self._node, lambda: None
        opened, preparing_open = self.nvml, "doubles.preparing.open_nvml"
        try:
            with mock.patch(preparing_open, return_value=opened):
                super().restart()
        finally:
            self._node = node

    def _process(self) -> SimpleNamespace:
        records = Records(self.folder / "claims", shared=self.shared)
        records.load()
        held = Locks(self.folder / "locks" if self.shared else None)
        boot_id = (self.root / "proc/sys/kernel/random/boot_id").read_text().strip()
        made = Preparer(
            driver=api.DRIVER_NAME,
            read=self._read,
            records=records,
            containers=self.containers,
            boot_id=boot_id,
            node=lambda: self.node,
            metrics=self.metrics,
            locks=held,
            patience=self._patience,
        )
        around = Surroundings(
            records=records,
            specs=self.containers.specs,
            locks=held,
            node=lambda: self.node,
            boot_id=boot_id,
            reclaim=self.reclaim,
        )
        reconciler = Reconciler(
            around=around,
            preparer=made,
            claims=self._list,
            reporter=_Reporter(self.told),
            metrics=self.metrics,
            clock=self.clock,
            chance=lambda: 0.5,
        )
        return SimpleNamespace(records=records, preparer=made, reconciler=reconciler)

    def _patience(self, deadline: float) -> Patience:
        return Patience(deadline, clock=self.clock, sleep=self.clock.sleep, chance=lambda: 0.5)

    def _list(self) -> list[dict[str, Any]]:
        if self.read_error is not None:
            raise self.read_error
        return list(self.claims.values())

    def process(self, number: int) -> SimpleNamespace:
        return self._processes[number % len(self._processes)]

    def end(self) -> None:
        """Wait for the threads of the processes, which end at their next step if the process is dead."""
        for process in self._processes:
            process.preparer.close()
        self._processes = []

    def close(self) -> None:
        self.end()
        if self.nvml is not None:
            self.nvml.close()


class _Reporter:
    def __init__(self, told: list) -> None:
        self._told = told

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self._told.append((name, args, kwargs))


# --- what happens to it --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Which node it happens to."""

    machine: str
    mig: str = "dynamic"
    mig_mode: str = ""
    shared: bool = False
    reclaim: bool = False


MIXED = "gpus:\n- {gpu: h100-80gb}\n- {gpu: t4}\n- {gpu: rtx-pro-6000}\n"

SCENARIOS = (
    Scenario(machine="1xh100-80gb"),
    Scenario(machine="2xh100-80gb", shared=True),
    Scenario(machine="1xa100-80gb", mig_mode="on"),
    Scenario(machine="2xa30", mig_mode="on"),
    Scenario(machine="2xrtx-pro-6000"),
    Scenario(machine="3xt4"),
    Scenario(machine=MIXED),
    Scenario(machine="1xh100-80gb", reclaim=True),
    Scenario(machine="1xh100-80gb", mig="static", mig_mode="on"),
)


@dataclass(slots=True, eq=False)
class Tracked:
    """A claim as the kubelet and its user know it.

    Attributes:
        ids: CDI ids of the last good answer; None while it is not prepared.
        uuids: device to the UUID that its containers see; emptied when others destroy what is behind it.
        body: the API object that it was prepared from.
        ending: an unprepare has been asked for and not yet been answered well.
    """

    ref: ClaimReference
    ids: dict[str, tuple[str, ...]] | None = None
    uuids: dict[str, str] = field(default_factory=dict)
    body: Any = None
    ending: bool = False
    record_damaged: bool = False
    spec_damaged: bool = False
    confused: bool = False
    admin: bool = False


class World:
    """A node, and those who make trouble."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        machine = scenario.machine
        if "\n" in machine:
            (folder / "machine.yaml").write_text(machine)
            machine = str(folder / "machine.yaml")
        self.chaos = Chaos(folder)
        self.scenario = scenario
        self.node = ChaosNode(
            folder=folder,
            machine=machine,
            mig=scenario.mig,
            mig_mode=scenario.mig_mode,
            shared=scenario.shared,
            reclaim=scenario.reclaim,
            chaos=self.chaos,
        )
        self.store = Store(self.node.state)
        self.tracked: list[Tracked] = []
        self.foreign: dict[int, tuple[int, int, int]] = {}
        self.counter = itertools.count()
        self.done = 0
        self.calls = 0
        self.kills = 0
        if scenario.mig == "static":
            self._make_static()

    def _make_static(self) -> None:
        for start in (0, 2, 4):
            self.node.simulate("instance", "create", "1g.10gb", "--gpu", "0", "--start", str(start))
            self.foreign[self._state().gpus[0].instances[-1].serial] = (0, 19, start)
        self.node.restart()

    def _state(self) -> Any:
        return self.store.read()

    # --- running ---------------------------------------------------------------------------------

    def run(self, operations: list[Operation]) -> None:
        """Do operations and check; AssertionError says what does not hold."""
        clocks = SimpleNamespace(monotonic=self.node.clock, sleep=self.node.clock.sleep)
        with (
            self.chaos.installed(),
            mock.patch.object(preparer, "time", clocks),
            mock.patch.object(locks, "time", clocks),
        ):
            for operation in operations:
                self.step(operation)
            self.step(("quiesce", 0, 0, 0))

    def step(self, operation: Operation) -> None:
        name, *numbers = operation
        try:
            getattr(self, f"do_{name}")(*numbers)
        except Killed:
            self.kills += 1
        self.done += 1
        if self.chaos.dead:
            self._restart()
        with self.chaos.aside():
            self._check_always()

    def _restart(self) -> None:
        """Start a process; it may be killed or fail while it starts, and is then started again."""
        for _ in range(5):
            self.node.end()
            self.chaos.dead = False
            try:
                self.node.restart()
            except Killed:
                self.kills += 1
            except RecordError:
                continue
            else:
                if self.node.node is not None:
                    return
        self.chaos.disarm()
        self.node.restart()

    # --- claims ----------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        with self.chaos.aside():
            known = self.node.node
            return (sorted(known.offer.devices) if known is not None else []) or ["gpu-0"]

    def _pick(self, number: int) -> Tracked | None:
        return self.tracked[number % len(self.tracked)] if self.tracked else None

    def _uid(self) -> str:
        return str(uuid.UUID(int=next(self.counter) + (1 << 100)))

    def _allocation(self, a: int, b: int, c: int) -> dict[str, Any]:
        names = self._names()
        wholes = [name for name in names if "-mig-" not in name]
        name = wholes[b % len(wholes)] if wholes and a % 5 == 0 else names[b % len(names)]
        kind = c % 10
        if kind == 0:
            # Mostly what somebody has.
            held = [device for one in self.tracked if one.ids for device in one.ids]
            return allocation(held[b % len(held)] if held and a % 3 else name, adminAccess=True)
        if kind in (1, 2):
            few = [names[0], names[len(names) // 2], *wholes[:1]]
            return allocation(few[b % len(few)], shareID=self._uid())
        if kind in (3, 4):
            return allocation(name, names[(b + 1 + c // 10) % len(names)])
        return allocation(name)

    def _add(self, name: str, allocated: dict[str, Any]) -> Tracked:
        uid = self._uid()
        name = name or f"claim-{uid[-6:]}"
        self.node.claims["ns", name] = {
            "metadata": {"namespace": "ns", "name": name, "uid": uid},
            "status": {"allocation": allocated},
        }
        self.tracked.append(Tracked(ref=ClaimReference(namespace="ns", name=name, uid=uid)))
        return self.tracked[-1]

    def do_allocate(self, a: int, b: int, c: int) -> None:
        self._add("", self._allocation(a, b, c))

    def do_prepare_new(self, a: int, b: int, c: int) -> None:
        if len(self.tracked) < 14:
            self._prepare([self._add("", self._allocation(a, b, c))], a)

    def do_prepare(self, a: int, b: int, c: int) -> None:
        if (one := self._pick(a)) is not None:
            self._prepare([one], b)

    def do_prepare_many(self, a: int, b: int, c: int) -> None:
        ones = [one for number in (a, b, c, a + b) if (one := self._pick(number))]
        if ones:
            self._prepare(ones, b)

    def do_burst(self, a: int, b: int, c: int) -> None:
        self._prepare([self._add("", self._allocation(1, b + i * (1 + a % 3), 9)) for i in range(1 + c % 5)], b)

    def do_unprepare(self, a: int, b: int, c: int) -> None:
        if (one := self._pick(a)) is not None:
            self._unprepare([one], b)

    def do_unprepare_many(self, a: int, b: int, c: int) -> None:
        ones = [one for number in (a, b, c) if (one := self._pick(number))]
        if ones:
            self._unprepare(ones, b)

    def do_unprepare_unknown(self, a: int, b: int, c: int) -> None:
        self._unprepare([Tracked(ref=ClaimReference(namespace="ns", name="nobody", uid=self._uid()))], a)

    def do_concurrent(self, a: int, b: int, c: int) -> None:
        ones = [one for i, number in enumerate((a, b, c)) if (one := self._pick(number + i))]
        calls = [self._unprepare if (a + b + c + i) % 3 == 0 else self._prepare for i in range(len(ones))]
        pairs = list(zip(calls, ones, strict=True))
        # What a claim is at the end that is prepared and unprepared at once, nobody can say.
        confused = [one for one in ones if len({call.__name__ for call, other in pairs if other is one}) > 1]
        for one in confused:
            one.confused = True
        try:
            self._together([lambda call=call, one=one, i=i: call([one], i) for i, (call, one) in enumerate(pairs)])
        finally:
            for one in confused:
                one.ids, one.uuids, one.ending, one.confused = None, {}, True, False

    def _together(self, acts: list[Callable[[], None]]) -> None:
        failures: list[BaseException] = []

        def guarded(act: Callable[[], None]) -> None:
            try:
                act()
            except BaseException as error:  # noqa: BLE001 (a kill is told to the main thread)
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for failure in sorted(failures, key=lambda error: isinstance(error, Killed)):
            raise failure

    def _body(self, one: Tracked) -> Any:
        """What the API has of a claim now; None where it is gone."""
        body = self.node.claims.get(("ns", one.ref.name))
        return body if body and body["metadata"]["uid"] == one.ref.uid else None

    def _is_live(self, one: Tracked) -> bool:
        return one.ids is not None and not one.ending and one.body == self._body(one)

    def _prepare(self, ones: list[Tracked], process: int) -> Any:
        bodies = [self._copy(self._body(one)) for one in ones]
        for one, body in zip(ones, bodies, strict=True):
            changed = body is None or body["status"] != (one.body or {}).get("status")
            # Without the API server the driver goes by what it has recorded.
            if one.ids is not None and changed and self.node.read_error is None:
                one.ids, one.uuids = None, {}
        answers = self._called("prepare", ones, process)
        if self.node.read_error is not None:
            bodies = [one.body or body for one, body in zip(ones, bodies, strict=True)]
        for one, body in zip(ones, bodies, strict=True):
            answer = answers[one.ref.uid]
            if isinstance(answer, Prepared):
                self._note_prepared(one, answer, body)
        return answers

    def _copy(self, body: Any) -> Any:
        return json.loads(json.dumps(body))

    def _note_prepared(self, one: Tracked, answer: Prepared, body: Any) -> None:
        if one.confused:
            return
        ids = {device.device_name: device.cdi_device_ids for device in answer.devices}
        if one.ids is not None:
            assert ids == one.ids, f"{one.ref} got other CDI ids: {one.ids} before, {ids} now"
        with self.chaos.aside():
            uuids = self._spec_uuids(one)
        if uuids is None:
            return
        for device, known in one.uuids.items():
            assert uuids.get(device) == known, f"{one.ref}: {device} was {known}, is {uuids.get(device)} now"
        one.ids, one.uuids, one.body, one.ending = ids, uuids, body or one.body, False
        one.admin = "adminAccess" in json.dumps(one.body)
        if one.admin:
            # What an admin sees goes when its owner does.
            one.uuids = {}
        one.spec_damaged = False

    def _spec_uuids(self, one: Tracked) -> dict[str, str] | None:
        path = self.node.containers.specs.path(one.ref.uid)
        try:
            entries = json.loads(path.read_text())["devices"]
        except FileNotFoundError:
            # A concurrent unprepare.
            return None
        variables = (dict(line.split("=", 1) for line in entry["containerEdits"]["env"]) for entry in entries)
        return {
            name: value
            for variable in variables
            for name, value in variable.items()
            if name.startswith("DRADRIVER_DEVICE_")
        }

    def _unprepare(self, ones: list[Tracked], process: int) -> None:
        for one in ones:
            one.ids, one.uuids, one.ending = None, {}, True
        answers = self._called("unprepare", ones, process)
        for one in ones:
            if answers[one.ref.uid] is None:
                one.ending = False

    def _called(self, operation: str, ones: list[Tracked], process: int) -> Any:
        self.calls += 1
        references = [one.ref for one in ones]
        call = getattr(self.node.process(process).preparer, operation)
        answers = call(references, deadline=self.node.clock() + CALL_SECONDS)
        assert set(answers) == {reference.uid for reference in references}
        for answer in answers.values():
            assert not (isinstance(answer, Failed) and "internal error" in answer.message), answer
        return answers

    # --- the API server --------------------------------------------------------------------------

    def do_delete(self, a: int, b: int, c: int) -> None:
        if (one := self._pick(a)) is not None and self._body(one):
            del self.node.claims["ns", one.ref.name]

    def do_recreate(self, a: int, b: int, c: int) -> None:
        if (one := self._pick(a)) is not None and len(self.tracked) < 14:
            self._add(one.ref.name, self._allocation(a, b, c))

    def do_reallocate(self, a: int, b: int, c: int) -> None:
        if (one := self._pick(a)) is not None and (body := self._body(one)):
            body["status"] = {"allocation": self._allocation(b, c, b)}

    def do_deallocate(self, a: int, b: int, c: int) -> None:
        if (one := self._pick(a)) is not None and (body := self._body(one)):
            body["status"] = {}

    def do_api_error(self, a: int, b: int, c: int) -> None:
        fields = {"reason": "", "message": "injected", "target": "GET claim"}
        self.node.read_error = (
            UnreachableError("GET claim: connection refused"),
            ServerError(status=503, **fields),
            ForbiddenError(status=403, **fields),
        )[a % 3]

    def do_api_back(self, a: int, b: int, c: int) -> None:
        self.node.read_error = None

    # --- failures --------------------------------------------------------------------------------

    def do_nvml_fault(self, a: int, b: int, c: int) -> None:
        self.chaos.arm(
            Shot(kind="nvml", after=a % 60, when=("early", "late")[b % 2], error=b // 2, times=1 + (c % 4 == 0) * 30)
        )

    def do_file_fault(self, a: int, b: int, c: int) -> None:
        self.chaos.arm(
            Shot(kind="file", after=a % 25, when=("early", "late")[b % 2], error=b // 2, times=1 + (c % 4 == 0) * 20)
        )

    def do_write_fault(self, a: int, b: int, c: int) -> None:
        self.chaos.arm(Shot(kind="write", after=a % 4, when=("short", "late")[b % 2], error=0))

    def do_kill_boundary(self, a: int, b: int, c: int) -> None:
        self.chaos.arm(Shot(kind="boundary", after=a % 8))

    def do_kill_nvml(self, a: int, b: int, c: int) -> None:
        self.chaos.arm(Shot(kind="nvml", after=a % 60, when=("early", "late")[b % 2]))

    def do_kill_file(self, a: int, b: int, c: int) -> None:
        self.chaos.arm(Shot(kind="file", after=a % 25, when=("early", "late")[b % 2]))

    def do_kill_write(self, a: int, b: int, c: int) -> None:
        self.chaos.arm(Shot(kind="write", after=a % 4, when=("short", "late")[b % 2]))

    def do_calm(self, a: int, b: int, c: int) -> None:
        self.chaos.disarm()

    # --- the machine -----------------------------------------------------------------------------

    def do_restart(self, a: int, b: int, c: int) -> None:
        self._restart()

    def do_reboot(self, a: int, b: int, c: int) -> None:
        self._admin(administration.reboot)
        self._instances_gone()
        for one in self.tracked:
            # The kubelet prepares anew what runs; until then the claim has nothing.
            one.ids = None
        self._restart()

    def do_reload(self, a: int, b: int, c: int) -> None:
        self._remove_processes()
        version = "580.105.08" if a % 3 else f"580.105.{10 + b % 80}"
        self._admin(lambda state: administration.driver_reload(state, version))
        self._instances_gone()
        if version != "580.105.08" or a % 2:
            self._restart()

    def do_lose(self, a: int, b: int, c: int) -> None:
        self._admin(lambda state: administration.lose(state, a % len(state.gpus)))

    def do_recover(self, a: int, b: int, c: int) -> None:
        self._recover()

    def _recover(self) -> None:
        for index in range(len(self._state().gpus)):
            self._admin(lambda state, index=index: administration.recover(state, index))
        if self.node.nvml is not None:
            self.node.nvml.renew()

    def do_process_add(self, a: int, b: int, c: int) -> None:
        index, gpu = self._gpu(a)
        filled = [instance for instance in gpu.instances if instance.compute]
        if gpu.mig and not filled:
            return
        instance = filled[b % len(filled)] if gpu.mig else None
        process = Process(
            pid=4000 + a % 5,
            gpu_instance=instance and instance.id,
            compute_instance=instance and instance.compute[0].id,
            memory_mib=0,
        )
        self._admin(lambda state: administration.add_process(state, index, process))

    def do_process_remove(self, a: int, b: int, c: int) -> None:
        self._remove_processes()

    def _remove_processes(self) -> None:
        for index, gpu in enumerate(self._state().gpus):
            for pid in {process.pid for process in gpu.processes}:
                self._admin(lambda state, index=index, pid=pid: administration.remove_process(state, index, pid=pid))

    # --- others ----------------------------------------------------------------------------------

    def do_foreign_make(self, a: int, b: int, c: int) -> None:
        """An administrator makes an instance where no claim has a place."""
        index, gpu = self._gpu(a)
        if not gpu.kind.mig_capable or not gpu.profiles:
            return
        profile = gpu.profiles[b % len(gpu.profiles)]
        starts = hardware.free_starts(gpu, profile)
        if not starts:
            return
        start = starts[c % len(starts)]
        size = next((one.size for one in [profile] if hasattr(one, "size")), 1)
        if self._claimed(gpu.uuid, start, size) or self._awaited(gpu):
            return
        if not gpu.mig:
            self._admin(lambda state: hardware.set_mig_mode(state, index, enabled=True)[0])
        self._admin(
            lambda state: administration.create_instance(state, index, profile=profile, start=start, bare=c % 3 == 0)[0]
        )
        for instance in self._state().gpus[index].instances:
            if instance.serial not in {one.serial for one in gpu.instances}:
                self.foreign[instance.serial] = (index, instance.profile, instance.start)

    def do_foreign_destroy(self, a: int, b: int, c: int) -> None:
        if self.foreign and self.scenario.mig != "static":
            serial = sorted(self.foreign)[a % len(self.foreign)]
            if self._destroy(self.foreign[serial][0], serial):
                del self.foreign[serial]

    def do_destroy_ours(self, a: int, b: int, c: int) -> None:
        index, gpu = self._gpu(a)
        ours = [one for one in gpu.instances if one.serial not in self.foreign]
        if not ours:
            return
        victim = ours[b % len(ours)]
        if self._destroy(index, victim.serial):
            gone = {compute.uuid for compute in victim.compute}
            for one in self.tracked:
                one.uuids = {name: value for name, value in one.uuids.items() if value not in gone}

    def _destroy(self, index: int, serial: int) -> bool:
        ident = next((one.id for one in self._state().gpus[index].instances if one.serial == serial), None)
        if ident is None:
            return True
        self._admin(lambda state: administration.destroy_instance(state, index, ident=ident))
        return all(one.serial != serial for one in self._state().gpus[index].instances)

    def _admin(self, change: Callable[[Any], Any]) -> None:
        with self.chaos.aside(), suppress(Refused):
            self.store.update(lambda state: (change(state), None))

    def _gpu(self, number: int) -> tuple[int, Any]:
        gpus = self._state().gpus
        return number % len(gpus), gpus[number % len(gpus)]

    def _claimed(self, gpu_uuid: str, start: int, size: int) -> bool:
        for record in self._disk_records():
            for device in record.plan.devices:
                place = device.placement
                if device.gpu_uuid != gpu_uuid:
                    continue
                if place is None or (place.start < start + size and start < place.start + place.size):
                    return True
        return any(one.record_damaged for one in self.tracked)

    def _awaited(self, gpu: Any) -> bool:
        """Tell whether a claim's partition is yet to be made: a foreign one could take the engines it needs."""
        there = {(one.profile, one.start) for one in gpu.instances}
        devices = [device for record in self._disk_records() for device in record.plan.devices]
        return any(
            device.gpu_uuid == gpu.uuid and device.make and (device.profile_id, device.placement.start) not in there
            for device in devices
        )

    def _instances_gone(self) -> None:
        static = self.scenario.mig == "static"
        self.foreign.clear()
        for one in self.tracked:
            one.uuids = {name: value for name, value in one.uuids.items() if not value.startswith("MIG-")}
        if static:
            for one in self.tracked:
                one.ids = None

    def do_damage_record(self, a: int, b: int, c: int) -> None:
        """Damage or remove the record of a prepared claim; its CDI spec is left to tell."""
        one = self._pick(a)
        if one is None or not self._is_live(one) or one.spec_damaged:
            return
        path = self.node.folder / "claims" / f"{one.ref.uid}.json"
        with self.chaos.aside():
            if not path.exists():
                return
            if b % 3 == 0:
                path.unlink()
            elif b % 3 == 1:
                path.write_bytes(path.read_bytes()[: c % 200])
            else:
                path.write_text("\udcff{}".encode("utf-8", "surrogateescape").decode("latin-1"))
        one.record_damaged = True
        if c % 2:
            self._restart()

    def do_delete_spec(self, a: int, b: int, c: int) -> None:
        one = self._pick(a)
        if one is None or one.record_damaged:
            return
        with self.chaos.aside():
            self.node.containers.specs.path(one.ref.uid).unlink(missing_ok=True)
        one.spec_damaged = True

    def do_round(self, a: int, b: int, c: int) -> None:
        self.node.clock.sleep(a % 90)
        try:
            self.node.process(b).reconciler.round()
        except RecordError:
            # The next round may be able to read the folder.
            assert self.chaos.fired

    # --- what must hold --------------------------------------------------------------------------

    def _disk_records(self) -> list[Any]:
        with self.chaos.aside():
            found = []
            for path in (self.node.folder / "claims").glob("*.json"):
                try:
                    found.append(decode(path.read_text()))
                except ValueError:
                    continue
            return found

    def _hardware_uuids(self) -> set[str]:
        return {compute.uuid for gpu in self._state().gpus for one in gpu.instances for compute in one.compute} | {
            gpu.uuid for gpu in self._state().gpus
        }

    def _check_always(self) -> None:
        records = self._disk_records()
        for one, other in itertools.combinations(records, 2):
            if one.boot_id != other.boot_id:
                continue
            for device in one.plan.devices:
                for held in other.plan.devices:
                    assert not device.conflicts_with(held), (
                        f"held twice: {held.device} by {one.plan} ({one.state}) and {other.plan} ({other.state})"
                    )
        self._check_foreign()
        uuids = self._hardware_uuids()
        for claim in self.tracked:
            if not self._is_live(claim):
                continue
            missing = {name: value for name, value in claim.uuids.items() if value not in uuids}
            assert not missing, f"{claim.ref} is prepared, but {missing} is gone"
            if not claim.spec_damaged:
                with self.chaos.aside():
                    there = self.node.containers.specs.path(claim.ref.uid).exists()
                assert there, f"the spec of {claim.ref} is gone"

    def _check_foreign(self) -> None:
        if self.scenario.reclaim:
            return
        there = {one.serial for gpu in self._state().gpus for one in gpu.instances}
        gone = {serial: place for serial, place in self.foreign.items() if serial not in there}
        assert not gone, f"foreign instances were destroyed: {gone}"

    # --- quiescence ------------------------------------------------------------------------------

    def do_quiesce(self, a: int, b: int, c: int) -> None:
        """All faults cleared, everything ended that should, and the reconciler run past its grace time."""
        self.chaos.disarm()
        self.node.read_error = None
        self._remove_processes()
        self._recover()
        offered = self.node.node is not None and len(self.node.node.gpus) == len(self._state().gpus)
        if self._leftovers() or not offered or self._driver_changed() or a % 4 == 0:
            self._restart()
        for index, one in enumerate(self.tracked):
            gone = self._body(one) is None or (one.ids is not None and not self._is_live(one))
            if self._is_live(one) or (gone and not one.ending and (index + a) % 2):
                continue
            self._end(one)
        self._rounds()
        self._check_clean(self._alive())
        for one in self._alive():
            before = dict(one.uuids)
            answer = self._prepare([one], a)[one.ref.uid]
            if one.admin and isinstance(answer, Failed) and "admin access only looks at what exists" in answer.message:
                self._end(one)
                continue
            assert isinstance(answer, Prepared), f"{one.ref} is lost: {answer}"
            assert before.items() <= one.uuids.items()
            one.record_damaged = False
        self._check_clean(self._alive())
        self._check_progress(b)
        self.tracked = self._alive()
        for name in [key for key in self.node.claims if all(one.ref.name != key[1] for one in self.tracked)]:
            del self.node.claims[name]

    def _alive(self) -> list[Tracked]:
        return [one for one in self.tracked if self._is_live(one)]

    def _leftovers(self) -> bool:
        """Let what a kill left unfinished be old, so that the next start removes it."""
        unfinished = list((self.node.folder / "claims").glob(".*.tmp"))
        for path in unfinished:
            os.utime(path, (0, 0))
        return bool(unfinished)

    def _driver_changed(self) -> bool:
        try:
            with self.chaos.aside():
                self.node.nvml.driver_version()
        except NvmlError:
            return True
        return False

    def _end(self, one: Tracked) -> None:
        for _ in range(2):
            self._unprepare([one], 0)
            if not one.ending:
                return
        answer = self._called("unprepare", [one], 0)[one.ref.uid]
        raise AssertionError(f"{one.ref} cannot be unprepared: {answer}")

    def _rounds(self) -> None:
        for _ in range(3):
            for number in range(1 + self.scenario.shared):
                self.node.process(number).reconciler.round()
            self.node.clock.sleep(GRACE_SECONDS + 1)

    def _check_clean(self, alive: list[Tracked]) -> None:
        uids = {one.ref.uid for one in alive}
        with self.chaos.aside():
            specs = self.node.containers.specs.identities()
            files = {path.name for path in self.node.folder.glob("c[ld]*/*") if path.is_file()}
        damaged = {one.ref.uid for one in alive if one.spec_damaged}
        assert specs - damaged == uids - damaged, f"CDI specs {specs}, prepared {uids}"
        known = {record.plan.uid for record in self.node.process(0).records.all()}
        assert known == uids, f"records {known}, prepared {uids}"
        prefix = self.node.containers.specs.path("").stem
        wanted = {f"{uid}.json" for uid in uids} | {f"{prefix}{uid}.json" for uid in uids}
        assert files <= wanted, f"files left behind: {sorted(files - wanted)}"
        self._check_instances()

    def _check_instances(self) -> None:
        places = {
            (device.gpu_uuid, device.profile_id, device.placement.start)
            for record in self.node.process(0).records.all()
            for device in record.plan.devices
            if device.placement is not None
        }
        for index, gpu in enumerate(self._state().gpus):
            for one in gpu.instances:
                if one.serial in self.foreign:
                    assert not self.scenario.reclaim, f"not reclaimed: {one}"
                else:
                    assert (gpu.uuid, one.profile, one.start) in places, f"GPU {index} has {one} of no claim"

    def _check_progress(self, number: int) -> None:
        """A device that is free can be had, and given back."""
        held = [device for record in self.node.process(0).records.all() for device in record.plan.devices]
        foreign = [(self._state().gpus[index].uuid, start) for index, _, start in self.foreign.values()]
        free = []
        for name, offered in sorted(self.node.node.offer.devices.items()):
            others = [device for device in held if device.gpu_uuid == offered.gpu.uuid and not device.admin_access]
            if others or any(place[0] == offered.gpu.uuid for place in foreign):
                continue
            free.append(name)
        if not free or self.scenario.mig == "static":
            return
        one = self._add("", allocation(free[number % len(free)]))
        answer = self._called("prepare", [one], 0)[one.ref.uid]
        assert isinstance(answer, Prepared), f"{free[number % len(free)]} is free, but: {answer}"
        assert self._called("unprepare", [one], 0)[one.ref.uid] is None
        self.tracked.remove(one)


# --- programs ------------------------------------------------------------------------------------

WEIGHTS = {
    "prepare_new": 16, "prepare": 10, "prepare_many": 4, "burst": 3, "allocate": 2,
    "unprepare": 10, "unprepare_many": 3, "unprepare_unknown": 1, "concurrent": 5,
    "delete": 3, "recreate": 2, "reallocate": 2, "deallocate": 1,
    "api_error": 1, "api_back": 3, "nvml_fault": 4, "file_fault": 3, "write_fault": 1,
    "kill_boundary": 3, "kill_nvml": 2, "kill_file": 2, "kill_write": 1, "calm": 3,
    "restart": 2, "reboot": 1, "reload": 1, "lose": 1, "recover": 2,
    "process_add": 2, "process_remove": 3, "foreign_make": 2, "foreign_destroy": 2, "destroy_ours": 2,
    "damage_record": 2, "delete_spec": 2, "round": 3, "quiesce": 3,
}  # fmt: skip


def program(seed: int, length: int) -> tuple[Scenario, list[Operation]]:
    """What a seed stands for."""
    chance = random.Random(seed)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    operations = [
        (name, chance.randrange(1000), chance.randrange(1000), chance.randrange(1000))
        for name in chance.choices(names, weights, k=length)
    ]
    return SCENARIOS[seed % len(SCENARIOS)], operations


def outcome(scenario: Scenario, operations: list[Operation], folder: Path) -> tuple[World, BaseException | None]:
    """Run a program on a new node."""
    folder.mkdir(parents=True)
    world = World(scenario, folder)
    try:
        world.run(operations)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is to be shrunk)
        return world, error
    finally:
        world.node.close()
    return world, None


def shrunk(
    operations: list[Operation], fails: Callable[[list[Operation]], bool], *, most_runs: int = 400
) -> list[Operation]:
    """Leave out what a failure does not need."""
    size = max(1, len(operations) // 2)
    runs = 0
    while size and runs < most_runs:
        start = 0
        while start < len(operations) and runs < most_runs:
            shorter = operations[:start] + operations[start + size :]
            runs += 1
            if fails(shorter):
                operations = shorter
            else:
                start += size
        size //= 2
    return operations


__all__ = ["POOL", "SCENARIOS", "Killed", "Scenario", "World", "outcome", "program", "shrunk"]
