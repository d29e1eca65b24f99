"""The use of GPUs from the meter: rates that add up, counters that begin again, GPUs that are held and idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.metering import GPUReading, Hold, Meter, MeterNames, NodeReading, PodContainer, families
from gpuplane.metering.use import IDLE_SECONDS, METRICS, WINDOW_SECONDS, GPUUse, MeteredGPU, UseWindow, read_lines
from kubekit.kube.exposition import exposition, metric_lines

GIB = 1 << 30
NAMES = MeterNames({"GPU-0": {"gpu": "0", "UUID": "GPU-0", "Hostname": "n1"}}, lambda who: {}, "n1")


def share(pod: str, used: float, part: float, memory: int) -> Hold:
    who = PodContainer("ml", pod, "main")
    return Hold(who=who, uuid="GPU-0", part=part, used_ns=round(used * 1e9), memory_bytes=memory)


class Node:
    """One GPU with a meter; each pod uses a rate of its time."""

    def __init__(self) -> None:
        self.meter, self.seconds, self.used = Meter(), 0, dict[str, float]()

    def work(self, seconds: int, **rates: float) -> dict[str, MeteredGPU]:
        """The exporter's lines after so many seconds more, in which each pod used that part of the GPU."""
        for _ in range(0, seconds, 10):
            self.seconds += 10
            for pod, rate in rates.items():
                self.used[pod] = self.used.get(pod, 0.0) + 10 * rate
            gpu = GPUReading(uuid="GPU-0", active=min(1.0, sum(rates.values())), memory_bytes=9 * GIB)
            holds = tuple(share(pod, self.used[pod], 0.4, 2 * GIB) for pod in rates)
            self.meter.read(NodeReading(at_ns=self.seconds * 10**9, gpus=(gpu,), holds=holds))
        text = exposition(families(self.meter.totals, NAMES)).decode()
        return read_lines(metric_lines(text, METRICS))

    def restarted(self) -> None:
        self.meter = Meter()


def test_a_pods_use_is_its_own_and_all_of_it_is_the_gpus() -> None:
    node, window = Node(), UseWindow()
    first = window.take(node.work(20, a=0.3, b=0.2))["GPU-0"]
    assert (first.busy_percent, first.pods) == (None, {})
    found = window.take(node.work(100, a=0.3, b=0.2))["GPU-0"]
    assert (found.node, found.index) == ("n1", 0)
    assert found.busy_percent == pytest.approx(50)
    assert {pod: one.core for pod, one in found.pods.items()} == pytest.approx({"ml/a": 30, "ml/b": 20})
    assert {pod: one.memory_mib for pod, one in found.pods.items()} == pytest.approx({"ml/a": 2048, "ml/b": 2048})


def test_the_window_forgets_what_is_older() -> None:
    node, window = Node(), UseWindow()
    window.take(node.work(20, a=1.0))
    for _ in range(20):
        window.take(node.work(60, a=1.0))
    for _ in range(int(WINDOW_SECONDS / 60)):
        found = window.take(node.work(60, a=0.1))["GPU-0"]
    assert found.busy_percent == pytest.approx(10)


def test_a_gpu_that_is_held_and_not_used_is_idle_after_a_while_and_no_more_once_it_is_used() -> None:
    node, window = Node(), UseWindow()
    window.take(node.work(20, a=0.0))
    assert not window.take(node.work(200, a=0.0))["GPU-0"].idle
    found = window.take(node.work(200, a=0.0))["GPU-0"]
    assert found.idle and found.idle_seconds == pytest.approx(400) and found.busy_percent == 0
    assert not window.take(node.work(60, a=0.5))["GPU-0"].idle
    assert window.take(node.work(60, a=0.0))["GPU-0"].idle_seconds == pytest.approx(60)


def test_a_free_gpu_is_not_idle() -> None:
    node, window = Node(), UseWindow()
    window.take(node.work(20))
    assert window.take(node.work(2 * int(IDLE_SECONDS)))["GPU-0"].idle_seconds == 0


def test_a_counter_that_begins_again_gives_no_rate_and_nothing_is_counted_twice() -> None:
    node, window = Node(), UseWindow()
    window.take(node.work(20, a=0.5))
    window.take(node.work(100, a=0.5))
    node.restarted()
    again = window.take(node.work(40, a=0.5))["GPU-0"]
    assert (again.busy_percent, again.pods) == (None, {})
    assert window.take(node.work(100, a=0.5))["GPU-0"].busy_percent == pytest.approx(50)


def test_the_same_reading_twice_changes_nothing() -> None:
    node, window = Node(), UseWindow()
    window.take(node.work(20, a=0.0))
    reading = node.work(400, a=0.0)
    assert window.take(reading) == window.take(reading)


def test_a_gpu_that_is_gone_is_forgotten() -> None:
    node, window = Node(), UseWindow()
    window.take(node.work(20, a=0.0))
    assert window.take({}) == {}
    assert window.take(node.work(400, a=0.0))["GPU-0"].idle_seconds == 0


def gauge(name: str, value: float, **labels: str) -> tuple[str, dict[str, str], float]:
    return name, {"gpu": "1", "UUID": "GPU-1", "Hostname": "n", **labels}, value


def test_gauges_are_of_the_last_reading_and_no_number_is_left_out() -> None:
    lines = [
        gauge("DCGM_FI_DEV_GPU_UTIL", 49, pod="a"),
        gauge("DCGM_FI_DEV_GPU_UTIL", 49, pod="b"),
        gauge("DCGM_FI_DEV_POWER_USAGE", float("nan")),
        gauge("DCGM_FI_DEV_FB_USED", 7, GPU_I_ID="2"),
        gauge("DCGM_FI_DEV_GPU_TEMP", 62),
        ("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0", "UUID": ""}, 1.0),
        ("DCGM_FI_DEV_GPU_TEMP", {"gpu": "-", "UUID": "x"}, 1.0),
    ]
    found = UseWindow().take(read_lines(lines))
    assert found == {"GPU-1": GPUUse("n", 1, busy_percent=49, temperature_celsius=62)}


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 0.6), st.floats(0, 0.4), st.booleans()), max_size=8))
def test_pods_and_the_rest_add_up_to_the_gpu_however_it_is_read(steps: list[tuple[int, float, float, bool]]) -> None:
    node, window = Node(), UseWindow()
    for tens, a, b, restart in steps:
        if restart:
            node.restarted()
        found = window.take(node.work(10 * tens, a=a, b=b))["GPU-0"]
        if found.pods:
            assert found.busy_percent == pytest.approx(sum(one.core or 0.0 for one in found.pods.values()), abs=1.1)
        assert found.busy_percent is None or 0 <= found.busy_percent <= 100
        assert 0 <= found.idle_seconds <= node.seconds
