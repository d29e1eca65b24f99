"""The identity of a StatefulSet's pods: name, labels and claims. Pure, on plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tinykube.controllers.statefulset.decide import REVISION
from tinykube.controllers.templates import copied, owner_reference

Object = Mapping[str, Any]
_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
_INDEX: Final = "apps.kubernetes.io/pod-index"


def pod_name(obj: Object, ordinal: int) -> str:
    return f"{obj['metadata']['name']}-{ordinal}"


def new_pod(obj: Object, template: Object, revision: str, ordinal: int) -> dict[str, Any]:
    """Return the pod of an ordinal, from the template of a revision."""
    made, name = copied(template), pod_name(obj, ordinal)
    meta, spec = made.get("metadata") or {}, made.get("spec") or {}
    claims = {claim["name"]: claim for claim in _claim_volumes(obj, ordinal)}
    if claims:
        others = [volume for volume in spec.get("volumes") or () if volume["name"] not in claims]
        spec["volumes"] = [*claims.values(), *others]
    spec["hostname"] = name
    if obj["spec"].get("serviceName"):
        spec["subdomain"] = obj["spec"]["serviceName"]
    labels = {**(meta.get("labels") or {}), _POD_NAME: name, _INDEX: str(ordinal), REVISION: revision}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **{field: meta[field] for field in ("annotations", "finalizers") if meta.get(field)},
            "name": name,
            # NB: as in Kubernetes, with the prefix under which pods of one template are known to belong together.
            "generateName": f"{obj['metadata']['name']}-",
            "namespace": obj["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(obj, "apps/v1", "StatefulSet")],
        },
        "spec": spec,
    }


def _claim_name(template: Object, obj: Object, ordinal: int) -> str:
    return f"{template['metadata']['name']}-{pod_name(obj, ordinal)}"


def _claim_volumes(obj: Object, ordinal: int) -> list[dict[str, Any]]:
    return [
        {
            "name": template["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": _claim_name(template, obj, ordinal)},
        }
        for template in obj["spec"].get("volumeClaimTemplates") or ()
    ]


def claims_of(obj: Object, ordinal: int) -> list[dict[str, Any]]:
    """Return the PersistentVolumeClaims of an ordinal. They stay when the pod goes, and wait for the next."""
    made = []
    for template in obj["spec"].get("volumeClaimTemplates") or ():
        claim = copied(template)
        selected = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
        metadata = {
            **claim["metadata"],
            "name": _claim_name(template, obj, ordinal),
            "namespace": obj["metadata"]["namespace"],
            "labels": {**(claim["metadata"].get("labels") or {}), **selected},
        }
        spec = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim["spec"]}
        made.append(spec)
    return made


def claim_owners(obj: Object, claim: Object, pod: Object, *, goes: bool) -> list[dict[str, Any]]:
    """Return the owners of a claim by the retention policy: with an owner it goes when that owner is gone.

    `goes`: the pod is beyond the StatefulSet's number of replicas.
    """
    policy = obj["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    ours = {obj["metadata"]["uid"], pod["metadata"]["uid"]}
    owners = [dict(ref) for ref in claim["metadata"].get("ownerReferences") or () if ref["uid"] not in ours]
    if goes and policy.get("whenScaled") == "Delete":
        owners.append(owner_reference(pod, "v1", "Pod"))
    elif policy.get("whenDeleted") == "Delete":
        owners.append(owner_reference(obj, "apps/v1", "StatefulSet"))
    return owners
