"""Values of a ClusterPolicy, as people and NVIDIA's chart write them, in DaemonSets that a real API server judges."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec
from gpuplane.api.nvidiadriver import NVIDIADriver, NVIDIADriverSpec
from gpuplane.api.validation import check_object, errors
from gpuplane.operator.drivers import assign, choices, driver_groups
from gpuplane.operator.exporter_objects import MONITOR
from gpuplane.operator.installation import resource_of
from gpuplane.operator.operands import manifests
from gpuplane.operator.refusals import is_refusal, refusal_of
from kubekit.api.core import CustomResourceDefinition, Node
from kubekit.api.meta import ObjectMeta
from kubekit.errors import KubekitError
from kubekit.kube import Client
from tests.support.realkube.life import until_absent
from tests.support.realkube.watching import until_objects

OWNER = {"apiVersion": "v1", "kind": "Node", "name": "p", "uid": "u"}
AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a b", "operator": "Exists"}]}]
    }
}
IMAGE = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "570.133.20"}
ALL: dict[str, Any] = {
    "operator": {"labels": {"team": "ml"}, "annotations": {"note": "1"}},
    "daemonsets": {
        "labels": {"a": "1"},
        "annotations": {"b": "true"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
        "priorityClassName": "system-node-critical",
        "updateStrategy": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "1"},
        "nodeSelector": {"pool": "gpu"},
        "podSecurityContext": {"fsGroup": 1000, "supplementalGroups": [4], "seccompProfile": {"type": "Unconfined"}},
    },
    "hostPaths": {"rootFS": "/", "kubeletRootDir": "/data/kubelet"},
    "driver": {
        "version": "570.133.20",
        "startupProbe": {"initialDelaySeconds": 60, "periodSeconds": 10, "timeoutSeconds": 60, "failureThreshold": 120},
        "rdma": {"enabled": True},
        "kernelModuleConfig": {"name": "k"},
        "repoConfig": {"configMapName": "r"},
        "certConfig": {"name": "c"},
        "secretEnv": "s",
        "licensingConfig": {"secretName": "licences", "nlsEnabled": True},
        "virtualTopology": {"config": "topology"},
    },
    "cdi": {"enabled": True, "nriPluginEnabled": True},
    "devicePlugin": {"config": {"name": "configs", "default": "a"}, "mps": {"root": "/run/mps"}},
    "dcgmExporter": {
        "hostPID": True,
        "enablePodLabels": True,
        "enablePodUID": False,
        "podLabelAllowlistRegex": ["app.*"],
        "hpcJobMapping": {"enabled": True},
        "config": {"name": "metrics"},
        "service": {"type": "NodePort", "internalTrafficPolicy": "Local"},
        "annotations": {"x": "1"},
    },
    "validator": {"plugin": {"env": [{"name": "WITH_WORKLOAD", "value": "true"}]}},
}
for _group in ("driver", "toolkit", "devicePlugin", "dcgmExporter", "gfd", "validator"):
    ALL[_group] = ALL.get(_group, {}) | {
        "resources": {"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": 1048576}},
        "env": [{"name": "A", "value": "1"}],
        "imagePullPolicy": "Always",
        "imagePullSecrets": ["pull"],
        "hostNetwork": True,
    }


MONITOR_NAME = f"{MONITOR.plural}.{MONITOR.group}"
TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
TIME = {
    **TEXT,
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
RELABELLING = {
    "action": {**TEXT, "enum": ["replace", "keep", "drop", "hashmod", "labelmap", "labeldrop", "labelkeep"]},
    **dict.fromkeys(("regex", "replacement", "separator", "targetLabel"), TEXT),
    "sourceLabels": TEXTS,
}
ENDPOINT = {
    **dict.fromkeys(("port", "path"), TEXT),
    **dict.fromkeys(("interval", "scrapeTimeout"), TIME),
    "honorLabels": {"type": "boolean"},
    "relabelings": {"type": "array", "items": {"type": "object", "properties": RELABELLING}},
}
MONITOR_SPEC = {
    "jobLabel": TEXT,
    "selector": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "namespaceSelector": {"type": "object", "properties": {"matchNames": TEXTS}},
    "endpoints": {"type": "array", "items": {"type": "object", "properties": ENDPOINT}},
}
# Of the Prometheus operator's CRD, the fields that a ClusterPolicy can set and those of the manifest.
MONITOR_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": MONITOR_NAME},
    "spec": {
        "group": MONITOR.group,
        "scope": "Namespaced",
        "names": {"plural": MONITOR.plural, "singular": "servicemonitor", "kind": MONITOR.kind},
        "versions": [
            {
                "name": MONITOR.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": MONITOR_SPEC}},
                    }
                },
            }
        ],
    },
}


def node() -> Node:
    labels = {names.OS_ID_LABEL: "ubuntu", names.OS_VERSION_LABEL: "22.04", names.OS_MAJOR_LABEL: "22"}
    labels |= {names.KERNEL_VERSION_LABEL: "5.15.0-97-generic", names.PCI_PRESENT_LABELS[0]: "true"}
    return Node(metadata=ObjectMeta(name="n", labels=labels))


async def refused(
    client: Client, raw: dict[str, Any], *drivers: NVIDIADriver, monitored: bool = False
) -> dict[str, str]:
    """Name -> why, for each object of the policy that the API server refuses. Nothing is stored."""
    spec = msgspec.convert(raw, ClusterPolicySpec)
    found = choices(spec, drivers)
    groups = driver_groups([node()], found, assign([node()], found))
    why = {}
    removing = ("driver", "container-toolkit")
    for manifest in manifests(spec, groups, removing, image="i", owner=OWNER, monitored=monitored):
        meta = manifest["metadata"]
        resource = MONITOR if manifest["kind"] == MONITOR.kind else resource_of(manifest)
        if resource.namespaced:
            meta["namespace"] = "default"
        path = resource.path(meta.get("namespace"), meta["name"])
        params = {"fieldManager": "test", "force": "true", "dryRun": "All"}
        try:
            await client.request("PATCH", path, params, manifest, content_type="application/apply-patch+yaml")
        except KubekitError as error:
            assert is_refusal(error), error
            refusal = refusal_of(manifest, error, found)
            why[refusal.name] = f"{refusal.driver} {refusal.field}: {refusal.why}".lstrip()
    return why


async def test_every_value_reaches_kubernetes_in_a_type_that_it_takes(control_plane: ControlPlane) -> None:
    assert not errors(check_object({"metadata": {"name": "p"}, "spec": ALL}, ClusterPolicy))
    async with Client.connect(control_plane.kubeconfig) as client:
        assert await refused(client, ALL) == {}
        assert await refused(client, ALL | {"driver": ALL["driver"] | IMAGE}) == {}


async def test_a_service_monitor_reaches_kubernetes_or_is_reported_with_its_field(
    control_plane: ControlPlane,
) -> None:
    monitor = {
        "enabled": True,
        "interval": "15s",
        "scrapeTimeout": "10s",
        "honorLabels": False,
        "additionalLabels": {"release": "prometheus"},
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
    }
    wrong = {**monitor, "relabelings": [{"action": "rename"}]}
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with Client.connect(control_plane.kubeconfig) as client:
        await until_absent(client, f"{path}/{MONITOR_NAME}")  # of a run that was cut short
        await client.request("POST", path, None, MONITOR_CRD)
        try:
            await until_objects(client, CustomResourceDefinition, is_established)
            assert await refused(client, ALL | exporter(monitor), monitored=True) == {}
            found = await refused(client, ALL | exporter(wrong), monitored=True)
        finally:
            await until_absent(client, f"{path}/{MONITOR_NAME}")
    (said,) = found.values()
    assert said.startswith("dcgmExporter.serviceMonitor: ") and "rename" in said


def is_established(found: list[CustomResourceDefinition]) -> bool:
    """Return whether ServiceMonitors are served."""
    return any(
        (condition.type, condition.status) == ("Established", "True")
        for one in found
        if one.metadata.name == MONITOR_NAME
        for condition in one.status.conditions
    )


def exporter(monitor: dict[str, Any]) -> dict[str, Any]:
    return {"dcgmExporter": ALL["dcgmExporter"] | {"serviceMonitor": monitor}}


@pytest.mark.parametrize("limit", ["1", 1, "10%", "100%", None, ""])
async def test_every_way_to_write_max_unavailable_is_accepted(control_plane: ControlPlane, limit: Any) -> None:
    async with Client.connect(control_plane.kubeconfig) as client:
        assert await refused(client, {"daemonsets": {"rollingUpdate": {"maxUnavailable": limit}}}) == {}


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        ({"daemonsets": {"rollingUpdate": {"maxUnavailable": 0}}}, "daemonsets.rollingUpdate", "maxUnavailable"),
        ({"daemonsets": {"podSecurityContext": {"fsGroup": "1000"}}}, "daemonsets.podSecurityContext", "fsGroup"),
        ({"daemonsets": {"podSecurityContext": {"nope": 1}}}, "daemonsets.podSecurityContext", "nope"),
        ({"daemonsets": {"labels": {"a b": "c"}}}, "daemonsets.labels", '"a b"'),
        ({"daemonsets": {"tolerations": [{"key": "a", "effect": "Never"}]}}, "daemonsets.tolerations", '"Never"'),
        ({"hostPaths": {"rootFS": "/a/../b"}}, "hostPaths", "/a/../b"),
        ({"toolkit": {"env": [{"name": "A=B", "value": "c"}]}}, "toolkit.env", "A=B"),
        ({"toolkit": {"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}}, "toolkit.resources", "cpu limit"),
        ({"driver": {"env": [{"name": "A=B", "value": "c"}]}}, "driver.env", "A=B"),
        ({"driver": IMAGE | {"startupProbe": {"periodSeconds": -1}}}, "driver.startupProbe", "periodSeconds"),
    ],
)
async def test_a_refused_value_is_reported_with_its_field(
    control_plane: ControlPlane, spec: dict[str, Any], field: str, why: str
) -> None:
    async with Client.connect(control_plane.kubeconfig) as client:
        found = await refused(client, spec)
    assert "DaemonSet/nvidia-container-toolkit-daemonset" in found or field.startswith("driver.")
    assert found and all(said.startswith(f"{field}: ") and why in said for said in found.values()), found


@pytest.mark.parametrize(
    ("driver", "policy", "field", "why"),
    [
        ({"env": [{"name": "A=B", "value": "c"}]}, {}, "pinned env", "A=B"),
        ({"labels": {"a b": "c"}}, {}, "pinned labels", '"a b"'),
        ({"annotations": {"a b": "c"}}, {}, "pinned annotations", '"a b"'),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, {}, "pinned tolerations", '"Never"'),
        ({"podSecurityContext": {"fsGroup": "1000"}}, {}, "pinned podSecurityContext", "fsGroup"),
        ({"nodeAffinity": AFFINITY}, {}, "pinned nodeAffinity", '"a b"'),
        ({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}, {}, "pinned resources", "cpu limit"),
        (IMAGE | {"startupProbe": {"periodSeconds": -1}}, {}, "pinned startupProbe", "periodSeconds"),
        # Settings of the ClusterPolicy for the same DaemonSet.
        ({"labels": {"c": "d"}}, {"labels": {"a b": "c"}}, "daemonsets.labels", '"a b"'),
        (
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "a", "effect": "Never"}]},
            "daemonsets.tolerations",
            '"Never"',
        ),
        ({}, {"podSecurityContext": {"nope": 1}}, "daemonsets.podSecurityContext", "nope"),
    ],
)
async def test_a_refused_value_of_an_nvidiadriver_is_reported_with_the_object_that_sets_it(
    control_plane: ControlPlane, driver: dict[str, Any], policy: dict[str, Any], field: str, why: str
) -> None:
    pinned = NVIDIADriver(
        metadata=ObjectMeta(name="pinned"), spec=msgspec.convert({"default": True, **driver}, NVIDIADriverSpec)
    )
    spec = {"driver": {"useNvidiaDriverCRD": True}, "daemonsets": policy}
    async with Client.connect(control_plane.kubeconfig) as client:
        found = await refused(client, spec, pinned)
    drivers = [said for name, said in found.items() if "/nvidia-driver-daemonset-" in name]
    assert drivers, found
    assert all(said.startswith(f"{field}: ") and why in said for said in drivers), found
