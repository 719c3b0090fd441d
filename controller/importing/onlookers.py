"""Who looks at GPUs from outside: autoscalers and exporters, which read of nodes what is not there after the move.

Sources: Karpenter 1.14 and 1.15 (kubernetes-sigs/karpenter#3231); the Cluster Autoscaler's check for nodes with GPU
labels; dcgm-exporter 4.8.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from controller.importing.assigned import gpu_nodes
from controller.importing.cluster import Cluster, Node
from controller.importing.gaps import Gap, Weight

_KARPENTER: Final = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")
_PROVIDERS: Final = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
    "accelerator",
)
"""Labels by which the Cluster Autoscaler knows nodes that are to have GPUs."""
_THROUGH_DRA: Final = ("cloud.google.com/gke-gpu-dra-driver", "cloud.google.com/gke-nvidia-gpu-dra-driver")


def gaps(cluster: Cluster) -> Iterator[Gap]:
    """Tell whom it touches; nothing where none was seen."""
    nodes = list(gpu_nodes(cluster))
    yield from _karpenter([node for node in nodes if _has(node.labels, _KARPENTER)])
    yield from _labels(
        [node for node in nodes if _has(node.labels, _PROVIDERS) and not _has(node.labels, _THROUGH_DRA)]
    )
    if cluster.autoscalers:
        yield Gap(
            what="the Cluster Autoscaler starts nodes for pods only where all nodes of a group offer the same devices",
            why="it takes a node of the group for a template, devices included; from 1.35 on it knows DRA",
            todo="give all nodes of a group the same node configuration, move whole groups, and keep one node of each "
            "running, since a group without nodes has no template",
            users=cluster.autoscalers,
        )
    if cluster.exporters:
        yield Gap(
            what="metrics of dcgm-exporter do not name the pods of nodes that have moved",
            why="it asks the kubelet for devices of device plugins, unless it is told to read claims, too",
            todo="set KUBERNETES_ENABLE_DRA=true (Helm: kubernetesDRA.enabled); resource.k8s.io/v1beta1 must be served",
            users=cluster.exporters,
        )


def _has(labels: Mapping[str, str], names: tuple[str, ...]) -> bool:
    return any(name in labels for name in names)


def _karpenter(nodes: list[Node]) -> Iterator[Gap]:
    if nodes:
        yield Gap(
            what="Karpenter starts no nodes for pods that ask by an extended resource, once its nodes have moved",
            why="it does not simulate claims that the scheduler makes late, and waits in vain for a new node to "
            "allocate the resource (kubernetes-sigs/karpenter#3231)",
            todo="keep the node pools of Karpenter on the device plugin",
            weight=Weight.BREAKS,
            nodes=tuple(node.name for node in nodes),
        )


def _labels(nodes: list[Node]) -> Iterator[Gap]:
    if nodes:
        yield Gap(
            what="a Cluster Autoscaler takes nodes that have moved for nodes that never get ready, and starts more",
            why="they have the cloud's label for GPUs and allocate no nvidia.com/gpu; only on GKE it knows a label "
            "that says they offer GPUs through DRA",
            todo=f"on GKE label them with {_THROUGH_DRA[0]}; elsewhere take such groups out of the autoscaler's hands, "
            "or the label off, before they move",
            nodes=tuple(node.name for node in nodes),
        )
