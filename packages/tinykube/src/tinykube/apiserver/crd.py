"""CustomResourceDefinitions: their defaults and conditions, and what they make the server serve.

Pure: a CRD goes in, its conditions and the kinds it serves come out. `extensions.py` carries that out when a CRD is
written. Versions do not convert (`conversion: None` semantics: only apiVersion differs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.crd_schemas import structural_schema
from tinykube.apiserver.failure import Cause
from tinykube.apiserver.hooks import KindRules, Object, ScalePaths
from tinykube.apiserver.printers import Printer
from tinykube.apiserver.scales import replica_findings
from tinykube.apiserver.schema import openapi_schema
from tinykube.apiserver.structural import Structural
from tinykube.apiserver.tables import crd_printer

# In the order in which a real server lists those of custom resources.
_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


class ServedVersion(msgspec.Struct, frozen=True):
    """One version of a custom resource, ready to be served. `schema` is the CRD's own, for OpenAPI."""

    info: ResourceInfo
    rules: KindRules
    printer: Printer
    schema: Object
    storage: bool


def fill_defaults(crd: Object) -> None:
    """The defaults of a CRD, in place."""
    spec = crd.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    if kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", kind + "List")
    spec.setdefault("conversion", {"strategy": "None"})


def established(crd: Object) -> bool:
    """Return whether its names were accepted, so that it is served."""
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def storage_version(crd: Object) -> str:
    """The apiVersion that objects are stored in."""
    name = next(v["name"] for v in crd["spec"]["versions"] if v.get("storage"))
    return f"{crd['spec']['group']}/{name}"


# -- names and conditions ----------------------------------------------------------------------------------------
def name_conflict(crd: Object, others: Iterable[Object]) -> str | None:
    """Why the names of a CRD cannot be accepted: another one of its group has them."""
    spec = crd["spec"]
    names = spec["names"]
    mine = {names["plural"], names.get("singular", ""), *names.get("shortNames", ())} - {""}
    for other in others:
        if other["spec"]["group"] != spec["group"] or other["metadata"]["name"] == crd["metadata"]["name"]:
            continue
        accepted = (other.get("status") or {}).get("acceptedNames") or {}
        theirs = {accepted.get("plural"), accepted.get("singular"), *accepted.get("shortNames", ())}
        for name in sorted(mine & theirs):
            return f'"{name}" is already in use'
        for field in ("kind", "listKind"):
            if names.get(field) and names.get(field) in (accepted.get("kind"), accepted.get("listKind")):
                return f'"{names[field]}" is already in use'
    return None


def status(crd: Object, conflict: str | None, now: str) -> Object:
    """The status that a CRD gets: conditions NamesAccepted and Established, accepted names, stored versions."""
    before = crd.get("status") or {}
    accepted = conflict is None
    names = crd["spec"]["names"]
    stored = storage_version(crd).rpartition("/")[2]
    made = [
        _condition("NamesAccepted", accepted, "NoConflicts", conflict or "no conflicts found"),
        _condition("Established", accepted, "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    if not accepted:
        made[0]["reason"] = "NamesConflict"
        made[1] |= {"reason": "NotAccepted", "message": "not all names are accepted"}
    old = {c.get("type"): c for c in before.get("conditions") or []}
    for condition in made:
        same = old.get(condition["type"], {}).get("status") == condition["status"]
        condition["lastTransitionTime"] = old[condition["type"]]["lastTransitionTime"] if same else now
    kept = [c for c in before.get("conditions") or [] if c.get("type") not in ("NamesAccepted", "Established")]
    return {
        **before,
        "conditions": kept + made,
        "acceptedNames": names if accepted else before.get("acceptedNames", {"plural": "", "kind": ""}),
        "storedVersions": list(dict.fromkeys([*(before.get("storedVersions") or ()), stored])),
    }


def _condition(kind: str, holds: bool, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


# -- what a CRD serves -------------------------------------------------------------------------------------------
def served(crd: Object) -> list[ServedVersion]:
    """The served versions of an accepted CRD, compiled."""
    return [_served(crd, version) for version in crd["spec"]["versions"] if version.get("served")]


def _served(crd: Object, version: Object) -> ServedVersion:
    spec = crd["spec"]
    names = spec["names"]
    subresources = version.get("subresources") or {}
    info = ResourceInfo(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(word for word in ("status", "scale") if word in subresources),
        verbs=_VERBS,
        selectable=tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ()),
    )
    schema = version["schema"]["openAPIV3Schema"]
    structural = structural_schema(msgspec.json.encode(schema))
    preserve = bool(spec.get("preserveUnknownFields"))
    scale = subresources.get("scale")
    rules = KindRules(
        schema=openapi_schema(schema),
        default=structural.fill,
        prune=(lambda obj, old: ()) if preserve else structural.prune,
        validate=_validation(structural, scale),
        scale=_scale_paths(scale) if scale else None,
    )
    printer = crd_printer(version.get("additionalPrinterColumns") or ())
    return ServedVersion(info, rules, printer, schema, bool(version.get("storage")))


def _validation(
    structural: Structural, scale: Mapping[str, str] | None
) -> Callable[[Object, Object | None], Sequence[Cause]]:
    if not scale:
        return structural.validate
    fields = [scale["specReplicasPath"], scale["statusReplicasPath"]]

    def validate(obj: Object, old: Object | None) -> Sequence[Cause]:
        return structural.validate(obj, old, [cause for field in fields for cause in replica_findings(obj, field)])

    return validate


def _scale_paths(scale: Mapping[str, str]) -> ScalePaths:
    def fields(path: str) -> tuple[str, ...]:
        return tuple(part for part in path.split(".") if part)

    return ScalePaths(
        fields(scale["specReplicasPath"]),
        fields(scale["statusReplicasPath"]),
        fields(scale.get("labelSelectorPath", "")),
    )
