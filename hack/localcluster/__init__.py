# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes on one machine, built from source and run without a container engine.

`cli` reads the command line, `lifecycle` brings clusters up and down, `build` makes the programs once,
`controlplane` and `node` know what each part is started with, and `processes`, `cgroups`, `network` and
`slots` look after what a cluster takes from the machine. Only Python's standard library is used: this
runs before anything is installed.
"""
