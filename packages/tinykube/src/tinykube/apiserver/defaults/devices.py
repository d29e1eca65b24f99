"""Sets the defaults of ResourceClaims and their templates."""

from __future__ import annotations

from tinykube.apiserver.defaults.filling import Object, fill, spec_of


def _claim_spec(spec: Object) -> None:
    """Request one device where a ResourceClaim does not say how many."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if one is not None:
                fill(one, allocationMode="ExactCount")
                if one["allocationMode"] == "ExactCount":
                    one["count"] = one.get("count") or 1


def resource_claim(obj: Object) -> None:
    _claim_spec(spec_of(obj))


def claim_template(obj: Object) -> None:
    _claim_spec(spec_of(spec_of(obj)))
