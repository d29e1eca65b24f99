"""The store is compacted by the clock: tokens of lists and versions of watches end, and lists go on as they are now."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.kube.clock import Clock
from tests.support.virtual_time import VirtualClock
from tinykube.apiserver import ApiFailure
from tinykube.apiserver.compaction import INTERVAL_S, compact_by_clock
from tinykube.apiserver.paging import ListScope, Snapshots
from tinykube.apiserver.store import ObjectStore, Selection

MAPS = "/api/v1/namespaces/default/configmaps"
SCOPE = ListScope("configmaps", True, "default", "", "")


def names(found: Any) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


async def make(api: Any, name: str) -> None:
    await api.create(MAPS, {"metadata": {"name": name}})


@pytest.fixture
async def clock(api: Any) -> AsyncIterator[VirtualClock]:
    made = VirtualClock()
    clock: Clock = made
    task = asyncio.create_task(compact_by_clock(api.registry.store, clock))
    await made.advance(0)
    yield made
    task.cancel()


async def test_a_list_goes_on_as_it_is_now_once_its_token_has_expired(api, clock):
    for number in range(6):
        await make(api, f"m{number}")
    first = await api.get(MAPS, limit=2)
    token = first["metadata"]["continue"]
    await api("DELETE", f"{MAPS}/m3")
    await make(api, "m2b")
    await clock.advance(INTERVAL_S)
    assert names(await api.get(MAPS, limit=2, **{"continue": token})) == ["m2", "m3"]
    await clock.advance(INTERVAL_S)
    answer = await api("GET", MAPS, limit=2, **{"continue": token})
    assert (answer.status, answer.json["reason"]) == (410, "Expired")
    assert answer.message.startswith("The provided continue parameter is too old to display a consistent list result.")
    second = await api.get(MAPS, limit=2, **{"continue": answer.json["metadata"]["continue"]})
    assert names(second) == ["m2", "m2b"]
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert second["metadata"]["remainingItemCount"] == 2
    await api("DELETE", f"{MAPS}/m4")  # the rest is consistent with the second page
    last = await api.get(MAPS, limit=9, **{"continue": second["metadata"]["continue"]})
    assert names(last) == ["m4", "m5"]
    assert last["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_a_watch_gets_410_for_events_that_are_forgotten(api, clock):
    await make(api, "old")
    version = (await api.get(MAPS))["metadata"]["resourceVersion"]
    await make(api, "new")
    await clock.advance(INTERVAL_S)
    await make(api, "newest")
    await clock.advance(INTERVAL_S)
    kind, status = await (await api.watch(MAPS, resourceVersion=version)).next()
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert status["message"].startswith(f"too old resource version: {version} (")
    watch = await api.watch(MAPS, resourceVersion=int(version) + 1)
    assert await watch.names(1) == [("ADDED", "newest")]


async def test_a_watch_of_what_did_not_change_goes_on(api, clock):
    await make(api, "only")
    version = (await api.get(MAPS))["metadata"]["resourceVersion"]
    await clock.advance(3 * INTERVAL_S)
    watch = await api.watch(MAPS, resourceVersion=version)
    await make(api, "next")
    assert await watch.names(1) == [("ADDED", "next")]


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (
            {"v": "meta.k8s.io/v2", "rv": 1, "start": "a"},
            "server does not recognize this encoded version meta.k8s.io/v2",
        ),
        ({"v": "meta.k8s.io/v1", "start": "a"}, "incorrect encoded start resourceVersion (version meta.k8s.io/v1)"),
        ({"v": "meta.k8s.io/v1", "rv": 1}, "encoded start key empty (version meta.k8s.io/v1)"),
        ({"v": "meta.k8s.io/v1", "rv": 1, "start": "../other/a"}, "../other/a"),
    ],
)
async def test_wrong_tokens(api, token, why):
    text = base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")
    answer = await api("GET", MAPS, **{"continue": text})
    assert answer.status == 400
    assert answer.message == f"invalid continue token: continue key is not valid: {why}"


STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "compact"]), st.integers(0, 9)), max_size=12)


@given(st.integers(1, 4), st.lists(STEPS, min_size=1, max_size=6))
def test_pages_are_of_one_moment_until_they_expire(limit, rounds):
    """All pages of a list are of one version. After an expiry the rest begins behind the last key."""
    store = ObjectStore()
    table = store.table("configmaps")
    for number in range(0, 10, 2):
        table.put("default", f"m{number}", {"metadata": {"name": f"m{number}"}})
    snapshots = Snapshots(store)
    page = snapshots.first(SCOPE, table.select(Selection(namespace="default")), limit)
    moment = {entry.name: entry.version for entry in table.items.values()}
    seen: list[str] = []
    for steps in rounds:
        seen += [entry.name for entry in page.entries]
        assert {entry.name: entry.version for entry in page.entries}.items() <= moment.items()
        rest = sorted(name for name in moment if not seen or name > seen[-1])
        assert page.remaining == len(rest) if page.token else not rest
        if not page.token:
            return
        for step, number in steps:
            entry = table.get("default", f"m{number}")
            if step == "put":
                table.put("default", f"m{number}", {"metadata": {"name": f"m{number}"}})
            elif step == "compact":
                store.compact(store.version)
            elif entry is not None:
                table.remove(entry)

        def current() -> Any:
            return table.select(Selection(namespace="default"))

        try:
            page = snapshots.next(SCOPE, page.token, limit, current)
        except ApiFailure as expired:
            assert expired.status == 410 and store.compacted > page.version
            moment = {entry.name: entry.version for entry in table.items.values()}
            page = snapshots.next(SCOPE, expired.metadata["continue"], limit, current)
