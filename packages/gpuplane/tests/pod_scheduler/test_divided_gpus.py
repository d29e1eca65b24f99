"""Shares of GPUs that MIG or MPS divide already are refused everywhere, in the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gpuplane import names
from gpuplane.admission.review import Question, validate
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.main import main
from gpuplane.sharing.findings import NO_SHARES
from tests.support.extender_world import MODEL, Running, World, gpu_pod
from tests.support.scheduled_pods import bound, ours, refused

MIG: Final = "nvidia.com/mig-1g.10gb"


def asking(name: str, **limits: str) -> dict[str, Any]:
    pod = gpu_pod(name, (30, 20))
    both = {**pod["spec"]["containers"][0]["resources"]["limits"], **limits}
    pod["spec"]["containers"][0]["resources"] = {"limits": both, "requests": both}
    return pod


REFUSED: Final = {
    "with-mig": asking("with-mig", **{MIG: "1"}),
    "with-replica": asking("with-replica", **{names.GPU_RESOURCE + names.SHARED_SUFFIX: "1"}),
    "of-mig": gpu_pod("of-mig", (30, 20), metadata={"annotations": {names.GPU_UUIDS_ANNOTATION: "MIG-1, MIG-2"}}),
    "of-mps": gpu_pod("of-mps", (30, 20), nodeSelector={names.MPS_LABEL: "true"}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_pod_that_asks_for_such_a_share_is_refused_alike_by_all(
    name: str, cluster: World, running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = REFUSED[name]
    path = tmp_path / "pod.yaml"
    path.write_text(json.dumps(pod))
    assert main(["check", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "GP212" in printed and NO_SHARES in printed

    question = {"uid": "1", "kind": {"kind": "Pod"}, "object": pod}
    said = validate(msgspec.convert(question, Question)).refused
    assert said.startswith("GP212") and NO_SHARES in said

    await cluster.node("n1", 2, labels={names.MPS_LABEL: "true"})
    await running.until(lambda: running.leader.cluster.node("n1"))
    made = await cluster.pod(pod)
    assert (await running.filter(made, ["n1"]))["FailedAndUnresolvableNodes"] == {"n1": said}

    await cluster.pod(ours({**pod, "metadata": {**pod["metadata"], "name": "mine"}, "spec": dict(pod["spec"])}))
    assert NO_SHARES in await refused(cluster, "mine")


async def divided(cluster: World, running: Running, way: str) -> None:
    """A node whose first GPU MIG divides, and whose second is whole; or a node that shares both by MPS."""
    await cluster.node("n1", 2, labels={names.MPS_LABEL: "true"} if way == "mps" else {}, gpunode=False)
    listed = [
        {"index": at, "uuid": f"GPU-{at}", "model": MODEL, "memoryMib": 15360, "mig": mig}
        for at, mig in enumerate(("enabled" if way == "mig" else "", "enabled" if way == "both-mig" else ""))
    ]
    if way == "both-mig":
        listed[0]["mig"] = "enabled"
    await cluster.client.apply({"metadata": {"name": "n1"}, "status": {"gpus": listed}}, "t", resource=GPUNode.RESOURCE)
    await running.until(lambda: running.leader.cluster.ledger.node("n1"))


@pytest.mark.parametrize("way", ["mps", "both-mig"])
async def test_a_node_without_other_gpus_is_refused_alike_by_both_schedulers(
    way: str, cluster: World, running: Running
) -> None:
    await divided(cluster, running, way)
    pod = await cluster.pod(gpu_pod("a", (30, 20)))
    assert (await running.filter(pod, ["n1"]))["FailedAndUnresolvableNodes"] == {"n1": NO_SHARES}
    assert await running.bind(pod, "n1") and not (await cluster.get("a")).spec.node_name
    await cluster.pod(ours(gpu_pod("mine", (30, 20))))
    assert f"1 {NO_SHARES}" in await refused(cluster, "mine")


async def test_shares_go_to_the_gpu_beside_the_one_in_mig_mode(cluster: World, running: Running) -> None:
    await divided(cluster, running, "mig")
    for name in ("a", "b"):
        await cluster.pod(ours(gpu_pod(name, (50, 20))))
    pods = await bound(cluster, "a", "b")
    assert {json.loads(pod.metadata.annotations[names.PREDICATE_INDEX_PREFIX + "0"]) for pod in pods.values()} == {1}
    await cluster.pod(ours(gpu_pod("late", (50, 20))))
    assert "no GPU has 50% core" in await refused(cluster, "late")
