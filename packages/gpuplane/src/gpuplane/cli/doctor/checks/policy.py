"""The ClusterPolicy: exactly one, neither paused nor refused."""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import chosen, is_paused
from gpuplane.cli.doctor.facts import DoctorFacts
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding, Severity


def _decide(facts: DoctorFacts) -> Diagnosis:
    policy, ignored = chosen(facts.policies)
    if policy is None:
        finding = DoctorFinding(
            fault="no-policy",
            what="there is no ClusterPolicy: the operator prepares no node",
            where="clusterpolicies.nvidia.com",
            cure="gpuplane install --only policy",
        )
        return Diagnosis("", (finding,))
    name = policy.metadata.name
    findings = [
        DoctorFinding(
            fault="policy-ignored",
            severity=Severity.WARNING,
            what=f"the older ClusterPolicy {name} is in force, and this one is ignored",
            where=f"clusterpolicy/{one.metadata.name}",
            cure=f"kubectl delete clusterpolicy {one.metadata.name}",
        )
        for one in ignored
    ]
    where = f"clusterpolicy/{name}"
    if is_paused(policy):
        cure = f"kubectl annotate clusterpolicy {name} {names.PAUSED_ANNOTATION}-"
        what = "it is paused: the operator changes nothing"
        findings.append(
            DoctorFinding(fault="policy-paused", severity=Severity.WARNING, what=what, where=where, cure=cure)
        )
    error = next((one for one in policy.status.conditions if one.type == "Error" and one.status == "True"), None)
    if error is not None:
        findings.append(
            DoctorFinding(
                fault="policy-refused",
                what=error.message or error.reason,
                where=f"{where} status.conditions",
                cure="gpuplane install brings rights and definitions up to date; change the field that the message "
                "names otherwise",
            )
        )
    if policy.spec.operator.set_scheduler_name and not _names_schedulers(facts):
        change = msgspec.json.encode({"spec": {"operator": {"setSchedulerName": False}}}).decode()
        findings.append(
            DoctorFinding(
                fault="scheduler-name-not-set",
                severity=Severity.WARNING,
                what="operator.setSchedulerName has no effect: the pod scheduler or its webhook is not installed",
                where=where,
                cure=f"kubectl patch clusterpolicy {name} --type merge -p '{change}', or gpuplane install "
                "--pod-scheduler",
            )
        )
    return Diagnosis(f"ClusterPolicy {name} {policy.status.state}".rstrip(), tuple(findings))


def _names_schedulers(facts: DoctorFacts) -> bool:
    """Return whether the webhook is installed so that it gives pods to the pod scheduler."""
    server = facts.deployment(names.ADMISSION_NAME)
    containers = server.spec.template.spec.containers if server is not None else ()
    return any(f"--scheduler-name={names.SCHEDULER_NAME}" in container.args for container in containers)


POLICY: Final = DoctorCheck(
    "policy",
    "one ClusterPolicy, carried out",
    ("policies", "deployments"),
    {
        "no-policy": "there is no ClusterPolicy",
        "policy-ignored": "there is more than one ClusterPolicy",
        "policy-paused": "the ClusterPolicy is paused",
        "policy-refused": "the API server refuses the operator's objects",
        "scheduler-name-not-set": "`operator.setSchedulerName` without the pod scheduler",
    },
    _decide,
)
