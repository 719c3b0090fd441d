import contextlib
import json
import time
from types import SimpleNamespace

import pytest
from doubles.apiserver import Fault

from dradriver.kube import (
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AlreadyExistsError,
    ApiError,
    ConflictError,
    GoneError,
    KubeError,
    NotFoundError,
    PatchKind,
    Selector,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
    Watch,
)


def node(name):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def claim(name, **extra):
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "n"},
        **extra,
    }


def test_create_get_replace_delete(client, server):
    created = client.create(RESOURCE_CLAIMS, claim("c", unknown={"kept": [1]}))
    assert created == client.get(RESOURCE_CLAIMS, "c", namespace="n")
    changed = client.replace(RESOURCE_CLAIMS, {**created, "unknown": 2})
    assert changed["unknown"] == 2
    with pytest.raises(ConflictError, match="resourceVersion"):
        client.replace(RESOURCE_CLAIMS, created)
    with pytest.raises(ConflictError):
        client.delete(RESOURCE_CLAIMS, "c", namespace="n", uid="another")
    client.delete(
        RESOURCE_CLAIMS,
        "c",
        namespace="n",
        uid=changed["metadata"]["uid"],
        resource_version=changed["metadata"]["resourceVersion"],
    )
    with pytest.raises(NotFoundError, match="resourceclaims/c: 404 NotFound"):
        client.get(RESOURCE_CLAIMS, "c", namespace="n")


def test_existing_name_is_its_own_error(client):
    client.create(NODES, node("a"))
    with pytest.raises(AlreadyExistsError):
        client.create(NODES, node("a"))


def test_writes_are_strict_and_name_their_manager(client, server):
    client.create(NODES, node("a"))
    client.patch(NODES, "a", {"metadata": {"labels": {"x": "y"}}})
    for write in server.writes:
        assert write.query == {"fieldValidation": "Strict", "fieldManager": "dradriver"}


def test_dry_run_changes_nothing(client, server):
    assert client.create(NODES, node("a"), dry_run=True)["metadata"]["name"] == "a"
    assert server.names("nodes") == []
    assert server.requests[-1].query["dryRun"] == "All"


@pytest.mark.parametrize("kind", list(PatchKind))
def test_patches_carry_their_media_type(client, server, kind):
    client.create(NODES, node("a"))
    body = {"metadata": {"name": "a", "annotations": {"x": "y"}}}
    if kind is PatchKind.APPLY:
        answer = client.apply(NODES, body, field_manager="me")
        assert server.requests[-1].query["fieldManager"] == "me"
        assert server.requests[-1].query["force"] == "true"
    else:
        answer = client.patch(NODES, "a", body, kind=kind)
    assert answer["metadata"]["annotations"] == {"x": "y"}
    assert server.requests[-1].headers["content-type"] == kind


def test_token_and_agent_are_sent(client, server):
    client.create(NODES, node("a"))
    assert server.requests[-1].headers["authorization"] == "Bearer secret"
    assert server.requests[-1].headers["user-agent"] == "dradriver"


def test_list_reads_all_pages_and_gives_items_their_type(client, server):
    for number in range(7):
        server.put("nodes", node(f"n{number}"))
    listing = client.list(NODES, limit=3)
    assert [item["metadata"]["name"] for item in listing.items] == [f"n{number}" for number in range(7)]
    assert {(item["kind"], item["apiVersion"]) for item in listing.items} == {("Node", "v1")}
    assert listing.resource_version == str(server.version)
    assert server.count() == 3


def test_list_starts_anew_when_its_snapshot_expires(client, server):
    for number in range(5):
        server.put("nodes", node(f"n{number}"))
    server.fail(Fault(status=410, reason="Expired"), when=lambda request: "continue" in request.query)
    assert len(client.list(NODES, limit=2).items) == 5
    assert ["continue" in request.query for request in server.requests] == [False, True, False, True, True]
    assert {request.query["limit"] for request in server.requests} == {"2"}, "never all of them at once"


