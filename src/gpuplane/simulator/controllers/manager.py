"""All controllers of the embedded cluster, started and stopped together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gpuplane.simulator.controllers.cronjob import CronJobController
from gpuplane.simulator.controllers.daemonset import DaemonSetController
from gpuplane.simulator.controllers.deployment import DeploymentController
from gpuplane.simulator.controllers.disruption import DisruptionController
from gpuplane.simulator.controllers.endpoints import EndpointsController
from gpuplane.simulator.controllers.everything import Everything
from gpuplane.simulator.controllers.garbage import GarbageCollector
from gpuplane.simulator.controllers.job import JobController
from gpuplane.simulator.controllers.namespace import NamespaceController
from gpuplane.simulator.controllers.nodelifecycle import GRACE_S, NodeLifecycleController
from gpuplane.simulator.controllers.podgc import PodCollector
from gpuplane.simulator.controllers.pods import PodIndex
from gpuplane.simulator.controllers.quota import QuotaController
from gpuplane.simulator.controllers.recorder import Recorder
from gpuplane.simulator.controllers.replicaset import ReplicaSetController

if TYPE_CHECKING:
    from gpuplane.simulator.apiserver.registry import Registry

_COMPONENTS: Final = (
    "daemonset-controller",
    "replicaset-controller",
    "deployment-controller",
    "job-controller",
    "cronjob-controller",
    "node-controller",
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
        garbage = GarbageCollector(registry, everything)
        controllers = (
            garbage,
            NamespaceController(registry, everything, ca),
            DaemonSetController(registry, index, recorders["daemonset-controller"]),
            ReplicaSetController(registry, index, recorders["replicaset-controller"]),
            DeploymentController(registry, index, recorders["deployment-controller"]),
            JobController(registry, index, recorders["job-controller"]),
            CronJobController(registry, recorders["cronjob-controller"]),
            NodeLifecycleController(registry, index, recorders["node-controller"], grace_s=node_grace_s),
            PodCollector(registry, index),
            EndpointsController(registry),
            DisruptionController(registry),
            QuotaController(registry, everything),
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
