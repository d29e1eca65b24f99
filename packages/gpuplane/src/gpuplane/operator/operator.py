"""The operator's process: informers in, one controller for nodes and one for the policy, metrics out."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from argparse import Namespace
from collections.abc import Iterable
from typing import Any, Final

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec, chosen, is_paused
from gpuplane.api.effects import without_effect
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.requests import core_held
from gpuplane.operator.cluster import ClusterView, ClusterWriter
from gpuplane.operator.discovery import COMPONENTS as DISCOVERY
from gpuplane.operator.drivers import choices, owner_of, why_none
from gpuplane.operator.metrics import paths
from gpuplane.operator.mps import follows_mps
from gpuplane.operator.nodes import NodeWriter, Settling
from gpuplane.operator.observed import COMPONENT_LABEL, answers, observe
from gpuplane.operator.operands import enabled_gates
from gpuplane.operator.policy import PART_OF, PART_OF_LABEL, is_feature, stage_events
from gpuplane.operator.stages import MPS_GATE
from gpuplane.operator.upgrade.controller import KEY as UPGRADES_KEY
from gpuplane.operator.upgrade.controller import Upgrades
from kubekit.api.core import ConfigMap, DaemonSet, Node, Pod
from kubekit.api.meta import to_dict
from kubekit.errors import InvalidInput, Retryable
from kubekit.http_server import serving
from kubekit.kube import Client, Controller, EventRecorder, Fenced, Informer, Lease, Source, SystemClock, TokenBucket

log = logging.getLogger("gpuplane.operator")
POLICY_KEY: Final = "policy"
OWN_COMPONENT: Final = "gpu-operator"
PORT: Final = 8080
LEASE: Final = "gpuplane-operator"
SHORTEST_LEASE: Final = 2  # seconds
# Events are hints, GPUNode has the record: a cluster that comes up whole does not drown in them.
EVENTS_PER_SECOND, EVENTS_AT_ONCE = 5.0, 100.0
AWAY_SECONDS: Final = 1.0  # until an API server that did not answer is asked again
GATHER_SECONDS_PER_NODE: Final = 0.005


async def run(options: Namespace) -> None:
    """Run until cancelled, as the only one that works (a lease decides)."""
    identity = os.environ.get("POD_NAME") or f"operator-{os.getpid()}"
    agent = "gpuplane-operator"
    async with (
        Client.connect(options.kubeconfig, options.context, user_agent=agent) as own,
        Fenced.connect(options.kubeconfig, options.context, user_agent=agent) as client,
    ):
        lease = operator_lease(own, identity, options.lease_duration)
        client.fence = lease
        operator = Operator(client, image=await own_image(client), identity=identity)
        port = PORT if options.port is None else options.port
        async with serving(paths(operator), os.environ.get("POD_IP", ""), port):
            await lease.lead(operator.run)


def operator_lease(client: Client, identity: str, duration: int) -> Lease:
    """The lease that decides who works. Raises InvalidInput for a duration (seconds) that is too short.

    The holder gives up after two thirds of it and tries every 2/15, as client-go's 15, 10 and 2 s.
    """
    if duration < SHORTEST_LEASE:
        raise InvalidInput(
            f"{duration} s is too short a lease", where="--lease-duration", cure=f"{SHORTEST_LEASE} or more"
        )
    namespace = os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE)
    times: dict[str, Any] = {"duration": duration, "renew": duration * 2 / 3, "retry": duration * 2 / 15}
    return Lease(client, LEASE, namespace, identity, **times)


async def own_image(client: Client) -> str:
    """The image that the operator runs from: operands run from the same. An API server that is away is waited for."""
    if image := os.environ.get("GPUPLANE_IMAGE"):
        return image
    name = os.environ.get("POD_NAME")
    if not name:
        return names.IMAGE
    while True:
        try:
            pod = await client.get(Pod, name, os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE))
            return pod.spec.containers[0].image
        except Retryable as error:
            log.warning("pass failed, retrying: %s", error)
            await asyncio.sleep(AWAY_SECONDS)


class Operator:
    """All that the operator knows and does; `writes` and the informers feed the metrics."""

    def __init__(self, client: Client, *, image: str, identity: str) -> None:
        self.clock = SystemClock()
        self.nodes = Informer(client, Node)
        self.gpunodes = Informer(client, GPUNode)
        self.policies = Informer(client, ClusterPolicy)
        self.drivers = Informer(client, NVIDIADriver)
        self.pods = Informer(client, Pod)
        self.daemonsets = Informer(client, DaemonSet, names.OPERATOR_NAMESPACE)
        self.configs = Informer(client, ConfigMap, names.OPERATOR_NAMESPACE)
        self.pods.add_index("node", lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ())
        self.writer = NodeWriter(client, self.clock.wall)
        self.cluster = ClusterWriter(client, image, self.clock.wall)
        self.recorder = EventRecorder(client, "gpuplane-operator", instance=identity)
        self.last_success = 0.0  # Unix time
        self._warned: tuple[str, int] | None = None
        self._events = TokenBucket(EVENTS_PER_SECOND, EVENTS_AT_ONCE, self.clock.now)
        self._settling = Settling(self.clock.now)
        self.upgrades = Upgrades(
            client,
            nodes=self.nodes,
            gpunodes=self.gpunodes,
            pods=self.pods,
            daemonsets=self.daemonsets,
            policy=lambda: self.policy,
            image=image,
            recorder=self.recorder,
            events=self._events,
            told=lambda: self.policy_controller.enqueue(POLICY_KEY),
        )
        self.gpunodes.add_handler(self._tell)
        self.node_controller = Controller(
            "nodes",
            [
                self.nodes,
                self.gpunodes,
                Source(self.pods, _node_of_pod),
                Source(self.policies, lambda policy: self._all_nodes()),
                Source(self.drivers, lambda driver: self._all_nodes()),
                Source(self.configs, self._nodes_of_config),
            ],
            self.reconcile_node,
            workers=8,
        )
        self.policy_controller = Controller(
            "policy",
            [
                *(Source(informer, lambda obj: (POLICY_KEY,)) for informer in self._policy_sources()),
                Source(self.pods, self._ends_with),
            ],
            self.reconcile_policy,
        )

        self.upgrade_controller = Controller(
            "upgrades",
            [Source(informer, lambda obj: (UPGRADES_KEY,)) for informer in (*self._policy_sources(), self.pods)],
            self.upgrades.reconcile,
        )

    def _policy_sources(self) -> Iterable[Informer[Any]]:
        return (self.policies, self.drivers, self.nodes, self.gpunodes, self.daemonsets)

    def _ends_with(self, pod: Pod) -> Iterable[str]:
        """A policy that is being deleted waits for the last operand's pod, one without discovery for discovery's."""
        policy = self.policy
        if policy is None or not is_operand(pod):
            return ()
        discovers = policy.spec.nfd.enabled or pod.metadata.labels.get(COMPONENT_LABEL) not in DISCOVERY
        return (POLICY_KEY,) if policy.metadata.deletion_timestamp or not discovers else ()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for controller in (self.node_controller, self.policy_controller, self.upgrade_controller):
                    group.create_task(controller.run(), name=controller.name)
        finally:
            await self.recorder.aclose()

    @property
    def policy(self) -> ClusterPolicy | None:
        """The policy in force."""
        return chosen(self.policies.items())[0]

    @property
    def discovered(self) -> bool:
        """Return whether some node carries labels of feature discovery."""
        return any(any(map(is_feature, node.metadata.labels)) for node in self.nodes.items())

    async def reconcile_node(self, name: str) -> float | None:
        node = self.nodes.get(name)
        if node is None:
            return None
        gpunode = self.gpunodes.get(name)
        if self.writer.behind(node, gpunode):
            return None
        policy = self.policy
        if policy is not None and is_paused(policy):
            return None
        alive = policy is not None and not policy.metadata.deletion_timestamp
        pods = self.pods.by_index("node", name)
        found = choices(policy.spec, self.drivers.items()) if policy is not None and alive else []
        owner = owner_of(node.metadata.labels, found)
        seen = observe(
            node,
            gpunode,
            [pod for pod in pods if pod.metadata.namespace == names.OPERATOR_NAMESPACE and is_operand(pod)],
            held=sum(map(core_held, pods)),
            enabled=self._enabled(policy.spec, node) if policy is not None and alive else frozenset(),
            taint_wanted=policy.spec.operator.not_ready_taint if policy is not None and alive else False,
            driver_owner=owner or "",
            no_driver=why_none(owner, found) if alive else ("", "", ""),
        )
        proofs = [pod for pod in pods if is_proof(pod)]
        return await self.writer.carry_out(node, gpunode, seen, self._settling, len(self.nodes), proofs)

    async def reconcile_policy(self, key: str) -> float | None:
        # Every change of every node comes here; gathered, they cost one look at all nodes instead of one each.
        await self.clock.sleep(min(1.0, GATHER_SECONDS_PER_NODE * len(self.nodes)))
        policy, ignored = chosen(self.policies.items())
        if policy is None:
            return None
        if is_paused(policy):
            await self.cluster.pause(policy)
            return None
        for other in ignored:
            await self.cluster.ignore(other, policy.metadata.name)
        seen = ClusterView(
            nodes=self.nodes.items(),
            gpunodes=self.gpunodes.items(),
            daemonsets=self.daemonsets.items(),
            needed=self.upgrades.needed(),
            upgrades=self.upgrades.seen,
            operand_pods=self._operand_pods(),
            discovery_pods=self._operand_pods(DISCOVERY),
            drivers=tuple(self.drivers.items()),
        )
        if policy.metadata.deletion_timestamp:
            await self.cluster.end(policy, seen)
        else:
            self._warn(policy)
            await self.cluster.keep(policy, seen)
        self.last_success = time.time()
        return None

    def _warn(self, policy: ClusterPolicy) -> None:
        """One event for each new version of the policy that sets what changes nothing."""
        version = (policy.metadata.uid, policy.metadata.generation)
        if version == self._warned:
            return
        self._warned = version
        idle = [f"spec.{path}" for path, _ in without_effect(to_dict(policy.spec))]
        if idle:
            named = ", ".join(idle[:5]) + (f" and {len(idle) - 5} more" if len(idle) > 5 else "")
            text = f"no effect in this release: {named}; gpuplane check says why"
            self.recorder.event(policy, "Warning", "NoEffect", text)

    def _operand_pods(self, components: tuple[str, ...] = ()) -> int:
        """Count the operand pods on nodes that answer (on others they cannot end); of some components, or of all."""
        answering = {node.metadata.name for node in self.nodes.items() if answers(node)}
        return sum(
            1
            for pod in self.pods.items()
            if pod.spec.node_name in answering
            and is_operand(pod)
            and (not components or pod.metadata.labels.get(COMPONENT_LABEL) in components)
        )

    def _enabled(self, spec: ClusterPolicySpec, node: Node) -> frozenset[str]:
        """The gates that the policy wants on a node."""
        gates, config = enabled_gates(spec), spec.device_plugin.config
        found = self.configs.get(f"{names.OPERATOR_NAMESPACE}/{config.name}") if config is not None else None
        if config is None or found is None or not follows_mps(found.data, config.default, node.metadata.labels):
            gates -= {MPS_GATE}
        return gates

    def _nodes_of_config(self, config: ConfigMap) -> Iterable[str]:
        """A configuration of the device plugin may be every node's."""
        policy = self.policy
        followed = policy.spec.device_plugin.config if policy is not None else None
        return self._all_nodes() if followed is not None and followed.name == config.metadata.name else ()

    def _all_nodes(self) -> list[str]:
        return [node.metadata.name for node in self.nodes.items()]

    def _tell(self, old: GPUNode | None, new: GPUNode | None) -> None:
        """Events for what changed on a node; nothing at the start, when everything is new."""
        if old is None or new is None:
            return
        for level, reason, message in stage_events(old, new):
            if level == "Warning" or self._events.take():
                self.recorder.event(new, level, reason, message)


def is_operand(pod: Pod) -> bool:
    """Return whether a pod is one of our DaemonSets'; the operator itself is not."""
    component = pod.metadata.labels.get(COMPONENT_LABEL, OWN_COMPONENT)
    return component != OWN_COMPONENT and pod.metadata.labels.get(PART_OF_LABEL) == PART_OF


def is_proof(pod: Pod) -> bool:
    """Return whether a pod is one that a validator has run on its node."""
    meta = pod.metadata
    ours = meta.labels.get("app") == names.VALIDATION_POD and meta.labels.get(PART_OF_LABEL) == PART_OF
    return ours and meta.namespace == names.OPERATOR_NAMESPACE


def _node_of_pod(pod: Pod) -> Iterable[str]:
    relevant = pod.metadata.namespace == names.OPERATOR_NAMESPACE or core_held(pod)
    return (pod.spec.node_name,) if pod.spec.node_name and relevant else ()
