"""Objects of an operand that the API server refuses: which field it names, and which field of the policy, or of an
NVIDIADriver, sets it.

A refused object must not hold up the others, nor the removal of what runs already. Therefore the operator collects
refusals, applies the rest, and reports all refusals at once in the policy's status. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.operator.drivers import DriverChoice
from gpuplane.operator.observed import COMPONENT_LABEL
from gpuplane.operator.stages import OPERANDS
from kubekit.api.meta import to_dict
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
    (r"spec\.template\.spec\.containers\[\d+\]\.startupProbe", "{component}.startupProbe"),
    (r"spec\.template\.spec\.containers\[\d+\]\.resources", "{component}.resources"),
    (r"spec\.template\.spec\.imagePullSecrets", "{component}.imagePullSecrets"),
    (r"spec\.endpoints", "{component}.serviceMonitor"),
    (r"spec\.(type|internalTrafficPolicy)\b", "{component}.service"),
)
"""Field of an object -> field of the policy's spec that sets it. The first that matches counts."""

# The same for the DaemonSet of an NVIDIADriver. These the ClusterPolicy does not set there.
_SET_BY_DRIVER: Final = (
    (r"spec\.template\.spec\.affinity", "nodeAffinity"),
    (r"spec\.template\.spec\.containers\[0\]\.env\b", "env"),
    (r"spec\.template\.spec\.containers\[0\]\.resources", "resources"),
    (r"spec\.template\.spec\.containers\[0\]\.startupProbe", "startupProbe"),
    (r"spec\.template\.spec\.imagePullSecrets", "imagePullSecrets"),
)
_TOLERATION: Final = re.compile(r"spec\.template\.spec\.tolerations\[(\d+)\]")


class ObjectRefusal(msgspec.Struct, frozen=True):
    """One object that was refused. `field` is the field that sets what is wrong, empty when unknown; it is a field of
    the NVIDIADriver `driver`, or of the policy without one.
    """

    name: str
    why: str
    field: str
    error: KubekitError
    driver: str = ""


def is_refusal(error: KubekitError) -> bool:
    """Return whether the API server rejects the object itself, so that the next one may succeed."""
    return isinstance(error, Terminal) or (isinstance(error, ApiError) and bool(_WRONG_TYPE.search(error.what)))


def refusal_of(manifest: Mapping[str, Any], error: KubekitError, drivers: Iterable[DriverChoice] = ()) -> ObjectRefusal:
    """Return what is wrong with a refused manifest, in the API server's words; `drivers` are the choices in force."""
    causes = error.causes if isinstance(error, ApiError) else ()
    typed = _WRONG_TYPE.search(error.what)
    why = "; ".join(causes) or (typed["why"] if typed else str(error))
    # An error without causes has its path somewhere in the text.
    texts = causes or (why,)
    name = f"{manifest['kind']}/{manifest['metadata']['name']}"
    choice = _choice_of(manifest, drivers)
    if choice is not None:
        ours = [field for text in texts if (field := _field_of_driver(manifest, choice, text))]
        if ours:
            return ObjectRefusal(name=name, why=why, field=ours[0], error=error, driver=choice.owner)
    found = [field for pattern, field in _SET_BY if any(re.match(pattern, text) for text in texts)]
    gate = manifest["metadata"].get("labels", {}).get(COMPONENT_LABEL, "")
    group = next((operand.group for operand in OPERANDS if operand.gate == gate), gate)
    return ObjectRefusal(name=name, why=why, field=found[0].format(component=group) if found else "", error=error)


def _choice_of(manifest: Mapping[str, Any], drivers: Iterable[DriverChoice]) -> DriverChoice | None:
    """Return the NVIDIADriver's choice that a driver's DaemonSet was made from; None for every other object."""
    selector = _template(manifest).get("spec", {}).get("nodeSelector", {})
    owner = selector.get(names.DRIVER_OWNER_LABEL, "")
    return next((choice for choice in drivers if owner and choice.owner == owner), None)


def _field_of_driver(manifest: Mapping[str, Any], choice: DriverChoice, text: str) -> str:
    """Return the field of an NVIDIADriver that sets what a text names; empty for what the policy or gpuplane sets.

    Labels, annotations, tolerations, priority and security context may come from either: the value decides.
    """
    for pattern, field in _SET_BY_DRIVER:
        if re.match(pattern, text):
            return field
    pod = _template(manifest).get("spec", {})
    if found := _TOLERATION.match(text):
        entry = pod["tolerations"][int(found[1])]
        return "tolerations" if entry in [to_dict(one) for one in choice.tolerations] else ""
    for part, own in (("labels", choice.labels), ("annotations", choice.annotations)):
        if re.match(rf"spec\.template\.(metadata\.)?{part}", text):
            return part if any(f'"{word}"' in text for item in own.items() for word in item) else ""
    if re.match(r"spec\.template\.spec\.priorityClassName", text):
        return "priorityClassName" if pod["priorityClassName"] == choice.priority_class else ""
    if re.match(r"spec\.template\.spec\.securityContext", text):
        own = choice.security_context
        return "podSecurityContext" if own and own.items() <= pod["securityContext"].items() else ""
    return ""


def _template(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = manifest.get("spec", {}).get("template", {})
    return found


def summary(refusals: Sequence[ObjectRefusal]) -> str:
    """Return one text for all refusals: objects that are refused for one reason are named together."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for refusal in refusals:
        reasons.setdefault((refusal.why, refusal.field, refusal.driver), []).append(refusal.name)
    texts = []
    for (why, field, driver), objects in list(reasons.items())[:_NAMED]:
        more = f" and {len(objects) - _NAMED} more" if len(objects) > _NAMED else ""
        where = f"NVIDIADriver {driver}" if driver else "ClusterPolicy"
        cure = f"; correct spec.{field} of the {where}" if field else ""
        texts.append(f"{', '.join(objects[:_NAMED])}{more}: {why}{cure}")
    rest = len(reasons) - _NAMED
    return " | ".join(texts) + (f" | {rest} more reasons" if rest > 0 else "")
