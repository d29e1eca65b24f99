"""`gpuplane install` and `gpuplane uninstall`: the installation's manifests, applied or taken away in reverse."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

import yaml

from gpuplane.cli.terminal import Terminal
from gpuplane.errors import NoAnswer
from gpuplane.kube import ApiError, Client, NotFound
from gpuplane.operator.installation import MANAGER, POLICY_KIND, installation, resource_of

Manifest = dict[str, Any]


def install(options: Namespace, screen: Terminal) -> int:
    wanted = installation(image=options.image, settings=options.set)
    if options.dry_run:
        screen.print(yaml.safe_dump_all(wanted, sort_keys=False).rstrip())
        return 0
    return asyncio.run(_install(options, screen, wanted))


def uninstall(options: Namespace, screen: Terminal) -> int:
    wanted = list(reversed(installation()))
    if options.dry_run:
        for manifest in wanted:
            screen.print(_title(manifest))
        return 0
    return asyncio.run(_uninstall(options, screen, wanted))


async def _install(options: Namespace, screen: Terminal, wanted: list[Manifest]) -> int:
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        async with asyncio.timeout(options.timeout):
            for manifest in wanted:
                await apply(client, manifest)
                screen.say(f" {screen.glyph('good')} {_title(manifest)}")
    if options.output == "json":
        screen.json("Installation", {"applied": [_title(manifest) for manifest in wanted]})
    screen.say("Next: gpuplane status --wait")
    if options.wait:
        from gpuplane.cli.status import status

        options.what, options.watch = "nodes", False
        return status(options, screen)
    return 0


async def apply(client: Client, manifest: Manifest) -> None:
    """Server-side apply; a kind whose CRD was applied a moment ago is tried until it is served."""
    resource = resource_of(manifest)
    while True:
        try:
            await client.apply(manifest, MANAGER, resource=resource)
            return
        except NotFound:
            if manifest["kind"] != POLICY_KIND:
                raise
            await asyncio.sleep(0.05)


async def _uninstall(options: Namespace, screen: Terminal, wanted: list[Manifest]) -> int:
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        try:
            async with asyncio.timeout(options.timeout):
                for manifest in wanted:
                    await _remove(client, manifest)
                    screen.say(f" {screen.glyph('good')} {_title(manifest)} removed")
        except TimeoutError:
            raise NoAnswer(
                f"not everything was gone after {options.timeout:.0f} s",
                cure="kubectl get clusterpolicy,gpunodes shows what is left; run gpuplane uninstall again",
            ) from None
    return 0


async def _remove(client: Client, manifest: Manifest) -> None:
    """Delete one object and wait until it is gone: the policy first brings every node back to what it was."""
    resource = resource_of(manifest)
    meta = manifest["metadata"]
    path = resource.path(meta.get("namespace"), meta["name"])
    try:
        await client.delete(resource, meta["name"], meta.get("namespace"), propagation="Foreground")
        async for _ in _changes(client, path, meta["name"]):
            await client.request("GET", path)
    except NotFound:
        return


async def _changes(client: Client, path: str, name: str) -> Any:
    """One item now, and one for each change of the object at `path`."""
    yield None
    collection = path.rsplit("/", 1)[0]
    while True:
        try:
            async for _ in client.stream(collection, {"watch": "1", "fieldSelector": f"metadata.name={name}"}):
                yield None
        except ApiError:
            yield None


def _title(manifest: Manifest) -> str:
    namespace = manifest["metadata"].get("namespace")
    return f"{manifest['kind']} {namespace + '/' if namespace else ''}{manifest['metadata']['name']}"
