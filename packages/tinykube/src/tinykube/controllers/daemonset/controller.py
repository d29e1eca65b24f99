"""The DaemonSet controller's shell.

Two kinds of keys: (DaemonSet, node) for what one node needs, and the DaemonSet for its status, revisions and rollout.
A node's label change touches only the DaemonSets whose answer for that node changes; a pod's change only its own pair.
The status is the sum of what the pairs say, kept incrementally and written at most a few times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import NodeFacts, compile_node
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.daemonset import decide
from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.revisions import Revisions, TemplateRevision
from tinykube.controllers.templates import owner_reference, pod_from, scaled
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Pair = tuple[str, str]  # DaemonSet (namespace/name), node
_HASH_LABEL: Final = "controller-revision-hash"
_GENERATION: Final = "deprecated.daemonset.template.generation"
_STATUS_EVERY_S: Final = 0.25
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 900.0
_ZERO: Final = decide.Counts()


class _Known:
    """The state of one DaemonSet between passes: its plan, each node's counts, and the sum."""

    def __init__(self, plan: decide.CompiledDaemonSet) -> None:
        self.plan = plan
        self.counts: dict[str, decide.Counts] = {}
        self.sum = dict.fromkeys(_FIELDS, 0)
        self.outdated: set[str] = set()  # nodes with a pod of another revision
        self.unseen: set[str] = set()  # nodes not yet looked at; until then the sum is no answer

    def set(self, node: str, counts: decide.Counts) -> bool:
        """True when the sum changed."""
        before = self.counts.get(node, _ZERO)
        if before == counts:
            return False
        if counts == _ZERO:
            self.counts.pop(node, None)
        else:
            self.counts[node] = counts
        for field in _FIELDS:
            self.sum[field] += getattr(counts, field) - getattr(before, field)
        return True


_FIELDS: Final = decide.Counts.__struct_fields__


