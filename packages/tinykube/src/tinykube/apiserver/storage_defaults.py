"""Admission of claims by their StorageClasses: the default class, and the growth of claims.

Source: plugin/pkg/admission/storage of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Find, Object
from tinykube.apiserver.validation.tables import amount

CLAIMS: Final = "persistentvolumeclaims"
CLASSES: Final = "storageclasses"
#: Keeps a VolumeAttributesClass while claims or volumes name it.
CLASS_FINALIZER: Final = "kubernetes.io/vac-protection"
_IS_DEFAULT: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
_FIXED_SIZE: Final = (
    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
)


def default_class(classes: Iterable[Mapping[str, Any]], marks: tuple[str, ...] = _IS_DEFAULT) -> str:
    """Return the name of the newest class that is marked as the default one, else an empty text.

    `marks` are the annotations that mark a class.
    """
    marked = [one for one in classes if any(_annotation(one, name) == "true" for name in marks)]
    marked.sort(key=lambda one: str(one["metadata"]["name"]))
    marked.sort(key=lambda one: str(one["metadata"].get("creationTimestamp", "")), reverse=True)
    return str(marked[0]["metadata"]["name"]) if marked else ""


def has_class(claim: Mapping[str, Any]) -> bool:
    """Return whether a claim names a class; the empty name stands for volumes without one."""
    spec = claim.get("spec")
    return _annotation(claim, _BETA_CLASS) is not None or (
        isinstance(spec, dict) and spec.get("storageClassName") is not None
    )


def fill_class(claim: Object, classes: Iterable[Object]) -> None:
    """Give a claim that names no class the default one."""
    if not has_class(claim) and (name := default_class(classes)):
        spec = claim.setdefault("spec", {})
        if isinstance(spec, dict):  # validation refuses what is not
            spec["storageClassName"] = name


def check_growth(request: AdmissionRequest, find: Find) -> None:
    """Raise ApiFailure for a bound claim that grows and may not. Validation refuses the growth of others."""
    claim, old = request.obj, request.old
    if claim is None or old is None or amount(_size(claim)) <= amount(_size(old)):
        return
    if (old.get("status") or {}).get("phase") != "Bound":
        return
    name = _class_of(claim)
    storage = find(CLASSES, "", name) if name and name == _class_of(old) else None
    if not (storage or {}).get("allowVolumeExpansion"):
        raise forbidden(request.info, request.name, _FIXED_SIZE)


def _annotation(obj: Mapping[str, Any], name: str) -> str | None:
    found: str | None = (obj["metadata"].get("annotations") or {}).get(name)
    return found


def _class_of(claim: Object) -> str:
    beta = _annotation(claim, _BETA_CLASS)
    return beta if beta is not None else (claim.get("spec") or {}).get("storageClassName") or ""


def _size(claim: Object) -> str | int:
    size: str | int = ((claim.get("spec") or {}).get("resources") or {}).get("requests", {}).get("storage") or 0
    return size
