"""The loop of upgrades: looks at all nodes at once, decides, makes the steps, and says what there is to count.

One key for the whole cluster, for how many nodes may be away is a question about all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen, is_paused
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.requests import uses_gpus
from gpuplane.api.upgrade import UpgradeState, unix_time, upgrade_record, upgrade_state
from gpuplane.operator.events import LimitedRecorder
from gpuplane.operator.pods import BY_NODE, node_of
from gpuplane.operator.upgrade.budget import Census, census, in_place
from gpuplane.operator.upgrade.decide import Now, plan
from gpuplane.operator.upgrade.facts import UpgradeFacts, UpgradeRules, UpgradeStep, rules_for, scaled
from gpuplane.operator.upgrade.observe import Drivers, is_driver_pod, node_facts
from gpuplane.operator.upgrade.patience import TroubleTimes
from gpuplane.operator.upgrade.templates import digest_of
from gpuplane.operator.upgrade.writer import UpgradeWriter
from kubekit.api.core import DaemonSet, Node, Pod
from kubekit.kube import Client, Clock, Controller, SharedInformers, Source

KEY: Final = "upgrades"
EVENT: Final = "GPUDriverUpgrade"  # the reason, as the GPU operator's
_DRIVER: Final = "driver"  # the index of driver pods
AT_ONCE: Final = 16  # requests
DEFAULT_IN_PLACE: Final = "10%"
_GATHER_SECONDS_PER_NODE: Final = 0.005
_GATHER_AT_MOST: Final = 2.0


class UpgradeReport(msgspec.Struct, frozen=True):
    """The result of the last pass; for metrics and the policy's status."""

    rules: UpgradeRules = UpgradeRules()
    census: Census = Census()


