"""Sets the defaults of built-in kinds that clients, controllers and kubelets rely on.

Every function changes the object in place and may run on one that has its defaults already: it only ever adds.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.eventforms import fill_event

Object = dict[str, Any]
Default = Callable[[Object], None]


def defaults_of(info: ResourceInfo) -> Default:
    """The defaulting of a kind; nothing for the kinds that have none."""
    return _BY_PLURAL.get((info.group, info.plural), _nothing)


def _nothing(obj: Object) -> None:
    return None


def _fill(target: Object, **values: Any) -> None:
    for key, value in values.items():
        if target.get(key) is None:
            target[key] = value


def _status(obj: Object, **counts: int) -> None:
    """Counts that a status always has."""
    _fill(obj, status={})
    _fill(obj["status"], **counts)


def _spec(obj: Object) -> Object:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = obj["spec"] = {}
    return spec


# -- pods --------------------------------------------------------------------------------------------------------
def pod(obj: Object) -> None:
    spec = _spec(obj)
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
                _fill(port, hostPort=port.get("containerPort"))
    # Both names mean the same; the old one is kept for old readers.
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
        _fill(port, protocol="TCP")
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        if source and "fieldRef" in source:
            _fill(source["fieldRef"], apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if probe:
            _fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
            if "httpGet" in probe:
                _fill(probe["httpGet"], scheme="HTTP")
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
        _fill(host, type="")
        return
    for name in _VOLUME_MODES:
        source = volume.get(name)
        if source is not None:
            _fill(source, defaultMode=420)
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        if "fieldRef" in item:
            _fill(item["fieldRef"], apiVersion="v1")
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            _fill(source["serviceAccountToken"], expirationSeconds=3600)
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            if "fieldRef" in item:
                _fill(item["fieldRef"], apiVersion="v1")


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


# -- workloads ---------------------------------------------------------------------------------------------------
def _template(spec: Object) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        pod_spec(_spec(template))


def _deployment(obj: Object) -> None:
    spec = _spec(obj)
    _fill(obj, status={})
    _fill(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={})
    strategy = spec["strategy"]
    _fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy, rollingUpdate={})
        _fill(strategy["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")
    _template(spec)


def _daemon_set(obj: Object) -> None:
    spec = _spec(obj)
    _status(obj, currentNumberScheduled=0, desiredNumberScheduled=0, numberMisscheduled=0, numberReady=0)
    _fill(spec, revisionHistoryLimit=10, updateStrategy={})
    strategy = spec["updateStrategy"]
    _fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy, rollingUpdate={})
        _fill(strategy["rollingUpdate"], maxUnavailable=1, maxSurge=0)
    _template(spec)


def _replica_set(obj: Object) -> None:
    spec = _spec(obj)
    _status(obj, replicas=0)
    _fill(spec, replicas=1)
    _template(spec)


def _replication_controller(obj: Object) -> None:
    spec = _spec(obj)
    template = spec.get("template")
    labels = (template.get("metadata") or {}).get("labels") if isinstance(template, dict) else None
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)
    _replica_set(obj)


def _stateful_set(obj: Object) -> None:
    spec = _spec(obj)
    _status(obj, availableReplicas=0, replicas=0)
    _fill(spec, replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady", updateStrategy={})
    _fill(spec, serviceName="")
    _fill(spec, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"})
    _fill(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _fill(spec["updateStrategy"], rollingUpdate={"partition": 0})
    _template(spec)


def _job_spec(spec: Object) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _fill(
        spec,
        parallelism=1,
        backoffLimit=6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1,
        completionMode="NonIndexed",
        suspend=False,
        podReplacementPolicy="TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed",
    )
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            _fill(pattern, status="True")
    _template(spec)


def _job(obj: Object) -> None:
    spec = _spec(obj)
    _job_spec(spec)
    _fill(obj, status={})
    if spec.get("manualSelector") or not isinstance(spec.get("template"), dict):
        return
    uid, name = obj["metadata"].get("uid", ""), obj["metadata"].get("name", "")
    _fill(spec, selector={}, manualSelector=False)
    spec["selector"].setdefault("matchLabels", {}).setdefault("batch.kubernetes.io/controller-uid", uid)
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for prefix in ("batch.kubernetes.io/", ""):
        labels.setdefault(prefix + "controller-uid", uid)
        labels.setdefault(prefix + "job-name", name)
    if not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def _cron_job(obj: Object) -> None:
    spec = _spec(obj)
    _fill(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    _fill(obj, status={})
    template = spec.get("jobTemplate")
    if isinstance(template, dict):
        _fill(template, metadata={})
        _template(_spec(template))


# -- the rest ----------------------------------------------------------------------------------------------------
def _namespace(obj: Object) -> None:
    # NB: only a namespace that is not yet under deletion gets its finalizer back.
    spec = _spec(obj)
    if "deletionTimestamp" not in obj["metadata"]:
        _fill(spec, finalizers=["kubernetes"])
    name = obj["metadata"].get("name")
    if name:
        labels = obj["metadata"].get("labels")
        if labels is None:
            labels = obj["metadata"]["labels"] = {}
        labels["kubernetes.io/metadata.name"] = name
    if not obj.get("status"):
        obj["status"] = {"phase": "Active"}


def _service(obj: Object) -> None:
    spec = _spec(obj)
    _fill(spec, type="ClusterIP", sessionAffinity="None")
    if spec["type"] != "ExternalName":
        _fill(spec, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    for port in spec.get("ports") or ():
        _fill(port, protocol="TCP", targetPort=port.get("port"))
    if not obj.get("status"):
        obj["status"] = {"loadBalancer": {}}


def _disruption_budget(obj: Object) -> None:
    _status(obj, currentHealthy=0, desiredHealthy=0, disruptionsAllowed=0, expectedPods=0)


_NODE_INFO: Final = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
]


def _node(obj: Object) -> None:
    _spec(obj)
    _fill(obj, status={})
    status = obj["status"]
    _fill(status, daemonEndpoints={}, nodeInfo={})
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    _fill(status["daemonEndpoints"], kubeletEndpoint={})
    _fill(status["daemonEndpoints"]["kubeletEndpoint"], Port=0)
    _fill(status["nodeInfo"], **dict.fromkeys(_NODE_INFO, ""))


def _secret(obj: Object) -> None:
    _fill(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(str(value).encode()).decode()


def _quota(obj: Object) -> None:
    obj.setdefault("status", {})


def _limit_range(obj: Object) -> None:
    """Limits follow from the largest, requests from limits, else from the smallest."""
    for item in _spec(obj).get("limits") or ():
        if isinstance(item, dict) and item.get("type") == "Container":
            limits = {**(item.get("max") or {}), **(item.get("default") or {})}
            requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
            item |= {name: of for name, of in (("default", limits), ("defaultRequest", requests)) if of}


def _claim(obj: Object) -> None:
    spec = _spec(obj)
    _fill(spec, volumeMode="Filesystem")
    # Both names mean the same; the old one is set for old readers.
    if spec.get("dataSource") and not spec.get("dataSourceRef"):
        spec["dataSourceRef"] = dict(spec["dataSource"])
    elif spec.get("dataSourceRef") and not spec.get("dataSource") and not spec["dataSourceRef"].get("namespace"):
        spec["dataSource"] = dict(spec["dataSourceRef"])
    if not obj.get("status"):
        obj["status"] = {"phase": "Pending"}


def _volume_object(obj: Object) -> None:
    _fill(_spec(obj), volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain")
    if not obj.get("status"):
        obj["status"] = {"phase": "Pending"}


def _binding(obj: Object) -> None:
    if isinstance(obj.get("roleRef"), dict):
        _fill(obj["roleRef"], apiGroup="rbac.authorization.k8s.io")
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            _fill(subject, apiGroup="rbac.authorization.k8s.io")


def _storage_class(obj: Object) -> None:
    _fill(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _priority_class(obj: Object) -> None:
    _fill(obj, preemptionPolicy="PreemptLowerPriority")


def _network_policy(obj: Object) -> None:
    spec = _spec(obj)
    _fill(spec, policyTypes=["Ingress", "Egress"] if "egress" in spec else ["Ingress"])


def _webhooks(obj: Object) -> None:
    for webhook in obj.get("webhooks") or ():
        _fill(
            webhook,
            failurePolicy="Fail",
            matchPolicy="Equivalent",
            timeoutSeconds=10,
            namespaceSelector={},
            objectSelector={},
        )
        if obj.get("kind") == "MutatingWebhookConfiguration":
            _fill(webhook, reinvocationPolicy="Never")
        for rule in webhook.get("rules") or ():
            _fill(rule, scope="*")
        service = (webhook.get("clientConfig") or {}).get("service")
        if service:
            _fill(service, port=443)


def _claim_spec(spec: Object) -> None:
    """Request one device where a ResourceClaim does not say how many."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if one is not None:
                _fill(one, allocationMode="ExactCount")
                if one["allocationMode"] == "ExactCount":
                    one["count"] = one.get("count") or 1


