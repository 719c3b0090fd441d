"""Keeps what the node offers true: from GPUs, claims, configuration and API server to the slices that are published.

::

    gpus        which GPUs are there, which were, and what this driver itself has made on them
    holders     which devices claims hold: by the records of this node, and by the API server
    picture     all that decides what is offered, and what was made of it
    painting    how a picture is put together
    notes       what is wrong with an offer, in words
    verdicts    the same story for the kubelet
    offering    the thread that looks, computes and hands over to the publisher
"""

from dradriver.offering.offering import Around, Offering
from dradriver.offering.picture import Shown

__all__ = ["Around", "Offering", "Shown"]
