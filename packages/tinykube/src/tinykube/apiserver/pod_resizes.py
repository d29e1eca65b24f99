"""Resizes of pods in place: what a write of `pods/resize` takes from the client, and which nodes are too small for it.

Source: `dropNonResizeUpdates` of the registry and the admission plugin PodResizeValidator of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kubekit.api.pod_requests import read_amounts
from kubekit.scheduling.podinfo import amounts
from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest

Object = dict[str, Any]
_FIELDS: Final = ("resources", "resizePolicy")
_LISTS: Final = ("containers", "initContainers")
_OS: Final = "kubernetes.io/os"


def resized_spec(old: Object, new: Object) -> Object:
    """Return the spec of a pod after a resize: of `new` the resources and resize policies, of `old` the rest.

    Where `new` has other containers, the lists are those of `new`, which validation refuses then.
    """
    spec = {**old}
    for field in _LISTS:
        before, after = old.get(field) or [], new.get(field) or []
        if [one.get("name") for one in before] == [one.get("name") for one in after]:
            merged = [_resized(one, other) for one, other in zip(before, after, strict=True)]
        else:
            merged = after
        if merged or field in old:
            spec[field] = merged
    if "resources" in old or "resources" in new:
        spec["resources"] = new.get("resources") or {}
    return spec


def _resized(old: Object, new: Object) -> Object:
    merged = {**old}
    for field in _FIELDS:
        if field in new:
            merged[field] = new[field]
        else:
            merged.pop(field, None)
    return merged


class PodResizeValidator:
    """Refuses resizes that the node of a pod could never carry out. `find` gets an object by plural, namespace and
    name."""

    def __init__(self, find: Callable[[str, str, str], Object | None]) -> None:
        self._find = find

    @staticmethod
    def covers(qualified: str, operation: str, subresource: str) -> bool:
        return (qualified, operation, subresource) == ("pods", "UPDATE", "resize")

    def admit(self, request: AdmissionRequest) -> None:
        """Raises ApiFailure 403 for a pod that would request more than its node has."""
        if not self.covers(request.info.qualified, request.operation, request.subresource):
            return
        pod, old = request.obj or {}, request.old or {}
        name = pod["spec"].get("nodeName")
        if not name or pod["metadata"].get("generation") == old.get("metadata", {}).get("generation"):
            return
        node = self._find("nodes", "", name)
        if node is None:
            raise forbidden(request.info, request.name, f'node "{name}" not found')
        system = (node["metadata"].get("labels") or {}).get(_OS, "linux")
        if system != "linux":
            text = f'pod resize is only supported on linux nodes, node "{name}" is "{system}"'
            raise self._refused(request, text, "UnsupportedPlatform")
        if text := _too_small(pod, node):
            what = f"node didn't have enough allocatable resources: {text}"
            raise self._refused(request, what, "NodeCapacity")

    @staticmethod
    def _refused(request: AdmissionRequest, message: str, cause: str) -> Exception:
        refused = forbidden(request.info, request.name, message)
        refused.details = {**(refused.details or {}), "causes": [{"reason": cause}]}
        return refused


def _too_small(pod: Object, node: Object) -> str:
    """Return what the node has too little of, "" if it has enough."""
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    requests = read_amounts(pod["spec"], "requests", lambda name, value: amounts({name: value})[name]).requests()
    return "; ".join(
        f"{name}, requested: {requests[name]}, allocatable: {allocatable.get(name, 0)}"
        for name in ("cpu", "memory")
        if requests.get(name, 0) > allocatable.get(name, 0)
    )