def _resource_claim(obj: Object) -> None:
    _claim_spec(_spec(obj))


def _claim_template(obj: Object) -> None:
    _claim_spec(_spec(_spec(obj)))


def _autoscaler(obj: Object) -> None:
    _fill(_spec(obj), minReplicas=1)


def _flow_schema(obj: Object) -> None:
    _fill(_spec(obj), matchingPrecedence=1000)
    _fill(obj, status={})


def _priority_level(obj: Object) -> None:
    spec = _spec(obj)
    if spec.get("type") == "Exempt":
        _fill(spec, exempt={})
        _fill(spec["exempt"], nominalConcurrencyShares=0, lendablePercent=0)
    elif isinstance(limited := spec.get("limited"), dict):
        _fill(limited, nominalConcurrencyShares=30, lendablePercent=0)
        queuing = (limited.get("limitResponse") or {}).get("queuing")
        if isinstance(queuing, dict):
            _fill(queuing, queues=64, handSize=8, queueLengthLimit=50)
    _fill(obj, status={})


def _admission_policy(obj: Object) -> None:
    _fill(_spec(obj), failurePolicy="Fail")
    _match_resources(obj["spec"].get("matchConstraints"))


def _admission_binding(obj: Object) -> None:
    _match_resources(_spec(obj).get("matchResources"))


