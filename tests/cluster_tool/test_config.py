# SPDX-License-Identifier: Apache-2.0
import dataclasses
import stat
import tomllib

import pytest
import yaml
from localcluster import controlplane, kubeconfig, node, spec
from localcluster.slots import Slot
from localcluster.spec import Wish


@pytest.fixture
def placed(made):
    return spec.placed(made, Slot(4))


def flags(command):
    return dict(word.removeprefix("--").partition("=")[::2] for word in command[1:])


def test_no_two_components_share_a_port(layout, placed):
    commands = controlplane.commands(layout, placed)
    ports = [
        flags(command).get("secure-port") for name, command in commands.items() if name not in {"etcd", "api-service"}
    ]
    assert len(set(ports)) == 3


@pytest.mark.parametrize("nodes", [0, 2])
def test_the_api_server_listens_to_this_machine_only(layout, nodes):
    made = spec.fresh(Wish(nodes=nodes), token="t")
    assert flags(controlplane.commands(layout, made)["kube-apiserver"])["bind-address"] == "127.0.0.1"


def test_with_nodes_what_is_advertised_is_listened_at(layout, placed):
    commands = controlplane.commands(layout, placed)
    apiserver = flags(commands["kube-apiserver"])
    advertised = f"{apiserver['advertise-address']}:{apiserver['secure-port']}"
    assert apiserver["advertise-address"] == placed.ports.address(0)
    assert advertised in commands["api-service"]


def test_alone_the_api_server_advertises_nothing(layout):
    alone = spec.fresh(Wish(nodes=0), token="t")
    apiserver = flags(controlplane.commands(layout, alone)["kube-apiserver"])
    assert apiserver["endpoint-reconciler-type"] == "none"


def test_etcd_asks_clients_and_peers_for_certificates_of_its_own_authority(layout, placed):
    etcd = flags(controlplane.commands(layout, placed)["etcd"])
    assert {"client-cert-auth", "peer-client-cert-auth"} <= set(etcd)
    authorities = {etcd["trusted-ca-file"], etcd["peer-trusted-ca-file"]}
    assert authorities == {f"{layout.certs}/etcd-ca.crt"}
    urls = [etcd[name] for name in etcd if name.endswith("-urls")]
    assert all(url.startswith("https://127.0.0.1:") for url in urls)
    assert len(urls) == 4


def test_the_api_server_shows_etcd_its_certificate(layout, placed):
    apiserver = flags(controlplane.commands(layout, placed)["kube-apiserver"])
    assert apiserver["etcd-servers"] == f"https://127.0.0.1:{placed.ports.etcd}"
    assert apiserver["etcd-certfile"] == f"{layout.certs}/etcd-client.crt"
    assert apiserver["etcd-keyfile"] == f"{layout.certs}/etcd-client.key"
    assert apiserver["etcd-cafile"] == f"{layout.certs}/etcd-ca.crt"


def test_every_component_has_a_port_to_be_seen_at(layout, placed):
    for name, command in controlplane.commands(layout, placed).items():
        assert any(str(controlplane.port_of(placed, name)) in word for word in command), name


def test_options_reach_the_control_plane(layout, placed):
    asked = dataclasses.replace(placed, emulate="1.35", feature_gates="A=true", runtime_config="api/all=true")
    commands = {name: flags(command) for name, command in controlplane.commands(layout, asked).items()}
    for name in ("kube-apiserver", "kube-scheduler", "kube-controller-manager"):
        assert commands[name]["emulated-version"] == "1.35"
        assert commands[name]["feature-gates"] == "A=true"
    assert commands["kube-apiserver"]["runtime-config"] == "api/all=true"
    assert "feature-gates" not in commands["etcd"]


def test_without_options_defaults_are_left_alone(layout, placed):
    for command in controlplane.commands(layout, placed).values():
        assert not {"emulated-version", "feature-gates", "runtime-config"} & set(flags(command))


def test_admission_and_authorization_are_those_of_a_real_cluster(layout, placed):
    apiserver = flags(controlplane.commands(layout, placed)["kube-apiserver"])
    assert apiserver["authorization-mode"] == "Node,RBAC"
    assert "NodeRestriction" in apiserver["enable-admission-plugins"]


def test_the_kubelet_config_says_where_it_lives(layout, placed):
    config = node.kubelet_config(layout, placed, "node-b")
    assert config["cgroupRoot"] == f"/dradriver-{layout.id}/node-b"
    assert config["address"] == placed.ports.address(1), "not on every network of the machine"
    assert config["port"] == placed.ports.kubelet(1)
    assert config["healthzPort"] == placed.ports.kubelet(1) + 1
    assert "featureGates" not in config


