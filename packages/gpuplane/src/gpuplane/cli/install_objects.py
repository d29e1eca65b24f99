"""Applies the objects of an installation. Objects of other programs, and replicas that a user has set, stay."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gpuplane.api.schema import OURS
from gpuplane.cli.contents import is_labelled
from gpuplane.cli.removal import until_gone
from gpuplane.operator.installation import MANAGER, POLICY_KIND, resource_of
from kubekit.kube import Client, NotFound
from kubekit.kube.codec import decode_any

Manifest = dict[str, Any]
DEFINITION: Final = "CustomResourceDefinition"
# A quota that others may have made first, and the kind whose deletion takes along all objects of others.
QUOTA: Final = "ResourceQuota"
# Credentials may be a Secret that an administrator made.
SHARED: Final = (DEFINITION, "Namespace", QUOTA, "Secret")
SCALED: Final = "Deployment"


async def find(client: Client, manifest: Manifest) -> Manifest | None:
    """Return the cluster's object of the manifest's kind and name, None when there is none."""
    try:
        meta = manifest["metadata"]
        body = await client.request("GET", resource_of(manifest).path(meta.get("namespace"), meta["name"]))
    except NotFound:
        return None
    found: Manifest = decode_any(body)
    return found


def field_manager(found: Manifest | None) -> str:
    """Return the name under which to apply a definition: that of the program that applied it first.

    NB: helm 4 applies CRDs without force. Under a name of our own, what an upgrade changed would be ours, and the next
    `helm install` on the cluster would end in a conflict.
    """
    entries = found["metadata"].get("managedFields", ()) if found is not None else ()
    appliers = [entry["manager"] for entry in entries if entry["operation"] == "Apply" and "subresource" not in entry]
    return next((manager for manager in appliers if manager != MANAGER), MANAGER)


def unclaimed(manifest: Manifest) -> Manifest:
    """Return the manifest without our label: only what an installation created carries it, and uninstall keeps the
    rest.
    """
    meta = manifest["metadata"]
    labels = {name: value for name, value in meta["labels"].items() if name not in OURS}
    return {**manifest, "metadata": {**meta, "labels": labels}}


def is_scaled_by_others(found: Manifest) -> bool:
    """Return whether a manager other than an installation has set a Deployment's replicas, as `kubectl scale` does.

    NB: an apply would reset the number, and end the standby replicas of an administrator. A Deployment with 0 replicas
    is switched off, and an installation starts it again.
    """
    if found["kind"] != SCALED or "deletionTimestamp" in found["metadata"] or not found["spec"].get("replicas"):
        return False
    entries = found["metadata"].get("managedFields", ())
    owners = {entry["manager"] for entry in entries if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})}
    return bool(owners - {MANAGER})


async def apply(client: Client, manifest: Manifest) -> None:
    """Server-side apply. A kind whose CRD was applied a moment ago is tried until it is served. An object that an
    earlier uninstall is still deleting is awaited and created again. A Deployment that others have scaled keeps its
    number of replicas, unless that is 0.
    """
    resource = resource_of(manifest)
    meta = manifest["metadata"]
    found = await find(client, manifest) if manifest["kind"] in (*SHARED, SCALED) else None
    manager = field_manager(found) if manifest["kind"] == DEFINITION else MANAGER
    wanted = manifest
    if found is not None and manifest["kind"] in SHARED and not is_labelled(found):
        wanted = unclaimed(manifest)
    if found is not None and is_scaled_by_others(found):
        wanted = {**manifest, "spec": {name: value for name, value in manifest["spec"].items() if name != "replicas"}}
    while True:
        try:
            made = await client.apply(wanted, manager, resource=resource)
        except NotFound:
            if manifest["kind"] != POLICY_KIND:
                raise
            await asyncio.sleep(0.05)
            continue
        if "deletionTimestamp" not in made["metadata"]:
            return
        await until_gone(client, resource.path(meta.get("namespace"), meta["name"]))
        wanted = manifest
