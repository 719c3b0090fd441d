"""Slices that somebody deletes or edits, whatever we wrote just before: how soon they are right again."""

import random
import statistics
import time
from collections import defaultdict
from functools import partial

import pytest
from doubles.pools import counter_slice, device_slice, sick
from doubles.publishing import DRIVER, PATIENCE, until
from doubles.scheduler import view

from dradriver.kube import RESOURCE_SLICES, ConflictError, NotFoundError, PatchKind
from dradriver.publish import slice_name
from dradriver.resource import same_content, slice_spec

pytestmark = pytest.mark.control_plane

TURNS = 40
GPUS = 4


def offers(chance):
    """Some pool: GPUs with other sizes, other memory, taints here and there."""
    gpus = chance.randint(2, GPUS)
    parts = [
        device_slice(
            gpu,
            size=chance.choice((2, 2, 3)),
            memory=chance.choice((80, 80, 96)) * 2**30,
            taints=(sick(),) * chance.choice((0, 0, 1)),
        )
        for gpu in range(gpus)
    ]
    return (counter_slice(gpus), *parts)


class Vandal:
    """Somebody with all rights, who does one thing at a time."""

    def __init__(self, admin, offer, chance):
        self.admin, self.offer, self.chance = admin, offer, chance
        self.deeds = {
            "one deleted": self.delete_one,
            "all deleted": self.delete_all,
            "devices edited": self.edit_devices,
            "owner taken away": self.edit_owner,
            "generation edited": self.edit_generation,
            "count edited": self.edit_count,
            "deleted behind a finalizer": self.delete_with_finalizer,
        }

    def any_name(self):
        return self.chance.choice(self.offer.names())

    def delete_one(self):
        self.offer.delete(self.any_name())

    def delete_all(self):
        """As `kubectl delete resourceslices --all`, of this node only: other tests run beside us."""
        selector = f"spec.nodeName={self.offer.node}"
        self.admin._call("DELETE", RESOURCE_SLICES.path(), query={"fieldSelector": selector})

    def edit(self, name, *operations):
        self.admin.patch(RESOURCE_SLICES, name, operations, kind=PatchKind.JSON)

    def edit_devices(self):
        name = self.chance.choice(
            [item["metadata"]["name"] for item in self.offer.slices() if "devices" in item["spec"]]
        )
        self.edit(name, {"op": "remove", "path": "/spec/devices/0"})

    def edit_owner(self):
        self.edit(self.any_name(), {"op": "remove", "path": "/metadata/ownerReferences"})

    def edit_generation(self):
        self.edit(
            self.any_name(), {"op": "replace", "path": "/spec/pool/generation", "value": self.chance.randint(0, 90)}
        )

    def edit_count(self):
        self.edit(self.any_name(), {"op": "replace", "path": "/spec/pool/resourceSliceCount", "value": 77})

    def delete_with_finalizer(self):
        name = self.any_name()
        self.edit(name, {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/hold"]})
        self.offer.delete(name)
        self.edit(name, {"op": "remove", "path": "/metadata/finalizers"})


def is_right(offer, slices):
    """Whether the API server has exactly this, complete and owned."""
    items = offer.slices()
    names = [slice_name(number, driver=DRIVER, node_name=offer.node) for number in range(len(slices))]
    if [item["metadata"]["name"] for item in items] != names:
        return False
    pools = {str(item["spec"]["pool"]) for item in items}
    owned = all(item["metadata"].get("ownerReferences") for item in items)
    return len(pools) == 1 and owned and all(map(_same, items, slices))


def _same(item, content):
    return same_content(
        item["spec"], slice_spec(content, driver=DRIVER, node_name=item["spec"]["nodeName"], pool=item["spec"]["pool"])
    )


@pytest.mark.parametrize("seed", range(2))
def test_slices_are_right_again_soon_whatever_happened_before(offer, admin, seed):
    chance = random.Random(seed)
    vandal = Vandal(admin, offer, chance)
    slices = offers(chance)
    publisher = offer.publisher(slices)
    assert publisher.wait_published(PATIENCE)
    took, newest = defaultdict(list), 0
    for _ in range(TURNS):
        # Somebody who never pauses is another driver, and not raced.
        time.sleep(chance.random())
        deed = chance.choice([*vandal.deeds, "new offer", "new offer and one deleted"])
        if "new offer" in deed:
            slices = offers(chance)
            publisher.set_slices(slices)
        if deed != "new offer":
            # What we have just written may be on its way still: that is the moment at which others lose slices.
            with_luck(vandal.deeds.get(deed, vandal.delete_one))
        took[deed].append(until(partial(is_right, offer, slices)))
        (generation,) = offer.generations()
        assert generation >= newest
        newest = generation
        seen = view(offer.slices(), offer.node)
        assert seen is not None
        assert seen.problems == ()
    for deed, seconds in sorted(took.items()):
        middle, most = statistics.median(seconds), max(seconds)
        print(f"{deed}: {len(seconds)} times, right again after {middle:.3f} s, at most {most:.3f} s")
    assert publisher.wait_published(PATIENCE)


def with_luck(deed):
    """The publisher may be quicker than the vandal."""
    try:
        deed()
    except (ConflictError, NotFoundError, IndexError):
        return
