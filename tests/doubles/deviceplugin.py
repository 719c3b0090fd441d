"""Kubernetes objects around a device plugin, as small as they can be."""

from controller.importing import Plan, make_plan, read, read_cluster
from controller.importing.choice import LABEL
from controller.importing.sources import ONLY


def node(name, *, config="", labels=None, kubelet="v1.37.2", runtime="containerd://2.1.4", **resources):
    """A node; `gpu=8` and `mig_1g_10gb=7` are what it allocates."""
    named = {f"nvidia.com/{key.replace('mig_', 'mig-').replace('_', '.')}": str(n) for key, n in resources.items()}
    given = {"nvidia.com/gpu.present": "true", **(labels or {}), **({LABEL: config} if config else {})}
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    status = {"capacity": {"cpu": "8", **named}, "allocatable": {"cpu": "8", **named}, "nodeInfo": info}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": given}, "status": status}


def container(asked=None, **more):
    return {"name": "c", "resources": {"limits": {name: str(n) for name, n in (asked or {}).items()}}, **more}


def pod(name, asked=None, *, kind="Pod", namespace="ml", init=None, metadata=None, status=None, env=None, **spec):
    body = {"containers": [container(asked, **({"env": env} if env else {}))], **spec}
    if init:
        body["initContainers"] = [container(init)]
    inner = {"spec": body}
    wrapped = {
        "Pod": inner,
        "CronJob": {"spec": {"jobTemplate": {"spec": {"template": inner}}}},
    }.get(kind, {"spec": {"template": inner}})
    meta = {"name": name, "namespace": namespace, **(metadata or {})}
    return {"kind": kind, "metadata": meta, **wrapped, **({"status": status} if status else {})}


def quota(name, hard, *, namespace="ml", **spec):
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": hard, **spec},
    }


def plan(texts: str | dict[str, str], *objects, env=None, **more) -> Plan:
    """Plan for one configuration, or several by key, which have no mistakes."""
    given = {ONLY: texts} if isinstance(texts, str) else texts
    readings = {key: read(text.encode(), env=env) for key, text in given.items()}
    cluster = read_cluster(objects) if objects else None
    return make_plan(readings, cluster, env=env, **more)


def selections(made: Plan):
    """Give the resources that get a bridge, with what each selects."""
    return {one["spec"]["resourceName"]: one["spec"]["select"] for one in made.bridges}


def said(made: Plan, *, breaks=False):
    """Give what is told, as one text."""
    return "\n".join(gap.what for gap in made.gaps if not breaks or gap.weight.value == "breaks")


def gap(made: Plan, part: str):
    """Give the one gap with that in it."""
    (found,) = [one for one in made.gaps if part in one.what]
    return found


def daemon_set(
    name="nvidia-device-plugin-daemonset",
    *,
    container="nvidia-device-plugin",
    image="nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
    env=None,
    car=None,
    args=(),
    mounts=(),
    selector=None,
    **spec_of_pods,
):
    """A DaemonSet of the device plugin as the GPU operator makes it; with a side-car where `car` is its environment."""
    folder = {"name": "available-configs", "mountPath": "/available-configs"}
    plugin = {"name": container, "image": image, "args": list(args), "env": _env(env), "volumeMounts": list(mounts)}
    containers = [plugin]
    if car is not None:
        variables = _env({"CONFIG_FILE_SRCDIR": "/available-configs", **car})
        containers.append({"name": "config-manager", "image": image, "env": variables, "volumeMounts": [folder]})
    volumes = [{"name": "sockets", "hostPath": {}}, {"name": "available-configs", "configMap": {"name": "configs"}}]
    inner = {"containers": containers, "volumes": volumes, **({"nodeSelector": selector} if selector else {})}
    spec = {"template": {"spec": inner | spec_of_pods}}
    meta = {"name": name, "namespace": "gpu-operator"}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec}


def _env(variables):
    return [{"name": name, "value": value} for name, value in (variables or {}).items()]
