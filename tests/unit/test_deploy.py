"""The manifests agree with each other and with the code."""

from pathlib import Path

import yaml

from dradriver import api

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def documents(name):
    return {document["kind"]: document for document in yaml.safe_load_all((DEPLOY / name).read_text())}


def test_the_policy_is_for_the_account_that_has_the_rights():
    account = documents("rbac.yaml")["ServiceAccount"]["metadata"]
    (condition,) = documents("admission.yaml")["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert condition["expression"] == f'request.userInfo.username == "{user}"'


def test_the_policy_is_in_force_and_for_this_driver():
    found = documents("admission.yaml")
    policy, binding = found["ValidatingAdmissionPolicy"], found["ValidatingAdmissionPolicyBinding"]
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert f'variables.spec.driver == "{api.DRIVER_NAME}"' in [v["expression"] for v in policy["spec"]["validations"]]


def test_the_plugin_has_the_rights_it_uses_and_no_others():
    rules = documents("rbac.yaml")["ClusterRole"]["rules"]
    verbs = {resource: rule["verbs"] for rule in rules for resource in rule["resources"]}
    assert sorted(verbs["resourceslices"]) == ["create", "delete", "get", "list", "update", "watch"]
    assert sorted(verbs["nodes"]) == ["get", "list", "watch"]
    assert verbs["pods"] == ["get"]
