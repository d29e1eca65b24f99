"""Output of `gpuplane status --watch` into a pipe: a line for each change, with its cause."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, Stage, StageName, StageState, summarize
from gpuplane.cli.overview import overview
from gpuplane.cli.status_changes import changes
from gpuplane.cli.status_views import Overview, Pause, PolicyRefusal, UpgradeView, of_namespace
from gpuplane.cli.terminal import Console
from kubekit.api.core import Pod

NOW = datetime(2026, 11, 20, 10, 1, 0, tzinfo=UTC)
LOST = "Xid 79: fallen off the bus"
READY = "n1   ✓✓✓✓✓✓✓✓✓  ready   1m"


def gpunode(name: str = "n1", failed: str = "", gpus: int = 1, **health: str) -> GPUNode:
    done = Stage(state=StageState.DONE, since="2026-11-20T10:00:00Z")
    stages = {stage.value: done for stage in StageName}
    if failed:
        bad = Stage(state=StageState.FAILED, since=done.since, reason="CompileFailed", message=failed)
        stages = {"discovered": done, "driver": bad}
    status = GPUNodeStatus(
        stages=stages,
        gpus=tuple(GPU(index=at, uuid=f"GPU-{at}", model="T4", memory_mib=15360) for at in range(gpus)),
        health={f"GPU-{uuid[1:]}": why for uuid, why in health.items()},
    )
    status = msgspec.structs.replace(status, summary=summarize(status))
    return msgspec.convert({"metadata": {"name": name}, "status": msgspec.to_builtins(status)}, GPUNode)


def pod(name: str, node: str = "", number: int = 1) -> Pod:
    limits = {"nvidia.com/gpu": str(number)}
    spec = {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]}
    return msgspec.convert({"metadata": {"name": name, "namespace": "ml"}, "spec": spec}, Pod)


def seen(*nodes: GPUNode, pods: tuple[Pod, ...] = (), **more: Any) -> Overview:
    offered = {node.metadata.name: {"nvidia.com/gpu": str(len(node.status.gpus))} for node in nodes}
    return overview(nodes, pods, offered, capacity=offered, **more)  # the kubelet has not heard of lost GPUs yet


def lines(before: Overview | None, after: Overview, *, gpus: bool = False) -> list[str]:
    screen = Console(io.StringIO(), io.StringIO(), colour="never")
    return list(changes(before, after, screen, NOW, gpus=gpus))


def test_the_start_is_a_line_for_each_node_and_no_change_is_none() -> None:
    first = seen(gpunode(), gpunode("n2", failed="no compiler"))
    assert lines(None, first) == [READY, "n2   ✓✗-------  driver   no compiler"]
    assert lines(first, first) == []
    assert lines(first, seen(gpunode(), gpunode("n2"))) == [READY.replace("n1", "n2")]


def test_a_gpu_that_is_lost_is_told_with_its_cause_and_holder() -> None:
    held = (pod("serve", "n1"),)
    before, after = seen(gpunode(), pods=held), seen(gpunode(_0=LOST), pods=held)
    assert lines(before, after) == [f"n1   ✓✓✓✓✓✓✓✓✓  ready   GPU 0: {LOST}; ml/serve holds it"]
    assert lines(after, before) == [READY]


def test_a_node_that_does_not_answer_or_goes_is_told() -> None:
    here = seen(gpunode(), gpunode("n2"))
    away = seen(gpunode(), gpunode("n2"), away={"n1": "the node is not Ready: Kubelet stopped posting node status."})
    assert lines(here, away) == ["n1   ✓✓✓✓✓✓✓✓✓  ready   the node is not Ready: Kubelet stopped posting node status."]
    assert lines(away, here) == [READY]
    assert lines(here, seen(gpunode("n2"))) == ["n1   gone"]


def test_an_upgrade_is_told_until_it_is_done() -> None:
    upgrades = {"n1": UpgradeView("upgrade-failed", why="back on the driver before")}
    here, done = seen(gpunode()), seen(gpunode(), upgrades={"n1": UpgradeView("upgrade-done")})
    failed = seen(gpunode(), upgrades=upgrades)
    assert lines(here, failed) == ["n1   ✓✓✓✓✓✓✓✓✓  ready   upgrade-failed   back on the driver before   1m"]
    assert lines(failed, done) == [READY]


def test_pods_that_begin_to_wait_and_end_waiting_are_told() -> None:
    here = seen(gpunode())
    waits = seen(gpunode(), pods=(pod("tune"), pod("late")))
    assert lines(here, waits) == [
        "ml/late   waits for GPUs   gpuplane explain ml/late",
        "ml/tune   waits for GPUs   gpuplane explain ml/tune",
    ]
    assert lines(waits, seen(gpunode(), pods=(pod("tune", "n1"),))) == ["ml/late   gone", "ml/tune   on n1"]
    many = seen(gpunode(), pods=tuple(pod(f"p{number}") for number in range(7)))
    assert lines(here, many)[5:] == ["and 2 more pods wait for GPUs"]
    assert lines(many, here)[5:] == ["and 2 more pods wait no longer"]


@pytest.mark.parametrize(
    ("more", "begins", "ends"),
    [
        ({"paused": Pause("p")}, "operator paused: nothing is changed", "operator at work again"),
        (
            {"refused": PolicyRefusal("p", "x is\nforbidden")},
            "operator refused: x is; forbidden",
            "operator no longer refused",
        ),
        ({"unattended": True}, "no operator: the nodes are as it left them", "operator there again"),
    ],
)
def test_what_keeps_the_operator_from_work_is_told(more: dict[str, Any], begins: str, ends: str) -> None:
    here, told = seen(gpunode()), seen(gpunode(), **more)
    assert lines(here, told) == [begins]
    assert lines(told, here) == [ends]
    assert lines(None, told)[-1] == begins


def test_gpus_are_told_one_by_one_with_their_holders() -> None:
    free, held = seen(gpunode()), seen(gpunode(), pods=(pod("a", "n1"),))
    assert lines(None, free, gpus=True) == [READY, "n1/0   free"]
    assert lines(free, held, gpus=True) == ["n1/0   ml/a whole"]
    lost = seen(gpunode(_0=LOST), pods=(pod("a", "n1"),))
    assert lines(held, lost, gpus=True)[1:] == [f"n1/0   ✗ {LOST}   ml/a whole"]
    hidden = of_namespace(held, "others")
    assert lines(free, hidden, gpus=True) == ["n1/0   pods of other namespaces"]


def test_pods_whose_gpus_the_node_alone_knows_are_told_with_the_node() -> None:
    free, lost = seen(gpunode(gpus=2)), seen(gpunode(gpus=2, _1=LOST))
    one = seen(gpunode(gpus=2, _1=LOST), pods=(pod("one", "n1"),))
    assert lines(free, lost, gpus=True)[1:] == [f"n1/1   ✗ {LOST}"]
    assert lines(free, one, gpus=True)[1:] == [
        f"n1/1   ✗ {LOST}",
        "n1   held by ml/one: 1 GPU, its node alone knows which",
    ]
