"""What --apply makes of answers. The double takes an apply for a merge; tests/control_plane sees the real thing."""

from contextlib import closing

import pytest
from doubles.apiserver import ApiServer, Fault
from doubles.deviceplugin import node, plan, quota

from controller.cli.applying import What, apply
from controller.cli.wanted import config_map
from dradriver.kube.connection import connect

TEXTS = {"default": "version: v1", "cut": "flags: {migStrategy: mixed}"}
PLAN = plan(TEXTS, node("a", gpu=8), node("b", config="cut", gpu=1), quota("q", {"requests.nvidia.com/gpu": 8}))
BRIDGE, MAP = "ExtendedResourceBridge gpu", "ConfigMap dradriver/dradriver-node-config"
QUOTA = "ResourceQuota ml/q-claims"


@pytest.fixture
def api():
    with ApiServer() as server:
        for name in ("a", "b"):
            server.put("nodes", node(name))
        yield server


@pytest.fixture
def applied(api, tmp_path):
    def call(made=PLAN, **more):
        with closing(connect(api.kubeconfig(tmp_path), user_agent="test")) as client:
            return {one.object: one for one in apply(client, made, **more)}

    return call


def put_all(api, made=PLAN):
    """Let everything be there as the plan wants it."""
    for body in made.bridges:
        api.put("extendedresourcebridges", body)
    metadata = {"name": "dradriver-node-config", "namespace": "dradriver"}
    text = {"nodes.yaml": config_map(made)["data"]["nodes.yaml"]}
    api.put("configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": text})
    for body in made.limits.quotas:
        api.put("resourcequotas", body)
    api.put("nodes", node("b", labels={"dradriver.dev/config": "cut"}))


def failing(api, status, reason, part, message="because"):
    fault = Fault(status=status, reason=reason, message=message)
    api.fail(fault, when=lambda request: request.method == "PATCH" and part in request.path, times=9)


def test_everything_that_is_there_is_unchanged(api, applied):
    put_all(api)
    found = applied(quotas=True)
    assert {name: one.what for name, one in found.items()} == dict.fromkeys(
        [BRIDGE, MAP, "Node a", "Node b", QUOTA], What.UNCHANGED
    )
    assert not any(one.told for one in found.values())
    # What needs no write gets none: others may be its only owners.
    assert sorted(request.path.rpartition("/")[2] for request in api.writes) == ["gpu", "q-claims"]


def test_every_write_says_who_we_are_and_forces_nothing(api, applied):
    put_all(api)
    api.put("nodes", node("b"))
    assert applied()["Node b"].what is What.CHANGED
    queries = [request.query for request in api.writes]
    assert queries
    for query in queries:
        assert (query["fieldManager"], query["force"]) == ("dradriver-plan", "false")
        assert "dryRun" not in query
        assert query["fieldValidation"] == "Strict"


def test_every_write_of_a_dry_run_is_one(api, applied):
    applied(dry_run=True, quotas=True)
    patches = [request for request in api.requests if request.method == "PATCH"]
    assert {request.query.get("dryRun") for request in patches} == {"All"}


def test_without_the_namespace_the_next_step_is_told(applied):
    found = applied()[MAP]
    assert found.what is What.LEFT
    assert "make the namespace dradriver (kubectl apply -f deploy/rbac.yaml)" in found.told


@pytest.mark.parametrize(
    ("part", "name", "step"),
    [
        ("extendedresourcebridges/", BRIDGE, "see who changes it at this moment, and apply again"),
        ("configmaps/", MAP, "put the node configurations of the plan into it by hand"),
        ("nodes/", "Node b", "see who sets the label dradriver.dev/config"),
        ("resourcequotas/", QUOTA, "see who changes it at this moment, and apply again"),
    ],
)
def test_a_conflict_is_told_with_the_next_step_and_the_rest_goes_on(api, applied, part, name, step):
    put_all(api)
    api.put("nodes", node("b"))
    text = "kind: NodeConfigs\napiVersion: dradriver.dev/v1alpha1\nconfigs: {default: {}, cut: {}}"
    metadata = {"name": "dradriver-node-config", "namespace": "dradriver"}
    api.put("configmaps", {"kind": "ConfigMap", "metadata": metadata, "data": {"nodes.yaml": text}})
    failing(api, 409, "Conflict", part, 'conflict with "kubectl-edit": .data')
    found = applied(quotas=True)
    assert found[name].what is What.LEFT
    assert 'somebody else has set it otherwise (conflict with "kubectl-edit": .data)' in found[name].told
    assert step in found[name].told
    left = {other for other, one in found.items() if one.what is What.LEFT}
    # Without the configuration a label would mean nothing.
    assert left == ({MAP, "Node a", "Node b"} if name == MAP else {name})


def bridge(select, mode="Enabled", name="gpu", resource="nvidia.com/gpu", manager=""):
    metadata = {"name": name, **({"managedFields": [{"manager": manager}]} if manager else {})}
    spec = {"resourceName": resource, "select": select, "mode": mode}
    return {"kind": "ExtendedResourceBridge", "metadata": metadata, "spec": spec}


def conflicting(api, field):
    """Refuse what has that field in it, as where somebody else has set it."""
    fault = Fault(status=409, reason="Conflict", message=f'conflict with "kubectl": .spec.{field}')
    api.fail(
        fault,
        when=lambda request: request.method == "PATCH" and "/gpu" in request.path and field in request.body["spec"],
        times=9,
    )


