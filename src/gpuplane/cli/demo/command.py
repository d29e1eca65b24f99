"""Tells the story: starts the cluster, prepares machines, runs a GPU pod, and shows how trouble looks.

Every figure at the end was measured in this run. The cluster stays up, to look at.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from statistics import median
from typing import Final

from gpuplane.cli.demo.acts import BROKEN, TOO_LARGE, Acts, DemoFailed
from gpuplane.cli.demo.live import Live
from gpuplane.cli.demo.story import Story, stage_times
from gpuplane.cli.terminal import Terminal, tilde
from gpuplane.cli.up import describe, node_specs
from gpuplane.simulator.cluster import ClusterHandle, ClusterSpec, clusters
from gpuplane.simulator.cluster import down as stop

NAME: Final = "demo"
STEPS: Final = (
    ("up", "API server, scheduler, four bare machines"),
    ("prepare", "nine stages, each machine its own way"),
    ("run", "the vectorAdd of the CUDA samples, from its manifest"),
    ("wait", "a pod that fits nowhere is told why"),
    ("break", "a GPU computes wrong: its node stops there, nobody else notices"),
)
MACHINES: Final = ("h100-ubuntu22", "t4-ubuntu18", "a10g-rhel9", "l4-ubuntu24")


def demo(options: Namespace, screen: Terminal) -> int:
    return asyncio.run(_demo(options, screen))


async def _demo(options: Namespace, screen: Terminal) -> int:
    began = time.monotonic()
    story = Story(STEPS, lambda: time.monotonic() - began)
    if NAME in clusters():
        await stop(NAME)
    spec = ClusterSpec(name=NAME, nodes=node_specs(MACHINES, default=False))
    acts = Acts(spec, story)
    try:
        async with Live(story, screen, options.progress):
            handle = await acts.play()
    except DemoFailed as error:
        screen.error(error)
        return error.exit_code
    finally:
        await acts.aclose()
    if options.output == "json":
        screen.json("Demo", {"cluster": describe(handle), "seconds": round(story.clock(), 2), **acts.measured()})
    else:
        _ending(story, acts, handle, options, screen)
    if options.down:
        await stop(NAME)
    return 0


def _ending(story: Story, acts: Acts, handle: ClusterHandle, options: Namespace, screen: Terminal) -> None:
    ready = [node for node in story.nodes if node.name in acts.healthy]
    good = screen.paint(screen.glyph("good"), "good")
    seconds = list(acts.bare_to_ready.values())
    lines = [
        f"{good} the whole story in {story.clock():.1f}s",
        "",
        *stage_times(ready),
        "",
        f" prepared   {len(ready)} of {len(acts.healthy)} machines     bare to ready {median(seconds):.1f}s median, "
        f"operand restarts {acts.restarts}",
        f" ran        cuda-vectoradd      {acts.vectoradd_verdict} on {acts.vectoradd_node}, {acts.vectoradd_seconds:.1f}s "
        "from manifest to end",
        f" waited     {TOO_LARGE} GPUs on one node {acts.waiting_message}",
        f" broke      {BROKEN}               {acts.broken_message}",
        f"            {'':19} healed {acts.healed_seconds:.1f}s after the repair, "
        f"{acts.disturbed} writes to other nodes' GPUNodes meanwhile",
        "",
    ]
    for line in lines:
        screen.print(line)
    if options.down:
        return
    screen.say("The cluster is still up. Try:")
    for line in (
        f"export KUBECONFIG={tilde(handle.kubeconfig)}",
        "kubectl get gpunodes",
        "gpuplane status gpus",
        f"gpuplane down {NAME}",
    ):
        screen.say(f"  {line}")
