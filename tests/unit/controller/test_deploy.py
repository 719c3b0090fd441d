"""The controller's manifests agree with its code."""

import re
import tomllib

import yaml
from support.cluster import REPOSITORY

from controller.api import BRIDGES, decode_bridge
from controller.manager import LEASE


def rules():
    documents = yaml.safe_load_all((REPOSITORY / "deploy/controller-rbac.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_the_controller_has_the_rights_it_uses_and_no_others():
    role = rules()["ClusterRole", "dradriver-controller"]
    verbs = {resource: sorted(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}
    assert verbs == {
        BRIDGES.plural: ["create", "delete", "get", "list", "patch", "watch"],
        f"{BRIDGES.plural}/status": ["patch"],
        "deviceclasses": ["create", "delete", "get", "list", "patch", "watch"],
        "resourceslices": ["get", "list", "watch"],
        "resourceclaims": ["get", "list", "watch"],
        "nodes": ["get", "list", "watch"],
        "pods": ["list", "watch"],
        "resourcequotas": ["list", "watch"],
        "events": ["create"],
    }


def test_the_right_to_write_labels_can_be_left_out():
    found = rules()
    (rule,) = found["ClusterRole", "dradriver-controller-labels"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["nodes"], ["patch"])
    binding = found["ClusterRoleBinding", "dradriver-controller-labels"]
    assert binding["roleRef"]["name"] == "dradriver-controller-labels"
    assert binding["subjects"] == found["ClusterRoleBinding", "dradriver-controller"]["subjects"]


def test_it_may_write_its_own_lease_only():
    role = rules()["Role", "dradriver-controller"]
    granted = {(verb, *rule.get("resourceNames", ())) for rule in role["rules"] for verb in rule["verbs"]}
    assert granted == {("create",), ("get", LEASE), ("update", LEASE)}
    assert role["metadata"]["namespace"] == "dradriver"


def test_roles_are_bound_to_its_account():
    found = rules()
    account = found["ServiceAccount", "dradriver-controller"]["metadata"]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        binding = found[kind, "dradriver-controller"]
        assert binding["roleRef"]["name"] == "dradriver-controller"
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        ]


def test_the_console_script():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["dradriver-controller"] == "controller.__main__:main"


def documents(path):
    """YAML of a file: all of it, or the blocks of a page for people."""
    text = path.read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if path.suffix == ".md" else [text]
    return [each for block in blocks for each in yaml.safe_load_all(block) if isinstance(each, dict)]


def test_every_bridge_that_people_copy_keeps_apart_what_is_shared_under_a_name_of_its_own():
    pages = [*REPOSITORY.glob("deploy/**/*.yaml"), *REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "README.md"]
    bridges = [
        decode_bridge(each)
        for page in pages
        for each in documents(page)
        if each.get("kind") == BRIDGES.kind and "spec" in each
    ]
    assert {each.spec.resource_name for each in bridges} >= {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}
    for each in bridges:
        assert each.spec.select.renamed is each.spec.resource_name.endswith(".shared")