def test_a_conflict_about_the_mode_leaves_the_mode_alone_and_writes_the_rest(api, applied):
    put_all(api)
    api.put("extendedresourcebridges", bridge({"type": "gpu"}))
    conflicting(api, "mode")
    found = applied()[BRIDGE]
    assert (found.what, found.failed) == (What.PARTLY, True)
    spec = api.objects["extendedresourcebridges", "", "gpu"]["spec"]
    assert (spec["mode"], spec["select"]) == ("Enabled", {"type": "gpu", "renamed": False})
    assert "spec.mode is Enabled and the plan wants WhenReady (as it is, the name is served before" in found.told
    assert "renamed" not in found.told
    patch = '\'{"spec":{"mode":"WhenReady"}}\''
    assert f"kubectl patch erb gpu --type=merge -p {patch}; its other fields are as planned" in found.told
    again = applied()[BRIDGE]
    assert (again.what, again.failed) == (What.LEFT, True)
    assert f"leave it so, or set what the plan wants: kubectl patch erb gpu --type=merge -p {patch}" in again.told


def test_what_others_select_is_never_mixed_with_what_the_plan_selects(api, applied):
    put_all(api)
    theirs = {"type": "mig", "cel": "true"}
    api.put("extendedresourcebridges", bridge(theirs))
    conflicting(api, "select")
    found = applied()[BRIDGE]
    assert found.what is What.LEFT
    assert api.objects["extendedresourcebridges", "", "gpu"]["spec"]["select"] == theirs
    for part in (
        "spec.select.type is mig and the plan wants gpu",
        "spec.select.renamed is not set and the plan wants false",
        "spec.select.cel is true and the plan wants nothing there",
        "spec.mode is Enabled and the plan wants WhenReady",
        '{"spec":{"select":{"type":"gpu","renamed":false,"cel":null},"mode":"WhenReady"}}',
    ):
        assert part in found.told


def test_a_bridge_of_an_earlier_plan_is_told_and_left(api, applied):
    put_all(api)
    for name, manager in (("old", "dradriver-plan"), ("theirs", "kubectl")):
        api.put("extendedresourcebridges", bridge({"type": "gpu"}, "Enabled", name, f"nvidia.com/{name}", manager))
    found = applied()
    assert "ExtendedResourceBridge theirs" not in found
    old = found["ExtendedResourceBridge old"]
    assert (old.what, old.failed) == (What.STALE, False)
    assert old.told.endswith("where nobody needs it, delete it: kubectl delete erb old")
    assert ("extendedresourcebridges", "", "old") in api.objects


def test_a_quota_of_an_earlier_plan_is_told_where_quotas_are_written(api, applied):
    put_all(api)
    for namespace, name, manager in (
        ("ml", "old", "dradriver-plan"),
        ("ml", "theirs", "kubectl"),
        ("x", "q-claims", ""),
    ):
        metadata = {"namespace": namespace, "name": name, "managedFields": [{"manager": manager}]}
        api.put("resourcequotas", {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {}}})
    assert "ResourceQuota ml/old" not in applied()
    found = applied(quotas=True)
    assert {"ResourceQuota ml/theirs", "ResourceQuota x/q-claims"}.isdisjoint(found)
    old = found["ResourceQuota ml/old"]
    assert (old.what, old.failed) == (What.STALE, False)
    assert old.told.endswith("delete it: kubectl delete resourcequota old -n ml")
    assert found[QUOTA].what is What.UNCHANGED


def test_bridges_of_an_earlier_plan_are_told_by_a_plan_without_any(api, applied):
    api.put("extendedresourcebridges", bridge({"type": "gpu"}, manager="dradriver-plan"))
    assert applied(plan({}, fallbacks=()))[BRIDGE].what is What.STALE


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [(422, "Invalid", "no"), (500, "", ".spec.select.renamed: field not declared in schema")],
)
def test_a_crd_that_is_older_is_told(api, applied, status, reason, message):
    failing(api, status, reason, "extendedresourcebridges/", message)
    assert "bring it up to date and apply again: kubectl apply -f deploy/crds" in applied()[BRIDGE].told


def test_a_refusal_is_told_as_it_is(api, applied):
    put_all(api)
    failing(api, 403, "Forbidden", "extendedresourcebridges/", "you must not")
    told = applied()[BRIDGE].told
    assert "you must not" in told
    assert told.endswith("see to that and apply again")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("/nodes", "Nodes"),
        ("/resourcequotas/", QUOTA),
        ("/configmaps/", MAP),
        ("/extendedresourcebridges", "ExtendedResourceBridges"),
    ],
)
def test_what_cannot_be_read_is_told_and_not_written(api, applied, part, name):
    put_all(api)
    fault = Fault(status=403, reason="Forbidden")
    api.fail(fault, when=lambda request: request.method == "GET" and part in request.path, times=9)
    found = applied(quotas=True)[name]
    assert found.what is What.LEFT
    assert found.told.startswith("cannot be read, so nothing was written: ")
    assert not any(part in request.path for request in api.writes)


def test_a_cluster_without_the_crd_is_told(api, applied):
    missing = Fault(status=404, reason="NotFound")
    api.fail(missing, when=lambda request: "extendedresourcebridges" in request.path, times=9)
    assert "kubectl apply -f deploy/crds" in applied()["ExtendedResourceBridges"].told


def test_a_node_that_is_gone_is_not_made_anew(api, applied):
    put_all(api)
    api.put("nodes", node("b"))
    applied()
    (write,) = [request for request in api.writes if "/nodes/" in request.path]
    assert write.body["metadata"]["uid"] == api.objects["nodes", "", "b"]["metadata"]["uid"]


def test_an_empty_plan_writes_nothing(api, applied):
    assert applied(plan({}, fallbacks=())) == {}
    assert not api.writes
