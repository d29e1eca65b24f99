"""Lists by selector and in pages; watches from any version, with bookmarks, and the events of each watch."""

from __future__ import annotations

import pytest

from tinykube.apiserver import store

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


def names(found):
    return [item["metadata"]["name"] for item in found["items"]]


async def fill(api, count=5):
    for index in range(count):
        labels = {"odd": str(bool(index % 2)).lower(), "n": str(index)}
        await api.create(MAPS, {"metadata": {"name": f"m{index}", "labels": labels}})


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("odd=true", ["m1", "m3"]),
        ("odd==true,n!=1", ["m3"]),
        ("n in (0, 4)", ["m0", "m4"]),
        ("n notin (0,1,2),odd", ["m3", "m4"]),
        ("!odd", []),
        ("nothing!=x", ["m0", "m1", "m2", "m3", "m4"]),
    ],
)
async def test_label_selectors(api, selector, wanted):
    await fill(api)
    assert names(await api.get(MAPS, labelSelector=selector)) == wanted


async def test_field_selectors(api, pod):
    await api.create(PODS, pod("a", nodeName="n1"))
    await api.create(PODS, pod("b", nodeName="n2"))
    await api.create(PODS, pod("c"))
    assert names(await api.get("/api/v1/pods", fieldSelector="spec.nodeName=n1")) == ["a"]
    assert names(await api.get(PODS, fieldSelector="spec.nodeName=")) == ["c"]
    assert names(await api.get(PODS, fieldSelector="metadata.name!=a,status.phase=Pending")) == ["b", "c"]
    assert names(await api.get("/api/v1/pods", fieldSelector="spec.nodeName=n2,metadata.namespace=other")) == []
    answer = await api("GET", PODS, fieldSelector="spec.colour=red")
    assert (answer.status, answer.message) == (400, "field label not supported: spec.colour")


async def test_a_bad_selector_is_refused(api):
    assert (await api("GET", MAPS, labelSelector="a in (b")).status == 400
    assert (await api("GET", MAPS, fieldSelector="metadata.name")).status == 400


