"""What nodes publish, as labels are computed from it: slices of simulated and of made-up hardware, projected."""

from controller.labelling import Publication, project_facts
from controller.watching import projections

MIB = 1 << 20


def gpu(index=0, product="NVIDIA H100 80GB HBM3", memory=81559, **more):
    """A whole GPU; `more` are attributes by name, or `consumes`, `shares`, `capacity`."""
    return _device(f"gpu-{index}", more, type="gpu", productName=product, memory=memory)


def part(index=0, profile="1g.10gb", start=0, product="NVIDIA H100 80GB HBM3", memory=9984, **more):
    """A partition; named as the kubelet plugin does."""
    name = f"gpu-{index}-mig-{profile.replace('.', '').replace('+', '-')}-19-{start}"
    return _device(name, more, type="mig", productName=product, profile=profile, memory=memory)


def _device(name, more, *, memory, **texts):
    more = {"architecture": "Hopper", "cudaComputeCapability": "9.0.0"} | more
    more = {"driverVersion": "580.65.6", "cudaDriverVersion": "13.0.0"} | more
    consumes, shares, capacity = (more.pop(key, None) for key in ("consumes", "shares", "capacity"))
    body = {
        "name": name,
        "attributes": {key: _value(value) for key, value in {**texts, **more}.items() if value is not None},
        "capacity": {key: {"value": str(value)} for key, value in (capacity or {}).items()},
    }
    if memory is not None:
        body["capacity"]["memory"] = {"value": f"{memory}Mi"}
    if consumes:
        counters = {key: {"value": str(value)} for key, value in consumes.items()}
        body["consumesCounters"] = [{"counterSet": f"{name.partition('-mig-')[0]}-set", "counters": counters}]
    if shares:
        body["allowMultipleAllocations"] = True
        body["capacity"]["shares"] = {"value": str(shares)}
    return body


def _value(value):
    if isinstance(value, bool):
        return {"bool": value}
    return {"version": value} if value.count(".") == 2 and value[0].isdigit() else {"string": value}


def published(*devices, pool="node-a", node="node-a", generation=1, total=1, counters=None):
    """One slice."""
    shared = [
        {"name": name, "counters": {key: {"value": str(value)} for key, value in values.items()}}
        for name, values in (counters or {}).items()
    ]
    return of_spec(
        {
            "driver": "gpu.nvidia.com",
            "nodeName": node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": total},
            "devices": list(devices),
            "sharedCounters": shared,
        }
    )


def of_spec(spec, name="slice"):
    """A slice as the API server has it."""
    item = {"metadata": {"name": name, "uid": "u", "resourceVersion": "1"}, "spec": spec}
    return Publication(slice=projections.project_slice(item)["seen"], facts=project_facts(item))
