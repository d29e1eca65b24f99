"""The controller of the ClusterPolicy: the objects of the whole cluster, and the policies' status.

One key for the cluster, for the DaemonSets and the status depend on all nodes. `gpuplane.operator.operands` and
`gpuplane.operator.policy` decide, `gpuplane.operator.cluster` writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen, is_paused
from gpuplane.api.effects import without_effect
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.upgrade import unix_time
from gpuplane.operator.cluster import ClusterView, ClusterWriter
from gpuplane.operator.discovery import COMPONENTS as DISCOVERY
from gpuplane.operator.discovery import WORKER
from gpuplane.operator.events import LimitedRecorder
from gpuplane.operator.observed import COMPONENT_LABEL
from gpuplane.operator.pods import is_operand, operand_pods
from gpuplane.operator.pools import PoolWatch
from gpuplane.operator.upgrade.controller import UpgradeController
from kubekit.api.core import DaemonSet, Node, Pod
from kubekit.api.meta import to_dict
from kubekit.kube import Client, Clock, Controller, SharedInformers, Source

KEY: Final = "policy"
_GATHER_SECONDS_PER_NODE: Final = 0.005
_GATHER_AT_MOST: Final = 1.0
_NAMED: Final = 5  # fields in a message


class PolicyController:
    """Reconciles the ClusterPolicy in force.

    Args:
        upgrades: whose report is part of the policy's status.
        pools: whose taints operands tolerate.
        image: the operator's own, which operands run.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        upgrades: UpgradeController,
        pools: PoolWatch,
        recorder: LimitedRecorder,
        clock: Clock,
        *,
        image: str,
    ) -> None:
        self.last_success = 0.0  # Unix time
        self._nodes = informers.of(Node)
        self._gpunodes = informers.of(GPUNode)
        self._policies = informers.of(ClusterPolicy)
        self._drivers = informers.of(NVIDIADriver)
        self._pods = informers.of(Pod)
        self._daemonsets = informers.of(DaemonSet, names.OPERATOR_NAMESPACE)
        self._upgrades = upgrades
        self._pools = pools
        self._writer = ClusterWriter(client, image, clock)
        self._recorder = recorder
        self._clock = clock
        self._warned: tuple[str, int] | None = None
        whole = (self._policies, self._drivers, self._nodes, self._gpunodes, self._daemonsets)
        self.controller = Controller(
            "policy",
            [*(Source(informer, lambda obj: (KEY,)) for informer in whole), Source(self._pods, self._ends_with)],
            self.reconcile,
            clock=clock,
        )
        upgrades.add_handler(lambda: self.controller.enqueue(KEY))
        pools.add_handler(lambda: self.controller.enqueue(KEY))

    async def run(self) -> None:
        """Work until cancelled."""
        await self._pools.known()
        await self.controller.run()

    async def reconcile(self, key: str) -> float | None:
        """Correct the objects of the cluster."""
        # Every change of every node comes here; gathered, they cost one look at all nodes instead of one each.
        await self._clock.sleep(min(_GATHER_AT_MOST, _GATHER_SECONDS_PER_NODE * len(self._nodes)))
        policy, ignored = chosen(self._policies.items())
        if policy is None:
            return None
        if is_paused(policy):
            await self._writer.pause(policy)
            return None
        for other in ignored:
            await self._writer.ignore(other, policy.metadata.name)
        seen = self._view()
        if policy.metadata.deletion_timestamp:
            await self._writer.end(policy, seen)
        else:
            self._warn(policy)
            await self._writer.keep(policy, seen)
        self.last_success = unix_time(self._clock.wall()) or 0.0
        return None

    def _view(self) -> ClusterView:
        nodes = self._nodes.items()
        operands = operand_pods(self._pods.items(), nodes)
        discovery = [pod for pod in operands if pod.metadata.labels.get(COMPONENT_LABEL) in DISCOVERY]
        return ClusterView(
            nodes=nodes,
            gpunodes=self._gpunodes.items(),
            daemonsets=self._daemonsets.items(),
            needed=self._upgrades.needed(),
            upgrades=self._upgrades.report,
            operand_pods=len(operands),
            discovery_pods=len(discovery),
            discovering=frozenset(
                pod.spec.node_name for pod in discovery if pod.metadata.labels[COMPONENT_LABEL] == WORKER
            ),
            drivers=tuple(self._drivers.items()),
            pools=self._pools.pools(),
        )

    def _ends_with(self, pod: Pod) -> Iterable[str]:
        """A policy that is being deleted waits for the last operand's pod, one without discovery for discovery's."""
        policy = chosen(self._policies.items())[0]
        if policy is None or not is_operand(pod):
            return ()
        discovers = policy.spec.nfd.enabled or pod.metadata.labels.get(COMPONENT_LABEL) not in DISCOVERY
        return (KEY,) if policy.metadata.deletion_timestamp or not discovers else ()

    def _warn(self, policy: ClusterPolicy) -> None:
        """One event for each new version of the policy that sets a field without effect."""
        version = (policy.metadata.uid, policy.metadata.generation)
        if version == self._warned:
            return
        self._warned = version
        idle = [f"spec.{path}" for path, _ in without_effect(to_dict(policy.spec))]
        if idle:
            named = ", ".join(idle[:_NAMED]) + (f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else "")
            text = f"no effect in this release: {named}; gpuplane check says why"
            self._recorder.event(policy, "Warning", "NoEffect", text)