def test_gates_reach_the_kubelet(layout, placed):
    asked = dataclasses.replace(placed, feature_gates="A=true,B=false")
    assert node.kubelet_config(layout, asked, "node-a")["featureGates"] == {"A": True, "B": False}


def test_kubelets_share_no_port(layout, placed):
    ports = [
        node.kubelet_config(layout, placed, name)[key] for name in placed.node_names for key in ("port", "healthzPort")
    ]
    assert len(set(ports)) == 4


@pytest.mark.parametrize(("capable", "restrict"), [(True, False), (False, True)])
def test_containerd_config_is_toml_with_the_nodes_own_paths(layout, capable, restrict):
    config = tomllib.loads(node.containerd_config(layout, "node-a", capable=capable))
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cdi_spec_dirs"] == [str(layout.cdi("node-a"))]
    assert runtime["restrict_oom_score_adj"] is restrict
    assert runtime["netns_mounts_under_state_dir"] is True
    assert config["root"].startswith(str(layout.node("node-a")))
    assert config["imports"] == []


def test_pod_addresses_come_from_the_nodes_bridge(layout):
    (plugin,) = node.cni_config(layout, "node-b", subnet="10.104.1")["plugins"]
    assert plugin["bridge"].endswith("b")
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.104.1.0/24", "gateway": "10.104.1.1"}]]
    assert plugin["ipMasq"] is False


def test_everyone_gets_an_own_token(layout, placed):
    layout.certs.mkdir()
    (layout.certs / "ca.crt").write_text("certificate")
    tokens = kubeconfig.write_all(layout, placed)
    lines = [line.split(",") for line in tokens.read_text().splitlines()]
    assert len({line[0] for line in lines}) == len(lines)
    by_user = {line[1]: line for line in lines}
    assert by_user["admin"][0] == placed.admin_token
    assert by_user["system:node:node-z"][3] == '"system:nodes"'
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600


def test_kubeconfigs_are_valid_and_secret(layout, placed):
    layout.certs.mkdir()
    (layout.certs / "ca.crt").write_text("certificate")
    kubeconfig.write_all(layout, placed)
    for file in (layout.kubeconfig, kubeconfig.path(layout, "kubelet-node-a")):
        config = yaml.safe_load(file.read_text())
        assert config["clusters"][0]["cluster"]["server"] == f"https://127.0.0.1:{placed.ports.apiserver}"
        assert config["contexts"][0]["name"] == config["current-context"]
        assert config["contexts"][0]["context"]["user"] == config["users"][0]["name"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def ready_node(**spec_fields):
    return {"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": spec_fields}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, False),
        ({}, False),
        (ready_node(), True),
        (ready_node(taints=[{"key": "node.kubernetes.io/not-ready"}]), False),
        (ready_node(taints=[{"key": "someone/else"}]), True),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, False),
    ],
)
def test_a_node_is_ready_when_pods_can_go_there(layout, placed, monkeypatch, answer, expected):
    monkeypatch.setattr(node, "get", lambda *_: answer)
    assert node.ready(layout, placed, "node-a") is expected


@pytest.mark.parametrize(
    ("known", "expected"), [([], False), (["1"], False), (["1", "2"], True), (["1", "2", "3"], True)]
)
def test_a_kubelet_is_at_work_when_it_knows_its_running_pods(layout, placed, monkeypatch, known, expected):
    def pods(uids):
        return {"items": [{"metadata": {"uid": uid}} for uid in uids]}

    monkeypatch.setattr(node, "get", lambda _, __, path: pods(known if "proxy" in path else ["1", "2"]))
    assert node.knows_its_pods(layout, placed, "node-a") is expected


def test_a_kubelet_that_does_not_answer_is_not_at_work(layout, placed, monkeypatch):
    monkeypatch.setattr(node, "get", lambda _, __, path: None if "proxy" in path else {"items": None})
    assert not node.knows_its_pods(layout, placed, "node-a")


def test_pods_find_the_api_server_under_its_service_address(layout, placed):
    relay = controlplane.commands(layout, placed)["api-service"]
    assert relay[1] == f"{placed.ports.first_service}:443"
    assert relay[-1] == f"127.0.0.1:{placed.ports.apiserver}"
    alone = spec.fresh(Wish(nodes=0), token="t")
    assert "api-service" not in controlplane.commands(layout, alone)
