"""Deletes one object of the installation, or all objects of a kind, and waits until they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final, Literal

from gpuplane.api.explanation import PodExplanation
from gpuplane.api.karpenter import CLASS_FINALIZER, EC2NodeClass
from gpuplane.operator.installation import resource_of
from kubekit.errors import Retryable
from kubekit.kube import Client, Conflict, NotFound
from kubekit.kube.codec import decode_any
from kubekit.kube.tasks import first_of

AWAY_SECONDS: Final = 0.5  # until an API server that did not answer is asked again


async def remove(client: Client, manifest: dict[str, Any]) -> bool:
    """Delete one object and wait until it is gone: the policy first brings every node back to what it was.

    False when it was not there.
    """
    resource = resource_of(manifest)
    meta = manifest["metadata"]
    # NB: never so for the policy: its operands would be deleted before they have given the nodes back.
    propagation: Literal["Foreground", "Background"] = (
        "Foreground" if manifest["kind"] == "Deployment" else "Background"
    )
    try:
        await client.delete(resource, meta["name"], meta.get("namespace"), propagation=propagation)
    except NotFound:
        return False
    path = resource.path(meta.get("namespace"), meta["name"])
    if manifest["kind"] == "Namespace" or meta["name"].startswith(f"{PodExplanation.RESOURCE.plural}."):
        await _gone_with(client, path, _release_requests(client))
    elif meta["name"].startswith(f"{EC2NodeClass.RESOURCE.plural}."):
        await _gone_with(client, path, _release_classes(client))
    else:
        await until_gone(client, path)
    return True


async def remove_objects(client: Client, definition: dict[str, Any]) -> int:
    """Delete all objects of a kind without namespaces and wait until they are gone; returns their number.

    Their finalizers are respected: who set them has work to do first. No object where the kind is not served.
    """
    spec = definition["spec"]
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
    seen: set[str] = set()
    while True:
        try:
            found = decode_any(await client.request("GET", path))
            for item in found["items"]:
                meta = item["metadata"]
                seen.add(meta["uid"])
                if not meta.get("deletionTimestamp"):
                    with suppress(NotFound):
                        await client.request("DELETE", f"{path}/{meta['name']}")
            if not found["items"]:
                return len(seen)
            changes = client.stream(path, {"watch": "true", "resourceVersion": found["metadata"]["resourceVersion"]})
            async with aclosing(changes):
                await anext(changes, None)
        except NotFound:
            return len(seen)
        except Retryable:
            await asyncio.sleep(AWAY_SECONDS)


async def _gone_with(client: Client, path: str, release: Coroutine[Any, Any, None]) -> None:
    """Returns when there is no object at `path` any more, and releases what may hold it meanwhile.

    After the deletion, for no user can make another one then. A list of a kind whose definition goes may be answered
    late or never, so nothing waits for it once the object is gone.
    """
    gone = asyncio.create_task(until_gone(client, path))
    try:
        await first_of(gone, release)
        await gone
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def _release_requests(client: Client) -> None:
    """Take the finalizers off PodExplanations: users may have made them with any, and the operator has ended."""
    while True:
        try:
            for request in await client.list(PodExplanation):
                if request.metadata.finalizers:
                    with suppress(NotFound):
                        meta = request.metadata
                        bare = {"metadata": {"finalizers": None}}
                        await client.patch(PodExplanation, meta.name, bare, meta.namespace)
            return
        except NotFound:
            return
        except Retryable:
            await asyncio.sleep(AWAY_SECONDS)


async def _release_classes(client: Client) -> None:
    """Take the autoscaler's finalizer off EC2NodeClasses: no node is left, and the autoscaler may not run any more."""
    while True:
        try:
            for one in await client.list(EC2NodeClass):
                left = [name for name in one.metadata.finalizers if name != CLASS_FINALIZER]
                if len(left) != len(one.metadata.finalizers):
                    with suppress(NotFound):
                        meta = {"finalizers": left, "resourceVersion": one.metadata.resource_version}
                        await client.patch(EC2NodeClass, one.metadata.name, {"metadata": meta})
            return
        except NotFound:
            return
        except (Conflict, Retryable):
            await asyncio.sleep(AWAY_SECONDS)


async def until_gone(client: Client, path: str) -> None:
    """Returns when there is no object at `path` any more; looks at the start and after each change."""
    collection, _, name = path.rpartition("/")
    chosen = {"fieldSelector": f"metadata.name={name}"}
    while True:
        try:
            found = decode_any(await client.request("GET", collection, chosen))
            if not found["items"]:
                return
            version = found["metadata"]["resourceVersion"]
            changes = client.stream(collection, {"watch": "true", "resourceVersion": version, **chosen})
            async with aclosing(changes):
                await anext(changes, None)
        except Retryable:
            await asyncio.sleep(AWAY_SECONDS)