def test_list_asks_for_everything_at_once_when_pages_expire_again_and_again(client, server):
    for number in range(5):
        server.put("nodes", node(f"n{number}"))
    for _ in range(3):
        server.fail(Fault(status=410, reason="Expired"), when=lambda request: "continue" in request.query)
    projected = client.list(NODES, limit=2, resource_version="0", project=lambda item: item["metadata"])
    assert sorted(item["name"] for item in projected.items) == [f"n{number}" for number in range(5)]
    assert server.requests[-1].query == {}


def test_list_asks_for_what_was_selected(client, server):
    selector = Selector(namespace="n", fields="spec.nodeName=a", labels="x=y")
    client.list(RESOURCE_CLAIMS, selector=selector, resource_version="0")
    assert server.requests[-1].path.endswith("/namespaces/n/resourceclaims")
    assert server.requests[-1].query == {
        "limit": "500",
        "resourceVersion": "0",
        "fieldSelector": "spec.nodeName=a",
        "labelSelector": "x=y",
    }


def test_retry_after_is_read_from_the_header(client, server):
    server.fail(Fault(status=429, reason="TooManyRequests", headers={"Retry-After": "17"}))
    with pytest.raises(TooManyRequestsError) as caught:
        client.get(NODES, "a")
    assert caught.value.retry_after == 17


def test_retry_after_may_be_a_date(client, server):
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))
    server.fail(Fault(status=503, headers={"Retry-After": date}))
    with pytest.raises(ServerError) as caught:
        client.get(NODES, "a")
    assert 3000 < (caught.value.retry_after or 0) <= 3600


@pytest.mark.parametrize("value", ["soon GMT", "GMT", "²", "", "nan", "-", "Fri, 99 Nov 2026 00:00:00 GMT"])
def test_retry_after_that_makes_no_sense_is_ignored(client, server, value):
    server.fail(Fault(status=503, headers={"Retry-After": value}))
    with pytest.raises(ServerError) as caught:
        client.get(NODES, "a")
    assert caught.value.retry_after is None


@pytest.mark.parametrize("value", ["1" + "0" * 30, "inf", "Fri, 01 Jan 9999 00:00:00 GMT"])
def test_nobody_waits_for_ever(client, server, value):
    server.fail(Fault(status=503, headers={"Retry-After": value}))
    with pytest.raises(ServerError) as caught:
        client.get(NODES, "a")
    assert caught.value.retry_after == 3600


@pytest.mark.parametrize("name", ["../a", "a/b", ".", "a b", "a%2f"])
def test_a_name_that_is_none_is_refused_before_it_is_sent(client, server, name):
    with pytest.raises(KubeError, match="not a name of a Kubernetes object"):
        client.get(NODES, name)
    with pytest.raises(KubeError):
        client.list(RESOURCE_CLAIMS, selector=Selector(namespace=name))
    with pytest.raises(KubeError, match="needs a namespace"):
        client.get(RESOURCE_CLAIMS, "c")
    assert server.count() == 0


@pytest.mark.parametrize(
    "document",
    [
        {"items": "text"},
        {"items": [1]},
        {"items": {"a": 1}},
    ],
)
def test_a_list_that_is_none_names_itself(client, server, document):
    server.fail(Fault(status=200, raw=json.dumps(document).encode()))
    with pytest.raises(ServerError, match="is that the API server"):
        client.list(NODES)


def test_metadata_that_make_no_sense_are_none(client, server):
    server.fail(Fault(status=200, raw=b'{"metadata": [1], "items": null}'))
    listing = client.list(NODES)
    assert (listing.items, listing.resource_version) == ((), "")


