"""Objects of an operand that the API server refuses: which field it names, and which field of the policy sets it.

A refused object must not hold up the others, nor the removal of what runs already. Therefore the operator collects
refusals, applies the rest, and reports all refusals at once in the policy's status. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.operator.observed import COMPONENT_LABEL
from gpuplane.operator.stages import OPERANDS
from kubekit.errors import KubekitError, Terminal
from kubekit.kube import ApiError

_NAMED: Final = 3  # objects and reasons in a message
# kube-apiserver answers 500 to a server-side apply in which a field has the wrong type.
_WRONG_TYPE: Final = re.compile(
    r"failed to (?:create typed patch|convert new) object \(.*?\)[^:]*: \.?(?P<why>.*)", re.DOTALL
)

_SET_BY: Final = (
    (r"spec\.updateStrategy", "daemonsets.rollingUpdate"),
    (r"spec\.template\.(metadata\.)?labels", "daemonsets.labels"),
    (r"spec\.template\.(metadata\.)?annotations", "daemonsets.annotations"),
    (r"spec\.template\.spec\.tolerations", "daemonsets.tolerations"),
    (r"spec\.template\.spec\.securityContext", "daemonsets.podSecurityContext"),
    (r"spec\.template\.spec\.priorityClassName", "daemonsets.priorityClassName"),
    (r"spec\.template\.spec\.volumes", "hostPaths"),
    (r"metadata\.labels", "operator.labels"),
    (r"metadata\.annotations", "operator.annotations"),
    (r"spec\.template\.spec\.containers\[\d+\]\.env\b", "{component}.env"),
    (r"spec\.template\.spec\.containers\[\d+\]\.resources", "{component}.resources"),
    (r"spec\.template\.spec\.imagePullSecrets", "{component}.imagePullSecrets"),
)
"""Field of an object -> field of the policy's spec that sets it. The first that matches counts."""


class ObjectRefusal(msgspec.Struct, frozen=True):
    """One object that was refused. `field` is the field of the policy that sets what is wrong, empty when unknown."""

    name: str
    why: str
    field: str
    error: KubekitError


def is_refusal(error: KubekitError) -> bool:
    """Return whether the API server rejects the object itself, so that the next one may succeed."""
    return isinstance(error, Terminal) or (isinstance(error, ApiError) and bool(_WRONG_TYPE.search(error.what)))


def refusal_of(manifest: Mapping[str, Any], error: KubekitError) -> ObjectRefusal:
    """Return what is wrong with a refused manifest, in the API server's words."""
    causes = error.causes if isinstance(error, ApiError) else ()
    typed = _WRONG_TYPE.search(error.what)
    why = "; ".join(causes) or (typed["why"] if typed else str(error))
    # An error without causes has its path somewhere in the text.
    found = [field for pattern, field in _SET_BY if any(re.match(pattern, cause) for cause in causes or (why,))]
    gate = manifest["metadata"].get("labels", {}).get(COMPONENT_LABEL, "")
    group = next((operand.group for operand in OPERANDS if operand.gate == gate), gate)
    return ObjectRefusal(
        name=f"{manifest['kind']}/{manifest['metadata']['name']}",
        why=why,
        field=found[0].format(component=group) if found else "",
        error=error,
    )


def summary(refusals: Sequence[ObjectRefusal]) -> str:
    """Return one text for all refusals: objects that are refused for one reason are named together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        reasons.setdefault((refusal.why, refusal.field), []).append(refusal.name)
    texts = []
    for (why, field), names in list(reasons.items())[:_NAMED]:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        cure = f"; correct spec.{field} of the ClusterPolicy" if field else ""
        texts.append(f"{', '.join(names[:_NAMED])}{more}: {why}{cure}")
    rest = len(reasons) - _NAMED
    return " | ".join(texts) + (f" | {rest} more reasons" if rest > 0 else "")
