"""Sets the defaults of pods and of their templates."""

from __future__ import annotations

from typing import Final

from tinykube.apiserver.defaults.filling import Object, fill, spec_of


def pod(obj: Object) -> None:
    spec = spec_of(obj)
    pod_spec(spec)
    status = obj.get("status")
    for condition in (status or {}).get("conditions") or ():
        condition.setdefault("lastProbeTime", None)
        condition.setdefault("lastTransitionTime", None)
    if not status:
        obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
        if spec.get("schedulingGates"):
            gated = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": None,
                "lastTransitionTime": obj["metadata"].get("creationTimestamp"),
            }
            obj["status"]["conditions"] = [gated]
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True


def pod_spec(spec: Object) -> None:
    if spec.get("restartPolicy") is None:
        spec["restartPolicy"] = "Always"
    if spec.get("dnsPolicy") is None:
        spec["dnsPolicy"] = "ClusterFirst"
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = 30
    if spec.get("schedulerName") is None:
        spec["schedulerName"] = "default-scheduler"
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    if spec.get("hostNetwork"):
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            for port in container.get("ports") or ():
                fill(port, hostPort=port.get("containerPort"))
    # Both names mean the same; the old one is for old readers.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for group in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _container(container: Object) -> None:
    if container.get("imagePullPolicy") is None:
        container["imagePullPolicy"] = pull_policy(str(container.get("image") or ""))
    if container.get("terminationMessagePath") is None:
        container["terminationMessagePath"] = "/dev/termination-log"
    if container.get("terminationMessagePolicy") is None:
        container["terminationMessagePolicy"] = "File"
    resources = container.get("resources")
    if resources is None:
        resources = container["resources"] = {}
    limits = resources.get("limits")
    if limits:
        requests = resources.get("requests")
        if requests is None:
            requests = resources["requests"] = {}
        for name, value in limits.items():
            requests.setdefault(name, value)
    for port in container.get("ports") or ():
        fill(port, protocol="TCP")
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        if source and "fieldRef" in source:
            fill(source["fieldRef"], apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if probe:
            fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
            if "httpGet" in probe:
                fill(probe["httpGet"], scheme="HTTP")
                probe["httpGet"]["path"] = probe["httpGet"].get("path") or "/"


def pull_policy(image: str) -> str:
    """Always for `:latest` and images without a tag or digest."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


_VOLUME_MODES: Final = ("secret", "configMap", "projected", "downwardAPI")


def _volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    host = volume.get("hostPath")
    if host is not None:
        if host.get("type") is None:
            host["type"] = ""
        return
    for name in _VOLUME_MODES:
        source = volume.get(name)
        if source is not None:
            fill(source, defaultMode=420)
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        if "fieldRef" in item:
            fill(item["fieldRef"], apiVersion="v1")
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            fill(source["serviceAccountToken"], expirationSeconds=3600)
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            if "fieldRef" in item:
                fill(item["fieldRef"], apiVersion="v1")


def qos_class(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, by the CPU and memory of all containers."""
    guaranteed, any_set = True, False
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            any_set = any_set or name in requests or name in limits
            guaranteed = guaranteed and name in limits and requests.get(name, limits[name]) == limits[name]
    return "BestEffort" if not any_set else "Guaranteed" if guaranteed else "Burstable"


def fill_template(spec: Object) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        pod_spec(spec_of(template))
