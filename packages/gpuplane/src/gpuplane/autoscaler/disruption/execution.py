"""Carries plans out: buys replacements, taints, deletes, and gives nodes back whose replacements take no pods.

In memory only, as the commands are: after a restart, nodes with the taint whose claim is not being deleted take pods
again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuplane.api.nodeclaim import INITIALIZED, NodeClaim
from gpuplane.autoscaler.disruption.commands import DisruptionCommand, command_state, is_gone
from gpuplane.autoscaler.disruption.facts import UNDERUTILIZED, DisruptionPlan
from gpuplane.autoscaler.disruption.figures import DisruptionFigures
from gpuplane.autoscaler.disruption.observe import is_tainted
from gpuplane.autoscaler.disruption.supply import RemovalWorld
from gpuplane.autoscaler.disruption.writer import DisruptionWriter
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.termination.claim_conditions import holds
from gpuplane.autoscaler.termination.claim_links import claims_of_node
from kubekit.api.core import Node
from kubekit.kube import Clock, Informer

log = logging.getLogger("gpuplane.autoscaler")


class PlanExecution:
    """The plans under way. `sent` are claims that were deleted, until the watch reports the deletion."""

    def __init__(
        self,
        claims: Informer[NodeClaim],
        nodes: Informer[Node],
        writer: DisruptionWriter,
        figures: DisruptionFigures,
        clock: Clock,
    ) -> None:
        self.commands: list[DisruptionCommand] = []
        self.sent: set[str] = set()
        self._claims = claims
        self._nodes = nodes
        self._writer = writer
        self._figures = figures
        self._clock = clock

    @property
    def begun(self) -> set[str]:
        """Return the claims of nodes that go, also those whose deletion the watch has not reported yet."""
        return self.sent.union(*(command.claims for command in self.commands))

    def forget_gone(self) -> None:
        """Forget the deletions that the watch has reported."""
        self.sent = {name for name in self.sent if not is_gone(self._claims.get(name))}

    async def carry_out(self, plan: DisruptionPlan, bought: Sequence[BoughtNode], world: RemovalWorld | None) -> None:
        """Buy the replacements of a plan; without any, delete its nodes at once."""
        made: Sequence[str] = ()
        if bought and world is not None:
            made = await world.buy(bought, capped=plan.reason == UNDERUTILIZED)
            if len(made) < len(bought):
                log.info("replacements not bought, tried again reason=%s nodes=%d", plan.reason, len(plan.nodes))
                await self._drop(made)
                return
        pools = {node.pool for node in plan.nodes}
        self._figures.decide("replace" if made else "delete", plan.reason, plan.policy, pools)
        if made:
            command = DisruptionCommand(plan, tuple(made), self._clock.now())
            self.commands.append(command)
            await self._taint(command)
            return
        await self._delete(plan)

    async def advance(self) -> None:
        """Delete the nodes whose replacements take pods; give up those whose replacements do not."""
        for command in list(self.commands):
            state = command_state(command, self._claims.get, self._clock.now())
            if state.ready:
                await self._delete(command.plan)
                self.commands.remove(command)
            elif state.failed:
                log.warning("disruption given up reason=%s: %s", command.plan.reason, state.failed)
                await self._drop(command.replacements)
                await self._give_back(command)
                self.commands.remove(command)
                self._figures.failures += 1
            else:
                await self._taint(command)
                self._report_waits(command)

    async def take_back(self) -> None:
        """Let pods onto nodes again whose disruption was given up, or forgotten by a restart."""
        begun = self.begun
        for node in self._nodes.items():
            if not is_tainted(node) or node.metadata.deletion_timestamp:
                continue
            claim = next(iter(claims_of_node(self._claims.by_index, node)), None)
            if claim is None or claim.metadata.deletion_timestamp or claim.metadata.name in begun:
                continue
            await self._writer.untaint(node, claim)

    async def _taint(self, command: DisruptionCommand) -> None:
        for one in command.plan.nodes:
            claim, node = self._claims.get(one.claim), self._nodes.get(one.node)
            if claim is not None and node is not None:
                await self._writer.taint(node, claim, command.plan)

    def _report_waits(self, command: DisruptionCommand) -> None:
        for name in command.replacements:
            claim = self._claims.get(name)
            if claim is not None and not holds(claim, INITIALIZED):
                self._writer.wait(claim, command.plan)

    async def _delete(self, plan: DisruptionPlan) -> None:
        for node in plan.nodes:
            claim = self._claims.get(node.claim)
            if claim is not None:
                # Until the watch shows the deletion, the node counts as away: budgets are never spent twice.
                await self._writer.delete(claim, node, plan)
                self.sent.add(node.claim)

    async def _drop(self, claims: Sequence[str]) -> None:
        """Delete claims that were made for nothing, unless they take pods already."""
        for name in claims:
            await self._writer.drop(self._claims.get(name))

    async def _give_back(self, command: DisruptionCommand) -> None:
        """Let pods onto the nodes of a command again.

        NB: also onto those that the watch shows without the taint: it may be behind our own write. A patch on a node
        that has changed is refused, so the command counts against budgets until its nodes are surely free.
        """
        for one in command.plan.nodes:
            claim, node = self._claims.get(one.claim), self._nodes.get(one.node)
            if node is not None and claim is not None and not is_gone(claim):
                await self._writer.untaint(node, claim)
