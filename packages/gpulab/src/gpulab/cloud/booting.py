"""Decides which instances become nodes, and which nodes lose their machine. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpulab.cloud.bootstrap import kubelet_settings
from gpulab.cloud.catalogue import cloud_types, instance_kubelet
from gpulab.cloud.instances import RUNNING, LabInstance
from gpuplane.autoscaler.catalogue import REGION_LABEL
from tinykube.cluster import MachineSpec

_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_PROVIDER: Final = "aws:///"


class BootPlan(msgspec.Struct, frozen=True):
    """The things to do now.

    `joins` are instances whose machine is to be made, `leaves` nodes whose machine is to be removed, by instance.
    `later` is the number of seconds until the next instance is due; None for no such instance.
    """

    joins: tuple[LabInstance, ...]
    leaves: tuple[tuple[str, str], ...]
    later: float | None


def plan_boots(
    instances: Iterable[LabInstance],
    nodes: Mapping[str, str],
    dead: Collection[str],
    boot_seconds: float,
    now: float,
) -> BootPlan:
    """Compare instances with nodes.

    Args:
        nodes: name of the node by instance, of all nodes that are instances of this cloud.
        dead: instances that never join.
        boot_seconds: how long an instance takes before its kubelet starts.
    """
    running = {instance.id: instance for instance in instances if instance.state == RUNNING}
    joins: list[LabInstance] = []
    waits: list[float] = []
    for instance in running.values():
        if instance.id in nodes or instance.id in dead or instance.machine not in cloud_types():
            continue
        wait = instance.launched + boot_seconds - now
        if wait <= 0:
            joins.append(instance)
        else:
            waits.append(wait)
    leaves = tuple((instance, node) for instance, node in sorted(nodes.items()) if instance not in running)
    return BootPlan(tuple(joins), leaves, min(waits, default=None))


def node_name(instance: LabInstance) -> str:
    """Return the name of an instance's node: the host name that EC2 gives, without its domain."""
    return f"ip-{instance.address.replace('.', '-')}"


def node_spec(instance: LabInstance, region: str) -> MachineSpec:
    """Return the node that an instance is, as its kubelet and the cloud's controller make it."""
    settings = kubelet_settings(instance.user_data, instance_kubelet(instance.machine))
    labels = settings.labels | {REGION_LABEL: region, _ZONE_LABEL: instance.zone}
    kubelet = msgspec.structs.replace(settings, provider_id=instance.provider_id, labels=labels)
    return MachineSpec(name=node_name(instance), machine=instance.machine, kubelet=kubelet)


def cloud_nodes(nodes: Sequence[MachineSpec]) -> dict[str, str]:
    """Return the nodes of a cluster that are instances: name by instance."""
    return {
        node.kubelet.provider_id.rpartition("/")[2]: node.name
        for node in nodes
        if node.kubelet.provider_id.startswith(_PROVIDER)
    }
