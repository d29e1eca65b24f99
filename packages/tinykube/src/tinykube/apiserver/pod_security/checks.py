"""The violations of a level by a pod. Pure."""

from __future__ import annotations

import msgspec

from tinykube.apiserver.hooks import Object
from tinykube.apiserver.pod_security.baseline import BASELINE
from tinykube.apiserver.pod_security.levels import Level, PodSecurityLevel
from tinykube.apiserver.pod_security.restricted import RESTRICTED
from tinykube.apiserver.pod_security.subjects import PodUnderCheck


class Violation(msgspec.Struct, frozen=True):
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


def violations(spec: Object, level: PodSecurityLevel) -> list[Violation]:
    """Return what `level` does not allow of the spec of a pod or of a template."""
    if level.level is Level.PRIVILEGED:
        return []
    one = PodUnderCheck(spec, level.minor)
    rows = [row for row in RESTRICTED if level.level is Level.RESTRICTED and level.minor >= row.since]
    replaced = {name for row in rows for name in row.replaces}
    rows = [row for row in BASELINE if level.minor >= row.since and row.name not in replaced] + rows
    return [Violation(row.reason, detail) for row in rows if (detail := row.check(one))]
