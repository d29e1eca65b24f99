"""Tells the story: starts the cluster, prepares machines, runs a GPU pod, and shows how trouble looks.

Every figure at the end was measured in this run and compared with its promise. Exit code 1: a promise was not met, or
an act was not done. The cluster stays up, to look at.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from gpulab.cloud.settings import COMPONENT, CloudSettings
from gpulab.clusters import clusters
from gpulab.clusters import down as stop
from gpulab.demo.acts import Acts, DemoFailed
from gpulab.demo.cloud_acts import STEPS as CLOUD_STEPS
from gpulab.demo.cloud_acts import CloudActs
from gpulab.demo.live import Live
from gpulab.demo.reasons import DEMO_BYTES, Reason, disk_reasons
from gpulab.demo.shares import LATE
from gpulab.demo.story import REAL_TITLE, TITLE, Story, ending, stage_times, verdict_line
from gpulab.demo.verdict import Promise
from gpulab.distribution import GPUPLANE
from gpulab.exports import exports
from gpulab.up import SYSTEM, build_programs, describe, node_specs, require_cloud, with_kubelets
from gpuplane.cli.forms import as_document
from gpuplane.cli.terminal import Console
from kubekit.errors import UsageError
from tinykube.cluster import ClusterHandle, ClusterSpec
from tinykube.cluster.command_lock import command_lock

NAME: Final = "demo"
ACT_SECONDS: Final = 60.0
CLOUD_ACT_SECONDS: Final = 120.0
STEPS: Final = (
    ("up", "API server, scheduler, four bare machines"),
    ("prepare", "nine stages, each machine its own way"),
    ("run", "the vectorAdd of the CUDA samples, from its manifest"),
    ("share", "four pods on one T4, each held to its part"),
    ("wait", "a fifth pod fits nowhere, and its event says why"),
    ("break", "a GPU computes wrong: its node stops there, the others go on"),
)
MACHINES: Final = ("h100-ubuntu22", "t4-ubuntu18", "a10g-rhel9", "l4-ubuntu24")


def demo(options: Namespace, screen: Console) -> int:
    return asyncio.run(_demo(options, screen))


async def _demo(options: Namespace, screen: Console) -> int:
    async with command_lock(GPUPLANE, GPUPLANE.home(), _refuse):
        return await _tell(options, screen)


def _refuse() -> NoReturn:
    """Raise DemoFailed: another demo's cluster has the name of this one's."""
    raise DemoFailed(
        "a demo is running already",
        where=str(GPUPLANE.home()),
        cure=f"wait for its end, or set {GPUPLANE.home_variable} to another directory",
    )


async def _tell(options: Namespace, screen: Console) -> int:
    cloud = options.cloud
    release = _release(options)
    if cloud:
        require_cloud()
    began = time.monotonic()
    title = REAL_TITLE.format(release=release) if release else TITLE
    story = Story(CLOUD_STEPS if cloud else STEPS, lambda: time.monotonic() - began, title)
    if NAME in clusters():
        await stop(NAME)
    home = GPUPLANE.home()
    for reason in disk_reasons(home, shutil.disk_usage(home).free, DEMO_BYTES):
        raise DemoFailed(reason.what, where=reason.where, cure=reason.cure)
    patience = options.timeout or (CLOUD_ACT_SECONDS if cloud or release else ACT_SECONDS)
    acts: Acts
    if cloud:
        components = {COMPONENT: msgspec.to_builtins(CloudSettings())}
        spec = ClusterSpec(name=NAME, nodes=SYSTEM, persist=True, components=components)
        acts = CloudActs(spec, story, screen, patience_seconds=patience)
    else:
        nodes = node_specs(MACHINES, default=False)
        spec = ClusterSpec(name=NAME, nodes=nodes, persist=not release, kubernetes=release)
        if release:
            # The shares are measured by a process of this Python on the machine.
            spec = with_kubelets(spec, options.kubelet, screen, needed=[Path(sys.prefix)])
            build_programs(spec, screen)
            began = time.monotonic()  # a build is no act
        acts = Acts(spec, story, screen, patience_seconds=patience)
    try:
        async with Live(story, screen, options.progress):
            handle = await acts.play()
        promises = acts.promises()
        kept = all(promise.kept for promise in promises)
        reasons = () if kept else await acts.reasons()
    except DemoFailed as error:
        screen.error(error)
        _keep_looking(screen)
        return error.exit_code
    except asyncio.CancelledError:  # Ctrl-C
        if NAME in clusters():
            _keep_looking(screen)
        raise
    finally:
        await acts.aclose()
    if options.output != "text":
        data = _json(handle, story, acts, promises, reasons)
        screen.print(as_document("Demo", data, options.output))
    else:
        _ending(story, acts.measured.healthy, promises, screen)
        for reason in reasons:
            screen.error(DemoFailed(reason.what, where=reason.where, cure=reason.cure))
    if options.down:
        await stop(NAME)
    elif options.output == "text":
        _next(handle, screen, cloud=cloud)
    return 0 if kept else 1


def _release(options: Namespace) -> str:
    """Return the release of --kubernetes; empty without it. Raises UsageError."""
    if not options.kubernetes:
        return ""
    if options.cloud:
        raise UsageError("the cloud is the embedded cluster's", where="--cloud with --kubernetes", cure="leave out one")
    from gpulab.kubernetes.preflight import find_release

    return find_release(options.kubernetes)


def _json(
    handle: ClusterHandle, story: Story, acts: Acts, promises: Sequence[Promise], reasons: Sequence[Reason]
) -> dict[str, Any]:
    return {
        "cluster": describe(handle),
        "seconds": round(story.clock(), 2),
        "stageSeconds": {node.name: node.took for node in story.nodes},
        **acts.figures(),
        "promises": msgspec.to_builtins(promises),
        "reasons": msgspec.to_builtins(reasons),
    }


def _ending(story: Story, healthy: Sequence[str], promises: Sequence[Promise], screen: Console) -> None:
    screen.say()
    screen.print(verdict_line(promises, story.clock(), screen) + "\n")
    if nodes := [node for node in story.nodes if node.name in healthy]:
        for line in stage_times(nodes):
            screen.print(line)
        screen.print()
    for line in ending(promises, screen):
        screen.print(line)
    screen.print()


def _next(handle: ClusterHandle, screen: Console, *, cloud: bool) -> None:
    look = ("kubectl get gpunodes", "gpuplane status gpus", f"gpuplane explain {LATE.name}")
    if cloud:
        look = (f"gpuplane cloud ls --name {NAME}", "kubectl scale deployment tenths --replicas=10", "gpuplane status")
    screen.say("The cluster is still up. Try:")
    for line in (*exports(handle.kubeconfig), *look, f"gpuplane down {NAME}"):
        screen.say(f"  {line}")
    if not cloud:
        screen.say("Then, on a simulated AWS: nodes are bought for pods that wait, shared, and given back")
        screen.say("  gpuplane demo --cloud")


def _keep_looking(screen: Console) -> None:
    screen.say("The cluster is still up. Look at it, then stop it:")
    kubeconfig = GPUPLANE.home() / f"{NAME}.kubeconfig"
    for line in (*exports(kubeconfig), "gpuplane status", f"gpuplane down {NAME}"):
        screen.say(f"  {line}")