class DaemonSetController:
    """Runs the daemons; `run` works until cancelled."""

    def __init__(self, registry: Registry, index: podstate.PodIndex, recorder: Recorder) -> None:
        self._registry = registry
        self._index = index
        self._recorder = recorder
        self._sets = registry.resource(("apps", "daemonsets"))
        self._pods = registry.resource("pods")
        self._revisions = Revisions(registry)
        self._known: dict[str, _Known] = {}
        self._by_uid: dict[str, str] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._placed: dict[str, dict[str, dict[str, Object]]] = {}  # by owner's uid, node, name
        self._strays: set[str] = set()  # DaemonSets that may have a pod to adopt or to release
        self._retries: dict[Pair, int] = {}
        self._due: dict[Pair, float] = {}
        self.places: KeyWorker[Pair] = KeyWorker("daemonset pods", self._look_at_pair)
        self.sets: KeyWorker[str] = KeyWorker("daemonset", self._look_at_set)
        nodes = registry.resource("nodes")
        for resource, callback in ((nodes, self._on_node), (self._sets, self._on_set), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return self.places, self.sets

    # -- what changed --------------------------------------------------------------------------------------------
    def _on_set(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        if event == "DELETED":
            self._by_uid.pop(meta["uid"], None)
            self._known.pop(key, None)
            return
        if old is not None and key in self._known and not _spec_changed(old, obj):
            self._known[key].plan.obj = obj
            return
        self._by_uid[meta["uid"]] = key
        try:
            known = _Known(decide.CompiledDaemonSet(obj))
        except (InvalidInput, KeyError, TypeError, ValueError) as error:
            self._recorder.record(obj, "DaemonSet", "FailedPlan", f"cannot be followed: {error!r}", "Warning")
            return
        self._known[key] = known
        known.unseen = self._nodes.keys() | self._placed.get(meta["uid"], {}).keys()
        for node in known.unseen:
            self.places.add((key, node))
        self._strays.add(key)
        self.sets.add(key)

    def _on_node(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        before = self._nodes.get(name)
        if event == "DELETED":
            self._nodes.pop(name, None)
            for key, known in self._known.items():
                if name in known.counts:
                    self.places.add((key, name))
            return
        if old is not None and before is not None and not _node_changed(old, obj):
            return
        now = self._nodes[name] = _facts(obj)
        for key, known in self._known.items():
            if before is None or known.plan.wants(before) != known.plan.wants(now):
                self.places.add((key, name))

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        owner = _daemonset_of(obj)
        before = _daemonset_of(old) if old is not None else owner
        if before != owner and before is not None:
            self._place(before, obj, gone=True)
        if owner is not None:
            self._place(owner, obj, gone=event == "DELETED")
        changed = old is None or before != owner or old["metadata"].get("labels") != obj["metadata"].get("labels")
        if changed and event != "DELETED" and (owner is not None or podstate.controller_of(obj) is None):
            # A DaemonSet may have to adopt or release it.
            namespace, labels = obj["metadata"]["namespace"], obj["metadata"].get("labels") or {}
            for key, known in self._known.items():
                matches = key.startswith(f"{namespace}/") and known.plan.selector.matches(labels)
                if matches != (owner is not None and owner == known.plan.obj["metadata"]["uid"]):
                    self._strays.add(key)
                    self.sets.later(key, _STATUS_EVERY_S)

    def _place(self, uid: str, pod: Object, *, gone: bool) -> None:
        """Keeps `_placed`, and has the pod's pair looked at."""
        name, node = pod["metadata"]["name"], _node_of(pod)
        nodes = self._placed.setdefault(uid, {})
        if gone:
            nodes.get(node, {}).pop(name, None)
            if not nodes.get(node):
                nodes.pop(node, None)
            if not nodes:
                self._placed.pop(uid, None)
        else:
            nodes.setdefault(node, {})[name] = pod
        key = self._by_uid.get(uid)
        if key is not None:
            self.places.add((key, node))

    # -- one node of one DaemonSet -------------------------------------------------------------------------------
    async def _look_at_pair(self, pair: Pair) -> float | None:
        key, node = pair
        known = self._known.get(key)
        if known is None or podstate.is_terminating(known.plan.obj):
            return None
        plan = known.plan
        again: list[float] = []
        pods = self._facts_of(plan, node, again)
        facts = self._nodes.get(node)
        # Pods of a node that is gone are the pod garbage collector's.
        wanted = plan.wants(facts) if facts is not None else decide.DaemonDecision(False, True)
        if facts is not None:
            action = decide.place(wanted, pods, plan.surges)
            await self._act(plan, node, action, again, pair)
            pods = self._facts_of(plan, node, [])
        counts = decide.count(wanted, pods) if facts is not None else _ZERO
        outdated = any(not p.updated and not p.terminating for p in pods)
        if self._known.get(key) is not known:
            return 0.0
        known.unseen.discard(node)
        (known.outdated.add if outdated else known.outdated.discard)(node)
        if known.set(node, counts) or known.outdated or not known.unseen:
            self.sets.later(key, _STATUS_EVERY_S)
        return min(again) if again else None

    def _facts_of(self, plan: decide.CompiledDaemonSet, node: str, again: list[float]) -> list[decide.PodFacts]:
        """The DaemonSet's pods on (or pinned to) a node; adds to `again` when one becomes available by time."""
        found = []
        now = self._registry.now()
        for pod in self._placed.get(plan.obj["metadata"]["uid"], {}).get(node, {}).values():
            meta = pod["metadata"]
            left = podstate.available_in(pod, plan.min_ready_seconds, now)
            if left:
                again.append(left)
            phase = podstate.phase(pod)
            found.append(
                decide.PodFacts(
                    name=meta["name"],
                    node=node,
                    created=meta["creationTimestamp"],
                    updated=(meta.get("labels") or {}).get(_HASH_LABEL) == plan.hash,
                    ready=left is not None,
                    available=left == 0,
                    failed=phase == "Failed",
                    finished=podstate.is_finished(pod),
                    terminating="deletionTimestamp" in meta,
                )
            )
        return found

    async def _act(
        self, plan: decide.CompiledDaemonSet, node: str, action: decide.NodeActions, again: list[float], pair: Pair
    ) -> None:
        if action.create:
            await self._create(plan, node)
        for name in action.delete:
            await self._delete(plan, name)
        if not action.retried:
            return
        # A failed daemon is created again, ever more slowly while it keeps failing.
        tries = self._retries.get(pair, 0)
        due = self._due.get(pair)
        now = asyncio.get_running_loop().time()
        if due is None:
            self._due[pair] = now + min(_FIRST_RETRY_S * 2.0**tries, _LAST_RETRY_S) if tries else now
            due = self._due[pair]
        if due > now:
            again.append(due - now)
            return
        del self._due[pair]
        self._retries[pair] = tries + 1
        for name in action.retried:
            full = f"{plan.obj['metadata']['namespace']}/{name}"
            message = f"Found failed daemon pod {full} on node {node}, will try to kill it"
            self._recorder.record(plan.obj, "DaemonSet", "FailedDaemonPod", message, "Warning")
            await self._delete(plan, name)

    async def _create(self, plan: decide.CompiledDaemonSet, node: str) -> None:
        obj = plan.obj
        labels = {_HASH_LABEL: plan.hash, "pod-template-generation": _template_generation(obj)}
        pod = pod_from({**plan.template, "spec": {}}, obj, "apps/v1", "DaemonSet", labels)
        pod["spec"] = plan.pod_spec(node)
        try:
            made = await self._registry.create(self._pods, obj["metadata"]["namespace"], pod)
        except ApiFailure as error:
            self._recorder.record(obj, "DaemonSet", "FailedCreate", f"Error creating: {error}", "Warning")
            raise
        self._recorder.record(obj, "DaemonSet", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}")

    async def _delete(self, plan: decide.CompiledDaemonSet, name: str) -> None:
        obj = plan.obj
        try:
            await self._registry.delete(self._pods, obj["metadata"]["namespace"], name)
        except ApiFailure as error:
            if error.status != 404:
                raise
        self._recorder.record(obj, "DaemonSet", "SuccessfulDelete", f"Deleted pod: {name}")

    # -- a DaemonSet as a whole ----------------------------------------------------------------------------------
    async def _look_at_set(self, key: str) -> float | None:
        known = self._known.get(key)
        if known is None or podstate.is_terminating(known.plan.obj):
            return None
        plan = known.plan
        await self._revisions.ensure(_revision(plan))
        if key in self._strays:
            await self._claim(plan)
            self._strays.discard(key)
        # Until every node was looked at, the sums are too small; the last look brings us back here.
        if not known.unseen:
            if known.outdated and plan.rolling:
                await self._roll(known)
            await self._write_status(plan, known)
        return None

    async def _claim(self, plan: decide.CompiledDaemonSet) -> None:
        """Adopts pods that match, have no controller and belong to a node; releases those that match no more."""
        meta = plan.obj["metadata"]
        for pod in list(self._index.orphans(meta["namespace"]).values()):
            matches = plan.selector.matches(pod["metadata"].get("labels") or {})
            if matches and podstate.is_active(pod) and _node_of(pod):
                reference = owner_reference(plan.obj, "apps/v1", "DaemonSet")
                await self._own(pod, [*(pod["metadata"].get("ownerReferences") or ()), reference])
        for pods in list(self._placed.get(meta["uid"], {}).values()):
            for pod in list(pods.values()):
                if not plan.selector.matches(pod["metadata"].get("labels") or {}) and podstate.is_active(pod):
                    left = [r for r in pod["metadata"]["ownerReferences"] if r["uid"] != meta["uid"]]
                    await self._own(pod, left)

    async def _own(self, pod: Object, references: list[Object]) -> None:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "ownerReferences": references}}
        await self._registry.patch(self._pods, meta["namespace"], meta["name"], patch, "merge")

    async def _roll(self, known: _Known) -> None:
        plan = known.plan
        desired = known.sum["desired"]
        on_nodes = [(node, self._facts_of(plan, node, [])) for node, counts in known.counts.items() if counts.desired]
        if plan.surges:
            create, delete = decide.surge(on_nodes, scaled(plan.max_surge, desired, up=True))
            for node in create:
                await self._create(plan, node)
        else:
            allowed = max(scaled(plan.max_unavailable, desired, up=True), 1)
            delete = decide.roll((pods for _, pods in on_nodes), allowed)
        for name in delete:
            await self._delete(plan, name)

    async def _write_status(self, plan: decide.CompiledDaemonSet, known: _Known) -> None:
        obj, total = plan.obj, known.sum
        status = {
            "currentNumberScheduled": total["current"],
            "desiredNumberScheduled": total["desired"],
            "numberMisscheduled": total["misscheduled"],
            "numberReady": total["ready"],
            "observedGeneration": obj["metadata"].get("generation", 1),
        }
        optional = {
            "numberAvailable": total["available"],
            "numberUnavailable": total["desired"] - total["available"],
            "updatedNumberScheduled": total["updated"],
        }
        status.update({field: value for field, value in optional.items() if value})
        meta = obj["metadata"]
        # NB: the object of now, as a write of the status carries labels and annotations too.
        fresh = self._registry.get(self._sets, meta["namespace"], meta["name"])
        if fresh is None or (fresh.get("status") or {}) == status:
            return
        body = {**fresh, "status": status}
        await self._registry.update(self._sets, meta["namespace"], meta["name"], body, subresource="status")


def _daemonset_of(pod: Object) -> str | None:
    """The uid of the DaemonSet that owns a pod."""
    owner = podstate.controller_of(pod)
    return owner["uid"] if owner is not None and owner["kind"] == "DaemonSet" else None


def _node_of(pod: Object) -> str:
    """Return the node of a daemon pod or, before it is bound, the node that it is pinned to. It never changes."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _facts(obj: Object) -> NodeFacts:
    """Selection ignores room, so an invalid quantity must not take a node's daemons away."""
    return compile_node({"metadata": obj["metadata"], "spec": obj.get("spec") or {}})


def _spec_changed(old: Object, new: Object) -> bool:
    return old["spec"] != new["spec"] or podstate.is_terminating(old) != podstate.is_terminating(new)


def _node_changed(old: Object, new: Object) -> bool:
    if (old["metadata"].get("labels") or {}) != (new["metadata"].get("labels") or {}):
        return True
    was, now = old.get("spec") or {}, new.get("spec") or {}
    return was.get("taints") != now.get("taints") or was.get("unschedulable") != now.get("unschedulable")


def _revision(plan: decide.CompiledDaemonSet) -> TemplateRevision:
    meta = plan.obj["metadata"]
    cause = {k: v for k, v in (meta.get("annotations") or {}).items() if k == "kubernetes.io/change-cause"}
    annotations = {_GENERATION: _template_generation(plan.obj), **cause}
    return TemplateRevision(plan.obj, "DaemonSet", {_HASH_LABEL: plan.hash}, annotations)


def _template_generation(obj: Object) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(_GENERATION, "1"))
