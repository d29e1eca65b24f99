"""The exporter's pods and additional objects, as a ClusterPolicy's `dcgmExporter` wants them.

Pure; `gpuplane.operator.operands` puts it in its place among all objects, `gpuplane.operator.cluster` applies it.
"""

from __future__ import annotations

from typing import Final

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.components import ServiceMonitor
from gpuplane.operator.manifest import Manifest, add_part, set_env
from kubekit.api.kinds import built_in
from kubekit.api.meta import Resource

PARTS_FILE: Final = "0601-dcgm-exporter-parts.yaml"
PRIVILEGED_FILE: Final = "0605-dcgm-exporter-privileged.yaml"
SERVICE_FILE: Final = "0610-dcgm-exporter-service.yaml"
MONITOR_FILE: Final = "0620-dcgm-exporter-monitor.yaml"
NAME: Final = "nvidia-dcgm-exporter"
SERVICE: Final = built_in("v1", "Service")
MONITOR: Final = Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor", True)
BESIDE: Final = (SERVICE, MONITOR)
"""Kinds of the additional objects besides the DaemonSet; those of the exporter have the name `NAME`."""

JOBS_ENV: Final = "DCGM_HPC_JOB_MAPPING_DIR"
POD_LABELS_ENV: Final = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"
POD_UID_ENV: Final = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"
ALLOWED_LABELS_ENV: Final = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
POD_RESOURCES: Final = "pod-resources"  # the kubelet's directory with its socket, and the volume of it
JOBS_DIR: Final = "/var/lib/dcgm-exporter/job-mapping"  # where NVIDIA's operator looks when the policy names no other


def wants_monitor(spec: ClusterPolicySpec) -> bool:
    """Return whether the policy asks for a ServiceMonitor of the exporter."""
    monitor = spec.dcgm_exporter.service_monitor
    return spec.dcgm_exporter.enabled and monitor is not None and bool(monitor.enabled)


def shape_daemonset(manifest: Manifest, spec: ClusterPolicySpec) -> None:
    """Put the policy's fields of the exporter into its DaemonSet."""
    exporter, template = spec.dcgm_exporter, manifest["spec"]["template"]
    pod = template["spec"]
    [container] = pod["containers"]
    if exporter.annotations:
        template["metadata"]["annotations"] = {**template["metadata"].get("annotations", {}), **exporter.annotations}
    if exporter.host_pid:
        pod["hostPID"] = True
    if exporter.config is not None and exporter.config.name:
        add_part(pod, container, PARTS_FILE, "config", source=exporter.config.name)
    if exporter.hpc_job_mapping is not None and exporter.hpc_job_mapping.enabled:
        set_env(container, JOBS_ENV, exporter.hpc_job_mapping.directory or JOBS_DIR)
    if exporter.enable_pod_labels is not None:
        set_env(container, POD_LABELS_ENV, str(exporter.enable_pod_labels).lower())
    if exporter.enable_pod_uid is not None:
        set_env(container, POD_UID_ENV, str(exporter.enable_pod_uid).lower())
    if exporter.pod_label_allowlist_regex:
        set_env(container, ALLOWED_LABELS_ENV, ",".join(exporter.pod_label_allowlist_regex))
    if all(volume["name"] != "host" for volume in pod["volumes"]):
        _mount_parts(pod, container, spec)


def _mount_parts(pod: Manifest, container: Manifest, spec: ClusterPolicySpec) -> None:
    """Mount the parts of the host's file system that the policy names, into a pod that has not all of it."""
    root = (spec.host_paths.root_fs or "/").rstrip("/")
    sockets = f"{spec.host_paths.kubelet_root_dir}/{POD_RESOURCES}"
    _at(pod["volumes"], POD_RESOURCES)["hostPath"]["path"] = sockets
    _at(container["volumeMounts"], POD_RESOURCES)["mountPath"] = f"/host{sockets}"
    jobs = next((entry.get("value", "") for entry in container["env"] if entry["name"] == JOBS_ENV), "")
    if jobs:
        pod["volumes"].append({"name": "jobs", "hostPath": {"path": jobs, "type": "DirectoryOrCreate"}})
        container["volumeMounts"].append({"name": "jobs", "mountPath": jobs, "readOnly": True})
    for volume in pod["volumes"]:
        if "hostPath" in volume:
            volume["hostPath"]["path"] = root + volume["hostPath"]["path"]


def _at(entries: list[Manifest], name: str) -> Manifest:
    return next(entry for entry in entries if entry["name"] == name)


def shape_service(manifest: Manifest, spec: ClusterPolicySpec) -> Manifest:
    """The Service as the policy wants it."""
    wanted = spec.dcgm_exporter.service
    if wanted is not None and wanted.type:
        manifest["spec"]["type"] = wanted.type
    if wanted is not None and wanted.internal_traffic_policy:
        manifest["spec"]["internalTrafficPolicy"] = wanted.internal_traffic_policy
    return manifest


def shape_monitor(manifest: Manifest, wanted: ServiceMonitor) -> Manifest:
    """A ServiceMonitor with the policy's pace, labels and relabelings."""
    [endpoint] = manifest["spec"]["endpoints"]
    if wanted.interval:
        endpoint["interval"] = wanted.interval
    if wanted.scrape_timeout:
        endpoint["scrapeTimeout"] = wanted.scrape_timeout
    if wanted.honor_labels is not None:
        endpoint["honorLabels"] = wanted.honor_labels
    if wanted.relabelings:
        endpoint["relabelings"] = [dict(relabeling) for relabeling in wanted.relabelings]
    manifest["metadata"]["labels"] |= wanted.additional_labels
    return manifest
