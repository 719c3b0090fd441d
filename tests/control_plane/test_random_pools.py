"""One thousand random nodes on a real API server, and nearly as many slices that break a rule: we judge as it does."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count, islice

import pytest
from doubles.mutants import CHANGES, mutant
from doubles.randompools import random_node
from support.manifests import request
from support.stage import INVALID, Stage

from dradriver.kube import RESOURCE_SLICES, InvalidError, Selector
from dradriver.publish import slice_name
from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    InvalidPoolError,
    Slice,
    lay_out,
    same_content,
    slice_spec,
    validate,
)

pytestmark = pytest.mark.control_plane

LABEL = "dradriver.dev/random"
POOLS = 1000
BATCH = 100


class Shelf:
    """Where slices are put for a while. Nodes need not exist: nobody but the scheduler asks for them.

    Attributes:
        driver: of the slices; nobody else's.
    """

    def __init__(self, admin):
        self.name = f"random-{secrets.token_hex(3)}"
        self.driver = f"{self.name}.dradriver.dev"
        self._admin = admin
        self._workers = ThreadPoolExecutor(8)

    def body(self, content: Slice, *, index: int, count: int, node: str):
        pool = {"name": node, "generation": 1, "resourceSliceCount": count}
        return {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {
                "name": slice_name(index, driver=self.driver, node_name=node),
                "labels": {LABEL: self.name},
            },
            "spec": slice_spec(content, driver=self.driver, node_name=node, pool=pool),
        }

    def put(self, bodies):
        for _ in self._workers.map(lambda body: self._admin.create(RESOURCE_SLICES, body), bodies):
            pass

    def refusals(self, contents):
        """What the API server says of slices, one by one, "" where it would store them."""
        bodies = (self.body(content, index=0, count=1, node="changed") for content in contents)
        return list(self._workers.map(self._refusal, bodies))

    def _refusal(self, body):
        try:
            self._admin.create(RESOURCE_SLICES, body, dry_run=True)
        except InvalidError as error:
            return str(error)
        return ""

    def read(self):
        """What is there now, by name."""
        items = self._admin.list(RESOURCE_SLICES, selector=Selector(labels=f"{LABEL}={self.name}")).items
        return {item["metadata"]["name"]: item for item in items}

    def clear(self):
        query = {"labelSelector": f"{LABEL}={self.name}"}
        self._admin._call("DELETE", RESOURCE_SLICES.path(), query=query, timeout=120)

    def close(self):
        self.clear()
        self._workers.shutdown()


@pytest.fixture
def shelf(admin) -> Iterator[Shelf]:
    made = Shelf(admin)
    yield made
    made.close()


@pytest.mark.parametrize("first", range(0, POOLS, BATCH))
def test_what_is_offered_of_random_nodes_is_stored_as_it_is(shelf, first):
    wanted = {}
    for seed in range(first, first + BATCH):
        node = random_node(seed)
        assert not node.offer.refused, seed
        slices = lay_out(node.pool)
        validate(slices)
        for index, content in enumerate(slices):
            body = shelf.body(content, index=index, count=len(slices), node=f"node-{seed}")
            wanted[body["metadata"]["name"]] = body
    shelf.put(wanted.values())
    stored = shelf.read()
    assert stored.keys() == wanted.keys()
    for name, body in wanted.items():
        assert same_content(stored[name]["spec"], body["spec"]), name
        assert stored[name]["spec"]["pool"] == body["spec"]["pool"]


# --- slices that break a rule -----------------------------------------------------------------------

STRICTER = {
    "amount of a counter": "a negative amount is stored, and means nothing",
    "amount of a consumed counter": "a device that gives something back when it is taken",
    "domain of an attribute": "upper case letters, and slashes, which nothing of ours needs",
}
"""Where we refuse what the API server stores, and what that is."""
SEEDS = 25
OF_THE_POOL = ("does not exist", "does not have")
"""Told of slices that do not fit together, which the API server does not look at. The scheduler does."""


@cache
def bases() -> tuple[tuple[Slice, ...], ...]:
    """Small pools with counters."""
    pools = (lay_out(random_node(seed).pool) for seed in count())
    fit = (slices for slices in pools if any(part.counter_sets for part in slices) and len(slices) <= 4)
    return tuple(islice((slices for slices in fit if any(part.devices for part in slices)), 20))


def problems(slices) -> tuple[str, ...]:
    try:
        validate(slices)
    except InvalidPoolError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_slice_is_judged_as_by_the_api_server(shelf, name):
    mutants = [mutant(name, seed, bases()[seed % len(bases())]) for seed in range(SEEDS)]
    refusals = shelf.refusals([slices[index] for slices, index in mutants])
    for (slices, _), refusal in zip(mutants, refusals, strict=True):
        found = problems(slices)
        own = [problem for problem in found if not any(text in problem for text in OF_THE_POOL)]
        assert found or not refusal, refusal
        assert not own or refusal or name in STRICTER, own
    assert any(refusals) or name in {"amount of a capacity", "the same taint twice", *STRICTER}


# --- slices that are sound one by one -----------------------------------------------------------------

SETS = Slice(counter_sets=(CounterSet(name="set", counters={"c": 2}),))
PLAIN = Device(name="plain", attributes={"type": "gpu"})


def taking(name: str, **counters: int) -> Slice:
    consumes = (CounterConsumption(counter_set=name, counters=counters),)
    return Slice(devices=(Device(name="counted", attributes={"type": "gpu"}, consumes=consumes),))


POOLS_OF_SOUND_SLICES = {
    "sound": (SETS, taking("set", c=1), Slice(devices=(PLAIN,))),
    "device-twice": (SETS, taking("set", c=1), Slice(devices=(PLAIN,)), Slice(devices=(PLAIN,))),
    "set-twice": (SETS, SETS, taking("set", c=1)),
    "no-such-set": (SETS, taking("other", c=1)),
    "no-such-counter": (SETS, taking("set", d=1)),
}


def test_pools_that_do_not_fit_together_are_refused_by_us_and_by_the_scheduler(admin, control_plane):
    with Stage(admin, control_plane.kubeconfig) as stage:
        stage.add_nodes(POOLS_OF_SOUND_SLICES)
        stage.add_pods({name: (name, [request("it", stage.gpu)]) for name in POOLS_OF_SOUND_SLICES})
        with stage.scheduler():
            verdicts = stage.verdicts(POOLS_OF_SOUND_SLICES)
    for name, slices in POOLS_OF_SOUND_SLICES.items():
        assert bool(problems(slices)) == (name != "sound")
        assert (INVALID in verdicts[name].reason) == (name != "sound"), verdicts[name]
