"""The extender is really called by kube-scheduler.

The configuration of kube-scheduler cannot always be read. The proof is in the pods: the extender alone binds a share
with an assignment, so a bound share with an assignment was placed by it, and one without was not
(`gpuplane.cli.extender_use`). Before the first share there is no proof, and the check says so.
"""

from __future__ import annotations

from typing import Final

from gpuplane import names
from gpuplane.cli.doctor.facts import DoctorFacts
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding
from gpuplane.cli.extender_use import CURE, bound_without, not_asked, reason, unconfigured
from gpuplane.cli.status_views import ExtenderBypass
from gpuplane.cli.terminal import count


def _decide(facts: DoctorFacts) -> Diagnosis:
    if facts.deployment(names.EXTENDER_NAME) is None:
        return Diagnosis("extender not installed")
    placed = sum(
        1 for pod in facts.pods if pod.spec.node_name and names.ASSIGNMENT_ANNOTATION in pod.metadata.annotations
    )
    findings = []
    second = facts.deployment(names.SECOND_SCHEDULER_NAME) is not None
    if not second and (schedulers := unconfigured(facts.pods, installed=True)):
        findings.append(
            DoctorFinding(
                fault="scheduler-unconfigured",
                what=f"{reason(ExtenderBypass(schedulers=schedulers), 3)}: it never calls the extender",
                where=f"pod/{schedulers[0]}",
                cure=CURE,
            )
        )
    elif shares := not_asked(facts.bypasses, facts.pods):
        findings.append(
            DoctorFinding(
                fault="extender-not-asked",
                what=reason(ExtenderBypass(shares=shares), 3),
                where=f"pod/{shares[0]}",
                cure=f"{CURE}; then delete the pod and create it again",
            )
        )
    elif not placed and (shares_without := bound_without(facts.pods)):
        findings.append(
            DoctorFinding(
                fault="extender-never-called",
                what=f"it placed no share, and {count(len(shares_without), 'share')} on nodes",
                where=f"pod/{shares_without[0].metadata.namespace}/{shares_without[0].metadata.name}",
                cure=f"{CURE}; then delete the pod and create it again",
            )
        )
    proved = f"placed {count(placed, 'pod')}" if placed else "not proved yet: no pod with a share was scheduled"
    return Diagnosis(f"extender {proved}", tuple(findings))


EXTENDER: Final = DoctorCheck(
    "extender",
    "kube-scheduler calls the extender",
    ("pods", "bypasses", "deployments"),
    {
        "scheduler-unconfigured": "kube-scheduler starts without a configuration",
        "extender-not-asked": "a share was bound without the extender, which reported it",
        "extender-never-called": "shares are bound, and the extender placed none of them",
    },
    _decide,
)
