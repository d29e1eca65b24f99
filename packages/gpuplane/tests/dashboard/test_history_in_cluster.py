"""The store of sums of the cluster's dashboard: what `gpuplane cost` gets of it, and what a tenant does not."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.metering.growth import Amounts, CounterReading, Labels
from gpuplane.metering.store import HistoryStore
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from packages.gpuplane.tests.dashboard.in_cluster import SECRET_SPACE, InCluster, in_cluster, two_tenants, viewer
from packages.gpuplane.tests.dashboard.scene import dashboard, get
from packages.gpuplane.tests.dashboard.test_forwarding import installed_service, may_reach
from tests.support.extender_world import World

HOUR = 3600.0


def filled(path: Path, now: float) -> None:
    """Three hours: ml/train-0 holds a GPU and works half of the time, payroll/forecast half of one."""
    store = HistoryStore(path, now - 3 * HOUR)

    def series(**labels: str) -> Labels:
        return tuple(sorted({"Hostname": "n1", "modelName": "Tesla T4", "UUID": "GPU-1", "gpu": "0", **labels}.items()))

    train = series(namespace="ml", pod="train-0", owner_kind="Job", owner="train", team="vision")
    secret = series(namespace=SECRET_SPACE, pod="forecast", owner_kind="Job", owner="forecast", team="money")
    for seconds in (0.0, 3 * HOUR):
        counters = {
            train: Amounts(seconds, seconds / 2, 100 * seconds),
            secret: Amounts(seconds / 2, 0.0, 0.0),
            series(): Amounts(seconds / 2, 0.0, 0.0),
        }
        waiting = (60.0, 120.0)
        store.add([CounterReading("n1", "a", seconds, counters)], now - 3 * HOUR + seconds, waiting=waiting)
    store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with two_tenants(tmp_path) as made:
        filled(tmp_path / "history" / "history.sqlite", time.time())
        yield made


@pytest.fixture
async def started(world: World, tmp_path: Path) -> AsyncIterator[InCluster]:
    async with in_cluster(world, tmp_path, "--history-dir", str(tmp_path / "history")) as found:
        await installed_service(world, found.port)
        yield found


async def as_viewer(world: World, folder: Path, name: str) -> Path:
    """A kubeconfig of a viewer who may reach the dashboard through the API server, and no more than that."""
    await may_reach(world, name)
    place = folder / name
    place.mkdir()
    (place / "config").write_text(world.kubeconfig(name))
    return place


async def test_cost_comes_from_the_store_and_says_since_when(started: InCluster, tmp_path: Path) -> None:
    code, out, _ = await gpuplane(tmp_path, "cost", "--by", "owner", "-o", "json")
    found = json.loads(out)
    rows = {row["name"]: row for row in found["rows"]}
    assert code == 0 and set(rows) == {"ml/Job/train", f"{SECRET_SPACE}/Job/forecast", "unbooked"}
    train = rows["ml/Job/train"]
    assert (train["heldHours"], train["usedHours"]) == (pytest.approx(3), pytest.approx(1.5))
    assert train["energyKwh"] == pytest.approx(0.3)
    assert (found["sourceKind"], found["complete"], found["note"]) == ("store", False, "")
    code, out, _ = await gpuplane(tmp_path, "cost", "--since", "30d")
    assert f"since {found['begins']}, not the last 30 days: the dashboard's store began then" in " ".join(out.split())
    code, out, _ = await gpuplane(tmp_path, "cost", "--since", "1h", "--by", "label=team", "-o", "json")
    found = json.loads(out)
    assert found["complete"] and {row["name"] for row in found["rows"]} == {"vision", "money", "unbooked"}
    # Whole hours, from that in which the time began.
    assert 0.9 <= {row["name"]: row["heldHours"] for row in found["rows"]}["vision"] < 2.01


async def test_a_tenant_gets_the_hours_of_the_own_namespace_and_no_other_name(
    started: InCluster, world: World, tmp_path: Path
) -> None:
    place = await as_viewer(world, tmp_path, "ml-user")
    for by in ("namespace", "owner", "pod", "gpu", "label=team"):
        code, out, err = await gpuplane(place, "cost", "--by", by, "-o", "json")
        found = json.loads(out)
        assert (code, found["sourceKind"], err) == (0, "store", "")
        [row] = found["rows"]
        assert row["heldHours"] == pytest.approx(3) == found["total"]["heldHours"]
        assert SECRET_SPACE not in out and "forecast" not in out and "money" not in out
    answer = await started.get("/api/sums?labels=namespace,pod&seconds=86400", "ml-user")
    assert answer.status == 200 and SECRET_SPACE.encode() not in answer.body
    answer = await started.get(f"/api/sums?labels=pod&ns={SECRET_SPACE}&seconds=86400", "ml-user")
    assert answer.json["uses"] == []
    answer = await started.get("/api/cost?by=pod&since=7d", "ml-user")
    assert [row["name"] for row in answer.json["rows"]] == ["ml/train-0"] and answer.json["sourceKind"] == "store"


async def test_without_a_token_or_a_right_there_are_no_sums(started: InCluster, world: World) -> None:
    assert (await started.get("/api/sums?labels=pod&seconds=60")).status == 401
    assert (await started.get("/api/day")).status == 401
    await viewer(world, "stranger", "system:discovery")
    answer = await started.get("/api/sums?labels=pod&seconds=60", "stranger")
    assert answer.status == 403 and "may not list" in answer.json["what"]


@pytest.mark.parametrize(
    "query", ["labels=pod&seconds=0", "labels=pod&seconds=nan", "labels=a%22b&seconds=60", "labels=pod", "seconds=inf"]
)
async def test_wrong_questions_are_refused(started: InCluster, query: str) -> None:
    answer = await started.get(f"/api/sums?{query}", "everything")
    assert answer.status == 404 and answer.json["cure"]


async def test_the_last_24_hours_are_those_of_the_store_for_every_viewer(started: InCluster) -> None:
    for token in ("everything", "ml-user"):
        found = (await started.get("/api/day", token)).json
        assert found["source"] == "the dashboard's store" and 3 <= len(found["hours"]) <= 4
        assert [round(hour["held"], 1) for hour in found["hours"][:-1]] == [1.5] * (len(found["hours"]) - 1)
        assert found["hours"][0]["busy"] == pytest.approx(0.5, abs=0.1)


async def test_a_dashboard_on_a_users_machine_asks_the_store_of_the_cluster(started: InCluster, tmp_path: Path) -> None:
    async with dashboard(tmp_path, "--local") as local:
        day = (await get(local, "/api/day")).json
        cost = (await get(local, "/api/cost?by=namespace&since=1d")).json
    assert day["source"] == "the dashboard's store" and len(day["hours"]) >= 3
    assert {row["name"] for row in cost["rows"]} == {"ml", SECRET_SPACE, "unbooked"}


async def test_a_damaged_store_stops_nobody(world: World, tmp_path: Path) -> None:
    (tmp_path / "history" / "history.sqlite").write_bytes(b"not a database" * 1000)
    async with in_cluster(world, tmp_path, "--history-dir", str(tmp_path / "history")) as found:
        assert (await found.get("/api/snapshot", "everything")).status == 200
        answer = await found.get("/api/sums?labels=pod&seconds=60", "everything")
        assert answer.status == 404 and "no store" in answer.json["what"]
    assert any("no sums are recorded" in line and "move the file away" in line for line in found.log)
