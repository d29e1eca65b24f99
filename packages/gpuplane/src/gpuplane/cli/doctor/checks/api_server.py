"""The API server's version, and whether this program is of the installed release."""

from __future__ import annotations

import re
from typing import Final

from gpuplane.cli.doctor.facts import DoctorFacts, tag
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding, Severity

OLDEST: Final = (1, 30)  # has the admission policies that bound the accounts of gpuplane


def _decide(facts: DoctorFacts) -> Diagnosis:
    findings = []
    found = re.match(r"v(\d+)\.(\d+)", facts.version)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        findings.append(
            DoctorFinding(
                fault="kubernetes-too-old",
                severity=Severity.WARNING,
                what=f"Kubernetes {facts.version or 'of an unknown version'} has no ValidatingAdmissionPolicy: the "
                "accounts of gpuplane can do more than they need",
                where="API server",
                cure=f"upgrade Kubernetes to {oldest} or newer",
            )
        )
    installed = tag(facts.image)
    if re.fullmatch(r"\d+\.\d+\.\d+.*", installed) and installed != facts.program:
        findings.append(
            DoctorFinding(
                fault="program-differs",
                severity=Severity.WARNING,
                what=f"this program is gpuplane {facts.program}, the operator is {installed}: its definitions and "
                "cures may be others",
                where="deployment/gpu-operator",
                cure=f"pip install gpuplane=={installed}",
            )
        )
    return Diagnosis(f"Kubernetes {facts.version.removeprefix('v')}, gpuplane {facts.program}", tuple(findings))


API_SERVER: Final = DoctorCheck(
    "api-server",
    "version of the API server, and of this program against the operator's",
    ("version", "deployments"),
    {
        "kubernetes-too-old": "Kubernetes is older than 1.30",
        "program-differs": "this program has another version than the operator",
    },
    _decide,
)
