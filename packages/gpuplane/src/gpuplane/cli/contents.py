"""The objects of others in a namespace: `gpuplane uninstall` keeps a namespace that holds any."""

from __future__ import annotations

from typing import Any, Final

from gpuplane.api.schema import OURS
from kubekit.kube import ApiError, Client, NotFound
from kubekit.kube.codec import decode_any

Object = dict[str, Any]
# Objects that the cluster itself makes in each namespace, or for other objects.
MADE_BY_THE_CLUSTER: Final = frozenset(
    {
        ("configmaps", "kube-root-ca.crt"),
        ("configmaps", "openshift-service-ca.crt"),
        ("serviceaccounts", "default"),
        ("serviceaccounts", "builder"),
        ("serviceaccounts", "deployer"),
    }
)
# Programs write these about other objects, and write them again; users ask by PodExplanations, which end by themselves.
RECORDS: Final = frozenset({"events", "endpoints", "endpointslices", "leases", "podexplanations"})
TOKENS: Final = "kubernetes.io/service-account-token", "kubernetes.io/dockercfg"
NEEDED: Final = frozenset({"list", "delete"})  # what an aggregated API computes, as metrics, cannot be deleted


def is_labelled(found: Object) -> bool:
    """Return whether an installation of gpuplane made the object."""
    return OURS.items() <= (found["metadata"].get("labels") or {}).items()


def is_of_others(resource: str, found: Object) -> bool:
    """Return whether a user would miss the object. An object is deleted with its owner, so the owner decides."""
    meta = found["metadata"]
    return not (
        is_labelled(found)
        or meta.get("ownerReferences")
        or meta.get("deletionTimestamp")
        or resource in RECORDS
        or (resource, meta["name"]) in MADE_BY_THE_CLUSTER
        or found.get("type") in TOKENS
    )


async def contents_of_others(client: Client, namespace: str) -> list[str]:
    """The objects of others in a namespace, as `configmaps/mine`. An API that does not answer may hold some."""
    found: list[str] = []
    for place in ["/api/v1", *await _groups(client)]:
        for kind in await _read(client, place, "resources", found):
            if not kind["namespaced"] or "/" in kind["name"] or not NEEDED.issubset(kind["verbs"]):
                continue
            items = await _read(client, f"{place}/namespaces/{namespace}/{kind['name']}", "items", found)
            found += [f"{kind['name']}/{one['metadata']['name']}" for one in items if is_of_others(kind["name"], one)]
    return found


async def _groups(client: Client) -> list[str]:
    body: Object = decode_any(await client.request("GET", "/apis"))
    return [f"/apis/{group['preferredVersion']['groupVersion']}" for group in body["groups"]]


async def _read(client: Client, path: str, field: str, found: list[str]) -> list[Object]:
    """One field of the answer; empty where nothing is served. `found` gets a line where the server cannot answer."""
    try:
        body: dict[str, list[Object]] = decode_any(await client.request("GET", path))
    except NotFound:
        return []
    except ApiError:
        found.append(f"objects of {path}, which does not answer")
        return []
    return body[field]
