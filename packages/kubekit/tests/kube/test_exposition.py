"""Metrics as text: what a parser of Prometheus' own client reads back is what was written."""

from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubekit.kube.exposition import (
    Metric,
    MetricFamily,
    MetricType,
    counter,
    exposition,
    extend,
    gauge,
    histogram_values,
    series,
)

Read = dict[tuple[str, frozenset[tuple[str, str]]], float]

names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\r{},= #'), max_size=12)
labels = st.dictionaries(names, texts, max_size=4)
numbers = st.integers(-(10**15), 10**15) | st.floats() | st.booleans()


def read(text: bytes) -> Read:
    """(name, labels) -> value of every line."""
    found: Read = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "each line once"
            found[key] = sample.value
    return found


def the_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@st.composite
def families(draw: st.DrawFn) -> tuple[list[MetricFamily], Read]:
    """Gauges of different names, and what a reader has to find."""
    made, expected = [], {}
    for name in draw(st.lists(names, max_size=4, unique=True)):
        rows = draw(st.lists(st.tuples(labels, numbers), max_size=4, unique_by=lambda row: frozenset(row[0].items())))
        about = draw(texts)
        made.append(MetricFamily(Metric(name, MetricType.GAUGE, about), [(series(row), value) for row, value in rows]))
        expected |= {(name, frozenset(row.items())): float(value) for row, value in rows}
    return made, expected


@given(families())
def test_a_parser_reads_back_what_was_written(given: tuple[list[MetricFamily], Read]) -> None:
    made, expected = given
    found = read(exposition(made))
    assert found.keys() == expected.keys()
    assert all(the_same(found[key], value) for key, value in expected.items())


@given(labels, labels)
def test_labels_may_be_added_to_a_series(some: dict[str, str], others: dict[str, str]) -> None:
    more = {name: value for name, value in others.items() if name not in some}
    assert extend(series(some), more) == series({**some, **more})
    assert extend(series(some, "_sum"), more) == series({**some, **more}, "_sum")


@given(texts.map(lambda text: f"A{text}."))  # blanks at the ends are what the parser drops
@example("a\\nb")
def test_help_is_one_line(about: str) -> None:
    text = exposition([gauge("a", about, 1)]).decode()
    first, second, third, end = text.split("\n")
    assert (second, third, end) == ("# TYPE a gauge", "a 1", "")
    [family] = text_string_to_metric_families(text)
    assert family.documentation == about
    assert first.startswith("# HELP a ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (True, "1"),
        (2.0, "2"),
        (0.1, "0.1"),
        (12345678.5, "12345678.5"),
        (1e22, "1e+22"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_a_value_is_written_as_short_as_it_reads_back_equal(value: float, text: str) -> None:
    assert exposition([counter("a_total", "A.", value)]).decode().splitlines()[-1] == f"a_total {text}"


def test_decimals_are_kept_where_a_metric_wants_them() -> None:
    metric = Metric("a", MetricType.GAUGE, "A.", decimals=6)
    text = exposition([MetricFamily(metric, [(series({"of": "float"}), 26.5), (series({"of": "int"}), 26)])])
    assert text.decode().splitlines()[2:] == ['a{of="float"} 26.500000', 'a{of="int"} 26']


def test_a_histogram_counts_up_to_infinity() -> None:
    metric = Metric("took_seconds", MetricType.HISTOGRAM, "Time.")
    values = list(histogram_values({"verb": "bind"}, (0.5, 1.0), (3, 0, 2), 7.25))
    found = read(exposition([MetricFamily(metric, values)]))
    verb = ("verb", "bind")
    assert found == {
        ("took_seconds_bucket", frozenset({verb, ("le", "0.5")})): 3,
        ("took_seconds_bucket", frozenset({verb, ("le", "1.0")})): 3,
        ("took_seconds_bucket", frozenset({verb, ("le", "+Inf")})): 5,
        ("took_seconds_sum", frozenset({verb})): 7.25,
        ("took_seconds_count", frozenset({verb})): 5,
    }


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ä", 'a"'])
def test_names_that_prometheus_does_not_accept_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a metric"):
        gauge(name, "A.", 1)
    with pytest.raises(ValueError, match="not the name of a label"):
        series({name: "x"})


def test_a_metric_comes_once() -> None:
    with pytest.raises(ValueError, match="metric a comes twice"):
        exposition([gauge("a", "A.", 1), gauge("b", "B.", 1), gauge("a", "A.", 1)])


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here (Debian: apt-get install prometheus)")
def test_promtool_reads_every_kind_of_line() -> None:
    histogram = Metric("took_seconds", MetricType.HISTOGRAM, "Time.")
    odd = Metric("odd", MetricType.GAUGE, "A\nB\\.")
    values = [(series({"a": text}), number) for text, number in (('"\\\n\r', math.inf), ("{}=,", math.nan), ("", 1e22))]
    text = exposition(
        [MetricFamily(histogram, list(histogram_values({}, (1,), (1, 2), 3.0))), MetricFamily(odd, values)]
    )
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
