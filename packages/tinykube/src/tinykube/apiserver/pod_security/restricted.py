"""The checks that the level restricted adds: the rights of a program that needs none. Pure."""

from __future__ import annotations

from typing import Final

from tinykube.apiserver.pod_security.baseline import added, seccomp, unmasked
from tinykube.apiserver.pod_security.subjects import CheckRow, PodUnderCheck, named

_VOLUMES: Final = frozenset(
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
)


def _escalation(pod: PodUnderCheck) -> str:
    if pod.windows:
        return ""
    found = pod.having(lambda context: context.get("allowPrivilegeEscalation") is not False)
    return f"{named('container', found)} must set securityContext.allowPrivilegeEscalation=false" if found else ""


def _few_capabilities(pod: PodUnderCheck) -> str:
    if pod.windows:
        return ""
    found = pod.having(lambda context: "ALL" not in ((context.get("capabilities") or {}).get("drop") or ()))
    drop = f'{named("container", found)} must set securityContext.capabilities.drop=["ALL"]' if found else ""
    return "; ".join(filter(None, (drop, added(pod, frozenset({"NET_BIND_SERVICE"})))))


def _volumes(pod: PodUnderCheck) -> str:
    found, kinds = [], set()
    for volume in pod.spec.get("volumes") or ():
        other = {key for key, value in volume.items() if key != "name" and value is not None} - _VOLUMES
        found += [volume["name"]] if other else []
        kinds |= other
    if not found:
        return ""
    uses = "use" if len(found) > 1 else "uses"
    return f"{named('volume', found)} {uses} {named('restricted volume type', sorted(kinds))}"


def _not_root(pod: PodUnderCheck) -> str:
    if pod.own_users:
        return ""
    whole = (pod.spec.get("securityContext") or {}).get("runAsNonRoot")
    explicit = pod.having(lambda context: context.get("runAsNonRoot") is False)
    if whole is False or explicit:
        setters = pod.setters(lambda context: context.get("runAsNonRoot") is False)
        return f"{setters} must not set securityContext.runAsNonRoot=false"
    silent = pod.having(lambda context: context.get("runAsNonRoot") is None) if not whole else []
    return f"pod or {named('container', silent)} must set securityContext.runAsNonRoot=true" if silent else ""


def _root_user(pod: PodUnderCheck) -> str:
    if pod.own_users:
        return ""
    setters = pod.setters(lambda context: context.get("runAsUser") == 0)
    return f"{setters} must not set runAsUser=0" if setters else ""


def _seccomp_set(pod: PodUnderCheck) -> str:
    if pod.windows:
        return ""
    if wrong := seccomp(pod):
        return wrong
    if (pod.spec.get("securityContext") or {}).get("seccompProfile"):
        return ""
    silent = pod.having(lambda context: not context.get("seccompProfile"))
    what = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return f"pod or {named('container', silent)} {what}" if silent else ""


RESTRICTED: Final = (
    CheckRow("allowPrivilegeEscalation", "allowPrivilegeEscalation != false", _escalation, since=8),
    CheckRow("capabilities", "unrestricted capabilities", _few_capabilities, since=22, replaces=("capabilities",)),
    CheckRow("procMount", "procMount", unmasked, since=35, replaces=("procMount",)),
    CheckRow("restrictedVolumes", "restricted volume types", _volumes, replaces=("hostPathVolumes",)),
    CheckRow("runAsNonRoot", "runAsNonRoot != true", _not_root),
    CheckRow("runAsUser", "runAsUser=0", _root_user, since=23),
    CheckRow("seccompProfile", "seccompProfile", _seccomp_set, since=19, replaces=("seccompProfile",)),
)
