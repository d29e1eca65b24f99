"""Validates built-in kinds, and every object's metadata; returns every finding, not only the first.

Rules are tables (`tables`), a module for each family of kinds. On updates only what changed is looked at, since the
stored rest has passed before. `tests/conformance/wrong` compares the findings with those of a real API server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.eventforms import validate_event
from tinykube.apiserver.failure import Cause
from tinykube.apiserver.validation import (
    access,
    addresses,
    claims,
    configs,
    flow_control,
    jobs,
    machines,
    network,
    pods,
    scaling,
    slices,
    storage,
    traffic,
    workloads,
)
from tinykube.apiserver.validation.metadata import validate_metadata
from tinykube.apiserver.validation.names import validate_selector
from tinykube.apiserver.validation.tables import Object

__all__ = ["VALIDATE_BY_SUBRESOURCE", "Validate", "validate_metadata", "validate_selector", "validator_of"]

Validate = Callable[[Object, Object | None], Sequence[Cause]]

_BY_PLURAL: Final[dict[tuple[str, str], Validate]] = {
    ("", "pods"): pods.validate_pod,
    ("", "configmaps"): configs.validate_config_map,
    ("", "secrets"): configs.validate_secret,
    ("", "services"): network.validate_service,
    ("", "endpoints"): network.validate_endpoints,
    ("", "events"): validate_event,
    ("events.k8s.io", "events"): validate_event,
    ("", "namespaces"): machines.validate_namespace,
    ("", "nodes"): machines.validate_node,
    ("", "persistentvolumes"): storage.validate_volume,
    ("", "persistentvolumeclaims"): storage.validate_claim,
    ("", "replicationcontrollers"): workloads.validate_replication_controller,
    ("apps", "deployments"): workloads.validate_deployment,
    ("apps", "daemonsets"): workloads.validate_daemon_set,
    ("apps", "replicasets"): workloads.validate_replica_set,
    ("apps", "statefulsets"): workloads.validate_stateful_set,
    ("autoscaling", "horizontalpodautoscalers"): scaling.validate_autoscaler,
    ("batch", "jobs"): jobs.validate_job,
    ("batch", "cronjobs"): jobs.validate_cron_job,
    ("certificates.k8s.io", "certificatesigningrequests"): access.validate_signing_request,
    ("coordination.k8s.io", "leases"): machines.validate_lease,
    ("discovery.k8s.io", "endpointslices"): network.validate_endpoint_slice,
    ("flowcontrol.apiserver.k8s.io", "flowschemas"): flow_control.validate_flow_schema,
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"): flow_control.validate_priority_level,
    ("networking.k8s.io", "ingresses"): traffic.validate_ingress,
    ("networking.k8s.io", "ipaddresses"): addresses.validate_ip_address,
    ("networking.k8s.io", "servicecidrs"): addresses.validate_service_cidr,
    ("networking.k8s.io", "networkpolicies"): traffic.validate_network_policy,
    ("node.k8s.io", "runtimeclasses"): machines.validate_runtime_class,
    ("policy", "poddisruptionbudgets"): machines.validate_disruption_budget,
    ("rbac.authorization.k8s.io", "roles"): access.validate_role,
    ("rbac.authorization.k8s.io", "clusterroles"): access.validate_cluster_role,
    ("rbac.authorization.k8s.io", "rolebindings"): access.validate_role_binding,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): access.validate_cluster_role_binding,
    ("resource.k8s.io", "resourceclaims"): claims.validate_resource_claim,
    ("resource.k8s.io", "resourceclaimtemplates"): claims.validate_claim_template,
    ("resource.k8s.io", "deviceclasses"): claims.validate_device_class,
    ("resource.k8s.io", "resourceslices"): slices.validate_resource_slice,
    ("scheduling.k8s.io", "priorityclasses"): machines.validate_priority_class,
    ("storage.k8s.io", "csidrivers"): storage.validate_csi_driver,
    ("storage.k8s.io", "storageclasses"): storage.validate_storage_class,
    ("storage.k8s.io", "volumeattributesclasses"): storage.validate_attributes_class,
}


#: Writes that change what an update may not: a binding is made by the server itself.
VALIDATE_BY_SUBRESOURCE: Final[dict[str, Validate]] = {
    "approval": access.validate_approval,
    "binding": lambda obj, old: (),
    "resize": pods.validate_resize,
    "ephemeralcontainers": pods.validate_ephemeral_containers,
}


def validator_of(info: ResourceInfo) -> Validate:
    """Return the validator of a built-in kind; metadata is validated for every kind alike."""
    return _BY_PLURAL.get((info.group, info.plural), _nothing)


def _nothing(obj: Object, old: Object | None) -> Sequence[Cause]:
    return ()
