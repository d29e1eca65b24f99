"""The scheduler on the real registry: what it binds, what it says, and what wakes it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.until import until
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.subresources import bind as post
from tinykube.apiserver.writes import BY_SYSTEM
from tinykube.scheduler import Scheduler, SchedulerConfig
from tinykube.scheduler.config import ExtenderConfig, ManagedResource

GPU = "nvidia.com/gpu"


class Board:
    """A registry with a scheduler on it."""

    def __init__(self, objects):
        self.registry = Registry()
        self.objects = objects

    async def node(self, name, **fields):
        return await self.registry.create("nodes", None, self.objects.node(name, **fields))

    async def pod(self, name, **fields):
        body = self.objects.pod(name, **fields)
        del body["metadata"]["uid"]
        return await self.registry.create("pods", "default", body)

    def get(self, name):
        return self.registry.get("pods", "default", name)

    def node_of(self, name):
        pod = self.get(name)
        return None if pod is None else pod["spec"].get("nodeName")

    def condition(self, name):
        found = (self.get(name).get("status") or {}).get("conditions") or []
        return next((c for c in found if c["type"] == "PodScheduled"), None)

    def events(self, reason):
        return [event for event in self.registry.list("events") if event["reason"] == reason]

    async def until(self, answer):
        """Waits until `answer()` is true."""
        return await until(answer, poll=0.001)


@pytest.fixture
async def start(objects):
    """Starts a scheduler on a new board."""
    running = []

    async def begin(config=None):
        board = Board(objects)
        running.append(asyncio.create_task(Scheduler(board.registry, config).run()))
        await asyncio.sleep(0)
        return board

    yield begin
    for task in running:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_pod_is_bound_and_that_is_told(start):
    board = await start()
    await board.node("a")
    await board.pod("p")
    assert await board.until(lambda: board.node_of("p")) == "a"
    assert board.condition("p")["status"] == "True"
    event = (await board.until(lambda: board.events("Scheduled")))[0]
    assert event["message"] == "Successfully assigned default/p to a"
    assert event["reportingComponent"] == "default-scheduler"


async def test_a_pod_that_fits_nowhere_is_told_why_and_bound_once_it_fits(start):
    board = await start()
    await board.node("a")
    await board.pod("p", requests={GPU: "1"})
    condition = await board.until(lambda: board.condition("p"))
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    expected = (
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, "
        "preemption: 0/1 nodes are "
        "available: 1 Preemption is not helpful for scheduling."
    )
    assert condition["message"] == expected
    event = (await board.until(lambda: board.events("FailedScheduling")))[0]
    assert (event["type"], event["message"]) == ("Warning", expected)
    patch = {"status": {"allocatable": {GPU: "1"}}}
    await board.registry.patch("nodes", None, "a", patch, "merge", subresource="status")
    assert await board.until(lambda: board.node_of("p")) == "a"


async def test_a_pod_waits_for_its_claim_and_goes_where_the_volume_is(start):
    board = await start()
    await board.node("a")
    await board.node("b")
    await board.pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    condition = await board.until(lambda: board.condition("p"))
    assert condition["message"] == '0/2 nodes are available: persistentvolumeclaim "data" not found. not found'
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    size = {"storage": "1Gi"}
    disk = {
        "capacity": size,
        "accessModes": ["ReadWriteOnce"],
        "nodeAffinity": affinity,
        "nfs": {"server": "s", "path": "/"},
    }
    await board.registry.create("persistentvolumes", None, {"metadata": {"name": "disk"}, "spec": disk})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": size}, "volumeName": "disk"}
    metadata = {"name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    await board.registry.create("persistentvolumeclaims", "default", {"metadata": metadata, "spec": claim})
    assert await board.until(lambda: board.node_of("p")) == "b"


async def test_an_unchanged_verdict_is_not_written_again(start):
    board = await start()
    await board.node("a")
    await board.pod("p", requests={GPU: "1"})
    await board.until(lambda: board.condition("p"))
    version = board.get("p")["metadata"]["resourceVersion"]
    await board.node("b", unschedulable=True, allocatable={GPU: "0"})
    await board.until(lambda: "0/2 nodes" in board.condition("p")["message"])
    assert board.get("p")["metadata"]["resourceVersion"] != version
    again = board.get("p")["metadata"]["resourceVersion"]
    heartbeat = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await board.registry.patch("nodes", None, "a", heartbeat, "merge", subresource="status")
    await asyncio.sleep(0.02)
    assert board.get("p")["metadata"]["resourceVersion"] == again


async def test_the_room_of_a_deleted_pod_is_given_to_the_next(start):
    board = await start()
    await board.node("a", allocatable={GPU: "1"})
    await board.pod("first", requests={GPU: "1"})
    await board.until(lambda: board.node_of("first"))
    await board.pod("second", requests={GPU: "1"})
    await board.until(lambda: board.condition("second"))
    await board.registry.delete("pods", "default", "first", grace=0)
    assert await board.until(lambda: board.node_of("second")) == "a"


async def test_a_finished_pod_holds_nothing(start):
    board = await start()
    await board.node("a", allocatable={GPU: "1"})
    await board.pod("first", requests={GPU: "1"})
    await board.until(lambda: board.node_of("first"))
    patch = {"status": {"phase": "Succeeded"}}
    await board.registry.patch("pods", "default", "first", patch, "merge", subresource="status")
    await board.pod("second", requests={GPU: "1"})
    assert await board.until(lambda: board.node_of("second")) == "a"


async def test_a_more_important_pod_takes_the_place_of_a_less_important_one(start):
    board = await start()
    await board.node("a", allocatable={GPU: "1"})
    await board.pod("low", requests={GPU: "1"}, priority=1)
    await board.until(lambda: board.node_of("low"))
    await board.pod("high", requests={GPU: "1"}, priority=100)
    await board.until(lambda: "deletionTimestamp" in board.get("low")["metadata"])
    assert board.get("high")["status"]["nominatedNodeName"] == "a"
    assert await board.until(lambda: board.events("Preempted"))
    reasons = [c["reason"] for c in board.get("low")["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert reasons == ["PreemptionByScheduler"]
    await board.pod("equal", requests={GPU: "1"}, priority=100)
    await board.registry.delete("pods", "default", "low", grace=0)
    assert await board.until(lambda: board.node_of("high")) == "a"
    assert board.node_of("equal") is None


async def test_gates_and_other_schedulers_are_respected(start):
    board = await start()
    await board.node("a")
    await board.pod("gated", schedulingGates=[{"name": "quota"}])
    await board.pod("others", schedulerName="mine")
    await board.pod("plain")
    await board.until(lambda: board.node_of("plain"))
    assert (board.node_of("gated"), board.node_of("others")) == (None, None)
    patch = [{"op": "remove", "path": "/spec/schedulingGates"}]
    await board.registry.patch("pods", "default", "gated", patch, "json")
    assert await board.until(lambda: board.node_of("gated")) == "a"


async def test_what_is_there_at_the_start_is_scheduled_and_counted(objects):
    board = Board(objects)
    await board.node("a", allocatable={GPU: "2"})
    await board.pod("bound", requests={GPU: "1"}, nodeName="a")
    await board.pod("one", requests={GPU: "1"})
    await board.pod("two", requests={GPU: "1"})
    task = asyncio.create_task(Scheduler(board.registry).run())
    await board.until(lambda: board.node_of("one") or board.node_of("two"))
    await board.until(lambda: board.events("FailedScheduling"))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [board.node_of("one"), board.node_of("two")].count("a") == 1


async def test_pods_spread_over_equal_nodes(start):
    board = await start()
    for name in "abcd":
        await board.node(name)
    for index in range(8):
        await board.pod(f"p{index}", requests={"cpu": "500m", "memory": "256Mi"})
    await board.until(lambda: all(board.node_of(f"p{i}") for i in range(8)))
    counts = [sum(board.node_of(f"p{i}") == name for i in range(8)) for name in "abcd"]
    assert counts == [2, 2, 2, 2]


# -- extenders ---------------------------------------------------------------------------------------------------------
class ExtenderServer:
    """An extender that returns the answers of the test and records its requests."""

    def __init__(self):
        self.asked = []
        self.answers = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                verb = self.path.rsplit("/", 1)[-1]
                outer.asked.append((verb, body))
                answer = json.dumps(outer.answers[verb](body)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.block_on_close = False  # the scheduler keeps its connection
        self.url = f"http://127.0.0.1:{self.server.server_port}/scheduler"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def extender():
    server = ExtenderServer()
    yield server
    server.close()


def managed(extender, **fields):
    resource = ManagedResource(name="tencent.com/vcuda-core", ignored_by_scheduler=True)
    config = ExtenderConfig(
        url_prefix=extender if isinstance(extender, str) else extender.url,
        node_cache_capable=True,
        managed_resources=(resource,),
        **fields,
    )
    return SchedulerConfig(extenders=(config,))


SHARE = {"tencent.com/vcuda-core": "30"}


async def test_an_extender_filters_scores_and_binds_the_pods_it_manages(start, extender):
    board = await start(managed(extender, filter_verb="filter", prioritize_verb="prioritize", bind_verb="bind"))
    for name in "abc":
        await board.node(name)
    loop = asyncio.get_running_loop()

    def bind(body):
        binding = {"metadata": {"annotations": {"placed": "yes"}}, "target": {"name": body["Node"]}}

        async def write():
            await post(board.registry, body["PodNamespace"], body["PodName"], binding, BY_SYSTEM)

        asyncio.run_coroutine_threadsafe(write(), loop).result(5)
        return {}

    extender.answers = {
        "filter": lambda body: {"NodeNames": ["b", "c"], "FailedNodes": {"a": "no GPU has 30% core"}},
        "prioritize": lambda body: [{"Host": "b", "Score": 1}, {"Host": "c", "Score": 10}],
        "bind": bind,
    }
    await board.pod("p", requests=SHARE)
    assert await board.until(lambda: board.node_of("p")) == "c"
    assert board.get("p")["metadata"]["annotations"]["placed"] == "yes"
    await board.until(lambda: board.events("Scheduled"))
    first = extender.asked[0][1]
    assert first["Nodes"] is None
    assert sorted(first["NodeNames"]) == ["a", "b", "c"]
    assert first["Pod"]["metadata"]["name"] == "p"


async def test_pods_without_a_managed_resource_never_come_to_the_extender(start, extender):
    board = await start(managed(extender, filter_verb="filter"))
    await board.node("a")
    await board.pod("plain")
    assert await board.until(lambda: board.node_of("plain")) == "a"
    assert extender.asked == []


async def test_the_extenders_reasons_are_counted_and_any_touch_of_a_node_asks_it_again(start, extender):
    board = await start(managed(extender, filter_verb="filter"))
    await board.node("a")
    refusal = {"NodeNames": [], "FailedNodes": {"a": "core short"}}
    extender.answers["filter"] = lambda body: refusal
    await board.pod("p", requests=SHARE)
    condition = await board.until(lambda: board.condition("p"))
    assert condition["message"].startswith("0/1 nodes are available: 1 core short.")
    extender.answers["filter"] = lambda body: {"NodeNames": ["a"]}
    await board.registry.patch("nodes", None, "a", {"metadata": {"annotations": {"touched": "1"}}}, "merge")
    assert await board.until(lambda: board.node_of("p")) == "a"


async def test_an_extender_has_a_say_in_preemption(start, extender):
    board = await start(managed(extender, filter_verb="filter", preempt_verb="preempt"))
    for name in "ab":
        await board.node(name, allocatable={GPU: "1"})
        await board.pod(f"low-{name}", requests={GPU: "1"}, priority=1, nodeSelector={"kubernetes.io/hostname": name})
        await board.until(lambda name=name: board.node_of(f"low-{name}"))
    extender.answers["filter"] = lambda body: {"NodeNames": body["NodeNames"]}
    extender.answers["preempt"] = lambda body: {
        "NodeNameToMetaVictims": {"b": {"Pods": body["NodeNameToMetaVictims"]["b"]["Pods"], "NumPDBViolations": 0}}
    }
    await board.pod("high", requests={GPU: "1", **SHARE}, priority=100)
    await board.until(lambda: "deletionTimestamp" in board.get("low-b")["metadata"])
    assert "deletionTimestamp" not in board.get("low-a")["metadata"]
    await board.until(lambda: board.get("high")["status"].get("nominatedNodeName") == "b")


async def test_an_extender_that_is_down_is_told_and_one_that_is_ignorable_is_left_out(start):
    board = await start(managed("http://127.0.0.1:9/scheduler", filter_verb="filter"))
    await board.node("a")
    await board.pod("p", requests=SHARE)
    event = (await board.until(lambda: board.events("FailedScheduling")))[0]
    assert 'Post "http://127.0.0.1:9/scheduler/filter"' in event["message"]
    assert "connection refused" in event["message"]
    board = await start(managed("http://127.0.0.1:9/scheduler", filter_verb="filter", ignorable=True))
    await board.node("a")
    await board.pod("p", requests=SHARE)
    assert await board.until(lambda: board.node_of("p")) == "a"


async def test_a_still_more_important_pod_takes_the_promised_room(start):
    board = await start()
    await board.node("a", allocatable={GPU: "1"})
    await board.pod("low", requests={GPU: "1"}, priority=1)
    await board.until(lambda: board.node_of("low"))
    await board.pod("high", requests={GPU: "1"}, priority=100)
    await board.until(lambda: board.get("high").get("status", {}).get("nominatedNodeName") == "a")
    await board.pod("higher", requests={GPU: "1"}, priority=200)
    await board.until(lambda: board.get("higher").get("status", {}).get("nominatedNodeName") == "a")
    await board.until(lambda: not board.get("high")["status"].get("nominatedNodeName"))
    await board.registry.delete("pods", "default", "low", grace=0)
    assert await board.until(lambda: board.node_of("higher")) == "a"
    assert board.node_of("high") is None
