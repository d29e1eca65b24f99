"""The volumes of pods from manifests. Pure.

Files rarely have all of them, so a claim binds its pods to a place only if every object is there that names the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuplane.autoscaler.volumes import (
    WAITS,
    PlacedVolume,
    VolumeClass,
    VolumeFacts,
    WantedVolume,
    claims_of,
    view_claim,
    view_class,
    view_volume,
)
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput

VOLUME_KINDS: Final = tuple(kind.RESOURCE.kind for kind in (WantedVolume, PlacedVolume, VolumeClass))
_DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"


def volumes_of(objects: Iterable[Mapping[str, Any]]) -> VolumeFacts:
    """Return what claims, volumes and storage classes say. Raises InvalidInput for one that cannot be read.

    A claim that names no class has the default one. A class that binds at once leaves the same choice of places as one
    that waits, since nothing is bound yet.
    """
    claims: list[WantedVolume] = []
    volumes: dict[str, PlacedVolume] = {}
    classes: dict[str, VolumeClass] = {}
    bound: dict[str, str] = {}
    default = ""
    for data in objects:
        try:
            if data["kind"] == WantedVolume.RESOURCE.kind:
                claims.append(view_claim(msgspec.convert(data, WantedVolume)))
            elif data["kind"] == PlacedVolume.RESOURCE.kind:
                volume = msgspec.convert(data, PlacedVolume)
                volumes[volume.metadata.name] = view_volume(volume)
                if named := volume.spec.get("claimRef"):
                    bound[f"{named.get('namespace', 'default')}/{named.get('name')}"] = volume.metadata.name
            else:
                storage = msgspec.convert(data, VolumeClass)
                found = msgspec.structs.replace(view_class(storage), volume_binding_mode=WAITS)
                classes[found.metadata.name] = found
                if storage.metadata.annotations.get(_DEFAULT) == "true":
                    default = found.metadata.name
        except (msgspec.ValidationError, KeyError, TypeError, AttributeError, ValueError) as error:
            meta = data.get("metadata")
            name = meta.get("name", "") if isinstance(meta, Mapping) else ""
            where, cure = f"{data['kind']}/{name}", "correct the field"
            raise InvalidInput(f"cannot be read: {error}", where=where, cure=cure) from error
    filled = {_key(one.metadata): _filled(one, bound, default) for one in claims}
    return VolumeFacts(filled.get, volumes.get, classes.get, complete=False)


def with_templates(
    data: Mapping[str, Any], pods: Iterable[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the pods of a StatefulSet with the volumes of its templates, and the claims that it makes of these.

    Raises InvalidInput for a template that cannot be read.
    """
    found, claims = [], []
    try:
        templates = {one["metadata"]["name"]: one.get("spec") or {} for one in data["spec"]["volumeClaimTemplates"]}
        for pod in pods:
            meta, spec = pod["metadata"], pod["spec"]
            volumes = [one for one in spec.get("volumes") or () if one.get("name") not in templates]
            for name, wanted in templates.items():
                claim = f"{name}-{meta['name']}"
                volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
                own = {"name": claim, "namespace": meta["namespace"]}
                claims.append({"kind": WantedVolume.RESOURCE.kind, "metadata": own, "spec": wanted})
            found.append({**pod, "spec": {**spec, "volumes": volumes}})
    except (KeyError, TypeError, AttributeError) as error:
        what, cure = "its volumeClaimTemplates cannot be read", "gpuplane check names the place"
        where = f"{data['kind']}/{data['metadata']['name']}"
        raise InvalidInput(what, where=where, cure=cure) from error
    return found, claims


def unknown_claims(pods: Iterable[Mapping[str, Any]], facts: VolumeFacts) -> list[str]:
    """Return the claims of pods, as namespace/name, whose place is unknown."""
    found: dict[str, None] = {}
    for pod in pods:
        space = pod["metadata"]["namespace"]
        for one in claims_of(pod["metadata"]["name"], pod["spec"]):
            if not facts.knows(space, one):
                found[f"{space}/{one.name}"] = None
    return list(found)


def _filled(claim: WantedVolume, bound: Mapping[str, str], default: str) -> WantedVolume:
    spec = claim.spec
    named = msgspec.structs.replace(
        spec,
        volume_name=spec.volume_name or bound.get(_key(claim.metadata), ""),
        storage_class_name=spec.storage_class_name or default,
    )
    return msgspec.structs.replace(claim, spec=named)


def _key(meta: ObjectMeta) -> str:
    return f"{meta.namespace or 'default'}/{meta.name}"
