"""Subresources of pods with a meaning of their own: binding, eviction, ephemeral containers and resize.

`status` and a namespace's `finalize` are ordinary updates that may change less; `lifecycle.prepare_update` knows them.
"""

from __future__ import annotations

from typing import Any

from kubekit.api.core import has_ended
from tinykube.apiserver import failure
from tinykube.apiserver.admitting import admitted
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import AdmissionRequest
from tinykube.apiserver.lifecycle import check_uid, precondition
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.selectors import selector_of
from tinykube.apiserver.store import Selection, StoreEntry
from tinykube.apiserver.writes import BY_SYSTEM, Delete, WriteOptions

Object = dict[str, Any]


# -- pods --------------------------------------------------------------------------------------------------------
async def bind(
    registry: Registry,
    namespace: str,
    name: str,
    binding: Object,
    write: WriteOptions,
    posted: ResourceInfo | None = None,
) -> StoreEntry:
    """Set a pod's node; annotations and labels of the Binding travel in the same write.

    Admission sees the Binding, not the pod. `posted` is the resource `bindings` for one that was posted there.

    Raises ApiFailure 409 for a pod that is bound, gated, going or another than the one that is meant.
    """
    kind = registry.kinds.find("pods")
    info = kind.info
    admitted_as = (posted or info, "" if posted else "binding", ("", "v1", "Binding"))
    binding = await _posted(registry, *admitted_as, namespace, name, binding, write)
    target = binding.get("target") or {}
    node = target.get("name")
    metadata = binding.get("metadata") or {}
    if metadata.get("name") and metadata["name"] != name:
        raise failure.bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in (None, "", "Node"):
        supported = 'supported values: "Node", "<empty>"'
        raise ApiFailure(500, "", f'target.kind: Unsupported value: "{target["kind"]}": {supported}')
    if not node:
        raise ApiFailure(500, "", "target.name: Required value")

    def change(old: Object) -> Object:
        spec = old["spec"]
        before = old["metadata"]
        if metadata.get("uid") and metadata["uid"] != before["uid"]:
            check_uid(info, old, metadata["uid"])
        if metadata.get("resourceVersion") and metadata["resourceVersion"] != before["resourceVersion"]:
            raise precondition(info, old, "ResourceVersion", metadata["resourceVersion"], before["resourceVersion"])
        if "deletionTimestamp" in before:
            raise _binding_conflict(info, name, f"pod {name} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise _binding_conflict(info, name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise _binding_conflict(info, name, f"pod {name} has non-empty .spec.schedulingGates")
        new_metadata = {**before}
        for field in ("annotations", "labels"):
            if metadata.get(field):
                new_metadata[field] = {**(before.get(field) or {}), **metadata[field]}
        conditions = [c for c in (old.get("status") or {}).get("conditions") or () if c["type"] != "PodScheduled"]
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": registry.now(),
        }
        return {
            **old,
            "metadata": new_metadata,
            "spec": {**spec, "nodeName": node},
            "status": {**(old.get("status") or {}), "conditions": [*conditions, scheduled]},
        }

    return await registry.writer.update(kind, namespace, name, change, "binding", write)


async def _posted(
    registry: Registry,
    info: ResourceInfo,
    subresource: str,
    kind: tuple[str, str, str],
    namespace: str,
    name: str,
    obj: Object,
    write: WriteOptions,
) -> Object:
    """Return what is posted to a subresource, once admission has seen it. `kind` is its group, version and kind."""
    request = AdmissionRequest(
        "CREATE", info, subresource, namespace, name, obj, None, write.user, write.dry_run, {}, write.warnings, kind
    )
    return await admitted(registry.hooks.admission, request)


