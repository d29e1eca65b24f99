"""The instance types of the simulated cloud: the GPUs that can be simulated, with the machine that a type boots as.

Every image boots the same bare system, since a simulated machine has no image of its own: Ubuntu 22.04 without a
driver. Spot prices are invented: a fixed part of the on-demand price.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT, InstanceType, aws_catalogue
from gpuplane.autoscaler.overhead import allocatable
from kubekit.errors import InvalidInput
from simgpu.machines import NodeMachine, machine
from tinykube.cluster import KubeletSettings

SPOT_PART: Final = 0.4  # of the on-demand price
_SYSTEM: Final = "t4-ubuntu22"  # the machine whose system instances have
_ARCH: Final = "amd64"
_MIB: Final = 1 << 20

# A GPU of the catalogue (label, MiB of the data sheet) -> simgpu's model, and a machine with the types' processor.
_GPUS: Final = {
    ("t4", 16384): ("t4", "t4-ubuntu22"),
    ("a10g", 22888): ("a10g", "a10g-rhel9"),
    ("l4", 22888): ("l4", "a10g-rhel9"),
    ("a100", 40960): ("a100", "a100-ubuntu22"),
    ("h100", 81920): ("h100", "h100-ubuntu22"),
}


@lru_cache(maxsize=1)
def cloud_types() -> dict[str, InstanceType]:
    """Return the instance types that can be launched, by name."""
    return {
        found.name: found
        for found in aws_catalogue()
        if found.arch == _ARCH and found.gpu is not None and (found.gpu.label, found.gpu.label_memory_mib) in _GPUS
    }


def instance_machine(name: str) -> NodeMachine:
    """Return the simulated machine of an instance type. Raises InvalidInput for a type that is not in the catalogue."""
    found = cloud_types().get(name)
    if found is None or found.gpu is None:
        raise InvalidInput(f"no instance type {name!r} can be simulated", cure=f"one of {', '.join(cloud_types())}")
    model, like = _GPUS[found.gpu.label, found.gpu.label_memory_mib]
    return msgspec.structs.replace(
        machine(_SYSTEM),
        name=name,
        cpu=machine(like).cpu,
        cpus=found.vcpu,
        memory_gib=found.memory_mib >> 10,
        gpus=f"{found.gpus}x-{model}",
        instance_type=name,
    )


def instance_kubelet(name: str) -> KubeletSettings:
    """Return the settings of the kubelet of a type: the reservations of EKS, and as many pods as it has addresses for.

    The hypervisor's part of the memory is reserved as well, since the machine has all of the data sheet's.
    """
    found = cloud_types()[name]
    free = allocatable(found)
    return KubeletSettings(
        max_pods=found.max_pods,
        reserved_cpu_milli=found.vcpu * 1000 - int(free["cpu"]),
        reserved_memory_mib=found.memory_mib - int(free["memory"]) // _MIB,
    )


def price(name: str, capacity_type: str) -> float:
    """Return dollars an hour of a type."""
    on_demand = dict(cloud_types()[name].prices)[ON_DEMAND]
    return round(on_demand * SPOT_PART, 6) if capacity_type == SPOT else on_demand
