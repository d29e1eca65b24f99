"""All controllers of the embedded cluster, started and stopped together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tinykube.controllers.autoscaling import AutoscalingController
from tinykube.controllers.clusterroles import ClusterRoleController
from tinykube.controllers.cronjob import CronJobController
from tinykube.controllers.daemonset import DaemonSetController
from tinykube.controllers.definitions import DefinitionController
from tinykube.controllers.deployment import DeploymentController
from tinykube.controllers.devicetaints import DeviceTaintEvictionController
from tinykube.controllers.disruption import DisruptionController
from tinykube.controllers.endpoints import EndpointsController, MirroringController
from tinykube.controllers.everything import Everything
from tinykube.controllers.garbage import GarbageCollector
from tinykube.controllers.job import JobController
from tinykube.controllers.namespace import NamespaceController
from tinykube.controllers.nodelifecycle import GRACE_S, NodeLifecycleController
from tinykube.controllers.podgc import PodCollector
from tinykube.controllers.pods import PodIndex
from tinykube.controllers.quota import QuotaController
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.replicaset import REPLICATION_CONTROLLERS, ReplicaSetController
from tinykube.controllers.resourceclaims import ResourceClaimController
from tinykube.controllers.serviceaddresses import ServiceAddressController
from tinykube.controllers.statefulset import StatefulSetController
from tinykube.controllers.tainteviction import TaintEvictionController
from tinykube.controllers.volumes import AttributesClassController, EphemeralVolumeController, VolumeController

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_COMPONENTS: Final = (
    "daemonset-controller",
    "replicaset-controller",
    "replication-controller",
    "deployment-controller",
    "statefulset-controller",
    "job-controller",
    "cronjob-controller",
    "node-controller",
    "horizontal-pod-autoscaler",
    "taint-eviction-controller",
    "garbage-collector-controller",
    "resource_claim",
    "device-taint-eviction-controller",
    "persistentvolume-controller",
    "ephemeral_volume",
    "volume_expand",
)


class Controllers:
    """Make it inside a running event loop, on a registry whose CRDs are served; `run` works until cancelled.

    `ca` is the cluster's CA in PEM; `node_grace_s` how long a node may be silent.
    """

    def __init__(self, registry: Registry, *, ca: str = "", node_grace_s: float = GRACE_S) -> None:
        recorders = {component: Recorder(registry, component) for component in _COMPONENTS}
        self._recorders = recorders
        # NB: the index is first, so that every controller finds the object of its event in it.
        index = PodIndex(registry)
        everything = Everything(registry)
        garbage = GarbageCollector(registry, everything, recorders["garbage-collector-controller"])
        controllers = (
            garbage,
            NamespaceController(registry, everything, ca),
            DefinitionController(registry, everything),
            DaemonSetController(registry, index, recorders["daemonset-controller"]),
            ReplicaSetController(registry, index, recorders["replicaset-controller"]),
            ReplicaSetController(registry, index, recorders["replication-controller"], REPLICATION_CONTROLLERS),
            DeploymentController(registry, index, recorders["deployment-controller"]),
            StatefulSetController(registry, index, recorders["statefulset-controller"]),
            JobController(registry, index, recorders["job-controller"]),
            AutoscalingController(registry, recorders["horizontal-pod-autoscaler"]),
            CronJobController(registry, recorders["cronjob-controller"]),
            NodeLifecycleController(registry, index, recorders["node-controller"], grace_s=node_grace_s),
            TaintEvictionController(registry, index, recorders["taint-eviction-controller"]),
            PodCollector(registry, index),
            EndpointsController(registry),
            MirroringController(registry),
            ServiceAddressController(registry, registry.service_range.network),
            DisruptionController(registry),
            ClusterRoleController(registry),
            QuotaController(registry, everything),
            ResourceClaimController(registry, recorders["resource_claim"]),
            DeviceTaintEvictionController(registry, recorders["device-taint-eviction-controller"]),
            VolumeController(registry, recorders["persistentvolume-controller"], recorders["volume_expand"]),
            EphemeralVolumeController(registry, recorders["ephemeral_volume"]),
            AttributesClassController(registry),
        )
        everything.start()
        garbage.start()
        self._workers = [worker for controller in controllers for worker in controller.workers()]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(worker.run(), name=worker.name)
            for component, recorder in self._recorders.items():
                group.create_task(recorder.run(), name=f"{component} events")