class UpgradeController:
    """Reconciles the drivers of all nodes. `report` is the result of the last pass.

    Args:
        image: the operator's own.
    """

    def __init__(
        self, client: Client, informers: SharedInformers, recorder: LimitedRecorder, clock: Clock, *, image: str
    ) -> None:
        self.report = UpgradeReport()
        self._client = client
        self._writer = UpgradeWriter(client)
        self._nodes = informers.of(Node)
        self._gpunodes = informers.of(GPUNode)
        self._policies = informers.of(ClusterPolicy)
        self._pods = informers.of(Pod)
        self._daemonsets = informers.of(DaemonSet, names.OPERATOR_NAMESPACE)
        self._image = image
        self._recorder = recorder
        self._clock = clock
        self._handlers: list[Callable[[], None]] = []
        self._troubles = TroubleTimes(clock.now)
        self._pods.add_index(BY_NODE, node_of)
        self._pods.add_index(_DRIVER, lambda pod: ("",) if is_driver_pod(pod) else ())
        whole = (self._policies, informers.of(NVIDIADriver), self._nodes, self._gpunodes, self._daemonsets, self._pods)
        self.controller = Controller(
            "upgrades", [Source(informer, lambda obj: (KEY,)) for informer in whole], self.reconcile, clock=clock
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call `handler` whenever the report has changed."""
        self._handlers.append(handler)

    def driver_pods(self) -> list[Pod]:
        """The driver pods of all nodes."""
        return self._pods.by_index(_DRIVER, "")

    def needed(self) -> frozenset[str]:
        """Digests of the drivers that run somewhere, or that some node runs or may go back to."""
        running = {digest_of(pod.spec) for pod in self.driver_pods()}
        pinned = {node.metadata.labels.get(names.ROLLBACK_LABEL, "") for node in self._nodes.items()}
        before = {upgrade_record(node).before for node in self._nodes.items()}
        return frozenset((running | pinned | before) - {""})

    async def reconcile(self, key: str) -> float | None:
        # Every change of every node and pod comes here; gathered, they cost one look.
        await self._clock.sleep(min(_GATHER_AT_MOST, _GATHER_SECONDS_PER_NODE * len(self._nodes)))
        policy = chosen(self._policies.items())[0]
        alive = policy is not None and not policy.metadata.deletion_timestamp
        if policy is not None and is_paused(policy):
            return None
        nodes = self._nodes.items()
        if self._writer.behind(nodes):
            return None
        rules = UpgradeRules()
        share = 0.0
        if policy is not None and alive:
            gpu_nodes = sum(1 for node in nodes if names.GPU_PRESENT_LABEL in node.metadata.labels)
            rules = rules_for(policy.spec.driver.upgrade_policy, gpu_nodes)
            share = _in_place_share(policy, gpu_nodes)
        drivers = Drivers(self._daemonsets.items(), self._image)
        if not rules.enabled and not drivers.outdated(self.driver_pods()) and not any(map(is_marked, nodes)):
            self._publish(UpgradeReport())
            return None
        facts = await self._facts(nodes, drivers, rules, managed=alive)
        now = self._clock.wall()
        steps = plan(facts, rules, Now(unix_time(now) or 0.0, now))
        moved = {step.node for step in steps if step.state is not None}
        replaced = [(node, pod) for node, pod in in_place(facts, share) if alive and node.name not in moved]
        steps += [UpgradeStep(node.name, restart=pod) for node, pod in replaced]
        await self._make(steps)
        self._publish(UpgradeReport(rules, census(facts, rules)))
        return min((step.again for step in steps if step.again is not None), default=None)

    async def _facts(
        self, nodes: list[Node], drivers: Drivers, rules: UpgradeRules, *, managed: bool
    ) -> list[UpgradeFacts]:
        states = {node.metadata.name: upgrade_state(node) for node in nodes}
        jobs = await self._matching(rules.jobs) if UpgradeState.JOBS in states.values() else ()
        drained = await self._matching(rules.drain.pod_selector) if UpgradeState.DRAIN in states.values() else None
        self._troubles.keep(states)
        self._writer.forget({pod.metadata.uid for pod in self._pods.items()} if self._writer.remembers else set())
        found = []
        for node in nodes:
            name = node.metadata.name
            pods = self._pods.by_index(BY_NODE, name)
            scratch: set[str] = set()
            if states[name] in (UpgradeState.PODS, UpgradeState.DRAIN):
                scratch = await self._scratch(pods, rules, draining=states[name] is UpgradeState.DRAIN)
            found.append(
                node_facts(
                    node,
                    self._gpunodes.get(name),
                    pods,
                    drivers,
                    managed=managed,
                    troubled=self._troubles.seconds,
                    jobs=jobs or (),
                    drained=drained,
                    refused=self._writer.refused,
                    scratch=scratch,
                )
            )
        return found

    async def _matching(self, selector: str) -> set[str] | None:
        """The names of pods that a label selector means, as the API server reads it; None for an empty one."""
        if not selector:
            return None
        pods = await self._client.list(Pod, labels=selector)
        return {f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods if not pod.status.ended}

    async def _scratch(self, pods: Iterable[Pod], rules: UpgradeRules, *, draining: bool) -> set[str]:
        may_go = rules.drain.delete_empty_dir if draining else rules.deletion.delete_empty_dir
        if may_go:
            return set()
        return await self._writer.scratch(pod for pod in pods if draining or uses_gpus(pod))

    async def _make(self, steps: Iterable[UpgradeStep]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(step: UpgradeStep) -> None:
            node = self._nodes.get(step.node)
            if node is None:
                return
            async with room:
                await self._writer.make(step, node)
            if step.event:
                self._recorder.event(node, "Warning" if step.bad else "Normal", EVENT, step.event[:1000])

        results = await asyncio.gather(*map(one, steps), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _publish(self, report: UpgradeReport) -> None:
        if report != self.report:
            self.report = report
            for handler in self._handlers:
                handler()


def is_marked(node: Node) -> bool:
    """Return whether a node carries anything that upgrades have put there."""
    labels, annotations = node.metadata.labels, node.metadata.annotations
    return (
        names.UPGRADE_STATE_LABEL in labels
        or names.ROLLBACK_LABEL in labels
        or names.UPGRADE_RECORD_ANNOTATION in annotations
        or names.UPGRADE_INITIAL_ANNOTATION in annotations
    )


def _in_place_share(policy: ClusterPolicy, nodes: int) -> float:
    """The share of nodes whose driver pod may be replaced at once by one of the same driver; 0 for by hand."""
    common = policy.spec.daemonsets
    if common.update_strategy == "OnDelete" or not nodes:
        return 0.0
    rolling = common.rolling_update
    limit = rolling.max_unavailable if rolling is not None and rolling.max_unavailable is not None else DEFAULT_IN_PLACE
    return scaled(limit, nodes) / nodes
