"""The operator's process: one controller each for nodes, policy, upgrades and PodExplanations, metrics out."""

from __future__ import annotations

import asyncio
import logging
import os
from argparse import Namespace
from typing import Any, Final

from gpuplane import names
from gpuplane.api.clusterpolicy import chosen
from gpuplane.operator.events import LimitedRecorder
from gpuplane.operator.explanations import Explain, ExplainProcess, ExplanationController
from gpuplane.operator.metrics import OperatorState, paths
from gpuplane.operator.node_controller import NodeController
from gpuplane.operator.policy import is_discovered
from gpuplane.operator.policy_controller import PolicyController
from gpuplane.operator.pools import PoolWatch
from gpuplane.operator.upgrade.controller import UpgradeController
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput, Retryable
from kubekit.http_server import serving
from kubekit.kube import Client, Clock, EventRecorder, Fenced, Lease, SharedInformers, SystemClock

log = logging.getLogger("gpuplane.operator")
PORT: Final = 8080
LEASE: Final = "gpuplane-operator"
SHORTEST_LEASE: Final = 2  # seconds
AWAY_SECONDS: Final = 1.0  # until an API server that did not answer is asked again


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
        explain = ExplainProcess(options.kubeconfig, options.context)
        operator = OperatorProcess(client, explain, image=await own_image(client), identity=identity)
        port = PORT if options.port is None else options.port
        async with serving(paths(operator.state), os.environ.get("POD_IP", ""), port):
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


class OperatorProcess:
    """The operator's controllers, with the informers that they share."""

    def __init__(
        self, client: Client, explain: Explain, *, image: str, identity: str, clock: Clock | None = None
    ) -> None:
        clock = clock or SystemClock()
        informers = SharedInformers(client, clock)
        self._events = EventRecorder(client, "gpuplane-operator", instance=identity, clock=clock)
        recorder = LimitedRecorder(self._events, clock)
        self.pools = PoolWatch(client, clock)
        self.explanations = ExplanationController(client, clock, explain)
        self.nodes = NodeController(client, informers, self.pools, recorder, clock)
        self.upgrades = UpgradeController(client, informers, recorder, clock, image=image)
        self.policy = PolicyController(client, informers, self.upgrades, self.pools, recorder, clock, image=image)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.pools.run(), name="pools")
                for each in (self.nodes, self.policy, self.upgrades, self.explanations):
                    group.create_task(each.run(), name=each.controller.name)
        finally:
            await self._events.aclose()

    def state(self) -> OperatorState:
        """Return the facts for the metrics."""
        stats = self.policy.controller.stats()
        return OperatorState(
            synced=self.nodes.nodes.has_synced,
            gpunodes=self.nodes.gpunodes.items(),
            policy=chosen(self.nodes.policies.items())[0],
            discovered=is_discovered(self.nodes.nodes.items()),
            reconciled=stats.reconciled,
            failed=stats.retryable + stats.terminal + stats.crashed,
            failing=self.policy.controller.failing,
            last_success=self.policy.last_success,
            upgrades=self.upgrades.report,
            writes=self.nodes.writer.writes,
        )
