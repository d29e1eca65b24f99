"""A cure that other nodes prove: what works there works here. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpuplane.api.gpunode import GPUNode, StageName, StageState

# The driver cannot be had for the node's kernel. The cure as the installer words it begins with the general advice.
_OF_THE_KERNEL = frozenset({"KernelHeadersMissing", "NoPrecompiled", "PackageGone", "KernelMismatch", "CompileFailed"})
_GENERAL = (
    "boot a kernel that they have headers for, or ",
    "the mirror has dropped the package: boot a newer kernel, or ",
)


def other_kernel(node: GPUNode, cure: str, nodes: Sequence[GPUNode], owners: Mapping[str, str]) -> str:
    """The cure, and before it the kernel that most nodes like this one have, where the very driver works on it.

    Args:
        owners: by node, the NVIDIADriver that its driver is from; a node without one has the ClusterPolicy's.
    """
    stage = node.status.stages.get(StageName.DRIVER.value)
    machine = node.status.machine
    if stage is None or stage.state.holds or not machine.kernel:
        return cure
    if stage.reason not in _OF_THE_KERNEL and machine.kernel not in stage.message:
        return cure
    owner = owners.get(node.metadata.name, "")
    alike = [
        other
        for other in nodes
        if other.status.machine.os == machine.os
        and other.status.machine.kernel != machine.kernel
        and owners.get(other.metadata.name, "") == owner
        and (driver := other.status.stages.get(StageName.DRIVER.value)) is not None
        and driver.state is StageState.DONE
    ]
    if not alike:
        return cure
    [(kernel, number)] = Counter(other.status.machine.kernel for other in alike).most_common(1)
    first = next(other.metadata.name for other in alike if other.status.machine.kernel == kernel)
    for general in _GENERAL:
        cure = cure.removeprefix(general)
    like = first if number == 1 else f"{number} other nodes"
    return f"boot {kernel} like {like}" + (f", or {cure}" if cure else "")
