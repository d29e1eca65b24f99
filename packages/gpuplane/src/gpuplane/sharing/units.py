"""The units of each resource to advertise, from GPUs and configuration. Pure.

A unit is a GPU, a MIG device, or one of several replicas of either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.pluginconfig import MigStrategy, PluginConfig, ReplicatedResource, ResourceNaming
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from kubekit.errors import InvalidInput

REPLICA: Final = "::"
"""Between a device's UUID and the number of its replica, as NVIDIA's plugin and monitoring tools write it."""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One device as the kubelet counts it.

    `id` is its name there, `device` the UUID of what it is (of), `gpu` that of the GPU whose health it shares. `index`
    is "0", or "0:1" for MIG device 1 of GPU 0. `nodes` are its device nodes below /dev; MIG devices' capabilities are
    written as in /proc/driver/nvidia-caps/mig-minors ("gpu0/gi1/access").
    """

    id: str
    device: str
    gpu: str
    index: str
    nodes: tuple[str, ...]
    numa: int = -1
    mig: bool = False
    replicas: int = 1


def resources(inventory: Sequence[GPUFacts], config: PluginConfig) -> dict[str, tuple[Unit, ...]]:
    """Return resource -> its units, in the order of the node's GPUs.

    Raises InvalidInput for MIG devices that the strategy cannot offer, and for shared devices that the node has not.
    """
    found: dict[str, list[Unit]] = {}
    for gpu in inventory:
        if gpu.mig is not MigMode.ENABLED:
            found.setdefault(_named(gpu.model, config.gpus, names.GPU_RESOURCE), []).append(_whole(gpu))
    for gpu, device in _mig_devices(inventory, config):
        single = config.mig_strategy is MigStrategy.SINGLE
        default = names.GPU_RESOURCE if single else names.MIG_PREFIX + device.profile.replace("+", ".")
        found.setdefault(_named(device.profile, config.mig, default), []).append(_cut(gpu, device))
    return _shared(found, config.replicated)


def sharable(inventory: Sequence[GPUFacts]) -> tuple[GPUFacts, ...]:
    """Return the GPUs that can be offered in shares: those without MIG devices."""
    return tuple(gpu for gpu in inventory if gpu.mig is not MigMode.ENABLED)


def _named(text: str, namings: Iterable[ResourceNaming], default: str) -> str:
    return next((naming.resource for naming in namings if naming.matches(text)), default)


def _whole(gpu: GPUFacts) -> Unit:
    nodes = (f"nvidia{gpu.minor}",)
    return Unit(id=gpu.uuid, device=gpu.uuid, gpu=gpu.uuid, index=str(gpu.index), nodes=nodes, numa=gpu.numa)


def _cut(gpu: GPUFacts, device: MigDevice) -> Unit:
    instance = f"gpu{gpu.minor}/gi{device.gpu_instance}"
    return Unit(
        id=device.uuid,
        device=device.uuid,
        gpu=gpu.uuid,
        index=f"{gpu.index}:{device.index}",
        nodes=(f"nvidia{gpu.minor}", f"{instance}/access", f"{instance}/ci{device.compute_instance}/access"),
        numa=gpu.numa,
        mig=True,
    )


def _mig_devices(inventory: Sequence[GPUFacts], config: PluginConfig) -> list[tuple[GPUFacts, MigDevice]]:
    """Return the MIG devices to offer; empty for strategy none, since no pod could use such a GPU as a whole."""
    split = [gpu for gpu in inventory if gpu.mig is MigMode.ENABLED]
    devices = [(gpu, device) for gpu in split for device in gpu.mig_devices]
    if config.mig_strategy is MigStrategy.NONE:
        if split and len(split) == len(inventory):
            raise _misfit("every GPU is in MIG mode", config, "set migStrategy to single or mixed, or switch MIG off")
        return []
    if config.mig_strategy is MigStrategy.SINGLE and split:
        cure = "make them alike, or set migStrategy to mixed"
        if len(split) < len(inventory):
            raise _misfit("some GPUs are in MIG mode and some are not", config, cure)
        if empty := [str(gpu.index) for gpu in split if not gpu.mig_devices]:
            raise _misfit(f"GPU {', '.join(empty)} is in MIG mode without a MIG device", config, cure)
        if len(profiles := {device.profile for _, device in devices}) > 1:
            raise _misfit(f"there are MIG devices of {', '.join(sorted(profiles))}", config, cure)
    return devices


def _misfit(what: str, config: PluginConfig, cure: str) -> InvalidInput:
    said = f"{what}, which migStrategy {config.mig_strategy.value} cannot offer"
    return InvalidInput(said, where="flags.migStrategy", cure=cure, findings=(f"flags.migStrategy: {said}",))


def _shared(found: Mapping[str, list[Unit]], replicated: Iterable[ReplicatedResource]) -> dict[str, tuple[Unit, ...]]:
    offered = {name: list(units) for name, units in found.items()}
    for shared in replicated:
        units = found.get(shared.resource)
        if not units:
            continue  # one configuration serves nodes of several kinds: this one has none of these
        chosen = {unit.id for unit in _chosen(units, shared)}
        kept = [unit for unit in units if unit.id not in chosen]
        copies = [copy for unit in units if unit.id in chosen for copy in _copies(unit, shared.replicas)]
        if shared.renamed:
            offered[shared.resource] = kept
            if shared.offered in found:
                raise _collision(shared)
            offered[shared.offered] = copies
        else:
            place = {unit.device: number for number, unit in enumerate(units)}
            offered[shared.resource] = sorted(kept + copies, key=lambda unit: place[unit.device])
    return {name: tuple(units) for name, units in offered.items() if units}


def _copies(unit: Unit, count: int) -> list[Unit]:
    replace = msgspec.structs.replace
    return [replace(unit, id=f"{unit.device}{REPLICA}{number}", replicas=count) for number in range(count)]


def _chosen(units: Sequence[Unit], shared: ReplicatedResource) -> list[Unit]:
    if shared.count > len(units):
        raise _absent(shared, f"{shared.count} devices are to be shared, the node has {len(units)}")
    if not shared.listed:
        return list(units[: shared.count or None])
    found = [unit for unit in units if unit.device in shared.listed or unit.index in shared.listed]
    known = {name for unit in units for name in (unit.device, unit.index)}
    if missing := [name for name in shared.listed if name not in known]:
        raise _absent(shared, f"the node has no device {', '.join(missing)}")
    return found


def _absent(shared: ReplicatedResource, what: str) -> InvalidInput:
    place = f"sharing: {shared.resource}: devices"
    return InvalidInput(what, where=place, cure="name devices that are there, or all", findings=(f"{place}: {what}",))


def _collision(shared: ReplicatedResource) -> InvalidInput:
    place, what = f"sharing: {shared.resource}: rename", f"{shared.offered} is the name of other devices of this node"
    return InvalidInput(what, where=place, cure="give the replicas another name", findings=(f"{place}: {what}",))
