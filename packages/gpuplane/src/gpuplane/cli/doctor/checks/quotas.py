"""Quotas: Kubernetes' own of the operator's namespace, which can keep operands from starting, and those of GPUs."""

from __future__ import annotations

import json
from typing import Final

from gpuplane import names
from gpuplane.cli.doctor.facts import DoctorFacts, NamespaceResourceQuota
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding
from gpuplane.scheduler.quota import parse_quotas
from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput


def _decide(facts: DoctorFacts) -> Diagnosis:
    findings = [finding for one in facts.resource_quotas for finding in _exhausted(one)]
    if facts.gpu_quotas is not None:
        try:
            parse_quotas(facts.gpu_quotas)
        except InvalidInput as error:
            what = "; ".join((error.what, *error.findings[:3]))
            findings.append(
                DoctorFinding(
                    fault="gpu-quotas-unreadable",
                    what=f"{what}: the previous quotas stay in force",
                    where=f"configmap/{names.QUOTA_CONFIGMAP} in {names.QUOTA_NAMESPACE}, {names.QUOTA_KEY}",
                    cure=f"kubectl -n {names.QUOTA_NAMESPACE} edit configmap {names.QUOTA_CONFIGMAP}",
                )
            )
    return Diagnosis("quotas leave room", tuple(findings))


def _exhausted(quota: NamespaceResourceQuota) -> list[DoctorFinding]:
    findings = []
    for resource, hard in sorted(quota.status.hard.items()):
        used = quota.status.used.get(resource, "0")
        if parse_quantity(used) < parse_quantity(hard):
            continue
        name = quota.metadata.name
        change = json.dumps({"spec": {"hard": {resource: None}}})
        findings.append(
            DoctorFinding(
                fault="resource-quota-full",
                what=f"{used} of {hard} {resource} are used: Kubernetes refuses further pods of gpuplane",
                where=f"resourcequota/{name} in {names.OPERATOR_NAMESPACE}",
                cure=f"kubectl -n {names.OPERATOR_NAMESPACE} patch resourcequota {name} --type=merge -p '{change}'",
            )
        )
    return findings


QUOTAS: Final = DoctorCheck(
    "quotas",
    "quotas of the namespace leave room, and GPU quotas can be read",
    ("resource_quotas", "gpu_quotas"),
    {
        "resource-quota-full": "a ResourceQuota of the namespace is used up",
        "gpu-quotas-unreadable": "the ConfigMap of GPU quotas cannot be read",
    },
    _decide,
)
