"""The machines that nodes can be: those of simgpu's table, and the instance types of the simulated cloud."""

from __future__ import annotations

from simgpu.machines import NodeMachine, machine, machines


def find_machine(name: str) -> NodeMachine:
    """Return the machine of this name. Raises InvalidInput with the machines there are."""
    if name in machines() or "." not in name:
        return machine(name)
    from gpulab.cloud.catalogue import instance_machine  # only the nodes of a cloud need its catalogue

    return instance_machine(name)