def _binding_conflict(info: Any, name: str, message: str) -> ApiFailure:
    details = {"name": name, "kind": "pods/binding"}
    return ApiFailure(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": {message}', details)


async def evict(registry: Registry, namespace: str, name: str, eviction: Object, write: WriteOptions) -> None:
    """Delete a pod unless a disruption budget forbids it (429)."""
    pods = registry.kinds.find("pods")
    given = (eviction.get("metadata") or {}).get("name")
    if given and given != name:
        raise failure.bad_request("name in URL does not match name in Eviction object")
    entry = pods.table.get(namespace, name)
    if entry is None:
        raise failure.not_found(pods.info, name)
    kind = ("policy", "v1", "Eviction")
    eviction = await _posted(registry, pods.info, "eviction", kind, namespace, name, eviction, write)
    options = eviction.get("deleteOptions") or {}
    wanted = options.get("preconditions") or {}
    phase = (entry.obj.get("status") or {}).get("phase")
    bound = bool(entry.obj["spec"].get("nodeName")) and not has_ended(phase)
    if bound and "deletionTimestamp" not in entry.obj["metadata"]:
        await _spend_budget(registry, namespace, entry.obj, write)
    metadata, version = entry.obj["metadata"], wanted.get("resourceVersion")
    is_meant = wanted.get("uid") in (None, metadata["uid"]) and version in (None, metadata["resourceVersion"])
    if is_meant and not write.dry_run and "deletionTimestamp" not in metadata:
        marked = await _mark_evicted(registry, namespace, name)
        version = marked.obj["metadata"]["resourceVersion"] if version is not None else None
    delete = Delete(options.get("gracePeriodSeconds"), None, wanted.get("uid"), version)
    await registry.deleter.delete(pods, namespace, name, delete, write)


async def _mark_evicted(registry: Registry, namespace: str, name: str) -> StoreEntry:
    """Give a pod the condition DisruptionTarget, by which Jobs tell an eviction from a failed program."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": registry.now(),
    }

    def change(pod: Object) -> Object:
        status = pod.get("status") or {}
        others = [c for c in status.get("conditions") or () if c["type"] != condition["type"]]
        return {**pod, "status": {**status, "conditions": [*others, condition]}}

    return await registry.writer.update(registry.kinds.find("pods"), namespace, name, change, "status", BY_SYSTEM)


async def _spend_budget(registry: Registry, namespace: str, pod: Object, write: WriteOptions) -> None:
    budgets = registry.kinds.find(("policy", "poddisruptionbudgets"))
    labels = pod["metadata"].get("labels")
    covering = [
        budget
        for budget in budgets.table.select(Selection(namespace=namespace))
        if _covers((budget.obj.get("spec") or {}).get("selector"), labels)
    ]
    if not covering:
        return
    if len(covering) > 1:
        raise ApiFailure(
            500,
            "",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )
    budget = covering[0]
    allowed, counts = _allowance(registry, budget.obj)
    if allowed <= 0:
        cause = {
            "reason": "DisruptionBudget",
            "message": f"The disruption budget {budget.name} needs {counts[1]} healthy pods and has {counts[0]} "
            "currently",
        }
        raise ApiFailure(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            {"causes": [cause]},
        )


def _covers(selector: Object | None, labels: Any) -> bool:
    if selector is None:
        return False
    found = selector_of(selector)
    return found is None or found.matches(labels)


def _allowance(registry: Registry, budget: Object) -> tuple[int, tuple[int, int]]:
    """Return how many pods may be evicted now, and (healthy, needed).

    Counted from the pods themselves rather than from the budget's status, so that it holds without a controller.
    """
    spec = budget.get("spec") or {}
    pods = [
        pod
        for pod in registry.list("pods", budget["metadata"]["namespace"])
        if _covers(spec.get("selector"), pod["metadata"].get("labels"))
        and not has_ended((pod.get("status") or {}).get("phase"))
    ]
    healthy = sum(
        1
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            c.get("type") == "Ready" and c.get("status") == "True"
            for c in (pod.get("status") or {}).get("conditions") or ()
        )
    )
    if spec.get("minAvailable") is not None:
        needed = _count(spec["minAvailable"], len(pods))
    else:
        needed = len(pods) - _count(spec.get("maxUnavailable", 1), len(pods))
    return healthy - needed, (healthy, needed)


def _count(value: Any, total: int) -> int:
    """A number or a percentage of `total`, rounded up."""
    if isinstance(value, str):
        return -(-int(value.rstrip("%")) * total // 100)
    return int(value)
