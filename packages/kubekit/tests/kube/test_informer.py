"""Informers: the cache equals the server, whatever happens on the way."""

from __future__ import annotations

import asyncio
import gc
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubekit.api.core import Node, Pod
from kubekit.api.meta import key
from kubekit.kube import ConfigError, Informer, SystemClock

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"


class Mirror:
    """A second cache built from what handlers hear; it must never differ from the informer's own."""

    def __init__(self, informer):
        self.objects = {}
        self.heard = []
        self.changes = asyncio.Queue()
        self.informer = informer
        informer.add_handler(self.changed)

    def changed(self, old, new):
        if old is not None:
            assert self.objects.pop(key(old)) == old
        if new is not None:
            assert key(new) not in self.objects
            self.objects[key(new)] = new
        self.heard.append((old, new))
        self.changes.put_nowait((old, new))

    def state(self):
        return {name: obj.metadata.resource_version for name, obj in self.objects.items()}

    async def until(self, wanted):
        """Waits for changes until the mirror holds `wanted` (key -> resource version)."""
        async with asyncio.timeout(60):
            while self.state() != wanted:
                await self.changes.get()
        assert {key(obj): obj for obj in self.informer.items()} == self.objects


def state(server, collection):
    return {k: o["metadata"]["resourceVersion"] for k, o in server.objects.get(collection, {}).items()}


async def test_lists_in_pages_then_follows(harness, hurried):
    for i in range(1100):
        await harness.server.put(PODS, f"p{i}", "default", spec={"nodeName": f"n{i % 7}"})
    informer = Informer(harness.client(), Pod, clock=hurried())
    informer.add_index("node", lambda pod: [pod.spec.node_name])
    mirror = Mirror(informer)
    informer.start()
    await informer.synced()
    assert len(informer) == 1100
    assert len(informer.by_index("node", "n3")) == 157
    await harness.server.put(PODS, "p3", "default", spec={"nodeName": "n4"})
    await harness.server.remove(PODS, "default/p10")
    await mirror.until(state(harness.server, PODS))
    assert len(informer.by_index("node", "n3")) == 155
    assert informer.get("default/p10") is None
    assert informer.lists == 1
    await informer.stop()


async def test_a_version_is_reached_when_every_change_up_to_it_is_in_the_cache(harness, hurried):
    await harness.server.put(PODS, "first", "default")
    informer = Informer(harness.client(), Pod, clock=hurried())
    informer.start()
    await informer.synced()
    names = [f"p{at}" for at in range(50)]
    for name in names:
        await harness.server.put(PODS, name, "default")
    version = harness.server.objects[PODS]["default/p49"]["metadata"]["resourceVersion"]
    async with asyncio.timeout(60):
        await informer.reached(version)
    assert all(informer.get(f"default/{name}") is not None for name in names)
    await informer.reached(version)
    waits = asyncio.create_task(informer.reached(str(int(version) + 1)))
    await asyncio.sleep(0)
    assert not waits.done()
    await harness.server.remove(PODS, "default/p0")
    async with asyncio.timeout(60):
        await waits
    assert informer.get("default/p0") is None
    await informer.stop()


async def test_what_is_not_to_be_kept_is_as_if_it_were_not_there(harness, hurried, caplog):
    def keep(pod):
        if pod.spec.node_name == "strange":
            raise ValueError("cannot be understood")
        return Pod(metadata=pod.metadata) if pod.spec.node_name else None

    await harness.server.put(PODS, "waits", "default")
    await harness.server.put(PODS, "runs", "default", spec={"nodeName": "n1"})
    informer = Informer(harness.client(), Pod, keep=keep, clock=hurried())
    mirror = Mirror(informer)
    informer.start()
    await informer.synced()
    assert {name: pod.spec.node_name for name, pod in mirror.objects.items()} == {"default/runs": ""}
    await harness.server.put(PODS, "waits", "default", spec={"nodeName": "n2"})
    await mirror.until(state(harness.server, PODS))
    await harness.server.put(PODS, "runs", "default", spec={"nodeName": ""})
    await harness.server.put(PODS, "waits", "default", spec={"nodeName": "strange"})
    await mirror.until({})
    assert "name=default/waits: ValueError: cannot be understood" in caplog.text
    await informer.stop()


