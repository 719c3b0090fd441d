"""A process that makes and destroys one MIG device over and over: FOLDER GPU START TIMES."""

import sys
from ctypes import byref
from pathlib import Path

import pynvml

from dradriver import simulation


def main(folder, index, start, times):
    pynvml.nvmlLib = simulation.open_library(Path(folder))
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    for number in range(times):
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, 1)
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, byref(place))
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
        if number == 0:
            print("ready", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
