"""The controller of nodes: labels, taint and GPUNode of each node, and events about its stages.

One key for each node. `gpuplane.operator.decide` decides, `gpuplane.operator.nodes` writes.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec, chosen, is_paused
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.offers import core_held, core_offered, offered_units, shared_by_mps
from gpuplane.operator.drivers import choices, owner_of, why_none
from gpuplane.operator.events import LimitedRecorder
from gpuplane.operator.mps import follows_mps
from gpuplane.operator.nodes import NodeWriter, Settling
from gpuplane.operator.observed import observe
from gpuplane.operator.operands import enabled_gates
from gpuplane.operator.pods import BY_NODE, concerns_node, holds_gpus, is_operand, is_proof, node_of
from gpuplane.operator.policy import holder_events, is_selected, new_faults, stage_events
from gpuplane.operator.pools import PoolWatch
from gpuplane.operator.stages import MPS_GATE
from gpuplane.operator.taints import has_unlisted_key, in_the_way, seen_keys, why_off
from gpuplane.sharing.held import units_when_healthy
from kubekit.api.core import ConfigMap, DaemonSet, Node, Pod
from kubekit.kube import Client, Clock, Controller, SharedInformers, Source


class NodeController:
    """Reconciles nodes. `writer` counts its writes."""

    def __init__(
        self, client: Client, informers: SharedInformers, pools: PoolWatch, recorder: LimitedRecorder, clock: Clock
    ) -> None:
        self.nodes = informers.of(Node)
        self.gpunodes = informers.of(GPUNode)
        self.policies = informers.of(ClusterPolicy)
        self.writer = NodeWriter(client, clock.wall)
        self._drivers = informers.of(NVIDIADriver)
        self._daemonsets = informers.of(DaemonSet, names.OPERATOR_NAMESPACE)
        self._pods = informers.of(Pod)
        self._configs = informers.of(ConfigMap, names.OPERATOR_NAMESPACE)
        self._pools = pools
        self._recorder = recorder
        self._settling = Settling(clock.now)
        self._pods.add_index(BY_NODE, node_of)
        self.gpunodes.add_handler(self._report)
        self.controller = Controller(
            "nodes",
            [
                self.nodes,
                self.gpunodes,
                Source(self._pods, lambda pod: node_of(pod) if concerns_node(pod) else ()),
                Source(self.policies, lambda policy: self._all_nodes()),
                Source(self._drivers, lambda driver: self._all_nodes()),
                Source(self._configs, self._nodes_of_config),
            ],
            self.reconcile,
            workers=8,
            clock=clock,
        )
        pools.add_handler(self._look_again)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._pools.known()
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Correct one node; returns the seconds after which to look again."""
        node = self.nodes.get(name)
        if node is None:
            return None
        gpunode = self.gpunodes.get(name)
        if self.writer.behind(node, gpunode):
            return None
        policy = chosen(self.policies.items())[0]
        if policy is not None and is_paused(policy):
            return None
        alive = policy is not None and not policy.metadata.deletion_timestamp
        pods = self._pods.by_index(BY_NODE, name)
        found = choices(policy.spec, self._drivers.items()) if policy is not None and alive else []
        owner = owner_of(node.metadata.labels, found)
        state = gpunode.status if gpunode is not None else GPUNodeStatus()
        units = offered_units(node.status.allocatable, state.gpus, state.health)
        seen = observe(
            node,
            gpunode,
            [pod for pod in pods if pod.metadata.namespace == names.OPERATOR_NAMESPACE and is_operand(pod)],
            offered=core_offered(units),
            held=sum(core_held(pod, units) for pod in pods),
            enabled=self._enabled(policy.spec, node) if policy is not None and alive else frozenset(),
            taint_wanted=policy.spec.operator.not_ready_taint if policy is not None and alive else False,
            driver_owner=owner or "",
            no_driver=why_none(owner, found) if alive else ("", "", ""),
            off=self._off(node, policy.spec) if policy is not None else ("", "", ""),
        )
        proofs = [pod for pod in pods if is_proof(pod)]
        return await self.writer.carry_out(node, gpunode, seen, self._settling, len(self.nodes), proofs)

    def _off(self, node: Node, spec: ClusterPolicySpec) -> tuple[str, str, str]:
        """Return (reason, message, cure) of the taints that keep operands off a node."""
        pools = self._pools.pools()
        keys = seen_keys(self.nodes.items(), self._daemonsets.items(), pools) if has_unlisted_key(node) else ()
        return why_off(in_the_way(node, spec.daemonsets.tolerations, pools, keys))

    def _enabled(self, spec: ClusterPolicySpec, node: Node) -> frozenset[str]:
        """The gates that the policy wants on a node."""
        if not is_selected(node.metadata.labels, spec):
            return frozenset()
        gates, config = enabled_gates(spec), spec.device_plugin.config
        found = self._configs.get(f"{names.OPERATOR_NAMESPACE}/{config.name}") if config is not None else None
        if config is None or found is None or not follows_mps(found.data, config.default, node.metadata.labels):
            gates -= {MPS_GATE}
        return gates

    def _nodes_of_config(self, config: ConfigMap) -> Iterable[str]:
        """A configuration of the device plugin may be every node's."""
        policy = chosen(self.policies.items())[0]
        followed = policy.spec.device_plugin.config if policy is not None else None
        return self._all_nodes() if followed is not None and followed.name == config.metadata.name else ()

    def _all_nodes(self) -> list[str]:
        return [node.metadata.name for node in self.nodes.items()]

    def _look_again(self) -> None:
        for name in self._all_nodes():
            self.controller.enqueue(name)

    def _report(self, old: GPUNode | None, new: GPUNode | None) -> None:
        """Events for what changed on a node, also on the pods that hold a GPU which has failed; nothing at the start,
        when everything is new.
        """
        if old is None or new is None:
            return
        for level, reason, message in stage_events(old, new):
            self._recorder.event(new, level, reason, message)
        name = new.metadata.name
        node = self.nodes.get(name)
        if node is None or not new_faults(old, new):
            return
        mps = shared_by_mps(node.metadata.labels)
        units = units_when_healthy(node.status.allocatable, node.status.capacity, new.status.gpus, by_mps=mps)
        pods = [pod for pod in self._pods.by_index(BY_NODE, name) if holds_gpus(pod)]
        for pod, reason, message in holder_events(old, new, pods, units):
            self._recorder.event(pod, "Warning", reason, message)