def _match_resources(match: Object | None) -> None:
    if match is not None:
        _fill(match, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
        for rule in (*(match.get("resourceRules") or ()), *(match.get("excludeResourceRules") or ())):
            _fill(rule, scope="*")


_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"
_BY_PLURAL: Final[dict[tuple[str, str], Default]] = {
    ("", "pods"): pod,
    ("", "podtemplates"): _template,
    ("", "replicationcontrollers"): _replication_controller,
    ("", "namespaces"): _namespace,
    ("", "resourcequotas"): _quota,
    ("", "limitranges"): _limit_range,
    ("", "events"): fill_event,
    ("", "nodes"): _node,
    ("policy", "poddisruptionbudgets"): _disruption_budget,
    ("", "services"): _service,
    ("", "secrets"): _secret,
    ("", "persistentvolumes"): _volume_object,
    ("", "persistentvolumeclaims"): _claim,
    ("apps", "deployments"): _deployment,
    ("apps", "daemonsets"): _daemon_set,
    ("apps", "replicasets"): _replica_set,
    ("apps", "statefulsets"): _stateful_set,
    ("batch", "jobs"): _job,
    ("batch", "cronjobs"): _cron_job,
    (_RBAC, "rolebindings"): _binding,
    (_RBAC, "clusterrolebindings"): _binding,
    ("storage.k8s.io", "storageclasses"): _storage_class,
    ("scheduling.k8s.io", "priorityclasses"): _priority_class,
    ("networking.k8s.io", "networkpolicies"): _network_policy,
    (_ADMISSION, "mutatingadmissionpolicies"): _admission_policy,
    (_ADMISSION, "mutatingadmissionpolicybindings"): _admission_binding,
    (_ADMISSION, "validatingadmissionpolicies"): _admission_policy,
    (_ADMISSION, "validatingadmissionpolicybindings"): _admission_binding,
    ("flowcontrol.apiserver.k8s.io", "flowschemas"): _flow_schema,
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"): _priority_level,
    (_ADMISSION, "mutatingwebhookconfigurations"): _webhooks,
    (_ADMISSION, "validatingwebhookconfigurations"): _webhooks,
    ("autoscaling", "horizontalpodautoscalers"): _autoscaler,
    ("resource.k8s.io", "resourceclaims"): _resource_claim,
    ("resource.k8s.io", "resourceclaimtemplates"): _claim_template,
}
