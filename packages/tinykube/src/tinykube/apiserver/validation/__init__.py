"""Validates built-in kinds, and every object's metadata; returns every finding, not only the first.

Within reason: the rules that manifests in the wild run into. On updates only what changed is looked at, since the
stored rest has passed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import Cause
from tinykube.apiserver.validation.metadata import validate_metadata
from tinykube.apiserver.validation.names import validate_selector
from tinykube.apiserver.validation.other_kinds import (
    validate_config,
    validate_disruption_budget,
    validate_role_binding,
    validate_service,
)
from tinykube.apiserver.validation.pods import validate_pod
from tinykube.apiserver.validation.workloads import validate_cron_job, validate_job, validate_workload

__all__ = ["Validate", "validate_metadata", "validate_selector", "validator_of"]

Object = dict[str, Any]
Validate = Callable[[Object, Object | None], Sequence[Cause]]

_BY_PLURAL: Final[dict[tuple[str, str], Validate]] = {
    ("", "pods"): validate_pod,
    ("", "configmaps"): validate_config,
    ("", "secrets"): validate_config,
    ("", "services"): validate_service,
    ("policy", "poddisruptionbudgets"): validate_disruption_budget,
    ("apps", "deployments"): validate_workload,
    ("apps", "daemonsets"): validate_workload,
    ("apps", "replicasets"): validate_workload,
    ("apps", "statefulsets"): validate_workload,
    ("batch", "jobs"): validate_job,
    ("batch", "cronjobs"): validate_cron_job,
    ("rbac.authorization.k8s.io", "rolebindings"): validate_role_binding,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): validate_role_binding,
}


def validator_of(info: ResourceInfo) -> Validate:
    """Return the validator of a built-in kind; metadata is validated for every kind alike."""
    return _BY_PLURAL.get((info.group, info.plural), _nothing)


def _nothing(obj: Object, old: Object | None) -> Sequence[Cause]:
    return ()
