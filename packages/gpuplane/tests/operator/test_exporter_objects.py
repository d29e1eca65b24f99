"""The exporter's objects, from a ClusterPolicy's `dcgmExporter`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.exporter_objects import wants_monitor
from gpuplane.operator.operands import manifests
from kubekit.scheduling.selectors import compile_node_terms


def made(monitored: bool = False, **exporter: Any) -> dict[str, dict[str, Any]]:
    """Kind -> manifest, of what is made for the exporter."""
    return shaped({"dcgmExporter": exporter}, monitored=monitored)


def shaped(
    policy: dict[str, Any], name: str = "nvidia-dcgm-exporter", *, monitored: bool = False
) -> dict[str, dict[str, Any]]:
    """Kind -> manifest, of the exporter's objects of this name under a policy."""
    spec = msgspec.convert(policy, ClusterPolicySpec)
    owner = {"kind": "ClusterPolicy", "name": "p", "uid": "1", "apiVersion": "nvidia.com/v1", "controller": True}
    every = manifests(spec, {}, image="i", owner=owner, monitored=monitored and wants_monitor(spec))
    return {m["kind"]: m for m in every if m["metadata"]["name"] == name}


@pytest.mark.parametrize("name", ["nvidia-dcgm-exporter", "nvidia-dcgm-exporter-privileged"])
def test_both_exporters_follow_the_policy_and_are_the_services(name: str) -> None:
    policy = {"dcgmExporter": {"env": [{"name": "X", "value": "1"}], "config": {"name": "fields"}, "hostPID": True}}
    template = shaped(policy, name)["DaemonSet"]["spec"]["template"]
    [container] = template["spec"]["containers"]
    assert {"name": "X", "value": "1"} in container["env"] and template["spec"]["hostPID"]
    assert [arg for arg in container["args"] if arg.startswith("--config=")]
    assert made()["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()


def test_a_node_has_one_of_the_two_exporters() -> None:
    plain, privileged = (
        shaped({}, name)["DaemonSet"]["spec"]["template"]["spec"]
        for name in ("nvidia-dcgm-exporter", "nvidia-dcgm-exporter-privileged")
    )
    gate = {"nvidia.com/gpu.deploy.dcgm-exporter": "true"}
    for labels, chosen in ((gate, privileged), ({**gate, names.RUNTIME_CLASS_LABEL: "true"}, plain), ({}, None)):
        found = [one for one in (plain, privileged) if _selects(one, labels)]
        assert found == ([] if chosen is None else [chosen]), labels


def _selects(pod: dict[str, Any], labels: dict[str, str]) -> bool:
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    terms = compile_node_terms(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    chosen = pod["nodeSelector"].items() <= labels.items()
    return chosen and (terms is None or any(term.matches("n", labels) for term in terms))


def test_an_exporter_without_privilege_reads_where_the_policy_says() -> None:
    jobs = {"enabled": True, "directory": "/jobs"}
    places = {"kubeletRootDir": "/data/kubelet", "rootFS": "/root"}
    policy = {"hostPaths": places, "dcgmExporter": {"hpcJobMapping": jobs}}
    pod = shaped(policy)["DaemonSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {sources[mount["name"]]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["/root/data/kubelet/pod-resources"] == "/host/data/kubelet/pod-resources"
    assert "--kubelet-dir=/host/data/kubelet" in container["args"]
    assert mounts["/root/jobs"] == "/jobs"
    assert mounts["/root/var/run/cdi"] == "/host/var/run/cdi"


def test_by_default_a_service_and_no_monitor() -> None:
    found = made()
    assert sorted(found) == ["DaemonSet", "Service"]
    service, daemonset = found["Service"], found["DaemonSet"]
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert labels["app"] == service["metadata"]["labels"]["app"] == "nvidia-dcgm-exporter", (
        "scrape configurations go by it"
    )
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("gpu-metrics", 9400)]
    assert service["metadata"]["ownerReferences"][0]["uid"] == "1"
    assert not [a for a in daemonset["spec"]["template"]["spec"]["containers"][0]["args"] if "config" in a]


def test_the_list_of_fields_is_mounted() -> None:
    pod = made(config={"name": "fields"})["DaemonSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "config")
    mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "config")
    assert volume["configMap"]["name"] == "fields"
    assert "subPath" not in mount, "such a file would never change"
    path = f"{mount['mountPath']}/{volume['configMap']['items'][0]['path']}"
    assert f"--config={path}" in container["args"]
    assert path.endswith("/dcgm-metrics.csv")


def test_annotations_pid_and_jobs() -> None:
    found = made(
        annotations={"a": "b"}, hostPID=True, hpcJobMapping={"enabled": True}, env=[{"name": "X", "value": "1"}]
    )
    template = found["DaemonSet"]["spec"]["template"]
    [container] = template["spec"]["containers"]
    assert template["metadata"]["annotations"]["a"] == "b"
    assert template["spec"]["hostPID"] is True
    assert {"name": "X", "value": "1"} in container["env"]
    jobs = {"name": "DCGM_HPC_JOB_MAPPING_DIR", "value": "/var/lib/dcgm-exporter/job-mapping"}
    assert jobs in container["env"]
    assert not [entry for entry in container["env"] if "POD_LABEL" in entry["name"] or "POD_UID" in entry["name"]]
    marked = made(enablePodLabels=True, enablePodUID=False, podLabelAllowlistRegex=["^app$", "^team$"])
    [container] = marked["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    said = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert said["DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"] == "true"
    assert said["DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"] == "false"
    assert said["DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"] == "^app$,^team$"
    other = made(hpcJobMapping={"enabled": True, "directory": "/jobs"})["DaemonSet"]["spec"]["template"]["spec"]
    assert {**jobs, "value": "/jobs"} in other["containers"][0]["env"]


def test_the_service_as_the_policy_wants_it() -> None:
    spec = made(service={"type": "NodePort", "internalTrafficPolicy": "Local"})["Service"]["spec"]
    assert (spec["type"], spec["internalTrafficPolicy"]) == ("NodePort", "Local")


def test_a_monitor_where_it_is_wanted_and_served() -> None:
    wanted = {
        "enabled": True,
        "interval": "15s",
        "scrapeTimeout": "10s",
        "honorLabels": True,
        "additionalLabels": {"release": "prometheus"},
        "relabelings": [{"action": "labeldrop", "regex": "pod"}],
    }
    assert "ServiceMonitor" not in made(serviceMonitor=wanted), "its CRD is not served"
    found = made(monitored=True, serviceMonitor=wanted)
    monitor, service = found["ServiceMonitor"], found["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint == {
        "port": "gpu-metrics",
        "path": "/metrics",
        "interval": "15s",
        "scrapeTimeout": "10s",
        "honorLabels": True,
        "relabelings": [{"action": "labeldrop", "regex": "pod"}],
    }


@pytest.mark.parametrize("monitor", [{}, {"enabled": False}])
def test_no_monitor_that_nobody_asked_for(monitor: dict[str, Any]) -> None:
    assert sorted(made(monitored=True, serviceMonitor=monitor)) == ["DaemonSet", "Service"]


def test_a_disabled_exporter_leaves_nothing() -> None:
    assert made(monitored=True, enabled=False, serviceMonitor={"enabled": True}) == {}
