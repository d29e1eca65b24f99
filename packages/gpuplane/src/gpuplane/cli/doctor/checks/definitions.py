"""The CustomResourceDefinitions: there, and those that this program knows.

The API server adds defaults to a definition. So each value of ours must be in the cluster's, and the names of fields in
a schema must be the same in both: a field too few is dropped from objects in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuplane.cli.doctor.facts import DoctorFacts
from gpuplane.cli.doctor.finding import Diagnosis, DoctorCheck, DoctorFinding

_CURE: Final = "gpuplane install --only crds"


def _decide(facts: DoctorFacts) -> Diagnosis:
    findings = []
    for wanted in facts.wanted_crds:
        name = wanted["metadata"]["name"]
        found = facts.crds.get(name)
        where = f"customresourcedefinition/{name}"
        if found is None:
            what = f"the API server has no kind {wanted['spec']['names']['kind']}"
            findings.append(DoctorFinding(fault="crd-missing", what=what, where=where, cure=_CURE))
        elif place := difference(wanted["spec"], found.get("spec") or {}):
            what = f"it is of another release than gpuplane {facts.program}: {place} differs"
            findings.append(DoctorFinding(fault="crd-differs", what=what, where=where, cure=_CURE))
    return Diagnosis(f"{len(facts.wanted_crds)} CRDs of {facts.program}", tuple(findings))


def difference(wanted: Any, found: Any, at: str = "spec") -> str:
    """Return the first place at which a definition is not the wanted one, empty if there is none."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return at if wanted else ""
        if at.endswith(".properties") and (odd := sorted(set(wanted) ^ set(found))):
            return f"{at}.{odd[0]}"
        places = (difference(value, found.get(key), f"{at}.{key}") for key, value in wanted.items())
        return next(filter(None, places), "")
    if isinstance(wanted, list | tuple):
        if not wanted and not found:
            return ""
        if not isinstance(found, list) or len(found) != len(wanted):
            return at
        places = (
            difference(one, other, f"{at}[{index}]")
            for index, (one, other) in enumerate(zip(wanted, found, strict=True))
        )
        return next(filter(None, places), "")
    # The API server leaves out false and empty values.
    return at if (wanted or found) and wanted != found else ""


DEFINITIONS: Final = DoctorCheck(
    "crds",
    "the CustomResourceDefinitions are those of this program",
    ("crds",),
    {
        "crd-missing": "the API server does not serve one of gpuplane's kinds",
        "crd-differs": "a definition is of another release",
    },
    _decide,
)
