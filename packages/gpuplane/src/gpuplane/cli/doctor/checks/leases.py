"""The leases of operator, extender and autoscaler: held, and renewed a short time ago."""

from __future__ import annotations

from typing import Final

from gpuplane import names
from gpuplane.cli.doctor.facts import OPERATOR, DoctorFacts, unix
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding
from gpuplane.operator.operator import LEASE

# Deployment -> its lease.
LEASE_OF: Final = {
    OPERATOR: LEASE,
    names.EXTENDER_NAME: names.EXTENDER_NAME,
    names.AUTOSCALER_NAME: names.AUTOSCALER_NAME,
}
_DURATIONS: Final = 3  # after which a lease is stale: its holder's clock may be some seconds off
_LEAST_SECONDS: Final = 30.0


def _decide(facts: DoctorFacts) -> Diagnosis:
    by_name = {lease.metadata.name: lease.spec for lease in facts.leases}
    findings, held = [], []
    for deployment, name in LEASE_OF.items():
        if (found := facts.deployment(deployment)) is None or not found.spec.replicas:
            continue
        lease = by_name.get(name)
        where = f"lease/{name} in {names.OPERATOR_NAMESPACE}"
        cure = f"kubectl -n {names.OPERATOR_NAMESPACE} rollout restart deployment/{deployment}"
        if lease is None or not lease.holder_identity:
            what = f"no pod of {deployment} leads: no pod does its work"
            findings.append(DoctorFinding(fault="lease-not-held", what=what, where=where, cure=cure))
            continue
        age = facts.clock - unix(lease.renew_time)
        if age > max(_LEAST_SECONDS, _DURATIONS * lease.lease_duration_seconds):
            what = f"{lease.holder_identity} renewed it {age:.0f} s ago, and should every few seconds"
            findings.append(DoctorFinding(fault="lease-stale", what=what, where=where, cure=cure))
        held.append(deployment)
    return Diagnosis(f"{', '.join(held)} led" if held else "no component elects a leader", tuple(findings))


LEASES: Final = DoctorCheck(
    "leases",
    "operator, extender and autoscaler have a leader that is alive",
    ("leases", "deployments", "clock"),
    {
        "lease-not-held": "no pod of a component leads",
        "lease-stale": "the leader has not renewed its lease",
    },
    _decide,
)
