"""`gpuplane install` and `gpuplane uninstall`: the installation's manifests, applied or taken away in reverse."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from contextlib import aclosing, suppress
from typing import Any, Final, Literal

import msgspec
import yaml

from gpuplane.api.explanation import PodExplanation
from gpuplane.api.nodefeature import GROUP as NODE_FEATURES
from gpuplane.api.schema import OURS
from gpuplane.cli.contents import contents_of_others, is_labelled
from gpuplane.cli.terminal import Console, LivePage, count
from gpuplane.operator.installation import MANAGER, ONLY, POLICY_KIND, everything, installation, resource_of
from kubekit.errors import NoAnswer, Retryable, UsageError
from kubekit.kube import Client, NotFound

Manifest = dict[str, Any]
DEFINITION: Final = "CustomResourceDefinition"
# What others may have made first, and what takes all objects of others along when it is deleted.
QUOTA: Final = "ResourceQuota"
SHARED: Final = (DEFINITION, "Namespace", QUOTA)
BEFORE: Final = "it was there before gpuplane"
NAMED: Final = 3  # so many objects of others are named, the rest counted
# Where to see what holds an object up that does not go.
LOOK: Final = {
    POLICY_KIND: "gpuplane status shows what the nodes wait for, kubectl -n gpu-operator get pods the operator; ",
    "Namespace": "kubectl -n gpu-operator get pods shows what is left, as on a node that is not Ready; ",
    DEFINITION: "kubectl get clusterpolicies,gpunodes shows what is left; ",
}
AWAY_SECONDS: Final = 0.5  # until an API server that did not answer is asked again


def install(options: Namespace, screen: Console) -> int:
    if options.image is not None and (not options.image or any(sign.isspace() for sign in options.image)):
        raise UsageError(
            f"{options.image!r} names no image",
            where="--image",
            cure="gpuplane install --image registry.example.com/gpuplane:0.1.0",
        )
    wanted = installation(
        image=options.image or "",
        settings=options.set,
        only=options.only,
        admission="" if options.admission == "none" else options.admission,
        scheduler=options.scheduler,
    )
    if options.dry_run:
        screen.print(yaml.safe_dump_all(wanted, sort_keys=False).rstrip())
        return 0
    asyncio.run(_install(options, screen, wanted))
    if options.wait:
        from gpuplane.cli.status import status

        options.what, options.watch, options.namespace, options.selector = "nodes", False, "", ""
        return status(options, screen)
    return 0


def uninstall(options: Namespace, screen: Console) -> int:
    wanted = [m for m in reversed(everything()) if options.only is None or m["kind"] == ONLY[options.only]]
    return asyncio.run((_list_removals if options.dry_run else _uninstall)(options, screen, wanted))


async def _install(options: Namespace, screen: Console, wanted: list[Manifest]) -> None:
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        manifest: Manifest = {}
        page = LivePage(screen)
        # One line that counts where it can be drawn over; a line for each object elsewhere, to be read later.
        try:
            async with asyncio.timeout(options.timeout):
                for done, manifest in enumerate(wanted, 1):
                    if why := await _why_left(client, manifest):
                        page.clear()
                        screen.say(f" {screen.glyph('good')} {_title(manifest)} {why}: left as it is")
                        continue
                    await apply(client, manifest)
                    if screen.live:
                        page.show(f" {screen.glyph('wait')} {done} of {len(wanted)} objects   {_title(manifest)}")
                    else:
                        screen.say(f" {screen.glyph('good')} {_title(manifest)}")
        except TimeoutError:
            page.clear()
            raise _late(manifest, "there", options.timeout, "install") from None
        if screen.live:
            page.clear()
            screen.say(f" {screen.glyph('good')} {count(len(wanted), 'object')} applied")
    if options.output == "json":
        screen.json("Installation", {"applied": [_title(manifest) for manifest in wanted]})
    if not options.wait:
        screen.say("Next: gpuplane status --wait")


async def _why_left(client: Client, manifest: Manifest) -> str:
    """Return why an object of others is not changed; empty for an object to apply.

    These are the kinds that we share with node feature discovery, and an administrator's quota for the namespace.
    """
    features = manifest["kind"] == DEFINITION and manifest["spec"]["group"] == NODE_FEATURES
    if not features and manifest["kind"] != QUOTA:
        return ""
    found = await _found(client, manifest)
    if found is None or is_labelled(found):
        return ""
    return "is another installation's" if features else "was there before gpuplane"


async def _found(client: Client, manifest: Manifest) -> Manifest | None:
    """The cluster's object of the manifest's kind and name, None when there is none."""
    try:
        meta = manifest["metadata"]
        body = await client.request("GET", resource_of(manifest).path(meta.get("namespace"), meta["name"]))
    except NotFound:
        return None
    found: Manifest = msgspec.json.decode(body)
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


async def apply(client: Client, manifest: Manifest) -> None:
    """Server-side apply. A kind whose CRD was applied a moment ago is tried until it is served. An object that an
    earlier uninstall is still deleting is awaited and created again.
    """
    resource = resource_of(manifest)
    meta = manifest["metadata"]
    found = await _found(client, manifest) if manifest["kind"] in SHARED else None
    manager = field_manager(found) if manifest["kind"] == DEFINITION else MANAGER
    wanted = unclaimed(manifest) if found is not None and not is_labelled(found) else manifest
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
        await _gone(client, resource.path(meta.get("namespace"), meta["name"]))


async def _list_removals(options: Namespace, screen: Console, wanted: list[Manifest]) -> int:
    """Print the objects in the order of their removal, those that stay with the reason."""
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        try:
            async with asyncio.timeout(options.timeout):
                for manifest in wanted:
                    why = await _why_kept(client, manifest)
                    screen.print(f"{_title(manifest)} kept: {why}" if why else _title(manifest))
        except TimeoutError:
            raise NoAnswer(
                f"the cluster did not answer within {options.timeout:g} s", where=client.endpoint.context
            ) from None
    return 0


async def _uninstall(options: Namespace, screen: Console, wanted: list[Manifest]) -> int:
    removed = 0
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        manifest: Manifest = {}
        try:
            async with asyncio.timeout(options.timeout):
                for manifest in wanted:
                    if why := await _why_kept(client, manifest):
                        if why == BEFORE and manifest["kind"] == "Namespace":
                            # An apply without labels takes back those that install applied.
                            bare = {**manifest, "metadata": {"name": manifest["metadata"]["name"]}}
                            await client.apply(bare, MANAGER, resource=resource_of(manifest))
                        screen.say(f" {screen.glyph('warn')} {_title(manifest)} kept: {why}")
                    elif await _remove(client, manifest):
                        removed += 1
                        screen.say(f" {screen.glyph('good')} {_title(manifest)} removed")
        except TimeoutError:
            raise _late(manifest, "gone", options.timeout, "uninstall") from None
    if not removed:
        screen.say("gpuplane is not on this cluster: nothing to remove")
    return 0


def _late(manifest: Manifest, aim: str, seconds: float, command: str) -> NoAnswer:
    look = LOOK.get(manifest["kind"], "")
    return NoAnswer(
        f"{_title(manifest)} was not {aim} after {seconds:.0f} s",
        cure=f"{look}run gpuplane {command} again: it goes on from here",
    )


async def _why_kept(client: Client, manifest: Manifest) -> str:
    """Return why an object must stay, for others have objects in it or of it; empty when it may go. Writes nothing."""
    found = await _found(client, manifest) if manifest["kind"] in SHARED else None
    if found is None:
        return ""
    if not is_labelled(found):
        return BEFORE
    if manifest["kind"] != "Namespace" or "deletionTimestamp" in found["metadata"]:
        return ""
    others = await contents_of_others(client, found["metadata"]["name"])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"it holds {', '.join(others[:NAMED])}{more}, which gpuplane did not make" if others else ""


async def _remove(client: Client, manifest: Manifest) -> bool:
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
        await _gone_with_requests(client, path)
    else:
        await _gone(client, path)
    return True


async def _gone_with_requests(client: Client, path: str) -> None:
    """Returns when there is no object at `path` any more, and takes the finalizers off PodExplanations meanwhile.

    After the deletion, for no user can make another one then. A list of a kind whose definition goes may be answered
    late or never, so nothing waits for it once the object is gone.
    """
    gone, released = asyncio.create_task(_gone(client, path)), asyncio.create_task(_release_requests(client))
    try:
        await asyncio.wait((gone, released), return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            released.result()
        await gone
    finally:
        for task in (gone, released):
            task.cancel()
        await asyncio.gather(gone, released, return_exceptions=True)


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


async def _gone(client: Client, path: str) -> None:
    """Returns when there is no object at `path` any more; looks at the start and after each change."""
    collection, _, name = path.rpartition("/")
    chosen = {"fieldSelector": f"metadata.name={name}"}
    while True:
        try:
            found = msgspec.json.decode(await client.request("GET", collection, chosen))
            if not found["items"]:
                return
            version = found["metadata"]["resourceVersion"]
            changes = client.stream(collection, {"watch": "true", "resourceVersion": version, **chosen})
            async with aclosing(changes):
                await anext(changes, None)
        except Retryable:
            await asyncio.sleep(AWAY_SECONDS)


def _title(manifest: Manifest) -> str:
    namespace = manifest["metadata"].get("namespace")
    return f"{manifest['kind']} {namespace + '/' if namespace else ''}{manifest['metadata']['name']}"
