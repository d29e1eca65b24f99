"""Decides what a write may change of an object: pure decisions on metadata, generation, status and deletion.

Nothing here reads a clock, a store or the network; `registry.py` brings the facts and carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from kubekit.api.core import has_ended
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import (
    ApiFailure,
    Cause,
    bad_request,
    conflict,
    invalid,
    invalid_options,
)
from tinykube.apiserver.pod_resizes import resized_spec
from tinykube.apiserver.signing_requests import QUALIFIED as SIGNING_REQUESTS
from tinykube.apiserver.signing_requests import changed_part
from tinykube.apiserver.typed import unlike

Object = dict[str, Any]

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"

# Built-in kinds whose `generation` counts changes of what is wanted; custom kinds all do.
_GENERATIONS: Final = frozenset(
    (
        "cronjobs",
        "customresourcedefinitions",
        "daemonsets",
        "deployments",
        "deviceclasses",
        "endpointslices",
        "flowschemas",
        "ingressclasses",
        "ingresses",
        "jobs",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "networkpolicies",
        "poddisruptionbudgets",
        "pods",
        "priorityclasses",
        "prioritylevelconfigurations",
        "replicasets",
        "replicationcontrollers",
        "resourceslices",
        "statefulsets",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    )
)
# Fields of metadata that belong to the server: an update cannot change them.
_SERVER_FIELDS: Final = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)
# Status writes of built-in kinds may change annotations and labels too, but not of these.
_STATUS_ALONE: Final = frozenset(
    (
        "apiservices",
        "customresourcedefinitions",
        "flowschemas",
        "prioritylevelconfigurations",
        "resourceclaims",
        "volumeattachments",
    )
)
_STATUS_WITHOUT_LABELS: Final = frozenset(("deployments",))
# Kinds whose status is accepted when they are created: a kubelet registers its Node with it.
_STATUS_ON_CREATE: Final = frozenset(("nodes",))
_ALLOCATED: Final = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def counts_generations(info: ResourceInfo) -> bool:
    return not info.model or info.plural in _GENERATIONS


def wanted(info: ResourceInfo, obj: Object) -> Object:
    """The part whose change is a new generation."""
    without = {"metadata", "status", "apiVersion", "kind"}
    if not info.model and "status" not in info.subresources:
        without.remove("status")
    return {name: value for name, value in obj.items() if name not in without}


def check_identity(info: ResourceInfo, namespace: str, name: str, obj: Object) -> None:
    """Raise ApiFailure 400 when the body is of another kind, namespace or name than the URL."""
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    if info.model and (api_version or info.api_version, kind or info.kind) != (info.api_version, info.kind):
        raise unlike(info, api_version or info.api_version, kind or info.kind, obj)
    if api_version is None:
        obj["apiVersion"] = info.api_version
    elif api_version != info.api_version:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version ({info.api_version})"
        )
    if kind is None:
        obj["kind"] = info.kind
    elif kind != info.kind and info.model:  # of a custom object validation says so
        raise bad_request(f"the kind in the data ({kind}) does not match the expected kind ({info.kind})")
    metadata = obj.get("metadata")
    if metadata is None:
        metadata = obj["metadata"] = {}
    elif not isinstance(metadata, dict):
        raise bad_request("metadata: expected an object")
    if info.namespaced:
        given = metadata.get("namespace")
        if given and given != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    given = metadata.get("name")
    if name and given and given != name:
        raise bad_request(
            f"the name of the object ({given}) does not match the name on the URL ({name})",
        )
    if name:
        metadata["name"] = name


def prepare_create(info: ResourceInfo, obj: Object, *, uid: str, now: str) -> None:
    """Fill in, in place, what the server decides at creation."""
    metadata = obj["metadata"]
    for field in ("resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        metadata.pop(field, None)
    metadata["uid"] = uid
    metadata["creationTimestamp"] = now
    if counts_generations(info):
        metadata["generation"] = 1
    if "status" in info.subresources and info.plural not in _STATUS_ON_CREATE:
        obj.pop("status", None)


def prepare_update(info: ResourceInfo, old: Object, obj: Object, subresource: str, now: Callable[[], str]) -> Object:
    """The new version: of `obj` what this kind of write may change, of `old` the rest. May share parts with both.

    A binding is made by the server itself and taken as it is.
    """
    before: Object = old["metadata"]
    given: Object = obj["metadata"]
    if subresource == "binding":
        return obj
    if subresource == "finalize":
        return {**old, "spec": {**(old.get("spec") or {}), "finalizers": (obj.get("spec") or {}).get("finalizers")}}
    if subresource in ("ephemeralcontainers", "resize"):
        spec = {**old["spec"]}
        if subresource == "resize":
            spec = resized_spec(spec, obj.get("spec") or {})
        else:
            _carry(obj.get("spec") or {}, spec, "ephemeralContainers")
        changed = int(spec != old["spec"])
        return {**old, "metadata": {**before, "generation": before.get("generation", 0) + changed}, "spec": spec}
    if subresource in ("status", "approval"):
        metadata = {**before}
        if info.model and info.plural not in _STATUS_ALONE:
            _carry(given, metadata, "annotations")
            if info.plural not in _STATUS_WITHOUT_LABELS:
                _carry(given, metadata, "labels")
        if "managedFields" in given:
            metadata["managedFields"] = given["managedFields"]
        new = {**old, "metadata": metadata}
        _carry(obj, new, "status")
        return changed_part(old, new, subresource, now) if info.qualified == SIGNING_REQUESTS else new
    metadata = {**given}
    for field in _SERVER_FIELDS:
        _carry(before, metadata, field)
    metadata["name"] = before["name"]
    if "managedFields" not in given:
        _carry(before, metadata, "managedFields")
    new = {**obj, "metadata": metadata}
    if "status" in info.subresources:
        _carry(old, new, "status")
    if info.plural == "services" and isinstance(new.get("spec"), dict):
        # Allocated values stay when a client sends the object without them.
        kept = {field: old["spec"][field] for field in _ALLOCATED if field in old["spec"]}
        new["spec"] = {**kept, **{k: v for k, v in new["spec"].items() if v is not None}}
    if info.qualified == SIGNING_REQUESTS:
        return changed_part(old, new, "", now)
    if counts_generations(info) and wanted(info, old) != wanted(info, new):
        metadata["generation"] = before.get("generation", 0) + 1
    return new


def applied_part(info: ResourceInfo, config: Object, subresource: str) -> Object:
    """Return the part of an applied object that this kind of write applies: a write owns no field that it cannot
    change.
    """
    if subresource == "status":
        identity = ("name", "namespace", "uid", "resourceVersion")
        part: Object = {field: config[field] for field in ("apiVersion", "kind", "status") if field in config}
        part["metadata"] = {field: config["metadata"][field] for field in identity if field in config["metadata"]}
        return part
    if "status" in info.subresources:
        return {field: value for field, value in config.items() if field != "status"}
    return config


def _carry(source: Object, target: Object, field: str) -> None:
    if field in source:
        target[field] = source[field]
    else:
        target.pop(field, None)


def unchanged(old: Object, new: Object) -> bool:
    """Return whether a write would change nothing but the times in managedFields: then nothing is written."""
    if old.get("status") != new.get("status") or len(old) != len(new):  # most writes change it; it is small
        return False
    if any(old.get(name) != value for name, value in new.items() if name != "metadata"):
        return False
    before, after = old["metadata"], new["metadata"]
    loose = ("resourceVersion", "managedFields")
    if {k: v for k, v in before.items() if k not in loose} != {k: v for k, v in after.items() if k not in loose}:
        return False
    return _timeless(before.get("managedFields")) == _timeless(after.get("managedFields"))


def _timeless(managed: list[Object] | None) -> list[Object]:
    return [{k: v for k, v in entry.items() if k != "time"} for entry in managed or ()]


def check_preconditions(info: ResourceInfo, old: Object, *, uid: str | None, version: str | None) -> None:
    """Raise ApiFailure 409 when the stored object is not the one that is meant."""
    metadata = old["metadata"]
    name = metadata["name"]
    if uid is not None and uid != metadata["uid"]:
        text = f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']}). "
        raise _unlike(info, name, text + "The object might have been deleted and then recreated")
    if version is not None and version != metadata["resourceVersion"]:
        text = f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
        raise _unlike(info, name, f"{text}({metadata['resourceVersion']}). The object might have been modified")


def _unlike(info: ResourceInfo, name: str, text: str) -> ApiFailure:
    """A precondition of a deletion that does not hold; it names the kind, not the resource."""
    details: Object = {"name": name, **({"group": info.group} if info.group else {}), "kind": info.kind}
    kind = f"{info.kind}.{info.group}" if info.group else info.kind
    return ApiFailure(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {text}', details)


def check_uid(info: ResourceInfo, old: Object, uid: str) -> None:
    """Raise ApiFailure 409 when an update is meant for another object of the same name."""
    metadata = old["metadata"]
    if uid != metadata["uid"]:
        raise precondition(info, old, "UID", uid, metadata["uid"])


def precondition(info: ResourceInfo, old: Object, field: str, wanted: str, found: str) -> ApiFailure:
    """The 409 of a write whose precondition does not hold, as the store of a real server words it."""
    metadata = old["metadata"]
    parts = ("/registry", info.plural, *([metadata["namespace"]] if info.namespaced else []), metadata["name"])
    text = (
        f"StorageError: invalid object, Code: 4, Key: {'/'.join(parts)}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
    )
    return conflict(info, metadata["name"], text)


def check_finalizers(info: ResourceInfo, old: Object, new: Object) -> None:
    """An object under deletion gets no new finalizers."""
    if "deletionTimestamp" not in old["metadata"]:
        return
    before = set(old["metadata"].get("finalizers") or ())
    added = [word for word in new["metadata"].get("finalizers") or () if word not in before]
    if added:
        shown = ", ".join(f'"{word}"' for word in added)
        message = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{shown}}}"
        )
        # Said twice, as the real server says it: its general check and the one of the kind.
        causes = [Cause("FieldValueForbidden", message, "metadata.finalizers")] * 2
        raise invalid(info, new["metadata"]["name"], causes)


def finished(info: ResourceInfo, obj: Object) -> bool:
    """Return whether an object marked for deletion has nothing left to wait for."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if info.plural == "namespaces" and not info.group:
        return not (obj.get("spec") or {}).get("finalizers")
    return not metadata.get("deletionGracePeriodSeconds")


