"""Slices belong to their Node, as far as the API server and what stands before it allow."""

import pytest
from doubles.pools import node_slices

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid", "controller": True}
OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "other-uid"}


def change(references):
    """As a mutating webhook does."""

    def strip(item):
        if item["kind"] == "ResourceSlice":
            item["metadata"]["ownerReferences"] = references

    return strip


@pytest.mark.parametrize(
    "references", [[], [OWNER | {"blockOwnerDeletion": False}], [OWNER, OTHER]], ids=["none", "marked", "more"]
)
def test_a_webhook_that_changes_owners_is_not_fought(publish, server, references):
    server.strip = change(references)
    slices = node_slices()
    publisher = publish(slices)
    assert server.wait(lambda: publisher.published)
    assert len(server.writes) == len(slices)
    publisher.mark_dirty("test")
    assert server.wait(lambda: publisher.published)
    assert not server.wait(lambda: len(server.writes) > len(slices), timeout=0.3)


def test_an_owner_that_somebody_removes_is_put_back(publish, server):
    publisher = publish(node_slices())
    assert server.wait(lambda: publisher.published)
    name = server.names("resourceslices")[0]
    server.edit("resourceslices", name, lambda item: item["metadata"].pop("ownerReferences"))
    assert server.wait(lambda: owners(server, name) == [OWNER])


def test_a_webhook_that_undoes_a_new_offer_is_fought_slowly(publish, server):
    """Before an offer was ever published just as afterwards."""

    def strip(item):
        for device in item.get("spec", {}).get("devices", []):
            device.get("attributes", {}).pop("uuid", None)
            device.setdefault("attributes", {})["changed"] = {"int": server.version}

    server.strip = strip
    publish(node_slices())
    assert not server.wait(lambda: len(server.writes) > 150, timeout=3)


def owners(server, name):
    (found,) = (item for item in server.all("resourceslices") if item["metadata"]["name"] == name)
    return found["metadata"].get("ownerReferences")
