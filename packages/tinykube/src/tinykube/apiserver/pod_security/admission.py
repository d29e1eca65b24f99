"""The admission plugin PodSecurity: refuses pods, warns about templates, and validates the labels of namespaces.

Invariant: in a cluster without such labels it looks at writes of namespaces and at nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import forbidden, invalid
from tinykube.apiserver.hooks import AdmissionRequest, Object
from tinykube.apiserver.pod_security.checks import violations
from tinykube.apiserver.pod_security.levels import PREFIX, PodSecurityLabels, PodSecurityLevel, read_labels

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_PODS: Final = ("pods", "pods/ephemeralcontainers", "pods/resize")
#: The way from an object to the spec of its pods' template.
_TEMPLATES: Final = {
    "podtemplates": ("template", "spec"),
    "jobs.batch": ("spec", "template", "spec"),
    "cronjobs.batch": ("spec", "jobTemplate", "spec", "template", "spec"),
    "replicationcontrollers": ("spec", "template", "spec"),
    **{
        f"{plural}.apps": ("spec", "template", "spec")
        for plural in ("deployments", "replicasets", "statefulsets", "daemonsets")
    },
}
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


class PodSecurity:
    """The levels of every labelled namespace. `changed` is called when pods have to be looked at, or not any more."""

    def __init__(self, registry: Registry, changed: Callable[[], None]) -> None:
        self._registry = registry
        self._changed = changed
        self._labelled: dict[str, PodSecurityLabels] = {}
        registry.subscribe("namespaces", self._follow)
        for obj in registry.list("namespaces"):
            self._follow("ADDED", obj, None)

    def _follow(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        had_any = bool(self._labelled)
        self._labelled.pop(name, None)
        if event != "DELETED" and any(key.startswith(PREFIX) for key in _labels(obj)):
            self._labelled[name] = read_labels(_labels(obj))
        if had_any != bool(self._labelled):
            self._changed()

    def covers(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        """Return whether a write of this kind is looked at."""
        if operation not in ("CREATE", "UPDATE"):
            return False
        path = f"{info.qualified}/{subresource}" if subresource else info.qualified
        return path == "namespaces" or (bool(self._labelled) and (path in _PODS or path in _TEMPLATES))

    def admit(self, request: AdmissionRequest) -> None:
        """Refuse or warn. Raises ApiFailure: 403 for a pod, 422 for a namespace."""
        if request.obj is None or not self.covers(request.info, request.operation, request.subresource):
            return
        if request.info.qualified == "namespaces":
            self._namespace(request)
            return
        labels = self._labelled.get(request.namespace)
        if labels is None:
            return
        if request.info.qualified == "pods":
            if request.old is None or _changes_rights(request.old, request.obj):
                self._pod(request, request.obj["spec"], labels)
            return
        spec: Object = request.obj
        for key in _TEMPLATES[request.info.qualified]:
            spec = spec.get(key) or {}
        _warn(request, spec, labels.warn)

    @staticmethod
    def _pod(request: AdmissionRequest, spec: Object, labels: PodSecurityLabels) -> None:
        found = violations(spec, labels.enforce)
        if found:
            text = f'violates PodSecurity "{labels.enforce}": {", ".join(map(str, found))}'
            raise forbidden(request.info, request.name, text)
        _warn(request, spec, labels.warn)

    def _namespace(self, request: AdmissionRequest) -> None:
        assert request.obj is not None, "a namespace is created or updated"
        labels = read_labels(_labels(request.obj))
        before = read_labels(_labels(request.old)) if request.old is not None else None
        if labels.causes and (before is None or labels.causes != before.causes):
            raise invalid(request.info, request.name, labels.causes)
        if before is not None and _is_tighter(labels.enforce, before.enforce):
            pods = self._registry.list("pods", request.name)
            request.warnings.extend(existing(request.name, pods, labels.enforce))


def existing(namespace: str, pods: Iterable[Object], level: PodSecurityLevel) -> Iterator[str]:
    """Return the warnings about the pods that a namespace has already: the reasons, and the pods that share them."""
    by_reasons: dict[str, list[str]] = {}
    for pod in pods:
        found = violations(pod["spec"], level)
        if found:
            by_reasons.setdefault(", ".join(one.reason for one in found), []).append(pod["metadata"]["name"])
    if by_reasons:
        yield f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce level "{level}"'
    for reasons, (first, *others) in sorted(by_reasons.items(), key=lambda item: min(item[1])):
        more = f" (and {len(others)} other pod{'s' if len(others) > 1 else ''})" if others else ""
        yield f"{first}{more}: {reasons}"


def _warn(request: AdmissionRequest, spec: Object, level: PodSecurityLevel) -> None:
    found = violations(spec, level)
    if found:
        request.warnings.append(f'would violate PodSecurity "{level}": {", ".join(map(str, found))}')


def _is_tighter(new: PodSecurityLevel, old: PodSecurityLevel) -> bool:
    return new != old and (new.level.rank > old.level.rank or new.level is old.level)


def _changes_rights(old: Object, new: Object) -> bool:
    """Return whether an update of a pod changes anything that a level looks at: images, or added containers."""
    return any(_images(old, field) != _images(new, field) for field in _CONTAINERS)


def _images(pod: Object, field: str) -> list[tuple[str, str]]:
    return [(one.get("name", ""), one.get("image", "")) for one in pod["spec"].get(field) or ()]


def _labels(obj: Object) -> dict[str, str]:
    labels: dict[str, str] = (obj.get("metadata") or {}).get("labels") or {}
    return labels
