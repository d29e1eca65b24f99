"""The demo's verdict on its figures: each promise is compared with the measured value."""

from __future__ import annotations

import io

import msgspec
import pytest

from gpulab.demo.command import STEPS
from gpulab.demo.shares import TENANTS, Shared
from gpulab.demo.story import Story, ending, page, stage_times, verdict_line
from gpulab.demo.verdict import PASSED, Break, Measured, Sharing, VectorAddVerdict, judge
from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, Machine, Stage, StageName, StageState, Summary
from gpuplane.cli.overview import node_view
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation, ReasonTally
from gpuplane.explain.proving import Cure
from kubekit.api.meta import ObjectMeta

PODS = tuple(
    Shared(t.name, t.core, float(t.core), t.memory << 30, (t.memory - 1) << 30, int(bool(t.asks))) for t in TENANTS
)
GOOD = Measured(
    healthy=("sim-1", "sim-2"),
    bare_to_ready_seconds={"sim-1": 4.0, "sim-2": 5.0},
    vector_add=VectorAddVerdict(PASSED, "sim-1", 0.3),
    shared=Sharing("sim-2", PODS),
    waiting=Explanation(
        "default/late",
        "waiting",
        gpu_reasons=(ReasonTally(1, "core", "sim-2/0", "10%"),),
        cures=(Cure("default/ci ends or is deleted", "sim-2/0"),),
    ),
    broken=Break("sim-4", "cuda: GPU 0 fails the vectorAdd", 1.6),
)


def pods(name: str, **changes: float) -> Sharing:
    """The shared GPU, one tenant of which fares otherwise."""
    changed = (msgspec.structs.replace(pod, **changes) if pod.name == name else pod for pod in PODS)
    return Sharing("sim-2", tuple(changed))


def broken(**changes: object) -> Break:
    return msgspec.structs.replace(GOOD.broken, **changes)


def test_what_went_well_is_said_to_have_gone_well() -> None:
    promises = judge(GOOD)
    assert [promise.name for promise in promises if not promise.kept] == []
    assert verdict_line(promises, 18.2, screen()) == "✓ the whole story in 18.2s"
    assert all(line.startswith(" ✓ ") or line.startswith("    ") for line in ending(promises, screen()))


@pytest.mark.parametrize(
    ("name", "told", "changes"),
    [
        ("prepared", "not ready: sim-2", {"bare_to_ready_seconds": {"sim-1": 4.0}}),
        ("prepared", "0 of 2 machines", {"bare_to_ready_seconds": {}}),
        ("ran", "no verdict", {"vector_add": VectorAddVerdict()}),
        ("ran", "CUDA error", {"vector_add": VectorAddVerdict("CUDA error", "sim-1")}),
        ("shared", "got 0.0 30.0 20.0 10.0%", {"shared": pods("tune", core_percent=0.0)}),
        ("shared", "5 points off: serve", {"shared": pods("serve", core_percent=24.9)}),
        ("shared", "5 points off: ci", {"shared": pods("ci", core_percent=15.1)}),
        ("shared", "no memory at all: nb", {"shared": pods("nb", memory_bytes=0)}),
        ("shared", "more memory than its limit: nb", {"shared": pods("nb", memory_bytes=4 << 30)}),
        ("shared", "3 pods", {"shared": Sharing("sim-2", (*PODS[:2], PODS[3]))}),
        ("refused", "ci was not refused", {"shared": pods("ci", refused=0)}),
        ("refused", "nb was refused memory within its limit", {"shared": pods("nb", refused=1)}),
        ("waits", "no explanation", {"waiting": None}),
        ("waits", "neither a reason nor a cure", {"waiting": Explanation("default/late", "waiting")}),
        ("broke", "not noticed", {"broken": broken(message="")}),
        ("healed", "not healed", {"broken": broken(healed_seconds=None)}),
        ("healed", "1 other GPUNodes touched: sim-1", {"broken": broken(disturbed=("sim-1",))}),
    ],
)
def test_a_promise_that_was_not_kept_is_named(name: str, told: str, changes: dict[str, object]) -> None:
    promises = judge(msgspec.structs.replace(GOOD, **changes))
    found = {promise.name: promise for promise in promises if not promise.kept}
    assert name in found and told in f"{found[name].which} {found[name].how}"
    assert verdict_line(promises, 18.2, screen()).startswith("✗ ")
    assert any(line.startswith(f" ✗ {name}") for line in ending(promises, screen()))


def test_nothing_measured_is_nothing_kept() -> None:
    assert not any(promise.kept for promise in judge(Measured(healthy=("sim-1",))))


@pytest.mark.parametrize("percent", [5.0, 10.0, 15.0])
def test_a_share_may_be_five_points_off(percent: float) -> None:
    promises = judge(msgspec.structs.replace(GOOD, shared=pods("ci", core_percent=percent)))
    assert all(promise.kept for promise in promises)


def screen() -> Console:
    return Console(io.StringIO(), io.StringIO())


def test_the_page_and_the_times_fit_eighty_columns() -> None:
    story = Story(STEPS, lambda: 123.4)
    for step in story.steps:
        step.started, step.ended = 1.0, 99.0
    machine = Machine(os="rocky9.4", kernel="5.14", runtime="containerd", driver="570.1")
    stages = {name.value: Stage(state=StageState.PRESENT, since="2026-01-01T00:00:00Z") for name in StageName}
    gpus = tuple(GPU(index=at, uuid=f"GPU-{at}", model="NVIDIA H100 80GB HBM3", memory_mib=1) for at in range(8))
    status = GPUNodeStatus(stages=stages, gpus=gpus, machine=machine, summary=Summary(stage="ready"))
    names = [f"sim-{number}" for number in range(1, 5)]
    story.nodes = tuple(node_view(GPUNode(metadata=ObjectMeta(name=name), status=status), (), ()) for name in names)
    lines = [*page(story, Console(io.StringIO(), io.StringIO()), 0).splitlines(), *stage_times(story.nodes)]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert "had driver" in "\n".join(lines) and "device-plugin" in "\n".join(lines)
