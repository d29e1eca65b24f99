"""Gives pods that request GPUs to the pod scheduler, by `spec.schedulerName`, where the ClusterPolicy asks for it.

Invariants:

- A pod that names a scheduler besides default-scheduler keeps it. The API server writes default-scheduler into every
  pod that names none, so no program can tell these two apart.
- A pod stays with default-scheduler if the pod scheduler cannot place it (`gpuplane.sharing.unsupported`), or if its
  node is decided already: pods of DaemonSets, static pods, pods with `spec.nodeName`.
- No name is set while no pod scheduler leads: the pod would wait for it, and default-scheduler may have room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen
from gpuplane.api.requests import is_gpu
from gpuplane.sharing.unsupported import unsupported
from kubekit.api.core import LeaseObject
from kubekit.kube import Client, Clock, Informer
from kubekit.kube.lease import LeaseVerdict, ObservedLease, judge

DEFAULT_SCHEDULER: Final = "default-scheduler"
_MIRROR: Final = "kubernetes.io/config.mirror"


def scheduler_patch(pod: Mapping[str, Any], name: str) -> tuple[dict[str, Any], ...]:
    """Return the JSON Patch that gives a new pod to the scheduler; empty for a pod that keeps its own."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if spec.get("schedulerName", "") not in ("", DEFAULT_SCHEDULER) or spec.get("nodeName"):
        return ()
    owners = metadata.get("ownerReferences") or ()
    if any(owner.get("kind") == "DaemonSet" for owner in owners) or _MIRROR in (metadata.get("annotations") or {}):
        return ()
    if not _requests_gpus(spec) or unsupported(metadata, spec):
        return ()
    return ({"op": "add", "path": "/spec/schedulerName", "value": name},)


def _requests_gpus(spec: Mapping[str, Any]) -> bool:
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    resources = [container.get("resources") or {} for container in containers]
    return any(is_gpu(name) for one in resources for kind in ("limits", "requests") for name in one.get(kind) or ())


class PodSchedulerWatch:
    """Follows the ClusterPolicy in force and the scheduler's lease."""

    def __init__(self, client: Client, namespace: str, name: str, clock: Clock) -> None:
        """
        Args:
            namespace: where the scheduler's lease is.
            name: what pods call the scheduler.
        """
        self.name = name
        self._clock = clock
        self._policies: Informer[ClusterPolicy] = Informer(client, ClusterPolicy, clock=clock)
        fields = f"metadata.name={names.EXTENDER_NAME}"
        self._leases: Informer[LeaseObject] = Informer(client, LeaseObject, namespace, fields=fields, clock=clock)
        self._leases.add_handler(self._lease_changed)
        self._observed: ObservedLease | None = None

    async def run(self) -> None:
        """Follow both until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._policies.run())
            group.create_task(self._leases.run())

    def sets_name(self) -> bool:
        """Return whether pods that request GPUs go to the pod scheduler now."""
        policy, _ = chosen(self._policies.items())
        return policy is not None and policy.spec.operator.set_scheduler_name and self._leads()

    def _leads(self) -> bool:
        """Return whether a replica of the scheduler has renewed its lease in time, by our own clock."""
        return self._observed is not None and judge(self._observed, "", self._clock.now()) is LeaseVerdict.TAKEN

    def _lease_changed(self, old: LeaseObject | None, new: LeaseObject | None) -> None:
        if new is None:
            self._observed = None
        elif self._observed is None or self._observed.spec != new.spec:
            self._observed = ObservedLease(new.spec, self._clock.now())
