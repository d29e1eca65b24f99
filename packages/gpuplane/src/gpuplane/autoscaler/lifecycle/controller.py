"""The controller of claims on their way: launched, registered, initialised, or given up in time.

One key for each claim. `launch` and `joining` decide, `writer` writes. `termination` ends a claim.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeclaim import (
    INITIALIZED,
    INITIALIZED_LABEL,
    LAUNCHED,
    REGISTERED,
    UNREGISTERED_TAINT,
    NodeClaim,
)
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.cloud import ClosedOfferings, CloudView, machine_class
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.lifecycle import joining, launch
from gpuplane.autoscaler.lifecycle.registrations import Registrations
from gpuplane.autoscaler.lifecycle.shape_checks import CHECK_SECONDS, ConditionState, ShapeChecks
from gpuplane.autoscaler.lifecycle.writer import LifecycleWriter
from gpuplane.autoscaler.nodeclaims import CLASS_HASH_ANNOTATION, with_condition, with_ready
from gpuplane.autoscaler.nodes import claim_options, is_true
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.providers.provider import CloudProvider, NoCapacity
from gpuplane.autoscaler.snapshot import make_offers
from gpuplane.autoscaler.watch import BY_PROVIDER, ClusterWatch
from kubekit.api.core import Node
from kubekit.api.meta import Condition, to_dict
from kubekit.errors import KubekitError
from kubekit.kube import Clock, Controller, EventRecorder, NotFound, Source

log = logging.getLogger("gpuplane.autoscaler")
LAUNCH_SECONDS: Final = 300.0  # from the claim's creation to its instance
REGISTRATION_SECONDS: Final = 900.0  # from the claim's creation to its node
WORKERS: Final = 16
_AGAIN_SECONDS: Final = 60.0  # a look without a cause, at a node that joins
_BEHIND_SECONDS: Final = 0.5


class LifecycleController:
    """Brings claims from their creation to an initialised node. `writer` counts its deletions.

    `registrations` are those of the nodes that joined, or did not in time.
    """

    def __init__(
        self,
        watch: ClusterWatch,
        cloud: CloudView,
        provider: CloudProvider,
        closed: ClosedOfferings,
        writer: LifecycleWriter,
        recorder: EventRecorder,
        clock: Clock,
        figures: LifeFigures | None = None,
    ) -> None:
        self.writer = writer
        self._figures = figures or LifeFigures()
        self.registrations = Registrations()
        self._watch = watch
        self._cloud = cloud
        self._provider = provider
        self._closed = closed
        self._recorder = recorder
        self._clock = clock
        self._shapes = ShapeChecks(recorder, clock)
        self.controller = Controller(
            "nodeclaims",
            [
                watch.claims,
                Source(watch.nodes, self._claims_of_node),
                Source(watch.gpunodes, lambda gpunode: self._claim_names(gpunode.metadata.name)),
                # Waited for, so that no claim is looked at before its pool and class are known.
                *(Source(one, lambda obj: ()) for one in watch.informers),
            ],
            self.reconcile,
            workers=WORKERS,
            clock=clock,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Do the next step for one claim; returns the seconds after which to look again."""
        claim = self._watch.claims.get(name)
        if claim is None or claim.metadata.deletion_timestamp:
            self._shapes.forget(name)
            return None
        if self.writer.behind(claim):
            return _BEHIND_SECONDS
        if not is_true(claim.status.conditions, LAUNCHED):
            return await self._launch(claim)
        if not is_true(claim.status.conditions, REGISTERED):
            return await self._register(claim)
        if not is_true(claim.status.conditions, INITIALIZED):
            return await self._initialize(claim)
        return await self._check(claim)

    # -- launch ------------------------------------------------------------------------------------------------------

    async def _launch(self, claim: NodeClaim) -> float | None:
        left = self._left(claim, LAUNCH_SECONDS)
        if left <= 0:
            await self.writer.delete(claim, "LaunchTimeout")
            return None
        pool = self._pool_of(claim)
        if pool is None:
            await self.writer.delete(claim, "NodePoolNotFound")
            return None
        classes = self._watch.classes()
        machines = machine_class(pool, classes)
        # NB: a cloud that does not answer says nothing about the class. The claim stays, for its instance may be there.
        resolved = await self._cloud.class_of(pool, classes)
        if machines is None or resolved.trouble:
            self._recorder.event(claim, "Warning", "NodeClassNotReady", resolved.trouble)
            await self.writer.delete(claim, "NodeClassNotReady")
            return None
        try:
            options = await self._options(claim, pool)
            if not options:
                # NB: the same pods would get the same claim again at once, so it stays until its time is over.
                what = "no offer of the pool holds its pods any more"
                self._recorder.event(claim, "Warning", "NoCompatibleInstanceTypes", what)
                await self._set(claim, {}, LAUNCHED, "Unknown", "NoCompatibleInstanceTypes", what)
                return min(left, _AGAIN_SECONDS)
            allowed = launch.ordinary_options(claim, launch.open_options(options, self._closed.now()))
            if not allowed:
                raise NoCapacity("the cloud refused every offering of the claim lately")
            request = launch.launch_request(claim, allowed, machines, pool.kubelet)
            instance = await self._provider.launch(request)
        except NoCapacity as error:
            self._closed.close(error.closed)
            self._recorder.event(claim, "Warning", "InsufficientCapacityError", str(error))
            await self.writer.delete(claim, "InsufficientCapacity")
            return None
        except KubekitError as error:
            await self._set(claim, {}, LAUNCHED, "Unknown", "LaunchFailed", str(error))
            raise
        option = launch.launched_option(instance, options)
        log.info(
            "launched claim=%s instance=%s type=%s zone=%s capacity_type=%s",
            *(claim.metadata.name, instance.provider_id, instance.machine, instance.zone, instance.capacity_type),
        )
        try:
            labels, annotations = launch.launched_labels(instance, option), launch.launched_annotations(option)
            claim = await self.writer.set_metadata(claim, labels, annotations)
            status = launch.launched_status(instance, option)
            await self._set(claim, status, LAUNCHED, "True", "Launched", "")
        except NotFound:
            # The claim went while its instance was launched, so no other process ends the instance soon.
            await self._provider.terminate(instance.provider_id)
            log.info("terminated instance=%s, its claim is gone claim=%s", instance.provider_id, claim.metadata.name)
        return None

    async def _options(self, claim: NodeClaim, pool: DeclaredPool) -> tuple[NodeOption, ...]:
        """Return the nodes that the claim may become, by today's prices."""
        facts = self._watch.facts()
        cloud = await self._cloud.facts([pool], facts.classes, self._watch.learned())
        only = msgspec.structs.replace(facts, pools=[pool], pods=(), nodes=())
        own = {one.key: frozenset(one.values) for one in claim.spec.requirements if one.operator == "In"}
        return claim_options(claim, make_offers(only, cloud, own)[0])

    # -- registration ------------------------------------------------------------------------------------------------

    async def _register(self, claim: NodeClaim) -> float | None:
        nodes = self._watch.nodes.by_index(BY_PROVIDER, claim.status.provider_id)
        if len(nodes) > 1:
            several = ", ".join(sorted(node.metadata.name for node in nodes))
            await self._set(claim, {}, REGISTERED, "Unknown", "MultipleNodesFound", f"nodes of one instance: {several}")
            return _AGAIN_SECONDS
        if not nodes:
            left = self._left(claim, REGISTRATION_SECONDS)
            if left <= 0:
                self._recorder.event(claim, "Warning", "RegistrationTimeout", "its node did not join within 15 min")
                self._note(claim, joined=False)
                await self.writer.delete(claim, "RegistrationTimeout")
                return None
            await self._set(claim, {}, REGISTERED, "Unknown", "NodeNotFound", "the node has not joined yet")
            return min(left, _AGAIN_SECONDS)
        [node] = nodes
        if node.metadata.deletion_timestamp:
            return _AGAIN_SECONDS
        if joining.lacks_unregistered_taint(node) and not self._names_template(claim):
            what = f"the node came without the taint {UNREGISTERED_TAINT}: pods may have come before its labels"
            self._recorder.event(claim, "Warning", "UnregisteredTaintMissing", what)
        await self.writer.patch_node(node, joining.registration_patch(claim, node))
        log.info("registered claim=%s node=%s", claim.metadata.name, node.metadata.name)
        self._note(claim, joined=True)
        labels = claim.metadata.labels
        pool, zone = labels.get(karpenter.POOL_LABEL, ""), labels.get(karpenter.ZONE_LABEL, "")
        self._figures.nodes_created.add(nodepool=pool, zone=zone)
        await self._set(claim, {"nodeName": node.metadata.name}, REGISTERED, "True", "Registered", "")
        return None

    def _note(self, claim: NodeClaim, *, joined: bool) -> None:
        pool = claim.metadata.labels.get(karpenter.POOL_LABEL, "")
        self.registrations.note(pool, claim.metadata.annotations.get(CLASS_HASH_ANNOTATION, ""), joined)

    # -- initialisation ----------------------------------------------------------------------------------------------

    async def _initialize(self, claim: NodeClaim) -> float | None:
        node = self._watch.nodes.get(claim.status.node_name)
        if node is None:
            return _AGAIN_SECONDS
        gpunode = self._watch.gpunodes.get(node.metadata.name)
        prepared = self._watch.prepares_nodes()
        reason, message = joining.why_not_initialized(claim, node, gpunode, prepared=prepared)
        if reason:
            await self._set(claim, {}, INITIALIZED, "Unknown", reason, message)
            return _AGAIN_SECONDS
        await self.writer.patch_node(node, {"metadata": {"labels": {INITIALIZED_LABEL: "true"}}})
        self._shapes.compare(claim, node)
        status = joining.initialized_status(claim, node)
        shape = self._shapes.check(claim, node)
        await self._write(claim, status, (INITIALIZED, "True", "Initialized", ""), shape)
        log.info("initialized claim=%s node=%s", claim.metadata.name, node.metadata.name)
        return CHECK_SECONDS

    async def _check(self, claim: NodeClaim) -> float:
        """Compare an initialised node with its claim, if that is due; returns the seconds until the next time."""
        wait = self._shapes.wait(claim.metadata.name)
        if wait:
            self.writer.forget(claim.metadata.uid)
            return wait
        node = self._watch.nodes.get(claim.status.node_name)
        if node is not None:
            await self._write(claim, {}, self._shapes.check(claim, node))
        return CHECK_SECONDS

    # -- parts -------------------------------------------------------------------------------------------------------

    async def _set(
        self, claim: NodeClaim, fields: Mapping[str, object], name: str, status: str, reason: str, message: str
    ) -> None:
        """Write one condition, and Ready with it; nothing if that changes nothing."""
        await self._write(claim, fields, (name, status, reason, message))

    async def _write(self, claim: NodeClaim, fields: Mapping[str, object], *states: ConditionState) -> None:
        now, generation = self._clock.wall(), claim.metadata.generation
        conditions: tuple[Condition, ...] = claim.status.conditions
        after = conditions
        for state in states:
            after = with_condition(after, *state, now, generation)
        after = with_ready(after, now, generation)
        if fields or to_dict(after) != to_dict(conditions):
            await self.writer.set_status(claim, fields, after)

    def _left(self, claim: NodeClaim, seconds: float) -> float:
        """Return the seconds until a claim is too old for a step."""
        created, now = unix_time(claim.metadata.creation_timestamp), unix_time(self._clock.wall())
        return seconds if created is None or now is None else created + seconds - now

    def _pool_of(self, claim: NodeClaim) -> DeclaredPool | None:
        name = claim.metadata.labels.get(karpenter.POOL_LABEL, "")
        return next((pool for pool in self._watch.pools() if pool.name == name), None)

    def _names_template(self, claim: NodeClaim) -> bool:
        """Return whether the claim's class names a launch template: then the user's own user data registers nodes."""
        pool = self._pool_of(claim)
        machines = machine_class(pool, self._watch.classes()) if pool is not None else None
        return machines is not None and bool(machines.spec.get("launchTemplate"))

    def _claims_of_node(self, node: Node) -> Iterable[str]:
        found = self._watch.claims.by_index(BY_PROVIDER, node.spec.provider_id) if node.spec.provider_id else []
        return [claim.metadata.name for claim in found]

    def _claim_names(self, node: str) -> Iterable[str]:
        found = self._watch.nodes.get(node)
        return self._claims_of_node(found) if found is not None else ()
