"""The measured use of a node: of real processes, and the two documents that a kubelet serves about it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.kube.exposition import metric_samples
from tests.support.until import until
from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.stats.processes import measure
from tinykube.kubelet.stats.usage import ProcessesUse
from tinykube.kubelet.stats.usage_meter import RunningContainer, UsageMeter

BURN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
NAMES = {
    f"{of}_{what}"
    for of in ("container", "pod", "node")
    for what in ("cpu_usage_seconds_total", "memory_working_set_bytes")
} | {"container_start_time_seconds", "resource_scrape_error", "scrape_error"}


async def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


@pytest.fixture
def parent() -> Any:
    """A process that runs the programs on its input, as a shim does: it waits for its children and adopts orphans."""
    lines = ["import subprocess, sys, ctypes", "ctypes.CDLL(None).prctl(36, 1)", "for line in sys.stdin:"]
    lines += ["    print(subprocess.run([sys.executable, '-c', eval(line)]).returncode, flush=True)"]
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()


def run(parent: Any, code: str) -> None:
    parent.stdin.write(repr(code) + "\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == "0\n"


def test_the_time_of_ended_processes_counts(parent: Any) -> None:
    before = measure({"c": parent.pid}, {}, [])[0]["c"]
    run(parent, BURN.format(seconds=0.2))
    after = measure({"c": parent.pid}, {}, [])[0]["c"]
    assert 0.2 <= (after.cpu_ns - before.cpu_ns) / 1e9 < 2.0
    assert after.processes == 0  # the parent, like a shim, does not belong to the container


def test_a_process_is_measured_while_it_runs() -> None:
    code = "x = bytearray(50 << 20); import sys; print('up', flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        found, own = measure({"c": process.pid}, {}, [process.pid])
        assert found["c"].processes == 1
        assert found["c"].rss >= found["c"].working_set > 50 << 20
        assert own.processes == 1
        process.communicate(b"")
    assert measure({"c": process.pid}, {}, [process.pid]) == ({"c": ProcessesUse()}, ProcessesUse())


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({"memory.current": "3000\n", "memory.stat": "anon 1\ninactive_file 1000\n"}, 2000),
        ({"memory.usage_in_bytes": "3000\n", "memory.stat": "cache 1\ntotal_inactive_file 500\n"}, 2500),
        ({"memory.current": "30\n", "memory.stat": "inactive_file 1000\n"}, 0),
        ({}, 0),  # none: of /proc, where this container has no process
    ],
)
def test_memory_is_that_of_the_control_group_where_there_is_one(tmp_path: Any, files: Any, memory: int) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found, _ = measure({"c": 2**22 + 1}, {"c": {"memory": str(tmp_path)}}, [])
    assert found["c"].working_set == memory


@pytest.mark.parametrize(
    ("files", "nanoseconds"),
    [({"cpuacct.usage": "12345\n"}, 12345), ({"cpu.stat": "usage_usec 12\nuser_usec 1\n"}, 12000), ({}, 0)],
)
def test_cpu_is_that_of_the_control_group_where_there_is_one(tmp_path: Any, files: Any, nanoseconds: int) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert measure({"c": 2**22 + 1}, {"c": {"cpu": str(tmp_path)}}, [])[0]["c"].cpu_ns == nanoseconds


STEPS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10**10)), st.floats(0.1, 300)), min_size=1
)


@given(STEPS)
def test_the_counters_of_a_node_and_its_pods_never_shrink(steps: Any) -> None:
    meter, time, node, pods = UsageMeter("n", 1 << 30, 0.0), 1000.0, 0, dict[str, int]()
    for cpu, seconds in steps:
        time += seconds
        running = [
            RunningContainer(name, name, "default", "p" + "12"[name > "b"], "12"[name > "b"], 0.0, 0.0) for name in cpu
        ]
        usage = meter.usage(running, {name: ProcessesUse(cpu_ns=ns) for name, ns in cpu.items()}, ProcessesUse(), time)
        assert usage.use.cpu_ns >= node
        assert usage.use.cpu_ns >= sum(pod.use.cpu_ns for pod in usage.pods)
        now = {pod.uid: pod.use.cpu_ns for pod in usage.pods}
        assert all(now[uid] >= pods[uid] for uid in now if uid in pods)
        assert all(rate >= 0 for rate in [pod.cpu_rate for pod in usage.pods] if rate is not None)
        node, pods = usage.use.cpu_ns, now


def test_a_rate_is_that_since_an_earlier_measurement() -> None:
    meter = UsageMeter("n", 1 << 30, 0.0)
    one = [RunningContainer("a", "c", "default", "p", "1", 0.0, 0.0)]

    def at(time: float, ns: int) -> Any:
        return meter.usage(one, {"a": ProcessesUse(cpu_ns=ns)}, ProcessesUse(), time).pods[0].containers[0].cpu_rate

    assert at(0.0, 0) is None
    assert at(0.5, 10**9) is None  # too short to say
    assert at(2.5, 5 * 10**9) == 2 * 10**9  # two cores since 0.5
    assert at(500.0, 6 * 10**9) is None  # too long ago


@given(st.floats(0.001, 0.5))
def test_however_often_a_kubelet_is_asked_it_has_rates_after_some_seconds(apart: float) -> None:
    meter = UsageMeter("n", 1 << 30, 0.0)
    times = [at * apart for at in range(int(3 / apart) + 1)]
    found = [meter.usage([], {}, ProcessesUse(cpu_ns=int(at * 5e8)), at).kubelet_rate for at in times]
    assert found[0] is None
    assert found[-1] == pytest.approx(5e8, rel=0.01)


@pytest.mark.parametrize("isolation", [None, Isolation.NONE], ids=["best", "none"])
async def test_a_kubelet_serves_what_its_containers_use(api: Any, make_node: Any, isolation: Any) -> None:
    node = await make_node(isolation=isolation)
    loop = {"name": "busy", "image": "busybox", "command": ["sh", "-c", "while :; do :; done"]}
    idle: dict[str, Any] = {"name": "idle", "image": "busybox", "command": ["sh", "-c", "sleep 1000"]}
    idle["resources"] = {"limits": {"memory": "1Gi"}}
    await api.create_pod(containers=[loop, idle])
    await api.phase("Running")
    address = node.kubelet.machine.host_ip, node.kubelet.port

    async def used() -> dict[tuple[str, str], float]:
        status, text = await get(address, "/metrics/resource")
        assert status == 200
        samples = list(metric_samples(text, NAMES))
        assert {one.name for one in samples} == NAMES
        assert {one.at is None for one in samples if one.name.endswith("error") or "start" in one.name} == {True}
        for one in samples:
            if one.name.startswith("container"):
                assert {**one.labels, "container": ""} == {"container": "", "namespace": "default", "pod": "one"}
        return {(one.name, one.labels.get("container", "")): one.value for one in samples}

    first = await used()

    async def has_burnt() -> bool:
        now = await used()
        cpu = "container_cpu_usage_seconds_total"
        assert now["node_cpu_usage_seconds_total", ""] >= now["pod_cpu_usage_seconds_total", ""]
        assert now[cpu, "idle"] < 1.0
        return now[cpu, "busy"] - first[cpu, "busy"] > 0.3

    await until(has_burnt)
    assert first["container_memory_working_set_bytes", "idle"] > 10_000

    async def has_rates() -> bool:
        status, text = await get(address, "/stats/summary")
        assert status == 200
        found = msgspec.json.decode(text)
        assert found["node"]["nodeName"] == node.kubelet.machine.node_name
        assert found["node"]["systemContainers"][0]["memory"]["workingSetBytes"] > 1 << 20
        assert found["node"]["fs"]["capacityBytes"] > 0
        (pod,) = found["pods"]
        assert pod["podRef"]["name"] == "one"
        containers = {one["name"]: one for one in pod["containers"]}
        assert containers["idle"]["memory"]["availableBytes"] > 1 << 29
        assert "availableBytes" not in containers["busy"]["memory"]
        return bool(containers["busy"]["cpu"].get("usageNanoCores", 0) > 10**7)

    await until(has_rates)
    brief = msgspec.json.decode((await get(address, "/stats/summary?only_cpu_and_memory=true"))[1])
    assert "fs" not in brief["node"]
