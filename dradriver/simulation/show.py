"""A node's state in the words of a person: what `show` prints."""

from typing import Any

from dradriver.simulation import hardware
from dradriver.simulation.codes import Return
from dradriver.simulation.identity import cuda_version
from dradriver.simulation.state import ComputeInstance, Fault, Gpu, GpuInstance, Process, State


def describe(state: State) -> dict[str, Any]:
    """Tell everything about a node, ready for JSON. Memory in MiB, placements in memory slices."""
    cuda = cuda_version(state.driver)
    return {
        "driver_version": state.driver,
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "boot_id": state.boot_id,
        "driver_loads": state.driver_loads,
        "generation": state.generation,
        "gpus": [_gpu(index, gpu, _latencies(state, index)) for index, gpu in enumerate(state.gpus)],
        "faults": [_fault(fault) for fault in state.faults],
        "latencies_ms": _latencies(state, None),
        "events": state.next_event - 1,
    }


def _latencies(state: State, gpu: int | None) -> dict[str, float]:
    return {one.call: one.milliseconds for one in state.latencies if one.gpu == gpu}


def _gpu(index: int, gpu: Gpu, latencies: dict[str, float]) -> dict[str, Any]:
    return {
        "index": index,
        "plugged": gpu.plugged,
        "model": gpu.model,
        "product": gpu.kind.product,
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "pci_bus_id": gpu.bus_id,
        "numa_node": gpu.numa_node,
        "mig": {"current": gpu.mig, "pending": gpu.mig_pending} if gpu.kind.mig_capable else None,
        "instances": [instance(gpu, one) for one in gpu.instances],
        "processes": [_process(process) for process in gpu.processes],
        "lost": gpu.lost,
        "recovery": next(name for name, value in hardware.RECOVERY.items() if value == gpu.recovery),
        "remapped_rows": {name: getattr(gpu.rows, name) for name in gpu.rows.__slots__},
        "fabric": hardware.fabric(gpu),
        "sram_exceeded": gpu.sram_exceeded,
        "retired_pending": gpu.retired_pending,
        "latencies_ms": latencies,
    }


def instance(gpu: Gpu, one: GpuInstance) -> dict[str, Any]:
    """Tell about a GPU instance, ready for JSON."""
    profile = hardware.mig_profile(gpu, one.profile)
    return {
        "gpu_instance_id": one.id,
        "profile": profile.name,
        "profile_id": one.profile,
        "placement": {"start": one.start, "size": one.size},
        "memory_mib": profile.memory_of(one.start),
        "compute_instances": [_compute(gpu, one, compute) for compute in one.compute],
    }


def _compute(gpu: Gpu, one: GpuInstance, compute: ComputeInstance) -> dict[str, Any]:
    return {
        "compute_instance_id": compute.id,
        "profile": hardware.compute_profile(gpu, one, compute.profile).name,
        "placement": {"start": compute.start, "size": compute.size},
        "uuid": compute.uuid,
        "mig_index": compute.index,
    }


def _process(process: Process) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "gpu_instance_id": process.gpu_instance,
        "compute_instance_id": process.compute_instance,
        "memory_mib": process.memory_mib,
    }


def _fault(fault: Fault) -> dict[str, Any]:
    return {
        "call": fault.call,
        "error": Return(fault.code).name,
        "after": fault.after,
        "times": fault.times,
        "gpu": fault.gpu,
        "late": fault.late,
    }