@pytest.mark.parametrize("line", [{"type": "ADDED", "object": [1]}, {"type": "ERROR", "object": {"code": "x"}}, {}])
def test_an_event_that_makes_no_sense_is_an_error_of_the_server(line):
    stream = SimpleNamespace(lines=lambda: iter([json.dumps(line).encode()]))
    with pytest.raises(ServerError):
        list(Watch(stream, target="WATCH x").events())


def test_an_answer_that_is_no_json_names_itself(client, server):
    server.fail(Fault(status=200, raw=b"<html>login please</html>"))
    with pytest.raises(ServerError, match="<html>login please"):
        client.get(NODES, "a")


def test_an_error_page_of_a_proxy_is_quoted(client, server):
    server.fail(Fault(status=502, raw=b"bad gateway"))
    with pytest.raises(ServerError, match="bad gateway"):
        client.get(NODES, "a")


def test_a_get_survives_one_broken_connection(client, server):
    server.put("nodes", node("a"))
    server.fail(Fault(reset=True))
    assert client.get(NODES, "a")["metadata"]["name"] == "a"
    server.fail(Fault(reset=True), times=2)
    with pytest.raises(UnreachableError, match="no answer from the API server"):
        client.get(NODES, "a")


def test_a_write_is_never_sent_twice(client, server):
    server.fail(Fault(late=True))
    with pytest.raises(UnreachableError):
        client.create(NODES, node("a"))
    assert server.names("nodes") == ["a"]
    assert len(server.writes) == 1


def test_a_silent_server_costs_the_time_out_once(client, server):
    server.fail(Fault(silent=True))
    with pytest.raises(UnreachableError, match=r"timed out|Timeout"):
        client.get(NODES, "a", timeout=0.2)
    assert server.count() == 1


def idle_connections(client, server, number):
    """Leave that many unused ones behind; returns their ports."""
    with contextlib.ExitStack() as stack:
        watches = [
            stack.enter_context(client.watch(RESOURCE_SLICES, resource_version="100", seconds=60))
            for _ in range(number)
        ]
        server.end_streams()
        for watch in watches:
            assert list(watch.events()) == []
    return {request.port for request in server.requests}


def test_connections_to_a_machine_that_has_vanished_cost_one_time_out_together(client, server):
    server.put("nodes", node("a"))
    dead = idle_connections(client, server, 3)
    assert len(dead) == 3
    server.fail(Fault(silent=True), when=lambda request: request.port in dead, times=float("inf"))
    with pytest.raises(UnreachableError):
        client.get(NODES, "a", timeout=0.2)
    assert client.get(NODES, "a")["metadata"]["name"] == "a"
    assert server.requests[-1].port not in dead


def test_a_watch_that_falls_silent_gives_the_other_connections_up(client, server):
    server.put("nodes", node("a"))
    dead = idle_connections(client, server, 3)
    server.fail(Fault(stream_silent=True))
    with client.watch(RESOURCE_SLICES, resource_version="100", seconds=60, silence=0.2) as watch:
        events = watch.events()
        with pytest.raises(UnreachableError):
            next(events)
    assert client.get(NODES, "a")["metadata"]["name"] == "a"
    assert server.requests[-1].port not in dead


def test_a_refused_connection_is_one_error(client, server):
    server.__exit__()
    with pytest.raises(UnreachableError) as caught:
        client.get(NODES, "a")
    assert str(caught.value).endswith(
        "/api/v1/nodes/a: no answer from the API server: NewConnectionError: "
        "Failed to establish a new connection: [Errno 111] Connection refused"
    )


def test_watch_delivers_events_and_bookmarks(client, server):
    start = str(server.version)
    with client.watch(RESOURCE_SLICES, resource_version=start, seconds=60) as watch:
        events = watch.events()
        made = server.put("resourceslices", {"metadata": {"name": "s"}})
        server.put("nodes", node("a"))
        event = next(events)
        assert (event.type, event.object) == ("ADDED", made)
        server.bookmark()
        mark = next(events)
        assert (mark.type, mark.object["metadata"]["resourceVersion"]) == ("BOOKMARK", str(server.version))
        server.end_streams()
        assert list(events) == []


