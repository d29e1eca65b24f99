"""Tells the story: starts the cluster, prepares machines, runs a GPU pod, and shows how trouble looks.

Every figure at the end was measured in this run. The cluster stays up, to look at.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Sequence
from statistics import median
from typing import Final

from gpuplane.cli.demo.acts import BROKEN, SHARED, Acts, DemoFailed
from gpuplane.cli.demo.live import Live
from gpuplane.cli.demo.shares import LATE, Shared
from gpuplane.cli.demo.story import Story, ending, stage_times
from gpuplane.cli.explain_answer import Explanation
from gpuplane.cli.terminal import Terminal, count, tilde
from gpuplane.cli.up import describe, node_specs
from gpuplane.simulator.cluster import ClusterHandle, ClusterSpec, clusters
from gpuplane.simulator.cluster import down as stop

NAME: Final = "demo"
STEPS: Final = (
    ("up", "API server, scheduler, four bare machines"),
    ("prepare", "nine stages, each machine its own way"),
    ("run", "the vectorAdd of the CUDA samples, from its manifest"),
    ("share", "four pods on one T4, each held to its part"),
    ("wait", "a fifth pod fits nowhere, and is told why"),
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
    acts = Acts(spec, story, screen)
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
        ("shared", f"{len(acts.shared)} pods on {SHARED}/0", _shared(acts.shared)),
        ("refused", count(sum(pod.refused for pod in acts.shared), "allocation"), _refused(acts.shared)),
        ("waits", f"{LATE.name}, {LATE.core}%", _waits(acts.waiting)),
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
        f"gpuplane explain {LATE.name}",
        f"gpuplane down {NAME}",
    ):
        screen.say(f"  {line}")


def _shared(pods: Sequence[Shared]) -> str:
    asked = " ".join(str(pod.core_limit) for pod in pods)
    return f"asked {asked}%, got {' '.join(f'{pod.core_percent:.1f}' for pod in pods)}%"


def _refused(pods: Sequence[Shared]) -> str:
    found = [f"{pod.name}: beyond its {pod.memory_limit_bytes >> 30} GiB" for pod in pods if pod.refused]
    return "; ".join(found) or "none"


def _waits(found: Explanation | None) -> str:
    if found is None:
        return ""
    lacks = [f"{gpu.nearest} lacks {gpu.missing}" for gpu in found.gpu_reasons if gpu.nearest]
    cures = [f"cure {number}: {cure.change}" for number, cure in enumerate(found.cures[:2], 1)]
    return "; ".join((*lacks, *cures))
