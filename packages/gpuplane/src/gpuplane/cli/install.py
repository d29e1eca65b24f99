"""`gpuplane install` and `gpuplane uninstall`: the installation's manifests, applied or taken away in reverse."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any, Final

import msgspec
import yaml

from gpuplane import names
from gpuplane.api.karpenter import AWS_GROUP, GROUP
from gpuplane.api.nodefeature import GROUP as NODE_FEATURES
from gpuplane.cli.contents import contents_of_others, is_labelled
from gpuplane.cli.forms import as_document
from gpuplane.cli.image_option import require_image
from gpuplane.cli.install_autoscaler import read_autoscaler
from gpuplane.cli.install_objects import DEFINITION, QUOTA, SHARED, apply, find
from gpuplane.cli.removal import remove, remove_objects
from gpuplane.cli.terminal import Console, LivePage, count
from gpuplane.operator.autoscaler_install import is_of_classes, is_of_nodes
from gpuplane.operator.installation import MANAGER, POLICY_KIND, installation, removals, resource_of
from gpuplane.operator.monitoring import KINDS, read_labels
from kubekit.errors import NoAnswer, Terminal, UsageError
from kubekit.kube import Client, NotFound

Manifest = dict[str, Any]
POLICIES: Final = "ValidatingAdmissionPolicy"
KARPENTER: Final = (GROUP, AWS_GROUP)
BEFORE: Final = "it was there before gpuplane"
RELEASE_SECONDS: Final = 30.0  # until classes go that no autoscaler releases
UNRELEASED: Final = (
    f"were not released in {RELEASE_SECONDS:g} s: launch templates that were made of them may be left in the cloud"
)
NAMED: Final = 3  # so many objects of others are named, the rest counted
# Where to see what holds an object up that does not go.
LOOK: Final = {
    POLICY_KIND: "gpuplane status shows what the nodes wait for, kubectl -n gpu-operator get pods the operator; ",
    "Namespace": "kubectl -n gpu-operator get pods shows what is left, as on a node that is not Ready; ",
    DEFINITION: "kubectl get clusterpolicies,gpunodes,nodeclaims shows what is left; ",
}


def install(options: Namespace, screen: Console) -> int:
    if options.image is not None:
        require_image(options.image)
    labels = read_labels(options.monitoring_label)
    if labels and not options.monitoring:
        raise UsageError("--monitoring-label is a setting of monitoring", cure="--monitoring --monitoring-label ...")
    if options.dashboard_host and not options.dashboard:
        raise UsageError("--dashboard-host is a setting of the dashboard", cure="--dashboard --dashboard-host ...")
    if options.dashboard_claim and not options.dashboard:
        raise UsageError("--dashboard-claim is a setting of the dashboard", cure="--dashboard --dashboard-claim ...")
    wanted = installation(
        image=options.image or "",
        settings=options.set,
        only=options.only,
        admission="" if options.admission == "none" else options.admission,
        scheduler=options.scheduler,
        pod_scheduler=options.pod_scheduler,
        autoscaler=read_autoscaler(options),
        monitoring=labels if options.monitoring else None,
        dashboard=options.dashboard_host if options.dashboard else None,
        dashboard_claim=options.dashboard_claim,
    )
    if options.dry_run:
        if options.output == "json":  # as kubectl prints several objects
            listed = {"apiVersion": "v1", "kind": "List", "items": wanted}
            screen.print(msgspec.json.format(msgspec.json.encode(listed), indent=2).decode())
        else:
            screen.print(yaml.safe_dump_all(wanted, sort_keys=False).rstrip())
        return 0
    asyncio.run(_install(options, screen, wanted))
    if options.wait:
        from gpuplane.cli.status import status

        options.what, options.watch, options.namespace, options.selector = "nodes", False, "", ""
        return status(options, screen)
    return 0


def uninstall(options: Namespace, screen: Console) -> int:
    wanted = removals(options.only)
    return asyncio.run((_list_removals if options.dry_run else _uninstall)(options, screen, wanted))


async def _install(options: Namespace, screen: Console, wanted: list[Manifest]) -> None:
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        manifest: Manifest = {}
        left: list[Manifest] = []
        await _refuse_old_cluster(client, wanted)
        if options.autoscaler:
            await _refuse_beside_karpenter(client, wanted)
        if await _ends_pod_scheduler(client, wanted):
            what = "this switches the pod scheduler off: pods with schedulerName: gpuplane wait from now on"
            screen.say(f" {screen.glyph('warn')} {what}; to leave it on, add --pod-scheduler")
        page = LivePage(screen)
        # One line that counts where it can be drawn over; a line for each object elsewhere, to be read later.
        try:
            async with asyncio.timeout(options.timeout):
                for done, manifest in enumerate(wanted, 1):
                    if why := await _why_left(client, manifest):
                        page.clear()
                        screen.say(f" {screen.glyph('warn')} {_title(manifest)} {why}")
                        left.append(manifest)
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
            screen.say(f" {screen.glyph('good')} {count(len(wanted) - len(left), 'object')} applied")
        bypass: list[str] = []
        if options.scheduler and options.only is None and not options.wait:  # the page of --wait has it
            from gpuplane.cli.status import bypass_lines

            bypass = await bypass_lines(client, screen)
    if options.output != "text":
        applied = [_title(manifest) for manifest in wanted if manifest not in left]
        screen.print(as_document("Installation", {"applied": applied}, options.output))
        if options.wait and options.output == "yaml":
            screen.print("---")  # the status follows
    for line in bypass:
        screen.say(line)
    if not options.wait:
        screen.say("Next: gpuplane status --wait")


async def _refuse_old_cluster(client: Client, wanted: list[Manifest]) -> None:
    """Raises Terminal where the API server has no admission policies, before anything is written."""
    policy = next((manifest for manifest in wanted if manifest["kind"] == POLICIES), None)
    if policy is None:
        return
    try:
        await client.request("GET", resource_of(policy).path(), {"limit": "1"})
    except NotFound as error:
        raise Terminal(
            f"the cluster serves no {POLICIES}, which bounds what the token of a component may change",
            where=client.endpoint.context,
            cure="Kubernetes 1.30 or newer",
        ) from error


async def _refuse_beside_karpenter(client: Client, wanted: list[Manifest]) -> None:
    """Raises Terminal where Karpenter works, or its definitions are there, before anything is written."""
    from gpuplane.autoscaler.rival import find_karpenter  # late: other installations need none of it

    cure = "install without --autoscaler, or remove Karpenter first: helm uninstall karpenter karpenter-crd"
    if found := await find_karpenter(client):
        raise Terminal("Karpenter works on this cluster, and buys nodes for the same pods", where=found, cure=cure)
    for manifest in wanted:
        if manifest["kind"] == DEFINITION and manifest["spec"]["group"] in KARPENTER:
            made = await find(client, manifest)
            if made is not None and not is_labelled(made):
                what = "the definition is Karpenter's, or another program's"
                raise Terminal(what, where=manifest["metadata"]["name"], cure=cure)


async def _ends_pod_scheduler(client: Client, wanted: list[Manifest]) -> bool:
    """Return whether the pod scheduler runs on the cluster, and not with what is wanted."""
    for manifest in wanted:
        if manifest["kind"] == "Deployment" and manifest["metadata"]["name"] == names.EXTENDER_NAME:
            found = await find(client, manifest)
            return found is not None and _schedules_pods(found) and not _schedules_pods(manifest)
    return False


def _schedules_pods(deployment: Manifest) -> bool:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return any(one.startswith("--scheduler-name=") for container in containers for one in container.get("args") or ())


async def _why_left(client: Client, manifest: Manifest) -> str:
    """Return why an object is not applied, and what that means; empty for an object to apply.

    Others may own the kinds that we share with node feature discovery, and an administrator's quota for the namespace.
    The kinds of the Prometheus operator may be missing.
    """
    if (manifest["apiVersion"], manifest["kind"]) in KINDS:
        try:
            await client.request("GET", f"/apis/{manifest['apiVersion']}")
        except NotFound:
            return f"left out: the cluster has no Prometheus operator, which serves {manifest['apiVersion']}"
        return ""
    features = manifest["kind"] == DEFINITION and manifest["spec"]["group"] == NODE_FEATURES
    if not features and manifest["kind"] != QUOTA:
        return ""
    found = await find(client, manifest)
    if found is None or is_labelled(found):
        return ""
    return ("is another installation's" if features else "was there before gpuplane") + ": left as it is"


async def _list_removals(options: Namespace, screen: Console, wanted: list[Manifest]) -> int:
    """Print the objects in the order of their removal, those that stay with the reason."""
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        try:
            async with asyncio.timeout(options.timeout):
                there = [manifest for manifest in wanted if await find(client, manifest) is not None]
                whys = [(manifest, await _why_kept(client, manifest)) for manifest in there]
        except TimeoutError:
            raise NoAnswer(
                f"the cluster did not answer within {options.timeout:g} s", where=client.endpoint.context
            ) from None
    if options.output != "text":
        removed = [_title(manifest) for manifest, why in whys if not why]
        screen.print(_removal(removed, {_title(manifest): why for manifest, why in whys if why}, options))
        return 0
    for manifest, why in whys:
        screen.print(f"{_title(manifest)} kept: {why}" if why else _title(manifest))
    return 0


def _removal(removed: list[str], kept: dict[str, str], options: Namespace) -> str:
    """Return what was removed, or would be, and what stays for which reason, as JSON or YAML."""
    reasons = [{"object": title, "why": why} for title, why in kept.items()]
    return as_document("Removal", {"dryRun": options.dry_run, "removed": removed, "kept": reasons}, options.output)


async def _uninstall(options: Namespace, screen: Console, wanted: list[Manifest]) -> int:
    removed: list[str] = []
    kept: dict[str, str] = {}
    async with Client.connect(options.kubeconfig, options.context, user_agent=MANAGER) as client:
        manifest: Manifest = {}
        try:
            async with asyncio.timeout(options.timeout):
                # Pools, then claims, while the definitions of all of them are served: the autoscaler needs them.
                for manifest in filter(is_of_nodes, wanted):
                    if await find(client, manifest) is None or await _why_kept(client, manifest):
                        continue
                    try:
                        async with asyncio.timeout(RELEASE_SECONDS if is_of_classes(manifest) else None):
                            gone = await remove_objects(client, manifest)
                    except TimeoutError:
                        # No autoscaler works that would release them; no node is left, so they may go.
                        screen.say(f" {screen.glyph('warn')} objects of {_title(manifest)} {UNRELEASED}")
                        continue
                    if gone:
                        screen.say(f" {screen.glyph('good')} {count(gone, 'object')} of {_title(manifest)} removed")
                for manifest in wanted:
                    if why := await _why_kept(client, manifest):
                        if why == BEFORE and manifest["kind"] == "Namespace":
                            # An apply without labels takes back those that install applied.
                            bare = {**manifest, "metadata": {"name": manifest["metadata"]["name"]}}
                            await client.apply(bare, MANAGER, resource=resource_of(manifest))
                        kept[_title(manifest)] = why
                        screen.say(f" {screen.glyph('warn')} {_title(manifest)} kept: {why}")
                    elif await remove(client, manifest):
                        removed.append(_title(manifest))
                        screen.say(f" {screen.glyph('good')} {_title(manifest)} removed")
        except TimeoutError:
            raise _late(manifest, "gone", options.timeout, "uninstall") from None
    if not removed:
        screen.say("gpuplane is not on this cluster: nothing to remove")
    if options.output != "text":
        screen.print(_removal(removed, kept, options))
    return 0


def _late(manifest: Manifest, aim: str, seconds: float, command: str) -> NoAnswer:
    look = LOOK.get(manifest["kind"], "")
    return NoAnswer(
        f"{_title(manifest)} was not {aim} after {seconds:.0f} s",
        cure=f"{look}run gpuplane {command} again to continue",
    )


async def _why_kept(client: Client, manifest: Manifest) -> str:
    """Return why an object must stay, for others have objects in it or of it; empty when it may go. Writes nothing."""
    found = await find(client, manifest) if manifest["kind"] in SHARED else None
    if found is None:
        return ""
    if not is_labelled(found):
        return BEFORE
    if manifest["kind"] != "Namespace" or "deletionTimestamp" in found["metadata"]:
        return ""
    others = await contents_of_others(client, found["metadata"]["name"])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"it holds {', '.join(others[:NAMED])}{more}, which gpuplane did not make" if others else ""


def _title(manifest: Manifest) -> str:
    namespace = manifest["metadata"].get("namespace")
    return f"{manifest['kind']} {namespace + '/' if namespace else ''}{manifest['metadata']['name']}"
