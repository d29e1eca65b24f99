"""The cluster's dashboard shows each viewer what the API server would show to the viewer's token, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gpuplane.api.gpunode import GPUNode
from packages.gpuplane.tests.dashboard.in_cluster import (
    PATIENCE,
    SECRET_POD,
    SECRET_SPACE,
    InCluster,
)
from packages.gpuplane.tests.dashboard.scene import held
from tests.support.extender_world import World
from tests.support.until import until

SECRETS = (SECRET_POD.encode(), SECRET_SPACE.encode())


async def everything(page: InCluster, token: str) -> dict[str, bytes]:
    """Path -> answer of each page that a viewer can ask for, those about secrets included."""
    snapshot = await page.snapshot(token)
    nodes = [*snapshot["data"]["nodes"], "n1", "n2"]
    paths = [
        *("/api/waiting", "/api/mine", "/api/mine?ns=ml", "/api/viewer", "/api/pools", "/api/upgrades"),
        *(f"/api/cost?by={by}&since=1d" for by in ("namespace", "owner", "pod", "gpu", "label=team")),
        *(f"/api/node/{name.replace(' ', '%20')}" for name in nodes),
        *("/api/pod/ml/train", "/api/pod/ml/large", "/api/pod/ml/missing"),
    ]
    found = {path: (await page.get(path, token)).body for path in paths}
    return {**found, "/api/snapshot": msgspec.json.encode(snapshot)}


async def test_a_tenant_sees_the_names_of_its_own_pods_only(page: InCluster) -> None:
    answers = await everything(page, "ml-user")
    assert {path for path, body in answers.items() if any(secret in body for secret in SECRETS)} == set()
    snapshot = msgspec.json.decode(answers["/api/snapshot"])["data"]
    assert [snapshot["totals"][name] for name in ("held", "running", "waiting")] == [2.5, 3, 2]
    assert [one["pod"] for one in snapshot["waiting"]] == ["ml/large"]
    # Its pod names its node; other nodes are numbers. The parts that others hold are counted.
    assert {name: node["held"] for name, node in snapshot["nodes"].items()} == {
        "n1": [100, 100, 0, 0],
        "node 2": [50, 0, 0, 0],
    }
    assert snapshot["nodes"]["n1"]["spaces"] == ["ml"] and snapshot["hidden"] == ["pods", "nodes"]
    waiting = msgspec.json.decode(answers["/api/waiting"])
    assert [one["pod"] for one in waiting] == ["ml/large"] and waiting[0]["cures"]
    assert msgspec.json.decode(answers["/api/pod/ml/train"])["node"] == "n1"
    mine = msgspec.json.decode(answers["/api/mine"])
    assert (mine["namespace"], mine["spaces"]) == ("ml", ["ml"])
    assert [one["pod"] for one in mine["running"]] == ["ml/train"]


async def test_each_tenant_has_its_own_half(page: InCluster) -> None:
    answers = await everything(page, "payroll-user")
    snapshot = msgspec.json.decode(answers["/api/snapshot"])["data"]
    assert [one["pod"] for one in snapshot["waiting"]] == [f"{SECRET_SPACE}/{SECRET_POD}-large"]
    assert sorted(snapshot["nodes"]) == ["n1", "n2"]
    assert not any(b"train" in body or b'"ml/' in body for path, body in answers.items() if "/ml/" not in path)


async def test_pages_of_others_are_refused_whether_they_exist_or_not(page: InCluster) -> None:
    for path in (f"/api/pod/{SECRET_SPACE}/{SECRET_POD}", f"/api/pod/{SECRET_SPACE}/missing", "/api/pod/missing/a"):
        answer = await page.get(path, "ml-user")
        assert answer.status == 403 and "may not list pods" in answer.json["what"]
    assert (await page.get(f"/api/mine?ns={SECRET_SPACE}", "ml-user")).status == 403
    known, unknown = [(await page.get(f"/api/node/{name}", "ml-user")) for name in ("n2", "n9")]
    assert (known.status, known.body) == (unknown.status, unknown.body)
    assert known.status == 403 and "may not list nodes" in known.json["what"]


async def test_an_administrator_sees_everything(page: InCluster) -> None:
    answers = await everything(page, "everything")
    snapshot = msgspec.json.decode(answers["/api/snapshot"])["data"]
    assert sorted(snapshot["nodes"]) == ["n1", "n2"] and "hidden" not in snapshot
    assert snapshot["nodes"]["n1"]["spaces"] == ["ml", SECRET_SPACE]
    assert {one["pod"] for one in snapshot["waiting"]} == {"ml/large", f"{SECRET_SPACE}/{SECRET_POD}-large"}
    node = msgspec.json.decode(answers["/api/node/n1"])
    assert [one["pod"] for gpu in node["gpus"] for one in gpu["held"]] == ["ml/train", f"{SECRET_SPACE}/{SECRET_POD}"]
    assert (await page.get(f"/api/pod/{SECRET_SPACE}/{SECRET_POD}", "everything")).json["node"] == "n1"
    assert msgspec.json.decode(answers["/api/viewer"]) == {"user": "everything", "session": False}


async def events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, bytes]]:
    kind = ""
    while line := await reader.readline():
        if line.startswith(b"event: "):
            kind = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield kind, line[6:]


async def first_change(reader: asyncio.StreamReader, word: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE):
        async for kind, data in events(reader):
            if kind == "change" and word in data:
                return data
    raise AssertionError("the stream has ended")


async def test_changes_bring_a_tenant_no_names_of_others(page: InCluster, cluster: World) -> None:
    version = (await page.snapshot("ml-user"))["version"]
    async with page.stream("ml-user", version) as reader:
        await held(cluster, f"{SECRET_POD}-3", "n2", 1, 100, SECRET_SPACE)
        data = await first_change(reader, b'"node 2"')
        assert msgspec.json.decode(data)["nodes"] == {"node 2": {"held": [50, 100, 0, 0]}}
        assert not any(secret in data for secret in SECRETS)
        await cluster.client.patch(GPUNode, "n2", {"status": {"health": {"GPU-n2-3": f"Xid 79 of {SECRET_POD}"}}})
        await held(cluster, "train-2", "n1", 2, 100)
        data = await first_change(reader, b'"n1"')
        assert not any(secret in data for secret in SECRETS)


async def test_without_a_token_that_is_accepted_there_is_nothing(page: InCluster) -> None:
    for token in ("", "wrong", "x" * 20_000):
        for path in ("/api/snapshot", "/api/changes", "/api/node/n1", "/api/viewer"):
            answer = await page.get(path, token)
            assert answer.status in (400, 401) and b"n1" not in answer.body
        answer = await page.get("/", token)
        assert answer.status in (303, 400)
        assert answer.status == 400 or answer.headers["location"] == "/login"
    assert (await page.get("/healthz")).status == 200


async def test_a_user_without_any_right_sees_counted_cells_alone(page: InCluster, cluster: World) -> None:
    from tinykube.apiserver import User

    cluster.server.extensions.identity.add("stranger", User("stranger", ("system:authenticated",)))
    answers = await everything(page, "stranger")
    words = (*SECRETS, b'"ml/', b'"n1"', b'"n2"')
    assert {path for path, body in answers.items() if any(word in body for word in words)} == set()
    snapshot: dict[str, Any] = msgspec.json.decode(answers["/api/snapshot"])["data"]
    assert list(snapshot["nodes"]) == ["node 1", "node 2"] and snapshot["waiting"] == []
    assert msgspec.json.decode(answers["/api/waiting"]) == []


async def test_a_viewer_writes_no_line_of_the_log(page: InCluster) -> None:
    for path in ("/api/pod/ml%0aforged/a", "/api/mine?ns=ml%0aforged"):
        answer = await page.get(path, "ml-user")
        assert answer.status == 404 and "is no namespace" in answer.json["what"]
    await page.get("/api/pod/payroll/forecast", "ml-user")

    async def logged() -> bool:
        return any("in the namespace payroll" in line for line in page.log)

    await until(logged, seconds=PATIENCE)
    assert [line for line in page.log if "forged" in line] == []


async def test_no_token_is_in_the_log(page: InCluster) -> None:
    for token in ("ml-user-secret-token", "everything"):
        await page.get("/api/snapshot", token)
    await page.get("/api/pod/payroll/forecast", "ml-user")
    assert not [line for line in page.log if "secret-token" in line or "Bearer" in line]


async def test_the_account_of_the_dashboard_is_refused_nothing(page: InCluster) -> None:
    await everything(page, "everything")
    await everything(page, "ml-user")
    assert [line for line in page.log if "forbidden" in line.lower()] == []


async def test_a_viewer_who_disappears_leaves_the_others_theirs(page: InCluster) -> None:
    version = (await page.snapshot("ml-user"))["version"]
    async with page.stream("ml-user", version):
        pass

    async def answered() -> bool:
        return (await page.get("/api/snapshot", "ml-user")).status == 200

    await until(answered, seconds=PATIENCE)
