"""`gpuplane defrag` on an API server: the moves, their gain, which pods stay and why, and the moves carried out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gpuplane import names
from gpuplane.scheduler.defrag.limits import MoveLimits
from kubekit.api.core import Pod
from tests.support.extender_world import World, extender, gpu_pod, world
from tests.support.fragmented import bound_pod, waiting_pod
from tests.support.replaced_pods import workloads
from tests.support.scheduled_pods import bound, ours, refused
from tinykube.apiserver import User


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        (tmp_path / "config").write_text(made.kubeconfig())
        yield made


async def holder(cluster: World, name: str, core: int, node: str, *gpus: int, movable: bool = True) -> None:
    """A running pod that holds a part of these GPUs."""
    pod = bound_pod(name, core, node, *gpus, movable=movable, memory_mib=15360)
    for server_side in ("uid", "resourceVersion"):
        del pod["metadata"][server_side]
    made = await cluster.pod({"apiVersion": "v1", "kind": "Pod", **pod, "status": {}})
    assert made["spec"]["nodeName"] == node
    await cluster.client.patch(Pod, name, {"status": {"phase": "Running"}}, "default", subresource="status")


async def waits(cluster: World, name: str, core: int) -> None:
    pod = waiting_pod(name, core)
    for server_side in ("uid", "resourceVersion"):
        del pod["metadata"][server_side]
    await cluster.pod({"apiVersion": "v1", "kind": "Pod", **pod, "status": {}})


async def defrag(tmp_path: Path, *words: str, dry: bool = True) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `gpuplane defrag`."""
    words = ("--dry-run", *words) if dry else words
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", "defrag", *words, "--kubeconfig", str(tmp_path / "config"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_moves_that_make_room_are_printed_with_their_gain(cluster: World, tmp_path: Path) -> None:
    await cluster.node("n1", 2)
    await holder(cluster, "serve-1", 40, "n1", 0)
    await holder(cluster, "serve-2", 50, "n1", 1)
    await waits(cluster, "train", 100)
    code, out, err = await defrag(tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "1 pod without room   2 of 2 pods may be moved",
        "",
        " ✓  default/train   1 GPU   gets n1/0",
        "    move default/serve-1   40%   n1/0 -> n1/1",
        "",
        "✓ 1 move: make room for 1 pod",
    ]
    assert [pod.metadata.name for pod in await cluster.client.list(Pod)] == ["serve-1", "serve-2", "train"]


async def test_what_waits_without_a_plan_is_listed_with_the_reasons_why_pods_stay(
    cluster: World, tmp_path: Path
) -> None:
    await cluster.node("n1", 2)
    await holder(cluster, "serve-1", 40, "n1", 0, movable=False)
    await holder(cluster, "serve-2", 50, "n1", 1, movable=False)
    await waits(cluster, "train", 100)
    code, out, _ = await defrag(tmp_path)
    assert code == 1
    assert "✗  default/train   no moves make room for it" in out
    assert f"stay  2  no {names.MOVABLE_ANNOTATION}" in out
    assert out.endswith("✗ no moves help\n")


async def test_plans_hold_one_after_the_other_within_the_number_of_moves(cluster: World, tmp_path: Path) -> None:
    """Two pods want a whole GPU, three shares are in the way, and after two moves there is no room for a third."""
    await cluster.node("n1", 4)
    for at in range(4):
        await holder(cluster, f"serve-{at}", 30, "n1", at)
    for at in range(3):
        await waits(cluster, f"train-{at}", 100)
    code, out, _ = await defrag(tmp_path, "-o", "json")
    found = json.loads(out)
    assert (code, found["kind"], len(found["plans"])) == (1 if found["withoutPlan"] else 0, "Defragmentation", 2)
    assert found["withoutPlan"] == ["default/train-2"]
    moved = [move["pod"] for plan in found["plans"] for move in plan["moves"]]
    assert len(set(moved)) == len(moved) == 2
    _, out, _ = await defrag(tmp_path, "--moves", "1", "-o", "yaml")
    assert [len(plan["moves"]) for plan in yaml.safe_load(out)["plans"]] == [1]


async def test_nodes_are_freed_on_request(cluster: World, tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        await cluster.node(name, 2)
        await holder(cluster, f"serve-{name}", 30, name, 0)
    code, out, _ = await defrag(tmp_path)
    assert (code, out.splitlines()[-1]) == (0, "= nothing to move")
    code, out, _ = await defrag(tmp_path, "--free-nodes")
    assert code == 0
    assert " ✓  node n1 free   2 GPUs" in out
    assert out.splitlines()[-1] == "✓ 1 move: free 1 node"


async def test_lines_fit_80_columns(cluster: World, tmp_path: Path) -> None:
    node = "gpu-node-with-a-long-name-in-a-large-pool-of-the-east-zone-0001"
    await cluster.node(node, 2)
    await holder(cluster, "serving-" + "x" * 120, 40, node, 0)
    await holder(cluster, "serving-" + "y" * 120, 50, node, 1, movable=False)
    await waits(cluster, "training-" + "z" * 120, 100)
    _, out, _ = await defrag(tmp_path)
    assert max(map(len, out.splitlines())) <= 80


async def test_moves_are_carried_out_one_after_the_other(cluster: World, tmp_path: Path) -> None:
    async with workloads(cluster.client) as sets, extender(cluster.client, scheduler_name=names.SCHEDULER_NAME):
        await cluster.node("n1", 2)
        for name, core, gpu in (("a", 20, 0), ("b", 20, 0), ("c", 50, 1)):
            await sets.place(name, core, "n1", gpu, metadata={"movable": name != "c"})
        await cluster.pod(ours(gpu_pod("train", whole=1)))
        await refused(cluster, "train")
        code, out, err = await defrag(tmp_path, "--timeout", "60", dry=False)
        pods = await bound(cluster, "train")
        assert (code, out.splitlines()[-1]) == (0, "✓ 2 moves: make room for 1 pod")
        assert err.splitlines() == ["  default/a n1/0 -> n1/1", "  default/b n1/0 -> n1/1"]
        assert len(sets.deleted) == 2 and {"a", "b"}.isdisjoint(pods)
        assert not [pod for pod in pods.values() if not pod.spec.node_name]


async def test_a_move_that_does_not_begin_ends_the_command(cluster: World, tmp_path: Path) -> None:
    """The scheduler's budget is used up, which the command does not know."""
    async with workloads(cluster.client) as sets:
        await cluster.node("n1", 2)
        await sets.place("a", 40, "n1", 0)
        await sets.place("b", 50, "n1", 1)
        limits = MoveLimits(per_hour=0)
        async with extender(cluster.client, scheduler_name=names.SCHEDULER_NAME, moves=limits):
            await cluster.pod(ours(gpu_pod("train", whole=1)))
            await refused(cluster, "train")
            code, out, err = await defrag(tmp_path, "--timeout", "2", dry=False)
        assert code == 1 and "default/a was not moved: the scheduler did not move it in time" in err
        assert "✗ stopped after 0 moves: the scheduler did not move it in time" in out
        assert sets.deleted == []


async def test_wrong_usage_and_a_cluster_that_cannot_be_read(cluster: World, tmp_path: Path) -> None:
    code, _, err = await defrag(tmp_path, "--moves", "0")
    assert code == 2 and "no whole number of at least 1" in err
    cluster.server.extensions.identity.add("nobody", User("nobody", ("system:authenticated",)))
    (tmp_path / "config").write_text(cluster.kubeconfig("nobody"))
    code, _, err = await defrag(tmp_path)
    assert code == 3 and "is forbidden" in err
