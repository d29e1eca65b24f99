"""Pods written for Kubernetes 1.3 to 1.9 in today's words: pure, from the pod to a JSON Patch.

    limits alpha.kubernetes.io/nvidia-gpu: 2      ->  nvidia.com/gpu: 2
    annotation scheduler.alpha.kubernetes.io/affinity  ->  spec.affinity
    hostPath /usr/lib/nvidia-375                   ->  emptyDir: the runtime brings the driver now

A current API server admits the old resource (any name in kubernetes.io passes as one of its own), but no kubelet can
offer it, so such a pod would wait for ever. Mutating admission comes before validation, so values that today's
validation refuses, as the label value `Tesla K80`, are put right in time.

Invariants:

- Only pods that ask for the old resource are touched; a second time nothing changes.
- One annotation retains the resources from before. It marks a pod as translated.
- `kubectl apply` of the unchanged manifest on the translated pod comes out as no change: an update is translated as the
  creation was, and only on pods that were.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from kubekit.api.labels import strict_label_value
from kubekit.documents import LONGEST_VALUE, DocumentError, decode_json
from kubekit.errors import InvalidInput

Object = dict[str, Any]

# Directories with the driver of one version, as distributions and nvidia-docker 1 laid them out.
_DRIVER_DIRECTORY: Final = re.compile(
    r"/usr/lib(32|64)?/nvidia-\d+(/.*)?|/var/lib/nvidia-docker/volumes/nvidia_driver/[\d.]+(/.*)?"
)
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITIES: Final = frozenset({"nodeAffinity", "podAffinity", "podAntiAffinity"})


class Translation(msgspec.Struct, frozen=True):
    """`patch` is a JSON Patch, empty when nothing is to be changed; `warnings` are for the pod's author."""

    patch: tuple[Object, ...] = ()
    warnings: tuple[str, ...] = ()


def translate(pod: Object, old: Object | None = None) -> Translation:
    """Translate a pod to current fields. `old` is the stored pod in an update.

    Raises InvalidInput for an affinity annotation that cannot be read, as the API servers of its time did.
    """
    asking = list(_asking(pod))
    if not asking or (old is not None and names.TRANSLATED_ANNOTATION not in _annotations(old)):
        return Translation()
    now = copy.deepcopy(pod)
    if old is None and any(names.GPU_RESOURCE in limits for _, limits in asking):
        return Translation()  # both names in one container: validation tells that they are the same GPUs
    kept: Object = {"limits": _rename(now)}
    warnings = [f"{names.ALPHA_GPU} is served as {names.GPU_RESOURCE}; write {names.GPU_RESOURCE}"]
    if volumes := _volumes(now):
        kept["volumes"] = volumes
        warnings.append(f"volumes {', '.join(volumes)} are empty: the container runtime brings the driver's files")
    warnings += _affinity(now, kept)
    _normalise(now["spec"])
    if old is None:
        now["metadata"].setdefault("annotations", {})
        now["metadata"]["annotations"] |= {names.TRANSLATED_ANNOTATION: msgspec.json.encode(kept).decode()}
    return Translation(tuple(difference(pod, now)), tuple(warnings) if old is None else ())


def _asking(pod: Object) -> Iterator[tuple[str, Object]]:
    """The containers that ask for the old resource, by name, with their limits."""
    for container in _containers(pod):
        limits = (container.get("resources") or {}).get("limits") or {}
        if names.ALPHA_GPU in limits:
            yield container.get("name", ""), limits


def _containers(pod: Object) -> Iterator[Object]:
    spec = pod.get("spec") or {}
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _annotations(obj: Object) -> Mapping[str, Any]:
    return (obj.get("metadata") or {}).get("annotations") or {}


def _rename(pod: Object) -> Object:
    """Renames the resource wherever it stands; what the containers' limits were."""
    kept = {}
    for container in _containers(pod):
        resources = container.get("resources") or {}
        for field in ("limits", "requests"):
            amounts = resources.get(field) or {}
            if names.ALPHA_GPU in amounts:
                amounts[names.GPU_RESOURCE] = amounts.pop(names.ALPHA_GPU)
                if field == "limits":
                    kept[container.get("name", "")] = amounts[names.GPU_RESOURCE]
    return kept


def _volumes(pod: Object) -> dict[str, str]:
    """Empties the volumes of a driver's directories; their paths by name.

    Where there is no such directory the kubelet would make one, or on a read-only root the pod would never start.
    """
    kept = {}
    for volume in pod["spec"].get("volumes") or ():
        path = (volume.get("hostPath") or {}).get("path", "")
        if _DRIVER_DIRECTORY.fullmatch(path.rstrip("/") or path):
            del volume["hostPath"]
            volume["emptyDir"] = {}
            kept[volume.get("name", "")] = path
    return kept


def _affinity(pod: Object, kept: Object) -> list[str]:
    """Puts the annotation into the spec; warnings."""
    text = _annotations(pod).get(names.ALPHA_AFFINITY_ANNOTATION)
    if text is None:
        return []
    if pod["spec"].get("affinity"):
        # NB: also what an update finds on a pod that was translated.
        return [f"{names.ALPHA_AFFINITY_ANNOTATION} is ignored: spec.affinity says it"]
    try:
        affinity = decode_json(text, dict[str, Any], limit=LONGEST_VALUE)
    except DocumentError as error:
        raise _unreadable(str(error)) from error
    if foreign := sorted(affinity.keys() - _AFFINITIES):
        raise _unreadable(f"{foreign[0]} is unknown; it knows {', '.join(sorted(_AFFINITIES))}")
    pod["spec"]["affinity"] = affinity
    kept["affinity"] = names.ALPHA_AFFINITY_ANNOTATION
    return []


def _unreadable(why: str) -> InvalidInput:
    return InvalidInput(
        f"{names.ALPHA_AFFINITY_ANNOTATION} cannot be read: {why}",
        where=f"metadata.annotations.{names.ALPHA_AFFINITY_ANNOTATION}",
        cure="write it as spec.affinity",
    )


def _normalise(spec: Object) -> None:
    """Models in selectors as the label spells them."""
    selector = spec.get("nodeSelector")
    if isinstance(selector, dict) and names.ALPHA_GPU_NAME_LABEL in selector:
        selector[names.ALPHA_GPU_NAME_LABEL] = strict_label_value(str(selector[names.ALPHA_GPU_NAME_LABEL]))
    for term in _node_terms(spec):
        for wanted in _list(_dict(term).get("matchExpressions")):
            if _dict(wanted).get("key") == names.ALPHA_GPU_NAME_LABEL and isinstance(wanted.get("values"), list):
                wanted["values"] = [strict_label_value(str(value)) for value in wanted["values"]]


def _node_terms(spec: Object) -> Iterator[Any]:
    """Terms of node affinity; what has another shape is left for validation to tell."""
    node = _dict(_dict(spec.get("affinity")).get("nodeAffinity"))
    yield from _list(_dict(node.get(_REQUIRED)).get("nodeSelectorTerms"))
    for preferred in _list(node.get(_PREFERRED)):
        yield _dict(preferred).get("preference")


def _dict(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def difference(before: Any, after: Any, path: str = "") -> Iterator[Object]:
    """The JSON Patch (RFC 6902) from one to the other; lists of other lengths are replaced whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
        for key, value in after.items():
            if key not in before:
                yield {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value}
            else:
                yield from difference(before[key], value, f"{path}/{_escaped(key)}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from difference(one, other, f"{path}/{index}")
    elif before != after:
        yield {"op": "replace", "path": path, "value": after}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
