"""Rules for the security contexts of pods and containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, duplicate, invalid_value, required
from tinykube.apiserver.validation.tables import Check, Needs, Object, RuleTable, identity, one_of, relative_path

_PROFILES: Final = ("Localhost", "RuntimeDefault", "Unconfined")


def _profile(name: str) -> Check:
    """A profile of seccomp or AppArmor: of this machine by its name, or one of two kinds without a name."""

    def local(value: Any, where: str) -> Iterator[Cause]:
        profile, here = value.get("localhostProfile"), f"{where}.localhostProfile"
        if value.get("type") == "Localhost":
            if not profile:
                yield required(here, f"must be set when {name} type is Localhost")
            else:
                yield from relative_path(profile, here)
        elif profile is not None:
            whole = {"Type": value.get("type"), "LocalhostProfile": profile}
            yield invalid_value(here, whole, f"can only be set when {name} type is Localhost")

    return RuleTable(("type", Needs("type is required when seccompProfile is set"), one_of(*_PROFILES)), ("", local))


SECCOMP: Final = _profile("seccomp")
APPARMOR: Final = _profile("AppArmor")

_CONTEXT_FIELDS: Final = (
    "capabilities",
    "privileged",
    "seLinuxOptions",
    "windowsOptions",
    "runAsUser",
    "runAsGroup",
    "runAsNonRoot",
    "readOnlyRootFilesystem",
    "allowPrivilegeEscalation",
    "procMount",
    "seccompProfile",
    "appArmorProfile",
)


def _go(name: str) -> str:
    return {"seLinuxOptions": "SELinuxOptions"}.get(name, name[0].upper() + name[1:])


def _no_escalation(value: Any, where: str) -> Iterator[Cause]:
    if value.get("allowPrivilegeEscalation") is not False:
        return
    added = (value.get("capabilities") or {}).get("add") or ()
    whole = {_go(name): value.get(name) for name in _CONTEXT_FIELDS}
    if value.get("capabilities"):
        whole["Capabilities"] = {"Add": list(added) or None, "Drop": value["capabilities"].get("drop")}
    if value.get("privileged"):
        yield invalid_value(where, whole, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    if "CAP_SYS_ADMIN" in added:
        text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
        yield invalid_value(where, whole, text)


CONTAINER_SECURITY: Final = RuleTable(
    ("runAsUser", identity),
    ("runAsGroup", identity),
    ("procMount", one_of("Default", "Unmasked")),
    ("", _no_escalation),
    ("seccompProfile", SECCOMP),
    ("appArmorProfile", APPARMOR),
)

_SYSCTL: Final = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"


def _sysctls(value: Any, where: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, sysctl in enumerate(value):
        here, name = f"{where}[{index}].name", sysctl.get("name") or ""
        if not name:
            yield required(here)
        elif len(name) > 253 or not re.fullmatch(_SYSCTL, name):
            yield invalid_value(here, name, f"must have at most 253 characters and match regex ^{_SYSCTL}$")
        elif name.replace("/", ".") in seen:
            yield duplicate(here, name)
        seen.add(name.replace("/", "."))


def pod_security(spec: Object, where: str) -> Iterator[Cause]:
    """The security context of a pod, with what it may not share at the same time."""
    context = spec.get("securityContext") or {}
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        text = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid_value(f"{where}.shareProcessNamespace", True, text)
    if context.get("runAsUser") is not None and (spec.get("os") or {}).get("name") == "windows":
        yield Cause("FieldValueForbidden", "Forbidden: cannot be set for a windows pod", f"{where}.runAsUser")
    yield from _POD(context, where)


_POD: Final = RuleTable(
    ("fsGroup", identity),
    ("runAsUser", identity),
    ("runAsGroup", identity),
    ("supplementalGroups[]", identity),
    ("sysctls", _sysctls),
    ("fsGroupChangePolicy", one_of("Always", "OnRootMismatch")),
    ("seccompProfile", SECCOMP),
    ("appArmorProfile", APPARMOR),
)
