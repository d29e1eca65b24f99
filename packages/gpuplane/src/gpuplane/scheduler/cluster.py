"""The extender's view of the cluster: nodes, GPUs and the pods that hold them. Watches keep it current, never lists.

Invariants:

- The annotations with which a watch first delivers a bound pod count until the pod ends: they are written once, and
  later edits change nothing here.
- A bound pod without a valid annotation (it was bound past the extender) is counted where it fits best, since it does
  hold GPUs. It is placed only after all nodes and pods are known.
- The allocation that a node reports for a running pod has priority over both.
- Where `nvidia.com/gpu` are replicas or MIG devices, kube-scheduler counts them: a pod that requests them holds nothing
  in the ledger.
- Ready, labels and GPUs of a node are those of the last version of its Node and GPUNode.
- The CPU and memory of all bound pods are counted, so that policies know which free GPUs a node can still use. Whether
  they suffice is the scheduler's decision, which may know sooner that a pod has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from gpuplane.api.gpunode import GPUNode
from gpuplane.api.offers import shared_by_mps
from gpuplane.scheduler.drift import Given, agrees, as_given, difference
from gpuplane.scheduler.quota import QuotaSettings, QuotaUsage
from gpuplane.scheduler.transforms import (
    CachedGPUNode,
    CachedNode,
    CachedPod,
    by_count,
    place_of,
    transform_any_pod,
    transform_gpunode,
    transform_node,
)
from gpuplane.sharing import Assignment, Ledger, LedgerGPU
from gpuplane.sharing.node import shared_gpus
from gpuplane.sharing.placement import Placement, place
from gpuplane.sharing.placement.tightest import TightestPolicy
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, Clock, Informer, SystemClock

log = logging.getLogger("gpuplane.scheduler")
_GUESS: Final = TightestPolicy()
_REMEMBERED: Final = 1024
NO_GPUS: Final = Assignment({})


class Cluster:
    """`ledger` and `usage` are current after `synced`; `by_uid` are the pods with GPUs that have not ended.

    `on_pod(uid, pod)` is called for each change of a pod (None: gone or ended), `on_freed(node, namespace)` when
    something on a node became free, or the node became usable ("" as namespace), `on_differs(pod, text)` of a pod whose
    annotation is not what its node gave.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock | None = None,
        pods: Informer[Any] | None = None,
        nodes: Informer[Any] | None = None,
        gpunodes: Informer[GPUNode] | None = None,
    ) -> None:
        """
        Args:
            pods, nodes, gpunodes: informers whose objects are CachedPods, CachedNodes and CachedGPUNodes, if others
                read or feed them too.
        """
        clock = clock or SystemClock()
        self.ledger = Ledger()
        self.usage = QuotaUsage()
        self.naming = QuotaSettings()
        self.by_uid: dict[str, CachedPod] = {}
        self.not_ready: set[str] = set()  # of the known nodes
        self.on_pod: list[Callable[[str, CachedPod | None], None]] = []
        self.on_freed: list[Callable[[str, str], None]] = []
        self.on_differs: list[Callable[[CachedPod, str], None]] = []
        self.on_bypassed: list[Callable[[CachedPod], None]] = []
        self.guessed: set[str] = set()
        self.by_count: set[str] = set()  # pods that hold replicas or MIG devices, which the kubelet chose
        self.unplaced: dict[str, CachedPod] = {}
        self.differing: dict[str, str] = {}  # by uid, what `on_differs` was called with
        # NB: an informer without objects is false.
        if pods is None:
            pods = Informer(client, Pod, keep=transform_any_pod, clock=clock)
        if nodes is None:
            nodes = Informer(client, Node, keep=transform_node, clock=clock)
        self.pods, self.nodes = pods, nodes
        if gpunodes is None:
            gpunodes = Informer(client, GPUNode, keep=transform_gpunode, clock=clock)
        self.gpunodes = gpunodes
        self.nodes.add_handler(self._node_changed)
        self.gpunodes.add_handler(self._gpunode_changed)
        self.pods.add_handler(self._pod_changed)
        self._said: set[str] = set()  # pods whose own annotation was seen
        self._given: dict[str, Given] = {}  # what nodes gave, where that is not what pods say
        self._gone: dict[str, None] = {}
        self._complete = False
        self._synced = asyncio.Event()

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        informers = (self.nodes, self.gpunodes, self.pods)
        try:
            async with asyncio.TaskGroup() as group:
                for informer in informers:
                    group.create_task(informer.run(), name=f"informer {informer.name}")
                await asyncio.gather(*(informer.synced() for informer in informers))
                self.all_known()
                log.info("cluster read gpu_nodes=%d gpu_pods=%d", sum(1 for _ in self.ledger.nodes()), len(self.by_uid))
                self._synced.set()
        finally:
            self._complete = False

    async def synced(self) -> None:
        await self._synced.wait()

    def all_known(self) -> None:
        """Count bound pods without a valid annotation from now on: all nodes and pods are known."""
        self._complete = True
        for node in {pod.spec.node_name for pod in self.unplaced.values()}:
            self._place_unplaced(node)

    # -- what others ask ---------------------------------------------------------------------------------------------

    def node(self, name: str) -> CachedNode | None:
        node = self.nodes.get(name)
        return node if isinstance(node, CachedNode) else None

    def unusable(self, name: str) -> str:
        """Return why no pod may go to the node, whatever is free there; empty when pods may."""
        if name in self.not_ready:
            return "the node is not Ready"
        return "the node is unknown" if self.nodes.get(name) is None else ""

    def shown(self, uid: str) -> str:
        """Return the namespace and name of a pod; its uid for an unknown pod."""
        pod = self.by_uid.get(uid)
        return pod.shown if pod is not None else uid

    def hold(self, pod: CachedPod, node: str, assignment: Assignment) -> None:
        """Count the assignment of a bound pod."""
        self.hold_in_ledger(pod, node, assignment)
        self.count(pod, node)

    def hold_in_ledger(self, pod: CachedPod, node: str, assignment: Assignment = NO_GPUS) -> None:
        """Count what the pod holds of GPUs, CPU and memory, and leave quotas as they are."""
        request = pod.request
        self.ledger.hold(
            pod.metadata.uid,
            node,
            assignment,
            cpu_milli=request.cpu_milli,
            host_memory_mib=request.host_memory_mib,
        )

    def count(self, pod: CachedPod, node: str) -> None:
        """Count the pod's request on its namespace's quota."""
        meta, request = pod.metadata, pod.request
        self.usage.add(meta.uid, meta.namespace, node, request.core, meta.name, by_count=request.by_count)

    def release(self, uid: str) -> None:
        """Free what the pod holds or has reserved."""
        held = self.ledger.holding(uid)
        self.ledger.release(uid)
        self.freed(uid, held[0] if held else "")

    def gone(self, uid: str) -> None:
        """Ignore later deliveries of a pod that a read did not find: the watch is behind."""
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def freed(self, uid: str, node: str) -> None:
        """Free what the pod held or had reserved on the node, and call `on_freed`."""
        pod = self.by_uid.get(uid)
        self.usage.remove(uid)
        if node:
            for tell in self.on_freed:
                tell(node, pod.metadata.namespace if pod is not None else "")

    def name_by(self, naming: QuotaSettings) -> None:
        """Use other labels of nodes for quotas from now on."""
        self.naming = naming
        for node in self.nodes.items():
            if isinstance(node, CachedNode):
                self._set_place(node)

    # -- changes -----------------------------------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        about = new or old
        assert about is not None
        name = about.metadata.name
        was_ready = isinstance(old, CachedNode) and old.ready
        if (isinstance(new, CachedNode) and new.ready) or self.nodes.get(name) is None:
            self.not_ready.discard(name)
        else:
            self.not_ready.add(name)
        if isinstance(new, CachedNode):
            self._set_place(new)
        elif self.nodes.get(name) is None:
            self.usage.set_place(name, None)
        changed = self._refresh(name)
        if isinstance(new, CachedNode) and new.ready and (changed or not was_ready):
            self._tell_usable(name)

    def _gpunode_changed(self, old: GPUNode | None, new: GPUNode | None) -> None:
        about = new or old
        assert about is not None
        name = about.metadata.name
        if (node := self.node(name)) is not None:
            self._set_place(node)
        if self._refresh(name) and new is not None:
            self._tell_usable(name)
        if isinstance(new, CachedGPUNode):
            known = old.given if isinstance(old, CachedGPUNode) else {}
            for uid, given in new.given.items():
                pod = self.by_uid.get(uid)
                if pod is not None and given != known.get(uid):
                    self._compare(pod, new)

    def _set_place(self, node: CachedNode) -> None:
        """Tell quotas of the node's labels and what its `nvidia.com/gpu` are."""
        self.usage.set_place(node.metadata.name, place_of(node, self.naming, self._gpus(node)))

    def _gpus(self, node: CachedNode) -> tuple[LedgerGPU, ...]:
        gpunode = self.gpunodes.get(node.metadata.name)
        gpus = gpunode.gpus if isinstance(gpunode, CachedGPUNode) else node.gpus
        return shared_gpus(gpus, by_mps=shared_by_mps(node.labels))

    def _refresh(self, name: str) -> bool:
        """Put the node's GPUs into the ledger; return whether that changed anything."""
        node = self.node(name)
        before = self.ledger.revision
        gpus = self._gpus(node) if node is not None else ()
        if node is not None and gpus:
            known = self.ledger.node(name)
            counted = by_count(node, gpus)
            self.ledger.set_node(
                name,
                gpus,
                cpu_milli=node.cpu_milli,
                host_memory_mib=node.host_memory_mib,
                by_count=counted,
            )
            if known is None or known.by_count != counted:
                self._guess_again(name)
            self._place_unplaced(name)
        else:
            self.ledger.drop_node(name)
        return self.ledger.revision != before

    def _guess_again(self, name: str) -> None:
        """Forget what the node's pods without assignment hold: its `nvidia.com/gpu` mean something else now."""
        for uid in [*self.guessed, *self.by_count]:
            pod = self.by_uid[uid]
            if pod.spec.node_name == name and uid not in self._given:
                self.guessed.discard(uid)
                self.by_count.discard(uid)
                self.ledger.release(uid)
                self.usage.remove(uid)
                self.unplaced[uid] = pod

    def _tell_usable(self, name: str) -> None:
        if self._complete and self.ledger.node(name) is not None:
            for tell in self.on_freed:
                tell(name, "")

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        now = new or old
        if isinstance(now, CachedPod) and not now.request:
            self._plain_changed(now, gone=new is None)
        elif isinstance(new, CachedPod):
            uid = new.metadata.uid
            if uid in self._gone:
                return
            self.by_uid[uid] = new
            if new.spec.node_name:
                if old is not None and not old.spec.node_name and new.assignment is None and self._complete:
                    for bypassed in self.on_bypassed:
                        bypassed(new)
                self._bound(new)
                gpunode = self.gpunodes.get(new.spec.node_name)
                if isinstance(gpunode, CachedGPUNode) and uid in gpunode.given:
                    self._compare(new, gpunode)
            for tell in self.on_pod:
                tell(uid, new)
        elif old is not None:
            uid = old.metadata.uid
            self._gone.pop(uid, None)
            self.unplaced.pop(uid, None)
            self.guessed.discard(uid)
            self.by_count.discard(uid)
            self._said.discard(uid)
            self._given.pop(uid, None)
            self.differing.pop(uid, None)
            self.release(uid)
            self.by_uid.pop(uid, None)
            for tell in self.on_pod:
                tell(uid, None)

    def _plain_changed(self, pod: CachedPod, *, gone: bool) -> None:
        """A pod without GPUs changed; it waits for this process, or it is bound."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if gone:
            self._gone.pop(uid, None)
            self.ledger.release(uid)
            if node and self.ledger.node(node) is not None:
                for freed in self.on_freed:
                    freed(node, "")
        elif uid in self._gone:
            return
        elif node:
            self.hold_in_ledger(pod, node)
        for tell in self.on_pod:
            tell(uid, None if gone else pod)

    def _compare(self, pod: CachedPod, gpunode: CachedGPUNode) -> None:
        """Count the allocation that the node reports, if it differs from the pod's annotation."""
        uid, node, given = pod.metadata.uid, pod.spec.node_name, gpunode.given[pod.metadata.uid]
        if node != gpunode.metadata.name or self._given.get(uid) == given:
            return
        holding = self.ledger.holding(uid)
        said = holding[1] if holding is not None else None
        if said is not None and uid not in self._given and agrees(said, given, gpunode.gpus):
            return
        if uid in self._said and said is not None:
            text = difference(said, given, gpunode.gpus)
            log.warning("annotation differs pod=%s node=%s: %s", pod.shown, node, text)
            self.differing[uid] = text
            for tell in self.on_differs:
                tell(pod, text)
        elif uid in self.unplaced:
            del self.unplaced[uid]
            self.guessed.add(uid)
        self._given[uid] = given
        self.hold(pod, node, as_given(given, said, gpunode.gpus))

    def _bound(self, pod: CachedPod) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        if uid in self._said or uid in self._given:
            if (holding := self.ledger.holding(uid)) is not None:
                self.hold_in_ledger(pod, *holding)  # a resize changes its CPU and memory
            return
        if pod.assignment is not None:
            self._said.add(uid)
            self.guessed.discard(uid)
            self.by_count.discard(uid)
            self.unplaced.pop(uid, None)
            self.hold(pod, node, pod.assignment)
        elif uid not in self.guessed and uid not in self.by_count:
            self.ledger.release(uid)  # another scheduler bound it: its reservation is released
            self.unplaced[uid] = pod
            if self._complete:
                self._place_unplaced(node)

    def _place_unplaced(self, node: str) -> None:
        """Count pods that were bound past the extender where they fit best; a pod that fits nowhere waits."""
        if not self._complete or not self.unplaced:
            return
        for uid, pod in list(self.unplaced.items()):
            state = self.ledger.node(node)
            if pod.spec.node_name != node or state is None:
                continue
            placed = place(state, pod.request, _GUESS)
            if isinstance(placed, Placement):
                del self.unplaced[uid]
                self.hold(pod, node, placed.assignment)
                if not placed.assignment.containers:
                    self.by_count.add(uid)
                else:
                    self.guessed.add(uid)
                    log.warning("pod bound without assignment, counted where it fits best pod=%s", pod.shown)