class Deletion(msgspec.Struct, frozen=True):
    """The steps of a deletion: store `marked` first (None: nothing to mark), then `remove`."""

    marked: Object | None
    remove: bool


def decide_deletion(
    info: ResourceInfo, old: Object, *, grace: int | None, propagation: str | None, at: str
) -> Deletion:
    """`at` is the time when the grace period is over (RFC 3339), for the grace that `grace_seconds` gives."""
    metadata = {**old["metadata"]}
    finalizers = list(metadata.get("finalizers") or ())
    if propagation:
        finalizers = [word for word in finalizers if word not in (FOREGROUND, ORPHAN)]
        if propagation == "Foreground":
            finalizers.append(FOREGROUND)
        elif propagation == "Orphan":
            finalizers.append(ORPHAN)
        elif propagation != "Background":
            message = 'supported values: "Foreground", "Background", "Orphan", "nil"'
            cause = Cause(
                "FieldValueNotSupported", f'Unsupported value: "{propagation}": {message}', "propagationPolicy"
            )
            raise invalid_options("DeleteOptions", cause)
    seconds = grace_seconds(info, old, grace)
    waits = bool(finalizers) or seconds > 0
    namespace = info.plural == "namespaces" and not info.group
    if namespace and (old.get("spec") or {}).get("finalizers"):
        waits = True
    if not waits:
        return Deletion(None, True)
    new = {**old, "metadata": metadata}
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    before = metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in metadata or (before is not None and seconds < before):
        metadata["deletionTimestamp"] = at
        if not namespace:
            metadata["deletionGracePeriodSeconds"] = seconds
        if "generation" in metadata and "deletionTimestamp" not in old["metadata"]:
            metadata["generation"] += 1
        if namespace:
            new["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return Deletion(None if new == old else new, False)


def last_version(info: ResourceInfo, old: Object, now: str) -> Object | None:
    """Return what clients see of a pod that is removed at once: marked, with no grace left. None: the object as it
    was.
    """
    if info.plural != "pods" or info.group:
        return None
    metadata = {"deletionTimestamp": now, **old["metadata"], "deletionGracePeriodSeconds": 0}
    if "deletionTimestamp" not in old["metadata"] and "generation" in metadata:
        metadata["generation"] += 1
    return {**old, "metadata": metadata}


def grace_seconds(info: ResourceInfo, obj: Object, asked: int | None) -> int:
    """Return how long the deletion waits for a kubelet: zero for all but pods that run on a node."""
    if info.plural != "pods" or info.group:
        return 0
    spec = obj.get("spec") or {}
    if not spec.get("nodeName") or has_ended((obj.get("status") or {}).get("phase")):
        return 0
    seconds = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30)
    return max(int(seconds), 0)