async def test_a_cut_watch_resumes_without_a_list(harness, hurried):
    await harness.server.put(NODES, "n1")
    informer = Informer(harness.client(), Node, clock=hurried())
    mirror = Mirror(informer)
    informer.start()
    await informer.synced()
    harness.server.cut()
    await harness.server.put(NODES, "n2")
    await mirror.until(state(harness.server, NODES))
    assert informer.lists == 1
    await informer.stop()


@pytest.mark.parametrize("in_stream", [False, True])
async def test_an_expired_watch_lists_anew_and_tells_of_deletes(harness, hurried, in_stream):
    harness.server.gone_in_stream = in_stream
    for name in ("n1", "n2", "n3"):
        await harness.server.put(NODES, name)
    informer = Informer(harness.client(), Node, clock=hurried())
    mirror = Mirror(informer)
    informer.start()
    await informer.synced()
    await harness.stop()
    await harness.server.remove(NODES, "n2")
    await harness.server.remove(NODES, "n3")
    await harness.server.put(NODES, "n3")
    await harness.server.compact()
    await harness.start()
    await mirror.until(state(harness.server, NODES))
    assert informer.lists == 2
    assert informer.get("n2") is None
    # n3 was made again under its name: a delete and an add, not an update.
    assert [(old is None, new is None) for old, new in mirror.heard[3:]] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    await informer.stop()


async def test_a_server_whose_watches_all_expire_is_not_asked_in_a_tight_loop(harness, fault, caplog):
    class Clock(SystemClock):
        def __init__(self):
            self.pauses = []

        async def sleep(self, seconds):
            self.pauses.append(seconds)
            await asyncio.sleep(0)

    await harness.server.put(NODES, "n1")
    harness.server.faults += [fault(status=410, only=lambda r: "watch" in r.params) for _ in range(8)]
    clock = Clock()
    informer = Informer(harness.client(), Node, clock=clock)
    mirror = Mirror(informer)
    informer.start()
    await informer.synced()
    async with asyncio.timeout(60):
        while informer.lists < 9:  # noqa: ASYNC110 - lists that change nothing make no change to wait for
            await asyncio.sleep(0)
    assert len(clock.pauses) == 7
    assert clock.pauses[-1] > 5
    assert "every watch expires at once" in caplog.text
    await harness.server.put(NODES, "n2")
    await mirror.until(state(harness.server, NODES))
    await informer.stop()


async def test_bookmarks_move_the_version_so_that_resuming_is_cheap(harness, hurried):
    await harness.server.put(NODES, "n1")
    informer = Informer(harness.client(), Node, clock=hurried())
    mirror = Mirror(informer)
    informer.start()
    await informer.synced()
    for i in range(5):
        await harness.server.put(PODS, f"p{i}", "default")  # other kinds move the version on
    await harness.server.put(NODES, "n2")
    await mirror.until(state(harness.server, NODES))
    await harness.server.put(PODS, "p9", "default")
    await harness.server.bookmark()
    async with asyncio.timeout(60):
        while informer.events < 2:  # noqa: ASYNC110 - a bookmark makes no change that could be waited for
            await asyncio.sleep(0)
    await harness.server.compact()
    harness.server.cut()
    await harness.server.put(NODES, "n3")
    await mirror.until(state(harness.server, NODES))
    assert informer.lists == 1
    await informer.stop()


async def test_a_server_in_trouble_is_asked_again_and_complained_of_once(harness, hurried, fault, caplog):
    caplog.set_level(logging.INFO, "kubekit.kube")
    await harness.server.put(NODES, "n1")
    harness.server.faults += [fault(status=500, body=b"etcd is away") for _ in range(4)]
    harness.server.faults += [fault(drop="during"), fault(status=403)]
    informer = Informer(harness.client(), Node, clock=hurried())
    informer.start()
    async with asyncio.timeout(60):
        await informer.synced()
    assert len(informer) == 1
    assert sum("etcd is away" in r.message for r in caplog.records) == 1
    assert "watching again" in caplog.text
    assert informer.error == ""
    await informer.stop()


