"""preempt over HTTP: only nodes that help remain, with exactly those who have to go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.extender_world import Running, World, gpu_pod


async def filled(cluster: World, running: Running) -> dict[str, str]:
    """Fill n1, GPU 0 with 30% + 30% and GPU 1 with 80%, and n2 with pods of high priority; return uids by name."""
    await cluster.node("n1", 2)
    await cluster.node("n2", 1)
    await running.until(lambda: sum(1 for _ in running.leader.cluster.ledger.nodes()) == 2)
    uids = {}
    for name, core, node, priority in (
        ("a", 30, "n1", 0),
        ("b", 30, "n1", 5),
        ("c", 80, "n1", 1),
        ("d", 90, "n2", 2_000),
    ):
        await cluster.client.request(
            "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, {"metadata": {"name": name}, "value": priority}
        )
        pod = await cluster.pod(gpu_pod(name, (core, 8), priorityClassName=name))
        assert await running.bind(pod, node) == ""
        uids[name] = pod["metadata"]["uid"]
    await running.seen(*uids.values())
    return uids


@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize(
    ("core", "proposed", "expected"),
    [
        (90, "ab", "ab"),  # enough as it is
        (90, "b", "ab"),  # with it gone no GPU has 90% yet: one more has to go, the least important that helps
        (90, "a", "ac"),
        (90, "c", "c"),
        (90, "", "c"),  # the least important first, and only who matters
        (200, "a", "abc"),
    ],
)
async def test_who_has_to_go(
    cluster: World, running: Running, core: int, proposed: str, expected: str, meta: bool
) -> None:
    uids = await filled(cluster, running)
    pod = await cluster.pod(gpu_pod("high", (core, 8 if core < 100 else 0)))
    pod["spec"]["priority"] = 1000
    victims: dict[str, Any] = {
        node: {
            "Pods": [{"UID": uids[name]} if meta else {"metadata": {"uid": uids[name]}} for name in whom],
            "NumPDBViolations": 3,
        }
        for node, whom in (("n1", proposed), ("n2", ""), ("elsewhere", ""))
    }
    before = running.leader.cluster.ledger.node("n1")
    field = "NodeNameToMetaVictims" if meta else "NodeNameToVictims"
    answer = await running.call("/preempt", {"Pod": pod, field: victims})
    by_uid = {uid: name for name, uid in uids.items()}
    remaining = {
        node: "".join(sorted(by_uid[victim["UID"]] for victim in found["Pods"]))
        for node, found in answer["NodeNameToMetaVictims"].items()
    }
    assert remaining == {"n1": expected}
    assert answer["NodeNameToMetaVictims"]["n1"]["NumPDBViolations"] == 3
    assert running.leader.cluster.ledger.node("n1") == before, "nothing was changed"
    running.well()


async def test_a_node_that_cannot_help_is_left_out(cluster: World, running: Running) -> None:
    await filled(cluster, running)
    pod = await cluster.pod(gpu_pod("high", whole=4))
    pod["spec"]["priority"] = 1000
    args = {"Pod": pod, "NodeNameToMetaVictims": {"n1": {"Pods": []}}}
    assert await running.call("/preempt", args) == {"NodeNameToMetaVictims": {}}
