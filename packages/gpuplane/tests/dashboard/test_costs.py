"""The dashboard's page of costs: the numbers of `gpuplane cost`, asked once for all viewers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane import names
from gpuplane.api.karpenter import CAPACITY_TYPE_LABEL, INSTANCE_LABEL_PREFIX, POOL_LABEL
from gpuplane.cli.cost_source import no_store
from gpuplane.dashboard.costs import REMEMBERED_ANSWERS, REMEMBERED_SECONDS, ROWS, CostFacts, store_answer
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, NoAnswer
from packages.gpuplane.tests.cli.status_clusters import gpuplane, installed, report
from packages.gpuplane.tests.cli.test_cost import EVIL, client, metered
from packages.gpuplane.tests.dashboard.exporters import Holding, exporting
from packages.gpuplane.tests.dashboard.scene import Started, dashboard, get

PATH = "/api/v1/namespaces/gpu-operator/pods/one:9400/proxy/metrics"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Started]:
    async with installed(tmp_path) as world:
        await world.node("n1")
        await report(world, "n1", ready=True)
        gpus = {("n1", 0): [Holding("ml/tune", 0.3, 0.2, 2.0)], ("n1", 1): [Holding("ci/build", 1.0, 0.5, 2.0)]}
        async with exporting(world, gpus), dashboard(tmp_path) as started:
            yield started


async def test_it_has_the_rows_of_the_command(page: Started, tmp_path: Path) -> None:
    found = (await get(page, "/api/cost?by=pod&since=7d")).json
    code, out, _ = await gpuplane(tmp_path, "cost", "--by", "pod", "--since", "7d", "-o", "json")
    printed = json.loads(out)
    assert code == 0 and [row["name"] for row in found["rows"]] == [row["name"] for row in printed["rows"]]
    assert {row["name"] for row in found["rows"]} == {"ml/tune", "ci/build", "unbooked"}
    assert (found["source"], found["complete"], found["more"]) == ("1 exporter", False, 0)
    # The exporter's meter goes on with each scrape, in the same parts.
    held = {row["name"]: row["heldHours"] for row in found["rows"]}
    assert held["ml/tune"] == pytest.approx(0.3 * held["ci/build"])


async def test_wrong_questions_are_answered_with_a_cure(page: Started) -> None:
    for query, what in (("by=moon", "'moon' is no grouping"), ("since=1y", "'1y' is no time")):
        answer = await get(page, f"/api/cost?{query}")
        assert answer.status == 404 and what in answer.json["what"] and answer.json["cure"]


async def test_sums_by_no_label_are_no_question() -> None:
    for spaces in (None, {"ml"}):
        with pytest.raises(InvalidInput, match="wrong labels"):
            await store_answer(no_store, [], "", 3600.0, spaces)


class Counting:
    """A cluster with one exporter; counts how often it is read. `clock` is the time of the facts' owner."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer, self.read, self.clock = answer, 0, 0.0
        self._inner = client({}, "one")

    async def request(self, method: str, path: str, query: dict[str, str] | None = None) -> bytes:
        if path == "/api/v1/services":
            return b'{"items": []}'
        assert path == PATH
        self.read += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def list(self, kind: type[object], **selection: str) -> object:
        return await self._inner.list(kind, **selection) if selection else []  # type: ignore[call-overload]


async def test_an_answer_serves_all_viewers_for_a_minute() -> None:
    cluster = Counting(metered("tune"))
    facts = CostFacts(cluster, lambda: cluster.clock)  # type: ignore[arg-type]
    first = await facts.cost("pod", "30d")
    assert await facts.cost("pod", "30d") == first and cluster.read == 1
    await facts.cost("namespace", "30d")
    assert cluster.read == 2
    cluster.clock += REMEMBERED_SECONDS
    await facts.cost("pod", "30d")
    assert cluster.read == 3


async def test_answers_to_very_many_questions_are_not_all_remembered() -> None:
    cluster = Counting(metered("tune"))
    facts = CostFacts(cluster, lambda: cluster.clock)  # type: ignore[arg-type]
    questions = [f"label=team{number}" for number in range(REMEMBERED_ANSWERS + 1)]
    for by in questions:
        await facts.cost(by, "30d")
    for by in questions[1:]:
        await facts.cost(by, "30d")
    assert cluster.read == len(questions)
    await facts.cost(questions[0], "30d")
    assert cluster.read == len(questions) + 1


class OfPool(Counting):
    """A node of the cluster was bought by a pool."""

    async def list(self, kind: type[object], **selection: str) -> object:
        if kind is not Node:
            return await super().list(kind, **selection)
        labels = {POOL_LABEL: "payroll-spot", CAPACITY_TYPE_LABEL: "spot", f"{INSTANCE_LABEL_PREFIX}gpu-count": "1"}
        return [Node(metadata=ObjectMeta(name="n", labels=labels, annotations={names.PRICE_ANNOTATION: "2.0"}))]


async def test_a_viewer_of_some_namespaces_learns_no_name_of_a_node_pool() -> None:
    text = b'gpuplane_pod_gpu_held_seconds_total{Hostname="n",modelName="T4",namespace="ml",pod="p"} 3600\n'
    cluster = OfPool(text)
    facts = CostFacts(cluster, lambda: cluster.clock)  # type: ignore[arg-type]
    of_all = await facts.cost("pod", "30d")
    assert of_all["total"]["pricesFrom"] == ["node pool payroll-spot, spot at launch"]
    of_tenant = await facts.cost("pod", "30d", frozenset({"ml"}))
    assert [one["pricesFrom"] for one in (*of_tenant["rows"], of_tenant["total"])] == [
        ["a node pool, spot at launch"]
    ] * 2
    assert "payroll" not in json.dumps(of_tenant)
    assert of_tenant["total"]["dollars"] == of_all["total"]["dollars"]


async def test_an_error_is_not_remembered_and_names_are_text() -> None:
    cluster = Counting(NoAnswer("refused"))
    facts = CostFacts(cluster, lambda: cluster.clock)  # type: ignore[arg-type]
    with pytest.raises(NoAnswer):
        await facts.cost("pod", "30d")
    cluster.answer = metered(EVIL)
    rows = (await facts.cost("pod", "30d"))["rows"]
    assert any("^[[31m" in row["name"] for row in rows) and not any("\x1b" in row["name"] for row in rows)


async def test_of_very_many_rows_the_dearest_are_listed_and_all_are_in_the_total() -> None:
    labels = 'Hostname="n",modelName="T4",namespace="ml"'
    lines = [f'gpuplane_pod_gpu_held_seconds_total{{{labels},pod="p{at:05}"}} {3600 + at}\n' for at in range(3000)]
    text = "".join(lines)
    cluster = Counting(text.encode())
    found = await CostFacts(cluster, lambda: 0.0).cost("pod", "1d")  # type: ignore[arg-type]
    assert (len(found["rows"]), found["more"], found["rows"][0]["name"]) == (ROWS, 3000 - ROWS, "ml/p02999")
    assert found["total"]["heldHours"] == pytest.approx(sum(3600 + at for at in range(3000)) / 3600)


async def test_what_is_no_page_of_costs_is_not_found() -> None:
    cluster = Counting(b"")
    with pytest.raises(InvalidInput):
        await CostFacts(cluster, lambda: 0.0).cost("pod", "-1")  # type: ignore[arg-type]
    assert cluster.read == 0
