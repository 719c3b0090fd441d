"""What a node would publish, computed and printed without a cluster."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dradriver import api
from dradriver.commands import printing
from dradriver.commands.wishes import CommandError, Form, Wishes
from dradriver.gpu.model import Gpu
from dradriver.gpu.offer import Offer, make_offer
from dradriver.nodeconfig import Wanted
from dradriver.offering import notes
from dradriver.offering.picture import Picture
from dradriver.publish import Features, slice_name
from dradriver.reporting import Note
from dradriver.resource import InvalidPoolError, Slice, lay_out, validate


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a node would publish.

    Attributes:
        slices: by name, in order.
        offer: what the names of their devices stand for.
        notes: what is not as it should be.
    """

    slices: Mapping[str, Slice]
    offer: Offer
    notes: tuple[Note, ...]

    @property
    def summary(self) -> str:
        """How much it is."""
        devices = sum(len(content.devices) for content in self.slices.values())
        sets = sum(len(content.counter_sets) for content in self.slices.values())
        gpus = len(self.offer.gpus)
        parts = [_count(len(self.slices), "slice"), _count(devices, "device"), _count(sets, "counter set")]
        left_out = f", {len(self.offer.refused)} of them refused" if self.offer.refused else ""
        return f"{', '.join(parts)} of {_count(gpus, 'GPU')}{left_out}, in pool {self.offer.pool.name}"


def features(wishes: Wishes) -> Features:
    """Say what an API server of the wanted layout keeps when all its gates are on."""
    return Features(layout=wishes.layout, taints=True, informational_taints=True)


def empty_picture(wishes: Wishes, gpus: Iterable[Gpu], numbers: Mapping[str, int]) -> Picture:
    """Describe a node on which no claim holds anything.

    Args:
        wishes: what it offers.
        gpus: in the order of their bus ids.
        numbers: UUID to the number in device names.
    """
    return Picture(
        gpus=tuple(gpus),
        numbers=numbers,
        wanted=Wanted(policy=wishes.policy, settled=True),
        features=features(wishes),
        absent=frozenset(),
        gone=frozenset(),
        held={},
    )


def publish(picture: Picture, wishes: Wishes) -> Published:
    """Compute, by the plugin's own rules.

    Raises:
        CommandError: no API server would take the slices.
    """
    offer = make_offer(
        picture.gpus,
        pool=wishes.node_name,
        policy=wishes.policy,
        numbers=picture.numbers,
        situation=picture.situation,
    )
    slices = lay_out(offer.pool, wishes.layout)
    try:
        validate(slices, wishes.layout)
    except InvalidPoolError as error:
        raise CommandError(f"the API server would refuse these slices: {error}; please report this") from error
    names = (slice_name(index, driver=api.DRIVER_NAME, node_name=wishes.node_name) for index in range(len(slices)))
    return Published(
        slices=dict(zip(names, slices, strict=True)),
        offer=offer,
        notes=tuple(notes.of_offer(picture, offer).values()),
    )


def show(found: Published, wishes: Wishes, *, more: Iterable[Note] = (), command: str) -> int:
    """Print the slices on stdout, what is to be said of them on stderr; gives the exit status.

    Args:
        found: what is printed.
        wishes: how.
        more: notes of things that keep GPUs from being published at all.
        command: who says it.
    """
    missing = tuple(more)
    if wishes.form is Form.TABLE:
        text = printing.table(found.slices, found.offer)
    else:
        write = printing.as_yaml if wishes.form is Form.YAML else printing.as_json
        text = write(printing.manifests(found.slices, node_name=wishes.node_name))
    printing.write(text)
    for note in (*missing, *found.notes):
        print(f"{command}: {note.text}", file=sys.stderr)
    print(f"{command}: {found.summary}", file=sys.stderr)
    return 1 if missing or found.offer.refused else 0


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
