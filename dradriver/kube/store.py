"""What we know of some objects: the newest of everything seen, wherever it came from."""

import threading
from collections.abc import Iterable

from dradriver.kube.resources import Object


class Store:
    """Newest known state of the objects of one selection. Safe to share between threads.

    Three sources tell of the same objects: the watch, lists, and the answers to our own writes. They arrive in any
    order, so everything is compared by resourceVersion (an ordered number for one resource, by API contract since
    1.35 and in fact ever since): what is older than what is known is ignored. A cache that preferred its own last
    write for some time is how other drivers lose deleted slices for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        self._floor = 0
        self._deleted: set[str] = set()

    def snapshot(self) -> dict[str, Object]:
        """Objects by key (see `key_of`). The dict is the caller's, the objects are not to be changed."""
        with self._lock:
            return dict(self._objects)

    def get(self, key: str) -> Object | None:
        """One object, or None."""
        with self._lock:
            return self._objects.get(key)

    @property
    def floor(self) -> int:
        """The version up to which this store knows everything; ask before a quorum read, see `replace`."""
        with self._lock:
            return self._floor

    def replace(self, items: Iterable[Object], resource_version: str, *, since: int | None = None) -> bool:
        """Take over a list.

        Args:
            items: all objects of the selection.
            resource_version: of the list.
            since: for a quorum read, the `floor` before it was sent. If the list is even older than that, the
                server's history was set back (restored from a backup) and the list is believed. Any other list
                that is older than the floor was overtaken by the watch or comes from a server that lags behind.

        Returns:
            False if the list is older than what is known, and was ignored.
        """
        version = int(resource_version or 0)
        with self._lock:
            restored = since is not None and version < since
            if version < self._floor and not restored:
                return False
            self._objects = _merged({} if restored else self._objects, items, version=version)
            self._floor = version
            # A list that no longer shows what we deleted needs no further guard against old news of it.
            self._deleted &= {_uid(item) for item in self._objects.values()}
            for key in [key for key, item in self._objects.items() if _uid(item) in self._deleted]:
                del self._objects[key]
            return True

    def put(self, item: Object, *, watched: bool = False) -> bool:
        """Take over an object; False if it is old news.

        Args:
            item: the object.
            watched: it came from the watch, whose order is the history's, and not as an answer to a call.
        """
        key, version = key_of(item), version_of(item)
        with self._lock:
            known = self._objects.get(key)
            news = version > (self._floor if known is None else version_of(known))
            if watched:
                self._floor = max(self._floor, version)
            if not news or _uid(item) in self._deleted:
                return False
            self._objects[key] = item
            return True

    def remove(self, item: Object) -> bool:
        """Take over a DELETED event; False if it is old news, for instance of a namesake in the past."""
        key, version = key_of(item), version_of(item)
        with self._lock:
            # Thereby the late answer to a write of ours before the deletion does not bring the object back.
            self._floor = max(self._floor, version)
            self._deleted.discard(_uid(item))
            known = self._objects.get(key)
            if known is None or (_uid(known) != _uid(item) and version_of(known) > version):
                return False
            del self._objects[key]
            return True

    def forget(self, item: Object) -> None:
        """The server said that this very object (uid) is gone: later news of it can only be old."""
        key = key_of(item)
        with self._lock:
            known = self._objects.get(key)
            if known is not None and _uid(known) == _uid(item):
                del self._objects[key]
                self._deleted.add(_uid(item))


def key_of(item: Object) -> str:
    """`name`, or `namespace/name`."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def version_of(item: Object) -> int:
    """The object's resourceVersion as the ordered number it is."""
    return int(item["metadata"].get("resourceVersion") or 0)


def _uid(item: Object) -> str:
    return str(item["metadata"].get("uid", ""))


def _merged(known: dict[str, Object], items: Iterable[Object], *, version: int) -> dict[str, Object]:
    """The list, except where something newer than the list is known."""
    newer = {key: item for key, item in known.items() if version_of(item) > version}
    return {key_of(item): item for item in items} | newer
