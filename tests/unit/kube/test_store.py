from hypothesis import given
from hypothesis import strategies as st

from dradriver.kube import Store, key_of, version_of


def thing(name, version, uid=None, **extra):
    return {"metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}, **extra}


def versions(store):
    return {key: version_of(item) for key, item in store.snapshot().items()}


def test_key_has_the_namespace_if_there_is_one():
    assert key_of({"metadata": {"name": "a"}}) == "a"
    assert key_of({"metadata": {"name": "a", "namespace": "n"}}) == "n/a"


def test_newer_objects_replace_older_ones_and_not_the_reverse():
    store = Store()
    assert store.put(thing("a", 5))
    assert not store.put(thing("a", 4))
    assert not store.put(thing("a", 5))
    assert store.put(thing("a", 6))
    assert versions(store) == {"a": 6}


def test_a_list_removes_what_it_lacks_but_not_what_is_newer():
    store = Store()
    store.put(thing("old", 5))
    store.put(thing("new", 12))
    assert store.replace([thing("b", 7)], "10")
    assert versions(store) == {"b": 7, "new": 12}


def test_a_lagging_list_is_ignored():
    store = Store()
    store.replace([thing("a", 9)], "10")
    assert not store.replace([], "8")
    assert versions(store) == {"a": 9}


def test_a_quorum_read_overtaken_by_the_watch_is_ignored():
    store = Store()
    store.replace([thing("a", 9)], "10")
    since = store.floor
    store.remove(thing("a", 15))
    assert not store.replace([thing("a", 9)], "12", since=since)
    assert versions(store) == {}


def test_a_quorum_read_of_a_restored_server_is_believed():
    store = Store()
    store.replace([thing("a", 900)], "1000")
    assert store.replace([thing("b", 4)], "5", since=store.floor)
    assert versions(store) == {"b": 4}
    assert store.put(thing("b", 6), watched=True)


def test_late_answer_to_a_write_does_not_bring_a_deleted_object_back():
    store = Store()
    store.replace([thing("a", 9)], "10")
    store.put(thing("a", 11), watched=True)
    store.remove(thing("a", 12))
    assert not store.put(thing("a", 11))
    assert versions(store) == {}


def test_late_deletion_of_a_namesake_spares_the_new_object():
    store = Store()
    store.put(thing("a", 20, uid="new"))
    assert not store.remove(thing("a", 12, uid="old"))
    assert versions(store) == {"a": 20}


def test_deletion_of_the_same_object_counts_whatever_its_version_says():
    store = Store()
    store.put(thing("a", 20))
    assert store.remove(thing("a", 20))
    assert store.get("a") is None


def test_what_we_deleted_does_not_come_back_with_old_news():
    store = Store()
    store.put(thing("a", 5))
    store.forget(thing("a", 5))
    assert not store.put(thing("a", 6), watched=True)
    store.replace([thing("a", 6)], "7")
    assert versions(store) == {}
    store.remove(thing("a", 8))
    assert store.put(thing("a", 9, uid="next"), watched=True)


def test_forgetting_spares_a_namesake():
    store = Store()
    store.put(thing("a", 5, uid="new"))
    store.forget(thing("a", 3, uid="old"))
    assert versions(store) == {"a": 5}


@given(st.data())
def test_any_mix_of_echoes_and_ordered_watch_ends_with_the_truth(data):
    """Own answers may arrive at any time after their write; the watch delivers in order."""
    steps = data.draw(st.lists(st.sampled_from(["a", "b", "-a", "-b"]), max_size=12))
    truth, history = {}, []
    for version, step in enumerate(steps, start=1):
        name = step[-1]
        if step.startswith("-"):
            if name in truth:
                history.append(("DELETED", thing(name, version, uid=truth.pop(name)[0])))
        else:
            uid = truth[name][0] if name in truth else f"{name}{version}"
            truth[name] = (uid, version)
            history.append(("MODIFIED", thing(name, version, uid=uid)))
    store = Store()
    for position, (kind, item) in enumerate(history):
        for late in history[: position + 1]:
            if late[0] == "MODIFIED" and data.draw(st.booleans()):
                store.put(late[1])
        if kind == "DELETED":
            store.remove(item)
        else:
            store.put(item, watched=True)
    assert versions(store) == {name: version for name, (_, version) in truth.items()}
