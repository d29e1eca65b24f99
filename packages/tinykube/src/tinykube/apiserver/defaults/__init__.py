"""Sets the defaults of built-in kinds that clients, controllers and kubelets rely on.

Every function changes the object in place and may run on one that has its defaults already: it only ever adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tinykube.apiserver.autoscaler_defaults import fill_autoscaler
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.defaults import cluster, devices, pods, policies, storage, workloads
from tinykube.apiserver.defaults.filling import Object
from tinykube.apiserver.eventforms import fill_event

Default = Callable[[Object], None]

_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"
_BY_PLURAL: Final[dict[tuple[str, str], Default]] = {
    ("", "pods"): pods.pod,
    ("", "podtemplates"): pods.fill_template,
    ("", "replicationcontrollers"): workloads.replication_controller,
    ("", "namespaces"): cluster.namespace,
    ("", "resourcequotas"): cluster.quota,
    ("", "limitranges"): cluster.limit_range,
    ("", "events"): fill_event,
    ("", "nodes"): cluster.node,
    ("policy", "poddisruptionbudgets"): workloads.disruption_budget,
    ("", "services"): cluster.service,
    ("", "secrets"): cluster.secret,
    ("", "persistentvolumes"): storage.volume_object,
    ("", "persistentvolumeclaims"): storage.claim,
    ("apps", "deployments"): workloads.deployment,
    ("apps", "daemonsets"): workloads.daemon_set,
    ("apps", "replicasets"): workloads.replica_set,
    ("apps", "statefulsets"): workloads.stateful_set,
    ("batch", "jobs"): workloads.job,
    ("batch", "cronjobs"): workloads.cron_job,
    (_RBAC, "rolebindings"): cluster.binding,
    (_RBAC, "clusterrolebindings"): cluster.binding,
    ("storage.k8s.io", "storageclasses"): storage.storage_class,
    ("scheduling.k8s.io", "priorityclasses"): cluster.priority_class,
    ("networking.k8s.io", "networkpolicies"): cluster.network_policy,
    (_ADMISSION, "mutatingadmissionpolicies"): policies.admission_policy,
    (_ADMISSION, "mutatingadmissionpolicybindings"): policies.admission_binding,
    (_ADMISSION, "validatingadmissionpolicies"): policies.admission_policy,
    (_ADMISSION, "validatingadmissionpolicybindings"): policies.admission_binding,
    ("flowcontrol.apiserver.k8s.io", "flowschemas"): policies.flow_schema,
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"): policies.priority_level,
    (_ADMISSION, "mutatingwebhookconfigurations"): policies.webhooks,
    (_ADMISSION, "validatingwebhookconfigurations"): policies.webhooks,
    ("autoscaling", "horizontalpodautoscalers"): fill_autoscaler,
    ("resource.k8s.io", "resourceclaims"): devices.resource_claim,
    ("resource.k8s.io", "resourceclaimtemplates"): devices.claim_template,
}


def defaults_of(info: ResourceInfo) -> Default:
    """The defaulting of a kind; nothing for the kinds that have none."""
    return _BY_PLURAL.get((info.group, info.plural), _nothing)


def _nothing(obj: Object) -> None:
    return None
