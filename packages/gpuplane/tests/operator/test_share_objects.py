"""The Service and the ServiceMonitor by which Prometheus finds the metrics of shares."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.device_plugin.shares.node import PORT
from gpuplane.operator.exporter_objects import wants_monitor
from gpuplane.operator.operands import manifests
from tests.support.until import until

NAME = "nvidia-device-plugin-shares"


def made(*, shared: bool = True, **spec: Any) -> dict[str, dict[str, Any]]:
    """Kind -> manifest, of the objects for shares."""
    policy = msgspec.convert(spec, ClusterPolicySpec)
    owner = {"kind": "ClusterPolicy", "name": "p", "uid": "1", "apiVersion": "nvidia.com/v1", "controller": True}
    every = manifests(policy, {}, image="i", owner=owner, monitored=wants_monitor(policy), shared=shared)
    return {m["kind"]: m for m in every if m["metadata"]["name"] == NAME}


def test_the_service_leads_to_the_port_of_the_device_plugin() -> None:
    service = made()["Service"]
    owner = {"kind": "ClusterPolicy", "name": "p", "uid": "1", "apiVersion": "nvidia.com/v1", "controller": True}
    plugin = next(
        m
        for m in manifests(ClusterPolicySpec(), {}, image="i", owner=owner)
        if m["metadata"]["name"] == "nvidia-device-plugin-daemonset"
    )
    assert service["spec"]["selector"].items() <= plugin["spec"]["template"]["metadata"]["labels"].items()
    [port] = plugin["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [port["containerPort"]] == [PORT]
    assert service["metadata"]["ownerReferences"][0]["uid"] == "1"


def test_the_monitor_follows_that_of_the_exporter_and_keeps_the_nodes_with_shares() -> None:
    theirs = {"action": "labeldrop", "regex": "pod"}
    wanted = {
        "enabled": True,
        "interval": "15s",
        "honorLabels": False,
        "additionalLabels": {"release": "prometheus"},
        "relabelings": [theirs],
    }
    found = made(dcgmExporter={"serviceMonitor": wanted})
    monitor, service = found["ServiceMonitor"], found["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    [endpoint] = monitor["spec"]["endpoints"]
    [keep, dropped] = endpoint.pop("relabelings")
    assert endpoint == {"port": "shares", "path": "/metrics", "interval": "15s", "honorLabels": True}
    assert dropped == theirs
    # As Prometheus writes the name of a node's label.
    label = "__meta_kubernetes_node_label_" + re.sub("[^a-zA-Z0-9_]", "_", names.SHARE_LABEL)
    assert keep == {"action": "keep", "sourceLabels": [label], "regex": "enable"}
    assert monitor["spec"]["attachMetadata"] == {"node": True}


def test_nothing_without_shares_device_plugin_or_wish() -> None:
    assert made(shared=False) == {}
    assert made(devicePlugin={"enabled": False}, dcgmExporter={"serviceMonitor": {"enabled": True}}) == {}
    assert sorted(made(dcgmExporter={"serviceMonitor": {"enabled": False}})) == ["Service"]


async def test_the_service_exists_while_a_node_offers_shares(played: Any, work: Any) -> None:
    def service() -> Any:
        return played.registry.get("services", names.OPERATOR_NAMESPACE, NAME)

    async def label(value: str | None) -> None:
        labels = {"metadata": {"labels": {names.SHARE_LABEL: value}}}
        await played.registry.patch("nodes", None, "n1", labels, "merge")

    async with work(played):
        await played.add_node("n1")
        await played.policy()
        plugin = (("apps", "daemonsets"), names.OPERATOR_NAMESPACE, "nvidia-device-plugin-daemonset")
        await played.until(lambda: played.registry.get(*plugin))
        assert service() is None
        await label("enable")
        await until(service)
        await label(None)
        await until(lambda: service() is None)
