"""Monitoring in the chart, by a real helm: what `gpuplane install --monitoring` applies."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from gpuplane.operator.monitoring import KINDS
from packages.gpuplane.tests.kubernetes.chart_values import is_hook, place, policy, rendered

pytestmark = pytest.mark.usefixtures("with_helm")
SERVED = [word for kind in KINDS.values() for word in ("--api-versions", f"{kind.api_version}/{kind.kind}")]


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ("monitoring.enabled=true", {"monitoring": {}}),
        ("monitoring.enabled=true,monitoring.labels.release=prom", {"monitoring": {"release": "prom"}}),
        (
            "monitoring.enabled=true,scheduler.enabled=false,admission.enabled=false",
            {"monitoring": {}, "scheduler": False, "admission": ""},
        ),
        (
            "monitoring.enabled=true,dcgmExporter.serviceMonitor.enabled=false",
            {"monitoring": {}, "settings": ["dcgmExporter.serviceMonitor.enabled=false"]},
        ),
        (
            "monitoring.enabled=true,dcgmExporter.serviceMonitor.interval=30s,dcgmExporter.hostPID=true",
            {"monitoring": {}, "settings": ["dcgmExporter.serviceMonitor.interval=30s", "dcgmExporter.hostPID=true"]},
        ),
    ],
)
def test_it_renders_what_install_applies(settings: str, asked: dict[str, Any]) -> None:
    made = {place(one): one for one in rendered(*SERVED, "--set", settings) if not is_hook(one)}
    assert made == {place(one): one for one in installation(**asked)}


def test_the_autoscaler_is_monitored_where_it_is_installed() -> None:
    settings = "monitoring.enabled=true,autoscaler.enabled=true,autoscaler.clusterName=demo"
    made = {place(one): one for one in rendered(*SERVED, "--set", settings)}
    wanted = installation(monitoring={}, autoscaler=AutoscalerInstall({"CLUSTER_NAME": "demo"}))
    monitors = [one for one in wanted if (one["apiVersion"], one["kind"]) in KINDS or one["kind"] == "Service"]
    assert len(monitors) == 9
    assert [made[place(one)] for one in monitors] == monitors


def test_without_the_definitions_of_the_prometheus_operator_there_are_the_boards_alone() -> None:
    made = rendered("--set", "monitoring.enabled=true,monitoring.labels.release=prom")
    assert not [one for one in made if (one["apiVersion"], one["kind"]) in KINDS]
    assert sorted(one["metadata"]["name"] for one in made if one["kind"] == "ConfigMap") == [
        "gpuplane-board-gpus",
        "gpuplane-board-shares",
    ]
    # The operator looks for the definition itself, once a minute.
    assert policy(made)["dcgmExporter"]["serviceMonitor"]["enabled"] is True


def test_unless_it_is_asked_for_there_is_nothing_of_it() -> None:
    made = rendered(*SERVED)
    assert not [one for one in made if (one["apiVersion"], one["kind"]) in KINDS or one["kind"] == "ConfigMap"]
