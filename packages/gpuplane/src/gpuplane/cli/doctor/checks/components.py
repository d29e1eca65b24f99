"""The Deployments of gpuplane: the operator is there, and every component has its pods."""

from __future__ import annotations

from typing import Final

from gpuplane import names
from gpuplane.cli.doctor.facts import OPERATOR, DoctorFacts
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding
from gpuplane.cli.terminal import count
from kubekit.api.core import Deployment, Pod

NAMESPACE: Final = names.OPERATOR_NAMESPACE
_NAME_LABEL: Final = "app.kubernetes.io/name"


def _decide(facts: DoctorFacts) -> Diagnosis:
    findings = []
    if facts.deployment(OPERATOR) is None:
        findings.append(
            DoctorFinding(
                fault="no-operator",
                what="no operator is installed: nodes are not prepared",
                where=f"deployment/{OPERATOR} in {NAMESPACE}",
                cure="gpuplane install",
            )
        )
    findings += [_short(one, facts) for one in facts.deployments if one.status.available_replicas < one.spec.replicas]
    return Diagnosis(f"{count(len(facts.deployments), 'component')} available", tuple(findings))


def _short(deployment: Deployment, facts: DoctorFacts) -> DoctorFinding:
    name = deployment.metadata.name
    there, wanted = deployment.status.available_replicas, deployment.spec.replicas
    reasons = sorted(
        {
            reason
            for pod in facts.own_pods
            if pod.metadata.labels.get(_NAME_LABEL) == name and (reason := why_not_running(pod))
        }
    )
    return DoctorFinding(
        fault="component-unavailable",
        what=f"{there} of {count(wanted, 'replica')} available" + "".join(f"; {reason}" for reason in reasons[:3]),
        where=f"deployment/{name} in {NAMESPACE}",
        cure=f"kubectl -n {NAMESPACE} rollout restart deployment/{name}",
    )


def why_not_running(pod: Pod) -> str:
    """Return why a container of a pod does not run: `CrashLoopBackOff: exit code 1 after 7 starts`; else empty."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is None or waiting.reason in ("ContainerCreating", "PodInitializing", ""):
            continue
        last = status.last_state.terminated
        if last is not None:
            # FallbackToLogsOnError: the message has the last lines of the log.
            lines = last.message.strip().splitlines()
            ended = f"exit code {last.exit_code} after {count(status.restart_count, 'restart')}"
            return f"{waiting.reason}: {lines[-1][:200] if lines else ended}"
        return f"{waiting.reason}: {waiting.message[:200]}" if waiting.message else waiting.reason
    return ""


COMPONENTS: Final = DoctorCheck(
    "components",
    "operator, extender, webhook and autoscaler have their pods",
    ("deployments", "pods"),
    {
        "no-operator": "the operator's Deployment is missing",
        "component-unavailable": "a Deployment has fewer available pods than replicas",
    },
    _decide,
)