async def test_pages_show_one_moment_whatever_happens_between(api):
    await fill(api)
    first = await api.get(MAPS, limit=2)
    assert names(first) == ["m0", "m1"]
    assert first["metadata"]["remainingItemCount"] == 3
    await api("DELETE", f"{MAPS}/m3")
    await api.create(MAPS, {"metadata": {"name": "m2b"}})
    token = first["metadata"]["continue"]
    second = await api.get(MAPS, limit=2, **{"continue": token})
    last = await api.get(MAPS, limit=2, **{"continue": second["metadata"]["continue"]})
    assert names(second) + names(last) == ["m2", "m3", "m4"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in last["metadata"]
    assert (await api("GET", MAPS, limit=2, **{"continue": "rubbish"})).status == 400


async def test_a_page_that_is_no_longer_kept_is_gone(api):
    await fill(api)
    token = (await api.get(MAPS, limit=1))["metadata"]["continue"]
    for number in range(20):
        await api.create(MAPS, {"metadata": {"name": f"more-{number}"}})
        await api.get(MAPS, limit=1)
    answer = await api("GET", MAPS, limit=1, **{"continue": token})
    assert (answer.status, answer.json["reason"]) == (410, "Expired")


async def test_versions_of_lists(api):
    await fill(api, 1)
    current = int((await api.get(MAPS))["metadata"]["resourceVersion"])
    assert names(await api.get(MAPS, resourceVersion="0")) == ["m0"]
    assert names(await api.get(MAPS, resourceVersion=current, resourceVersionMatch="Exact")) == ["m0"]
    future = await api("GET", MAPS, resourceVersion=current + 5)
    assert (future.status, future.message) == (
        504,
        f"Timeout: Too large resource version: {current + 5}, current: {current}",
    )
    assert (await api("GET", MAPS, resourceVersionMatch="Exact")).status == 422
    assert (await api("GET", MAPS, resourceVersion="x")).status == 400
    await fill_more(api)
    old = await api("GET", MAPS, resourceVersion=current, resourceVersionMatch="Exact")
    assert old.status == 410


async def fill_more(api):
    await api.create(MAPS, {"metadata": {"name": "more"}})


async def test_a_watch_goes_on_where_the_list_was_read(api):
    await fill(api, 2)
    version = (await api.get(MAPS))["metadata"]["resourceVersion"]
    await api.patch(f"{MAPS}/m0", {"data": {"a": "1"}})
    watch = await api.watch(MAPS, resourceVersion=version)
    assert await watch.names(1) == [("MODIFIED", "m0")]
    await api.create(MAPS, {"metadata": {"name": "new"}})
    await api("DELETE", f"{MAPS}/m1")
    assert await watch.names(2) == [("ADDED", "new"), ("DELETED", "m1")]


async def test_a_deletion_carries_its_own_version(api):
    await fill(api, 1)
    watch = await api.watch(MAPS)
    _, added = await watch.next()
    await api("DELETE", f"{MAPS}/m0")
    _, deleted = await watch.next()
    assert int(deleted["metadata"]["resourceVersion"]) > int(added["metadata"]["resourceVersion"])


async def test_a_watch_without_a_version_starts_with_everything(api):
    await fill(api, 2)
    assert await (await api.watch(MAPS)).names(2) == [("ADDED", "m0"), ("ADDED", "m1")]


async def test_a_selector_sees_objects_come_and_go(api):
    await fill(api, 2)
    watch = await api.watch(MAPS, labelSelector="odd=true")
    assert await watch.names(1) == [("ADDED", "m1")]
    await api.patch(f"{MAPS}/m0", {"metadata": {"labels": {"odd": "true"}}})
    await api.patch(f"{MAPS}/m1", {"metadata": {"labels": {"odd": "false"}}})
    await api.patch(f"{MAPS}/m1", {"data": {"not": "seen"}})
    assert await watch.names(1) == [("ADDED", "m0")]
    kind, left = await watch.next()
    assert (kind, left["metadata"]["name"], left["metadata"]["labels"]["odd"]) == ("DELETED", "m1", "true")
    assert watch.quiet()


async def test_a_nodes_watcher_sees_its_pods_only(api, pod):
    mine = await api.watch("/api/v1/pods", fieldSelector="spec.nodeName=n1", resourceVersion="0")
    other = await api.watch("/api/v1/pods", fieldSelector="spec.nodeName=n2", resourceVersion="0")
    one = await api.watch(PODS, fieldSelector="metadata.name=p", resourceVersion="0")
    await api.create(PODS, pod())
    await api("POST", f"{PODS}/p/binding", {"target": {"name": "n1"}})
    assert await mine.names(1) == [("ADDED", "p")]
    assert await one.names(2) == [("ADDED", "p"), ("MODIFIED", "p")]
    assert other.quiet()


async def test_a_version_that_is_too_old_is_told_in_the_stream(api, monkeypatch):
    monkeypatch.setattr(store, "HISTORY_EVENTS", 3)
    await fill(api, 1)
    version = (await api.get(MAPS))["metadata"]["resourceVersion"]
    for number in range(6):
        await api.patch(f"{MAPS}/m0", {"data": {"n": str(number)}})
    watch = await api.watch(MAPS, resourceVersion=version)
    kind, status = await watch.next()
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    await watch.ended()


async def test_initial_events_end_with_a_bookmark(api):
    await fill(api, 2)
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    watch = await api.watch(MAPS, **options)
    assert await watch.names(2) == [("ADDED", "m0"), ("ADDED", "m1")]
    kind, bookmark = await watch.next()
    assert kind == "BOOKMARK"
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert bookmark["metadata"]["resourceVersion"] == str(api.registry.store.version)
    answer = await api("GET", MAPS, watch="true", sendInitialEvents="true")
    assert answer.status == 422


async def test_a_watch_ends_when_its_time_is_over_or_the_server_stops(api):
    ended = await api.watch(MAPS, timeoutSeconds=1, allowWatchBookmarks="true")
    kind, _ = await ended.next()
    assert kind == "BOOKMARK"
    await ended.ended()
    stopped = await api.watch(MAPS, resourceVersion="0")
    await api.create(MAPS, {"metadata": {"name": "x"}})
    await stopped.next()
    api.app.close()
    await stopped.ended()


async def test_tables_and_metadata_for_those_who_ask(api):
    await fill(api, 2)
    table = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    listed = (await api("GET", MAPS, headers=table)).json
    assert listed["kind"] == "Table"
    assert [row["cells"][0] for row in listed["rows"]] == ["m0", "m1"]
    assert listed["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    one = (await api("GET", f"{MAPS}/m0", headers=table)).json
    assert [column["name"] for column in one["columnDefinitions"]] == ["Name", "Data", "Age"]
    watch = await api.watch(MAPS, headers=table)
    _, first = await watch.next()
    _, second = await watch.next()
    assert first["columnDefinitions"] and not second["columnDefinitions"]
    partial = {"accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    found = (await api("GET", MAPS, headers=partial)).json
    assert found["kind"] == "PartialObjectMetadataList"
    assert set(found["items"][0]) == {"kind", "apiVersion", "metadata"}


async def test_subscribers_are_told_in_order_before_the_writer_goes_on(api):
    seen = []
    end = api.registry.subscribe("configmaps", lambda kind, obj, old: seen.append((kind, old is None)))
    await fill(api, 1)
    await api.patch(f"{MAPS}/m0", {"data": {"a": "1"}})
    await api("DELETE", f"{MAPS}/m0")
    end()
    await fill(api, 1)
    assert seen == [("ADDED", True), ("MODIFIED", False), ("DELETED", False)]
