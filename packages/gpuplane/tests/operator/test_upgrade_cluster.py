"""Upgrades of drivers from the ClusterPolicy to the last label, by the operator on the embedded API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuplane import names
from gpuplane.operator.metrics import operator_metrics
from kubekit.kube.exposition import exposition
from tests.support.until import until

NEW = [{"name": "GENERATION", "value": "2"}]
POLICY = {"autoUpgrade": True, "maxParallelUpgrades": 0, "maxUnavailable": "25%"}


def text_of(operator: Any) -> str:
    return exposition(operator_metrics(operator.state())).decode()


async def settled(played: Any, count: int, **policy: Any) -> None:
    """`count` nodes with their first driver, all of them done."""
    for number in range(count):
        await played.add_node(f"n{number}")
    await played.policy(upgradePolicy={**POLICY, **policy})
    await played.until(lambda: played.states() == ["upgrade-done"] * count)


def record(node: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node["metadata"]["annotations"][names.UPGRADE_RECORD_ANNOTATION])
    return found


def marks(node: dict[str, Any]) -> set[str]:
    """Return the labels and annotations that upgrades have left on a node."""
    meta = node["metadata"]
    keys = {*meta.get("labels", {}), *meta.get("annotations", {})}
    return {key for key in keys if "driver-upgrade" in key or key == names.ROLLBACK_LABEL}


async def test_many_nodes_never_go_beyond_what_may_be_away(played: Any, work: Any) -> None:
    """Watches that lag behind writes, and all that a step takes. With 200 nodes: in virtual time in
    test_upgrade_world.py, and as a whole in benchmarks/upgrade.py."""
    count = 48
    async with work(played) as operator:
        await settled(played, count)
        before = played.driver("n0")
        await played.policy(env=NEW)
        await played.until(lambda: set(played.states()) != {"upgrade-done"})
        await played.until(lambda: set(played.states()) == {"upgrade-done"}, 90)
        assert 0 < played.most <= count / 4
        assert len({played.driver(f"n{number}") for number in range(count)} | {before}) == 2
        assert all(marks(node) == {names.UPGRADE_STATE_LABEL} for node in played.nodes())
        assert not any(node["spec"].get("unschedulable") for node in played.nodes())
        await played.until(lambda: len(played.drivers()) == 1)
        # The last node's state comes back to the operator by its watch.
        for line in (f"nodes_upgrades_done {count}", "nodes_upgrades_pending 0", "driver_auto_upgrade_enabled 1"):
            await played.until(lambda line=line: f"gpu_operator_{line}\n" in text_of(operator))


async def test_a_driver_that_fails_goes_back_and_says_so(played: Any, work: Any) -> None:
    async with work(played):
        await settled(played, 3, maxParallelUpgrades=1)
        before = played.driver("n0")
        played.bad |= {(f"n{number}", digest) for number in range(3) for digest in (await other(played, NEW),)}
        await played.until(lambda: "upgrade-failed" in played.states())
        failed = next(node for node in played.nodes() if record_of(node).get("failure"))
        name = failed["metadata"]["name"]
        assert "element 7 differs" in record(failed)["reason"]
        assert "back on the driver before" in record(failed)["reason"]
        assert not failed["spec"].get("unschedulable")
        assert played.driver(name) == before == failed["metadata"]["labels"][names.ROLLBACK_LABEL]
        policy = await played.until(lambda: why(played, "DriverFails"))
        assert "failed on 1 nodes" in policy["message"]
        assert sorted(played.states()) == ["upgrade-failed", "upgrade-required", "upgrade-required"]
        await played.policy(env=[{"name": "GENERATION", "value": "3"}])
        await played.until(lambda: set(played.states()) == {"upgrade-done"})
        assert not any(names.ROLLBACK_LABEL in node["metadata"]["labels"] for node in played.nodes())
        await played.until(lambda: len(played.drivers()) == 1)


def record_of(node: dict[str, Any]) -> dict[str, Any]:
    return record(node) if names.UPGRADE_RECORD_ANNOTATION in node["metadata"].get("annotations", {}) else {}


def why(played: Any, reason: str) -> dict[str, Any] | None:
    policy = played.registry.get(("nvidia.com", "clusterpolicies"), None, "p")
    found = policy.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] in ("Upgrading", "Paused") and one["reason"] == reason), None)


async def other(played: Any, env: list[dict[str, str]]) -> str:
    """Want another driver; its digest."""
    known = {played.driver(node["metadata"]["name"]) for node in played.nodes()}
    await played.policy(env=env)

    def wanted() -> str:
        env_of = [d["spec"]["template"]["spec"]["containers"][0]["env"] for d in played.drivers()]
        digests = {entry["value"] for env in env_of for entry in env if entry["name"] == names.DRIVER_DIGEST_ENV}
        return next(iter(digests - known), "")

    found: str = await played.until(wanted)
    return found


async def test_only_gpu_pods_go_and_disruption_budgets_are_asked(played: Any, work: Any) -> None:
    async with work(played):
        await settled(played, 1)
        await played.add_pod("train", "n0", app="train")
        await played.add_pod("web", "n0", gpus=0)
        budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}}}
        await played.registry.create(("policy", "poddisruptionbudgets"), "default", budget)
        await played.policy(env=NEW)
        node = await played.until(
            lambda: next((n for n in played.nodes() if "allows no eviction" in record_of(n).get("reason", "")), None)
        )
        assert node["metadata"]["labels"][names.UPGRADE_STATE_LABEL] == "pod-deletion-required"
        assert record(node)["reason"].startswith("waits for default/train to go")
        await played.registry.delete(("policy", "poddisruptionbudgets"), "default", "b")
        await played.until(lambda: played.states() == ["upgrade-done"])
        left = [pod["metadata"]["name"] for pod in played.registry.list("pods", "default")]
        assert left == ["web"]


async def test_a_node_that_was_cordoned_stays_so_and_a_skipped_one_keeps_its_driver(played: Any, work: Any) -> None:
    async with work(played):
        await settled(played, 4, maxUnavailable=2)
        await played.registry.patch("nodes", None, "n1", {"spec": {"unschedulable": True}}, "merge")
        skip = {"metadata": {"labels": {names.UPGRADE_SKIP_LABEL: "true"}}}
        await played.registry.patch("nodes", None, "n2", skip, "merge")
        before = played.driver("n2")
        await played.policy(env=NEW)
        await played.until(lambda: sorted(played.states()) == ["upgrade-done"] * 3 + ["upgrade-required"])
        assert played.driver("n2") == before != played.driver("n1")
        assert [bool(node["spec"].get("unschedulable")) for node in played.nodes()] == [False, True, False, False]
        assert names.UPGRADE_INITIAL_ANNOTATION not in played.node("n1")["metadata"].get("annotations", {})


@pytest.mark.parametrize("state", ["cordon-required", "pod-restart-required", "validation-required"])
async def test_another_operator_goes_on_where_one_died(played: Any, work: Any, state: str) -> None:
    async with work(played):
        await settled(played, 3)
        await played.policy(env=NEW)
        await played.until(lambda: state in played.states())
    async with work(played):
        await played.until(lambda: played.states() == ["upgrade-done"] * 3)
        assert len({played.driver(f"n{number}") for number in range(3)}) == 1
        assert not any(node["spec"].get("unschedulable") for node in played.nodes())


async def test_uninstalling_in_the_middle_leaves_nothing(played: Any, work: Any) -> None:
    async with work(played):
        await settled(played, 4, maxUnavailable=2)
        played.bad.add(("n0", await other(played, NEW)))
        await played.until(lambda: {"pod-restart-required", "validation-required"} & set(played.states()))
        await played.registry.delete(("nvidia.com", "clusterpolicies"), None, "p")
        await played.until(lambda: played.registry.get(("nvidia.com", "clusterpolicies"), None, "p") is None)
        for node in played.nodes():
            assert marks(node) == set()
            assert not node["spec"].get("unschedulable")
        assert played.drivers() == []


async def test_opting_out_takes_the_marks_away(played: Any, work: Any) -> None:
    async with work(played):
        await settled(played, 2)
        out = {"metadata": {"labels": {names.DEPLOY_OPERANDS_LABEL: "false"}}}
        await played.registry.patch("nodes", None, "n0", out, "merge")
        await played.until(lambda: not marks(played.node("n0")))
        assert marks(played.node("n1"))


def looked(operator: Any) -> bool:
    """Return whether all controllers have handled all their events."""
    return all(each.controller.idle for each in (operator.nodes, operator.policy, operator.upgrades))


async def test_a_paused_policy_changes_nothing_until_it_goes_on(played: Any, work: Any) -> None:
    async with work(played) as operator:
        await settled(played, 2)
        before = played.driver("n0")
        pause = {"metadata": {"annotations": {names.PAUSED_ANNOTATION: "true"}}}
        await played.registry.patch(("nvidia.com", "clusterpolicies"), None, "p", pause, "merge")
        assert await played.until(lambda: why(played, "Annotated"))
        assert "gpuplane_operator_paused 1\n" in text_of(operator)
        await played.policy(env=NEW)
        await played.add_node("n2")
        await until(lambda: operator.nodes.nodes.get("n2") is not None and looked(operator))
        assert played.registry.get(("gpuplane.dev", "gpunodes"), None, "n2") is None
        assert played.driver("n0") == before
        on = {"metadata": {"annotations": {names.PAUSED_ANNOTATION: None}}}
        await played.registry.patch(("nvidia.com", "clusterpolicies"), None, "p", on, "merge")
        await played.until(lambda: played.states() == ["upgrade-done"] * 3 and played.driver("n0") != before)
        assert why(played, "Annotated") is None