async def test_an_odd_object_hides_nothing_else(harness, hurried, caplog):
    await harness.server.put(NODES, "good")
    await harness.server.put(NODES, "odd", spec={"unschedulable": "maybe"})
    informer = Informer(harness.client(), Node, clock=hurried())
    mirror = Mirror(informer)
    informer.start()
    await informer.synced()
    assert set(mirror.state()) == {"good"}
    assert "malformed, treated as absent kind=Node name=odd" in caplog.text
    await harness.server.put(NODES, "odd", spec={"unschedulable": True})
    await mirror.until(state(harness.server, NODES))
    await harness.server.put(NODES, "odd", spec={"unschedulable": 7})
    await harness.server.put(NODES, "more")
    await mirror.until({k: v for k, v in state(harness.server, NODES).items() if k != "odd"})
    await informer.stop()


async def test_a_failing_handler_stops_nobody(harness, hurried, caplog):
    informer = Informer(harness.client(), Node, clock=hurried())
    informer.add_handler(lambda old, new: 1 / 0)
    mirror = Mirror(informer)
    await harness.server.put(NODES, "n1")
    informer.start()
    await mirror.until(state(harness.server, NODES))
    assert "handler failed" in caplog.text
    await informer.stop()


async def test_a_late_handler_hears_what_is_there(harness, hurried):
    await harness.server.put(NODES, "n1")
    informer = Informer(harness.client(), Node, clock=hurried())
    informer.start()
    await informer.synced()
    assert set(Mirror(informer).state()) == {"n1"}
    await informer.stop()


async def test_hopeless_credentials_end_it(harness, hurried):
    class NoAuth:
        async def credential(self, *, refused=False):
            raise ConfigError("cannot read the token", where="/token")

    client = harness.client()
    client._auth = NoAuth()
    informer = Informer(client, Node, clock=hurried())
    informer.start()
    with pytest.raises(ConfigError):
        await informer.synced()


HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdef")),
        st.tuples(st.just("remove"), st.sampled_from("abcdef")),
        st.tuples(
            st.sampled_from(["cut", "bookmark", "end", "compact", "bounce", "yield", "500", "429", "half"]), st.just("")
        ),
    ),
    min_size=3,
    max_size=30,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=HISTORY, after=HISTORY, in_stream=st.booleans(), wait=st.booleans())
def test_after_any_history_the_cache_equals_the_server(make_harness, hurried, fault, before, after, in_stream, wait):
    async def play(harness, history):
        server = harness.server
        store = server.objects.setdefault(NODES, {})
        for what, name in history:
            if what == "put":
                await server.put(NODES, name, metadata={"labels": {"colour": "red" if server.version % 2 else "blue"}})
            elif what == "remove" and name in store:
                await server.remove(NODES, name)
            elif what == "cut":
                server.cut()
            elif what == "bookmark":
                await server.bookmark()
            elif what == "end":
                await server.end_watches()
            elif what == "compact":
                await server.compact()
                server.cut()
            elif what == "bounce":
                await harness.stop()
                await harness.start()
            elif what == "yield":
                for _ in range(20):
                    await asyncio.sleep(0)
            elif what in ("500", "429"):
                body = json.dumps({"code": int(what), "message": "no"}).encode()
                server.faults.append(fault(status=int(what), headers={"Retry-After": "1"}, body=body))
            elif what == "half":
                server.faults.append(fault(drop="during"))

    async def run():
        harness = make_harness()
        harness.server.gone_in_stream = in_stream
        await harness.start()
        await play(harness, before)
        informer = Informer(harness.client(), Node, clock=hurried())
        informer.add_index("colour", lambda node: [node.metadata.labels["colour"]])
        mirror = Mirror(informer)
        informer.start()
        if wait:
            await informer.synced()
        await play(harness, after)
        await informer.synced()
        await mirror.until(state(harness.server, NODES))
        for colour in ("red", "blue"):
            scan = {key(n) for n in informer.items() if n.metadata.labels["colour"] == colour}
            assert {key(n) for n in informer.by_index("colour", colour)} == scan
        await informer.stop()
        await harness.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(("count", "frozen"), [(3, False), (1100, True)])
async def test_only_a_large_first_list_is_taken_out_of_garbage_collection(harness, hurried, count, frozen):
    for i in range(count):
        await harness.server.put(PODS, f"p{i}", "default")
    gc.unfreeze()
    informer = Informer(harness.client(), Pod, clock=hurried())
    informer.start()
    await informer.synced()
    assert gc.isenabled()
    assert (gc.get_freeze_count() > 0) is frozen
    gc.unfreeze()
    await informer.stop()
