"""The use between two scrapes, by the rules of metrics-server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.formats import go_duration
from kubekit.api.quantity import parse_quantity
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, exposition, series
from tinykube.metrics.points import (
    MetricPoint,
    NextScrape,
    NodeScrape,
    next_scrape,
    node_use,
    parse_scrape,
    pod_use,
    window_text,
)

NOW = 1_800_000_000.0
TEXT = """
# HELP container_cpu_usage_seconds_total x
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="n",pod="p"} 4.5 1799999999500
container_cpu_usage_seconds_total{container="d",namespace="n",pod="p"} 4.5 1799999999500
container_memory_working_set_bytes{container="c",namespace="n",pod="p"} 1.048576e+06 1799999999500
container_start_time_seconds{container="c",namespace="n",pod="p"} 1.7999e+09
node_cpu_usage_seconds_total 100 1799999999500
node_memory_working_set_bytes 2097152 1799999999500
other_metric{x="}"} nonsense
"""


def test_a_scrape_is_read() -> None:
    point = MetricPoint(NOW - 0.5, 4.5, 1 << 20, 1.7999e9)
    node = MetricPoint(NOW - 0.5, 100.0, 2 << 20)
    assert parse_scrape(TEXT, NOW) == NodeScrape(NOW - 0.5, node, {("n", "p", "c"): point})


def test_a_value_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse_scrape("node_cpu_usage_seconds_total x\n", NOW)


def scrape(time: float, node: float = 0.0, **cpu: float) -> NodeScrape:
    containers = {("n", "p", name): MetricPoint(time, value, 1 << 20, NOW - 30) for name, value in cpu.items()}
    return NodeScrape(time, MetricPoint(time, node, 5 << 20), containers)


def test_the_use_of_a_pod_and_of_a_node() -> None:
    last, earlier = scrape(NOW, 10.0, c=3.0), scrape(NOW - 15, 4.0, c=1.5)
    use = pod_use(last, earlier, "n", "p")["c"]
    assert (use.time, use.window, use.cpu) == (NOW, 15.0, 0.1)
    assert use.quantities() == {"cpu": "100m", "memory": "1Mi"}
    found = node_use(last, earlier)
    assert found is not None
    assert found.quantities() == {"cpu": "400m", "memory": "5Mi"}
    assert pod_use(last, earlier, "n", "other") == {}


def test_a_container_that_is_new_counts_from_its_start() -> None:
    use = pod_use(scrape(NOW, c=3.0), scrape(NOW - 15), "n", "p")["c"]
    assert (use.window, use.cpu) == (30.0, 0.1)


def test_a_container_that_is_young_leaves_its_pod_without_values() -> None:
    last, earlier = scrape(NOW, c=3.0, d=1.0), scrape(NOW - 15, c=1.0, d=0.0)
    young = MetricPoint(NOW, 1.0, 1, NOW - 9)
    assert pod_use(NodeScrape(NOW, None, {**last.containers, ("n", "p", "d"): young}), earlier, "n", "p") == {}
    assert set(pod_use(last, earlier, "n", "p")) == {"c", "d"}


def test_a_counter_that_begins_again_has_no_use() -> None:
    assert node_use(scrape(NOW, 1.0), scrape(NOW - 15, 4.0)) is None
    assert pod_use(scrape(NOW, c=1.0), scrape(NOW - 15, c=2.0), "n", "p") == {}
    assert node_use(NodeScrape(NOW, None, {}), scrape(NOW - 15)) is None


@pytest.mark.parametrize(
    ("age", "earlier", "wanted"),
    [
        (None, False, NextScrape.TWO),
        (14.9, True, NextScrape.NONE),
        (14.9, False, NextScrape.SECOND),
        (15.0, True, NextScrape.ONE),
        (15.0, False, NextScrape.ONE),
        (60.0, True, NextScrape.ONE),
        (60.1, True, NextScrape.TWO),
    ],
)
def test_what_is_scraped_before_an_answer(age: float | None, earlier: bool, wanted: NextScrape) -> None:
    last = None if age is None else scrape(NOW - age)
    assert next_scrape(NOW, last, scrape(NOW - 99) if earlier else None) is wanted


@given(st.floats(0.001, 7200))
def test_a_window_is_a_duration_of_go(seconds: float) -> None:
    assert go_duration(window_text(seconds)).total_seconds() == pytest.approx(seconds, abs=0.0006)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"), max_size=5)


@given(st.dictionaries(st.tuples(NAMES, NAMES, NAMES), st.tuples(st.floats(0, 1e9), st.integers(0, 2**50))))
def test_what_a_kubelet_writes_is_read_again(values: dict[tuple[str, str, str], tuple[float, int]]) -> None:
    labels = {key: series(dict(zip(("namespace", "pod", "container"), key, strict=True))) for key in values}
    cpu = Metric("container_cpu_usage_seconds_total", MetricType.COUNTER, "x")
    memory = Metric("container_memory_working_set_bytes", MetricType.GAUGE, "x")
    text = exposition(
        [
            MetricFamily(cpu, [(labels[key], value[0]) for key, value in values.items()], at=int(NOW * 1000)),
            MetricFamily(memory, [(labels[key], value[1]) for key, value in values.items()], at=int(NOW * 1000)),
        ]
    ).decode()
    found = parse_scrape(text, 0.0).containers
    assert {key: (point.cpu, point.memory) for key, point in found.items()} == values
    assert all(point.time == NOW for point in found.values())


@given(st.floats(0, 1000), st.integers(0, 2**50))
def test_quantities_lose_less_than_a_billionth(cpu: float, memory: int) -> None:
    last = NodeScrape(NOW, MetricPoint(NOW, cpu, memory), {})
    use = node_use(last, NodeScrape(NOW - 1, MetricPoint(NOW - 1, 0.0, 0), {}))
    assert use is not None
    spelled = use.quantities()
    assert float(parse_quantity(spelled["cpu"])) == pytest.approx(cpu, abs=2e-9)
    assert parse_quantity(spelled["memory"]) == memory
