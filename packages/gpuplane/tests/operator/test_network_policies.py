"""The ports of gpuplane's pods that each namespace reaches, by the NetworkPolicies of the installation."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest

from gpuplane import names
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from gpuplane.operator.manifest import parse

Manifest = dict[str, Any]
INSTALLED = installation(autoscaler=AutoscalerInstall({"CLUSTER_NAME": "-"}), dashboard=())
TENANT = {"kubernetes.io/metadata.name": "ml"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
LABELLED = {"kubernetes.io/metadata.name": "prom", names.METRICS_LABEL: "true"}
METRICS = {("gpu-operator", 8080), ("gpuplane-autoscaler", 8080), ("nvidia-dcgm-exporter", 9400)}
METRICS |= {("nvidia-dcgm-exporter-privileged", 9400), ("nvidia-device-plugin-daemonset", 5678)}
AUTHENTICATED = {("gpuplane-scheduler", 3456), ("gpuplane-admission", 8443), ("gpuplane-dashboard", 8443)}


def templates() -> list[Manifest]:
    """The pod templates of everything that is installed, and of all operands."""
    folder = resources.files("gpuplane.operator").joinpath("operands")
    operands = [one for entry in folder.iterdir() if entry.is_file() for one in parse(entry.read_text())]
    return [
        one["spec"]["template"] for one in (*INSTALLED, *operands) if one.get("kind") in ("Deployment", "DaemonSet")
    ]


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert {one["operator"] for one in expressions} <= {"In"}
    named = all(labels.get(one["key"]) in one["values"] for one in expressions)
    return named and selector.get("matchLabels", {}).items() <= labels.items()


def reached(labels: dict[str, str], port: int, namespace: dict[str, str]) -> bool:
    """Return whether pods of a namespace reach the port of a pod with these labels, as Kubernetes defines it."""
    policies = [one["spec"] for one in INSTALLED if one["kind"] == "NetworkPolicy"]
    chosen = [spec for spec in policies if selects(spec["podSelector"], labels)]
    rules = [rule for spec in chosen for rule in spec.get("ingress", ())]
    return not chosen or any(
        any(each["port"] == port for each in rule["ports"])
        and ("from" not in rule or any(selects(peer["namespaceSelector"], namespace) for peer in rule["from"]))
        for rule in rules
    )


def servers() -> set[tuple[str, int]]:
    return {
        (template["metadata"]["labels"]["app.kubernetes.io/name"], port["containerPort"])
        for template in templates()
        for container in template["spec"]["containers"]
        for port in container.get("ports", ())
    }


@pytest.mark.parametrize(
    ("namespace", "wanted"),
    [(TENANT, AUTHENTICATED), (MONITORING, METRICS), (LABELLED, METRICS)],
    ids=["tenant", "monitoring", "labelled"],
)
def test_a_namespace_reaches_what_is_for_it(namespace: dict[str, str], wanted: set[tuple[str, int]]) -> None:
    assert servers() == METRICS | AUTHENTICATED, "a new server needs a rule"
    found = {
        (labels["app.kubernetes.io/name"], port)
        for template in templates()
        for labels in (template["metadata"]["labels"],)
        for port in (22, 3456, 5678, 8080, 8443, 9400)
        if reached(labels, port, namespace)
    }
    served = {place for place in found if place in servers()}
    assert served == wanted | AUTHENTICATED
    assert 22 not in {port for _, port in found}, "no port that is not named"


def test_no_pod_of_ours_is_in_the_network_of_its_host() -> None:
    """The policies of a cluster's network do not reach such a pod."""
    assert not [template for template in templates() if template["spec"].get("hostNetwork")]