def test_watch_asks_for_bookmarks_and_a_length(client, server):
    with client.watch(RESOURCE_SLICES, resource_version="100", seconds=300.4):
        pass
    query = server.requests[-1].query
    assert query["allowWatchBookmarks"] == "true"
    assert query["timeoutSeconds"] == "300"


@pytest.mark.parametrize("fault", [Fault(status=410, reason="Expired"), Fault(stream_status=410, reason="Expired")])
def test_an_expired_position_is_gone_wherever_it_is_said(client, server, fault):
    server.fail(fault)

    def follow():
        with client.watch(RESOURCE_SLICES, resource_version="1", seconds=60) as watch:
            list(watch.events())

    with pytest.raises(GoneError):
        follow()


def test_other_statuses_inside_a_watch_are_errors(client, server):
    server.fail(Fault(stream_status=500))
    with client.watch(RESOURCE_SLICES, resource_version="100", seconds=60) as watch:
        events = watch.events()
        with pytest.raises(ServerError):
            next(events)


def test_a_silent_watch_ends_with_the_read_time_out(client, server):
    server.fail(Fault(stream_silent=True))
    with client.watch(RESOURCE_SLICES, resource_version="100", seconds=0.1, silence=0.2) as watch:
        events = watch.events()
        with pytest.raises(UnreachableError):
            next(events)


def test_a_caller_s_own_error_is_not_blamed_on_the_connection(client, server):
    server.put("resourceslices", {"metadata": {"name": "s"}})

    def stumble():
        with client.watch(RESOURCE_SLICES, resource_version="100", seconds=60) as watch:
            for _ in watch.events():
                raise OSError("mine")

    with pytest.raises(OSError, match=r"^mine$"):
        stumble()


def test_bodies_are_compact_json(client, server):
    client.create(NODES, node("a"))
    assert int(server.requests[-1].headers["content-length"]) == len(json.dumps(node("a"), separators=(",", ":")))


def test_unknown_api_is_an_error_with_the_path(client, server):
    server.fail(Fault(status=405, raw=b"405: method not allowed"))
    with pytest.raises(ApiError, match="/api/v1/nodes/a: 405"):
        client.get(NODES, "a")


def test_a_projection_sees_each_object_once_and_its_results_are_the_list(server, client):
    for index in range(5):
        server.put("resourceslices", {"metadata": {"name": f"s{index}"}, "spec": {}})
    seen = []

    def project(item):
        seen.append(item["metadata"]["name"])
        return {"metadata": item["metadata"]}

    listing = client.list(RESOURCE_SLICES, limit=2, project=project)
    assert seen == [f"s{index}" for index in range(5)]
    assert all(set(item) == {"metadata"} for item in listing.items)


@pytest.mark.parametrize(("minor", "expected"), [("37", (1, 37)), ("36+", (1, 36))])
def test_the_servers_version(server, client, minor, expected):
    body = json.dumps({"major": "1", "minor": minor}).encode()
    server.fail(Fault(status=200, raw=body), when=lambda request: request.path == "/version")
    assert client.server_version() == expected


@pytest.mark.parametrize("body", [{}, {"major": "1", "minor": "x"}])
def test_what_has_no_version_is_no_api_server(server, client, body):
    server.fail(Fault(status=200, raw=json.dumps(body).encode()), when=lambda request: request.path == "/version")
    with pytest.raises(ServerError, match="is that the API server"):
        client.server_version()


def test_who_writes_can_be_told_with_a_patch(server, client):
    server.put("resourceslices", {"metadata": {"name": "s"}, "spec": {}})
    client.patch(RESOURCE_SLICES, "s", {"spec": {"x": 1}}, field_manager="somebody")
    assert server.writes[-1].query["fieldManager"] == "somebody"
