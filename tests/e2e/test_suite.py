"""Which specs the suite is asked for."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.suite import ALONE, Choice, arguments, exactly

ENVIRONMENT = "[sig-node] ConfigMap should be consumable via the environment [NodeConformance] [Conformance]"
WEBHOOK = "[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate configmap [Conformance]"


def matches(choice: Choice, name: str) -> bool:
    """Return whether ginkgo runs the spec: it looks for patterns in a name behind that of the suite."""
    text = f"Kubernetes e2e suite {name}"
    values = dict(word.removeprefix("--").split("=", 1) for word in words_for(choice) if "=" in word)
    skipped = "skip" in values and re.search(values["skip"], text)
    return bool(re.search(values["focus"], text)) and not skipped


def words_for(choice: Choice) -> list[str]:
    return arguments(choice, Path("/home/kubeconfig"), Path("/reports/report.json"))


def test_areas_choose() -> None:
    assert matches(Choice(areas=("node",)), ENVIRONMENT)
    assert not matches(Choice(areas=("api-machinery",)), ENVIRONMENT)


def test_patterns_choose_within_the_areas() -> None:
    assert matches(Choice(only=("AdmissionWebhook",)), WEBHOOK)
    assert not matches(Choice(only=("AdmissionWebhook",)), ENVIRONMENT)
    assert not matches(Choice(areas=("node",), only=("AdmissionWebhook",)), WEBHOOK)
    assert not matches(Choice(without=("AdmissionWebhook",)), WEBHOOK)


def test_a_name_chooses_itself_only() -> None:
    choice = Choice(only=(exactly(ENVIRONMENT), exactly(WEBHOOK)))
    assert matches(choice, ENVIRONMENT) and matches(choice, WEBHOOK)
    assert not matches(choice, ENVIRONMENT + " [Serial]")
    assert not matches(Choice(without=(exactly(ENVIRONMENT),)), ENVIRONMENT)


def test_labels_time_and_the_report_are_passed_on() -> None:
    words = words_for(Choice(labels=ALONE, processes=3, seconds=90.0))
    assert {"--label-filter=Conformance && (Serial || Disruptive)", "--procs=3", "--timeout=90s"} <= set(words)
    assert {"--output-dir=/reports", "--json-report=report.json", "--kubeconfig=/home/kubeconfig"} <= set(words)
