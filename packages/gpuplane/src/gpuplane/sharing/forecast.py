"""The GPUs of a node that does not exist yet: what the device plugin will offer of them under a configuration.

The autoscaler must know before it buys a machine that one T4 will be ten replicas. So the units come from
`gpuplane.sharing.units`, the code that the device plugin runs, on GPUs as the machine will have them. Pure.

Source of the MIG layouts: the named configurations of NVIDIA's MIG manager, and the profiles of each GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.sharing.dialects import Dialect, offered
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from gpuplane.sharing.node import LedgerGPU, NodeState, empty
from gpuplane.sharing.request import WHOLE
from gpuplane.sharing.units import resources, sharable
from kubekit.errors import InvalidInput

_OFF: Final = ("", "all-disabled")
_BALANCED: Final = "all-balanced"
# How many devices of a profile fit a GPU, by its compute slices: seven, and the models with four.
_COUNTS: Final = {1: 7, 2: 3, 3: 2, 4: 1, 7: 1}
_COUNTS_OF_FOUR: Final = {1: 4, 2: 2, 4: 1}
_MOST_DOUBLE: Final = 4  # 1g devices with the memory of two
# Model -> gigabytes in the names of its profiles, by slices; 0: the 1g profile with double memory.
_PROFILES: Final[dict[str, dict[int, int]]] = {
    "A100-SXM4-40GB": {1: 5, 0: 10, 2: 10, 3: 20, 4: 20, 7: 40},
    "A100-SXM4-80GB": {1: 10, 0: 20, 2: 20, 3: 40, 4: 40, 7: 80},
    "H100 80GB": {1: 10, 0: 20, 2: 20, 3: 40, 4: 40, 7: 80},
    "H200": {1: 18, 0: 35, 2: 35, 3: 71, 4: 71, 7: 141},
    "B200": {1: 23, 0: 45, 2: 45, 3: 90, 4: 90, 7: 180},
    "B300": {1: 34, 0: 67, 2: 67, 3: 135, 4: 135, 7: 269},
    "RTX PRO 6000": {1: 24, 2: 48, 4: 96},
}


class FutureGPUs(msgspec.Struct, frozen=True):
    """The GPUs of a node to come: `offered` resource -> count, and the node as placement sees it, all free."""

    offered: dict[str, int]
    state: NodeState

    @property
    def places_shares(self) -> bool:
        """Return whether GPUs are placed one by one, and not counted only."""
        return names.VCUDA_CORE in self.offered


def forecast(
    model: str,
    memory_mib: int,
    count: int,
    config: PluginConfig,
    labels: Mapping[str, str],
    environment: Mapping[str, str] = {},
) -> FutureGPUs:
    """Return what a node with `count` GPUs of a model will offer.

    Args:
        labels: the node's; they choose shares, and the MIG layout.
        environment: that of the device plugin's DaemonSet.

    Raises:
        InvalidInput: the labels name a layout that the model cannot have, or that the configuration cannot offer.
    """
    layout = mig_devices(model, labels.get(names.MIG_CONFIG_LABEL, ""))
    inventory = [_facts(at, model, memory_mib, layout) for at in range(count)]
    dialects = offered(labels.get(names.SHARE_LABEL, ""), environment)
    found: dict[str, int] = {}
    if Dialect.NVIDIA in dialects:
        found |= {resource: len(units) for resource, units in resources(inventory, config).items()}
    shared = sharable(inventory)
    if Dialect.TENCENT in dialects:
        found[names.VCUDA_CORE] = WHOLE * len(shared)
        found[names.VCUDA_MEMORY] = memory_mib // MEMORY_UNIT_MIB * len(shared)
    if Dialect.ALPHA in dialects:
        found[names.ALPHA_GPU] = len(shared)
    gpus = [LedgerGPU(index=gpu.index, uuid=gpu.uuid, model=model, memory_mib=memory_mib) for gpu in shared]
    state = empty("", gpus)
    counted = names.VCUDA_CORE not in found and found.get(names.GPU_RESOURCE) != len(gpus)
    return FutureGPUs(
        {name: number for name, number in found.items() if number}, msgspec.structs.replace(state, by_count=counted)
    )


def mig_devices(model: str, layout: str) -> tuple[str, ...] | None:
    """Return the profiles of the devices that a named layout makes of each GPU; None for MIG off.

    Raises InvalidInput for a layout that the model cannot have.
    """
    if layout in _OFF:
        return None
    profiles = next((found for name, found in _PROFILES.items() if name in model), None)
    if profiles is None:
        raise _unknown(layout, f"{model} has no MIG", "all-disabled")
    counts = _COUNTS_OF_FOUR if 7 not in profiles else _COUNTS
    known = {
        f"{max(1, slices)}g.{size}gb": (counts[slices] if slices else _MOST_DOUBLE) for slices, size in profiles.items()
    }
    if layout == "all-enabled":
        return ()
    if layout == _BALANCED:
        parts = (1, 1, 2, 3) if 3 in profiles else (1, 1, 2)
        return tuple(f"{slices}g.{profiles[slices]}gb" for slices in parts)
    profile = layout.removeprefix("all-")
    if profile not in known:
        cure = f"all-disabled, {_BALANCED}, " + ", ".join(f"all-{name}" for name in known)
        raise _unknown(layout, f"the layout of {model} is unknown before the node exists", cure)
    return (profile,) * known[profile]


def _unknown(layout: str, why: str, cure: str) -> InvalidInput:
    return InvalidInput(why, where=f"{names.MIG_CONFIG_LABEL}={layout}", cure=cure)


def _facts(index: int, model: str, memory_mib: int, layout: Sequence[str] | None) -> GPUFacts:
    uuid = f"GPU-future-{index}"
    cut = [
        MigDevice(
            index=at,
            uuid=f"MIG-future-{index}-{at}",
            profile=profile,
            gpu_instance=at,
            compute_instance=0,
            memory_bytes=0,
            slices=int(profile.partition("g")[0]),
        )
        for at, profile in enumerate(layout or ())
    ]
    return GPUFacts(
        index=index,
        minor=index,
        uuid=uuid,
        model=model,
        memory_bytes=memory_mib << 20,
        pci="",
        compute=(0, 0),
        mig=MigMode.UNSUPPORTED if layout is None else MigMode.ENABLED,
        mig_devices=tuple(cut),
    )
