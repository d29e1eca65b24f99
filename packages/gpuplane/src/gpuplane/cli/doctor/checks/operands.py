"""The operands' DaemonSets: of the operator's image, acted on by Kubernetes, with pods that are current and run.

A driver's pods are replaced by upgrades of drivers, node by node: an older one of them is no fault.
"""

from __future__ import annotations

from typing import Final

from gpuplane import names
from gpuplane.cli.doctor.checks.components import why_not_running
from gpuplane.cli.doctor.facts import DoctorFacts
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding, Severity
from gpuplane.cli.terminal import count
from gpuplane.operator.driver_sets import DRIVER_IMAGE_CONTAINER
from gpuplane.operator.observed import COMPONENT_LABEL, DRIVER
from kubekit.api.core import DaemonSet, Pod, PodSpec

_NAMESPACE: Final = names.OPERATOR_NAMESPACE
_NAME_LABEL: Final = "app.kubernetes.io/name"
_PART: Final = "app.kubernetes.io/part-of"
_RESTART: Final = f"kubectl -n {_NAMESPACE} rollout restart"


def _decide(facts: DoctorFacts) -> Diagnosis:
    sets = [one for one in facts.daemonsets if one.metadata.labels.get(_PART) == "gpuplane"]
    findings = [finding for one in sets for finding in _of_set(one, facts)]
    return Diagnosis(f"{count(len(sets), 'operand')} current", tuple(findings))


def _of_set(found: DaemonSet, facts: DoctorFacts) -> list[DoctorFinding]:
    name = found.metadata.name
    where = f"daemonset/{name} in {_NAMESPACE}"
    findings = []
    others = sorted(_images(found.spec.template.spec) - {facts.image})
    if others and facts.image:
        findings.append(
            DoctorFinding(
                fault="operand-image-differs",
                what=f"it runs {', '.join(others)}, the operator {facts.image}: the operator has not updated it",
                where=where,
                cure=f"{_RESTART} deployment/gpu-operator",
            )
        )
    if found.status.observed_generation < found.metadata.generation:
        findings.append(
            DoctorFinding(
                fault="operand-not-observed",
                what="Kubernetes has not acted on its last change: kube-controller-manager does not work",
                where=where,
                cure="start kube-controller-manager: kubectl -n kube-system get pods names it",
            )
        )
    pods = [pod for pod in facts.own_pods if pod.metadata.labels.get(_NAME_LABEL) == name]
    for pod in pods:
        findings += _of_pod(pod, found)
    return findings


def _of_pod(pod: Pod, of: DaemonSet) -> list[DoctorFinding]:
    name = pod.metadata.name
    where = f"pod/{name} on {pod.spec.node_name}"
    again = f"kubectl -n {_NAMESPACE} delete pod {name}"
    findings = []
    is_driver = of.metadata.labels.get(COMPONENT_LABEL) == DRIVER
    if not is_driver and (old := sorted(_images(pod.spec) - _images(of.spec.template.spec))):
        findings.append(
            DoctorFinding(
                fault="operand-pod-old",
                severity=Severity.WARNING,
                what=f"it runs {', '.join(old)}, which its DaemonSet had before",
                where=where,
                cure=again,
            )
        )
    if why := why_not_running(pod):
        findings.append(DoctorFinding(fault="operand-not-running", what=why, where=where, cure=again))
    return findings


def _images(pod: PodSpec) -> set[str]:
    """Return the images of gpuplane's own containers."""
    containers = (*pod.init_containers, *pod.containers)
    return {one.image for one in containers if one.name != DRIVER_IMAGE_CONTAINER}


OPERANDS: Final = DoctorCheck(
    "operands",
    "the operands run the operator's image, and run",
    ("daemonsets", "deployments", "pods"),
    {
        "operand-image-differs": "a DaemonSet has another image than the operator",
        "operand-not-observed": "Kubernetes has not acted on the last change of a DaemonSet",
        "operand-pod-old": "a pod runs an image that its DaemonSet had before",
        "operand-not-running": "a container of an operand crashes, or cannot start",
    },
    _decide,
)
