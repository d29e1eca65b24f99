"""Which specs the suite is asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.__main__ import main
from tests.e2e.suite import ALL_AREAS, ALONE, Choice, arguments, exactly

ENVIRONMENT = "[sig-node] ConfigMap should be consumable via the environment [NodeConformance] [Conformance]"
WEBHOOK = "[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate configmap [Conformance]"
SERVICE = "[sig-network] Services should provide secure master service [Conformance]"
VOLUME = "[sig-storage] EmptyDir volumes pod should support shared volumes between containers [Conformance]"


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


def test_network_and_storage_are_run_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (SERVICE, VOLUME):
        assert not matches(Choice(), name)
        assert matches(Choice(areas=ALL_AREAS), name)
    for words, code in ((["--area", "network", "--area", "storage"], 0), (["--area", "windows"], 2)):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == code
    assert "'windows'" in capsys.readouterr().err


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
