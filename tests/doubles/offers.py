"""What tests of the publisher on the API server's double share."""

import time

from doubles.apiserver import ApiServer, Recorded
from doubles.pools import DRIVER, NODE

from dradriver.kube import Backoff, Pace
from dradriver.publish import Publisher, Status, slice_name

QUICK = Pace(backoff=Backoff(initial=0.02, maximum=0.1))
OWN = [slice_name(number, driver=DRIVER, node_name=NODE) for number in range(20)]


class Counter:
    """A meter that remembers everything."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.failures: list[str] = []
        self.successes = 0

    def wrote(self, verb: str) -> None:
        self.writes.append(verb)

    def failed(self, reason: str) -> None:
        self.failures.append(reason)

    def published(self, _status: Status) -> None:
        self.successes += 1


class Clock:
    """Real time plus leaps, so that waiting threads still wake."""

    def __init__(self) -> None:
        self.leap = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.leap


def names(server: ApiServer) -> list[str]:
    return server.names("resourceslices")


def generations(server: ApiServer) -> set[int]:
    return {item["spec"]["pool"]["generation"] for item in server.all("resourceslices")}


def on_slices(request: Recorded) -> bool:
    return "resourceslices" in request.path


def is_write(request: Recorded) -> bool:
    return request.is_write


def is_post(request: Recorded) -> bool:
    return request.method == "POST"


def settled(server: ApiServer, publisher: Publisher) -> int:
    """Wait until a pass has seen everything that happened so far; returns the number of writes until then."""
    meter = publisher._meter
    assert isinstance(meter, Counter)
    before = meter.successes
    publisher.mark_dirty("test")
    assert server.wait(lambda: meter.successes > before)
    return len(server.writes)
