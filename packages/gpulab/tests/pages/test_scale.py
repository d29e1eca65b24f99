"""The page about scaling by GPU use: its autoscaler does what the page says, its rule names what is exported."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml

from tinykube.controllers.autoscaling.behavior import History
from tinykube.controllers.autoscaling.decide import autoscale
from tinykube.controllers.autoscaling.metrics import MetricValues, ScaledPods
from tinykube.controllers.autoscaling.replicas import PodSample

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "tasks/scale.md").read_text()


def blocks() -> list[Any]:
    return [yaml.safe_load(dedent(text)) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def test_the_autoscaler_adds_pods_above_its_target() -> None:
    spec = blocks()[1]["spec"]
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    pods = [{"metadata": {"name": name}, "spec": {}, "status": status} for name in "ab"]
    for used, replicas in ((950, 3), (700, None), (200, 1)):
        samples = {name: PodSample(used) for name in "ab"}
        step = autoscale(spec, ScaledPods(pods, 2, 2, "default"), [MetricValues(samples=samples)], History(), 1000.0)
        proposed = step.history.recommended[-1].number
        assert (step.replicas, proposed) == (None if used < 700 else replicas, replicas or 2)


def test_the_rule_asks_for_a_metric_of_the_exporter_by_its_labels() -> None:
    (rule,) = blocks()[0]["rules"]["custom"]
    name, labels = re.fullmatch(r"(\w+)\{(.*)\}", rule["seriesQuery"]).groups()  # type: ignore[union-attr]
    reference = (DOCS / "reference/metrics.md").read_text()
    assert f"`{name}` | counter" in reference
    assert set(re.findall(r"(\w+)!=", labels)) == set(rule["resources"]["overrides"]) == {"namespace", "pod"}
    assert blocks()[1]["spec"]["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
