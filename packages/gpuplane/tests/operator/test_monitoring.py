"""The monitoring part of an installation: what Prometheus and Grafana find, where the kinds are served and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.cli.main import main
from gpuplane.cli.removal import remove
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import everything, installation, resource_of
from gpuplane.operator.monitoring import KINDS
from kubekit.kube import Client, NotFound
from kubekit.kube import server_certificates as certificates
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from tests.support.extender_world import World, world

Manifest = dict[str, Any]
LABELS = {"release": "prometheus"}
WHOLE = installation(autoscaler=AutoscalerInstall({"CLUSTER_NAME": "-"}), monitoring=LABELS)


def of_kind(found: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def test_each_server_of_the_installation_has_a_servicemonitor_that_finds_its_service() -> None:
    monitors, services = of_kind(WHOLE, "ServiceMonitor"), of_kind(WHOLE, "Service")
    deployments = of_kind(WHOLE, "Deployment")
    assert monitors.keys() == services.keys() == deployments.keys()
    for name, monitor in monitors.items():
        [endpoint] = monitor["spec"]["endpoints"]
        service, pods = services[name], deployments[name]["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
        [port] = [one for one in service["spec"]["ports"] if one["name"] == endpoint["port"]]
        named = {one["name"]: one["containerPort"] for one in pods["spec"]["containers"][0]["ports"]}
        assert port["targetPort"] in named and endpoint["path"] == "/metrics", name
        probe = pods["spec"]["containers"][0]["livenessProbe"]["httpGet"]
        assert probe["port"] == port["targetPort"]
        assert endpoint.get("scheme", "http").upper() == probe.get("scheme", "HTTP")


def test_prometheus_verifies_the_servers_and_gets_no_certificate_with_which_it_could_bind_pods() -> None:
    verified = {
        name: one["spec"]["endpoints"][0]["tlsConfig"]
        for name, one in of_kind(WHOLE, "ServiceMonitor").items()
        if "tlsConfig" in one["spec"]["endpoints"][0]
    }
    secrets = {names.EXTENDER_NAME: names.EXTENDER_CLIENT_SECRET, names.ADMISSION_NAME: names.ADMISSION_SECRET}
    assert verified == {
        name: {
            "serverName": f"{name}.{names.OPERATOR_NAMESPACE}.svc",
            "ca": {"secret": {"name": secret, "key": certificates.AUTHORITIES}},
        }
        for name, secret in secrets.items()
    }


def test_a_component_that_is_left_out_has_no_servicemonitor() -> None:
    found = installation(scheduler=False, admission="", monitoring={})
    assert list(of_kind(found, "ServiceMonitor")) == ["gpu-operator"]
    assert "gpuplane-autoscaler" not in of_kind(found, "Service")


def test_without_monitoring_there_is_none_of_it() -> None:
    plain = installation()
    assert not [one for one in plain if (one["apiVersion"], one["kind"]) in KINDS or one["kind"] == "ConfigMap"]
    assert of_kind(plain, "ClusterPolicy")["cluster-policy"]["spec"] == {}


def test_labels_reach_rules_servicemonitors_and_the_exporters() -> None:
    chosen = [one for one in WHOLE if (one["apiVersion"], one["kind"]) in KINDS]
    assert len(chosen) == 5
    assert all(one["metadata"]["labels"].items() >= LABELS.items() for one in chosen)
    monitor = {"enabled": True, "honorLabels": True, "additionalLabels": LABELS}
    assert of_kind(WHOLE, "ClusterPolicy")["cluster-policy"]["spec"] == {"dcgmExporter": {"serviceMonitor": monitor}}


def test_a_setting_of_the_policy_goes_before_what_monitoring_asks_for() -> None:
    settings = ["dcgmExporter.serviceMonitor.enabled=false"]
    found = of_kind(installation(monitoring={}, settings=settings), "ClusterPolicy")["cluster-policy"]["spec"]
    assert found == {"dcgmExporter": {"serviceMonitor": {"enabled": False, "honorLabels": True}}}


def test_the_boards_are_configmaps_that_the_sidecar_of_grafana_reads() -> None:
    found = of_kind(WHOLE, "ConfigMap")
    assert list(found) == ["gpuplane-board-gpus", "gpuplane-board-shares"]
    for board in found.values():
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        [(file, text)] = board["data"].items()
        assert file.endswith(".json") and json.loads(text)["panels"]


def test_uninstall_knows_each_object_of_it() -> None:
    known = {(one["kind"], one["metadata"]["name"]) for one in everything()}
    assert {(one["kind"], one["metadata"]["name"]) for one in WHOLE} <= known


@pytest.mark.parametrize(
    ("flags", "code", "what"),
    [
        (("--monitoring", "--monitoring-label", "release"), 1, "'release' is no label"),
        (("--monitoring", "--monitoring-label", "=x"), 1, "'=x' is no label"),
        (("--monitoring-label", "release=x"), 2, "--monitoring-label is a setting of monitoring"),
    ],
)
def test_wrong_labels_are_refused(
    flags: tuple[str, ...], code: int, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install", "--dry-run", *flags]) == code
    assert what in capsys.readouterr().err


# -- on an API server --------------------------------------------------------------------------------------------------


async def prometheus_operator(client: Client) -> None:
    """Define the Prometheus operator's kinds, as far as the installation goes."""
    for kind in KINDS.values():
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        spec = {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "kind": kind.kind, "singular": kind.kind.lower()},
            "versions": [version],
        }
        definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        meta = {"name": f"{kind.plural}.{kind.group}"}
        await client.create({**definition, "metadata": meta, "spec": spec})


async def exists(cluster: World, manifest: Manifest) -> bool:
    meta = manifest["metadata"]
    try:
        await cluster.client.request("GET", resource_of(manifest).path(meta.get("namespace"), meta["name"]))
    except NotFound:
        return False
    return True


@pytest.mark.parametrize("served", [False, True])
async def test_it_is_installed_as_far_as_the_cluster_serves_it_and_goes_with_the_rest(
    tmp_path: Path, served: bool
) -> None:
    async with world(tmp_path) as cluster:
        (tmp_path / "config").write_text(cluster.kubeconfig())
        if served:
            await prometheus_operator(cluster.client)
        code, _, err = await gpuplane(tmp_path, "install", "--monitoring", "--admission=none", "--no-scheduler")
        assert code == 0
        left = [line for line in err.splitlines() if "left out" in line]
        assert [line.split()[1] for line in left] == ([] if served else ["ServiceMonitor", "PrometheusRule"])
        assert all("monitoring.coreos.com/v1" in line for line in left)
        made = installation(monitoring={}, admission="", scheduler=False)
        objects = [one for one in made if (one["apiVersion"], one["kind"]) in KINDS]
        boards = [one for one in made if one["kind"] == "ConfigMap"]
        assert [await exists(cluster, one) for one in objects] == [served] * 2
        assert [await exists(cluster, one) for one in boards] == [True] * 2
        policy = await cluster.client.get(ClusterPolicy, "cluster-policy")
        assert policy.spec.dcgm_exporter.service_monitor is not None
        assert [await remove(cluster.client, one) for one in (*objects, *boards)] == [served, served, True, True]
