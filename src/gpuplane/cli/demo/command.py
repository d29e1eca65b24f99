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
from gpuplane.cli.demo.story import Story, ending, stage_times
from gpuplane.cli.terminal import Terminal, count, tilde
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
    spec = ClusterSpec(name=NAME, nodes=node_specs(MACHINES, default=False), persist=True)
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
    rows = [
        (
            "prepared",
            f"{len(ready)} of {len(acts.healthy)} machines",
            f"bare to ready {median(seconds):.1f}s median, {count(acts.restarts, 'operand restart')}",
        ),
        (
            "ran",
            "cuda-vectoradd",
            f"{acts.vectoradd_verdict} on {acts.vectoradd_node}, {acts.vectoradd_seconds:.1f}s from manifest to end",
        ),
        ("waits", f"a pod of {TOO_LARGE} GPUs", acts.waiting_message),
        ("broke", f"{BROKEN}/0", acts.broken_message),
        ("healed", BROKEN, f"{acts.healed_seconds:.1f}s after the repair, {acts.disturbed} other GPUNodes touched"),
    ]
    screen.say()
    screen.print(f"{good} the whole story in {story.clock():.1f}s\n")
    for line in stage_times(ready):
        screen.print(line)
    screen.print()
    for line in ending(rows, screen.width):
        screen.print(line)
    screen.print()
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
