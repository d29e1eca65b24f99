"""Validates pods, and the templates of pods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_found_value,
    not_supported,
    required,
)
from tinykube.apiserver.validation.containers import host_ports, validate_container
from tinykube.apiserver.validation.names import SUBDOMAIN_TEXT, dns_label, dns_subdomain, qualified_name
from tinykube.apiserver.validation.placement import AFFINITY, labels_of_nodes, spreading, toleration
from tinykube.apiserver.validation.resizes import resize_findings, validate_resize_policies
from tinykube.apiserver.validation.resources import validate_pod_resources
from tinykube.apiserver.validation.security import pod_security
from tinykube.apiserver.validation.tables import (
    MOST_INT32,
    Needs,
    Object,
    RuleTable,
    address,
    between,
    one_of,
)
from tinykube.apiserver.validation.volumes import validate_volumes

_DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_SEARCH_LABEL: Final = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH: Final = rf"{_SEARCH_LABEL}(\.{_SEARCH_LABEL})*"
_SEARCH_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    f"start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SEARCH}')"
)
_MOST_NAMESERVERS: Final = 3
_MOST_SEARCHES: Final = 32


def _search(value: Any, where: str) -> Iterator[Cause]:
    name = value if value == "." else value.removesuffix(".")
    if name != "." and not re.fullmatch(_SEARCH, name):
        yield invalid_value(where, name, _SEARCH_TEXT)


def _option(value: Any, where: str) -> Iterator[Cause]:
    if not value.get("name"):
        yield required(where, "must not be empty")


def _bounds(value: Any, where: str) -> Iterator[Cause]:
    for field, most in (("nameservers", _MOST_NAMESERVERS), ("searches", _MOST_SEARCHES)):
        given = value.get(field) or ()
        if len(given) > most:
            yield invalid_value(f"{where}.{field}", given, f"must not have more than {most} {field}")


_DNS: Final = RuleTable(("", _bounds), ("nameservers[]", address), ("searches[]", _search), ("options[]", _option))


def _host_name(value: Any, where: str) -> Iterator[Cause]:
    found = list(dns_subdomain(value, where))
    for cause in found:
        yield cause if SUBDOMAIN_TEXT not in cause.message else invalid_value(where, value, SUBDOMAIN_TEXT)


_ALIAS: Final = RuleTable(("ip", address), ("hostnames[]", _host_name))


def _subdomain(value: Any, where: str) -> Iterator[Cause]:
    if "." in value:
        yield invalid_value(where, value, "must not contain dots")
    else:
        yield from dns_label(value, where)


def _gates(value: Any, where: str) -> Iterator[Cause]:
    seen = set()
    for index, gate in enumerate(value):
        name = gate.get("name") or ""
        yield from qualified_name(name, f"{where}[{index}]")
        if name in seen:
            yield duplicate(f"{where}[{index}]", name)
        seen.add(name)


def _system(value: Any, where: str) -> Iterator[Cause]:
    if value.get("name") not in ("linux", "windows"):
        yield not_supported(where, value.get("name") or "", ("linux", "windows"))


_BEFORE_CONTEXT: Final = RuleTable(
    ("restartPolicy", Needs(), one_of("Always", "OnFailure", "Never")),
    ("dnsPolicy", one_of(*_DNS_POLICIES)),
    ("nodeSelector", labels_of_nodes),
)
_PLACES: Final = RuleTable(("affinity", AFFINITY), ("dnsConfig", _DNS))
_REST: Final = RuleTable(
    ("readinessGates[]", RuleTable(("conditionType", qualified_name))),
    ("schedulingGates", _gates),
    ("topologySpreadConstraints", spreading),
    ("serviceAccountName", dns_subdomain),
    ("nodeName", dns_subdomain),
    ("activeDeadlineSeconds", between(1, MOST_INT32)),
    ("hostname", dns_label),
    ("subdomain", _subdomain),
    ("tolerations[]", toleration),
    ("hostAliases[]", _ALIAS),
    ("priorityClassName", dns_subdomain),
    ("runtimeClassName", dns_subdomain),
    ("preemptionPolicy", one_of("Never", "PreemptLowerPriority")),
    ("os", _system),
)


def validate_pod_spec(spec: Any, field: str, *, is_template: bool = False) -> list[Cause]:
    """Return what is wrong with a pod's spec at the path `field`."""
    if not isinstance(spec, dict):
        return [required(f"{field}.containers")] if is_template else [required(field)]
    causes, volumes = validate_volumes(spec.get("volumes") or [], f"{field}.volumes")
    claims = [claim.get("name") for claim in spec.get("resourceClaims") or ()]
    causes += _claims(spec.get("resourceClaims") or [], f"{field}.resourceClaims")
    grace = spec.get("terminationGracePeriodSeconds") or 0
    containers = spec.get("containers") or []
    if not containers:
        causes.append(required(f"{field}.containers"))
    names: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{field}.{group}[{index}]"
            is_init = group == "initContainers"
            if is_init and container.get("restartPolicy") not in (None, "Always"):
                causes.append(not_supported(f"{where}.restartPolicy", container["restartPolicy"], _INIT_RESTARTS))
            causes += validate_container(container, where, volumes, claims, grace, is_init=is_init)
            policies, restarts = container.get("resizePolicy") or (), spec.get("restartPolicy", "Always")
            causes += validate_resize_policies(policies, f"{where}.resizePolicy", restarts)
            name = container.get("name")
            if name and name in names:
                causes.append(duplicate(f"{where}.name", name))
            names.add(name)
    causes += host_ports(containers, f"{field}.containers")
    if spec.get("resources"):
        causes += validate_pod_resources(spec["resources"], f"{field}.resources", containers)
    causes += _BEFORE_CONTEXT(spec, field)
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        causes.append(required(f"{field}.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None"))
    causes += _of_the_host(spec, containers, field)
    causes += pod_security(spec, f"{field}.securityContext")
    causes += _PLACES(spec, field)
    causes += _REST(spec, field)
    if spec.get("schedulingGates") and spec.get("nodeName") and not is_template:
        causes.append(forbidden_value(f"{field}.nodeName", "cannot be set until all schedulingGates have been cleared"))
    if spec.get("ephemeralContainers"):
        text = "ephemeral containers not allowed in pod template" if is_template else "cannot be set on create"
        causes.append(forbidden_value(f"{field}.ephemeralContainers", text))
    return causes


_CLAIM_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")


def _claims(claims: list[Object], where: str) -> Iterator[Cause]:
    names: list[str] = []
    for index, claim in enumerate(claims):
        here, name = f"{where}[{index}]", claim.get("name") or ""
        if name in names:
            yield duplicate(f"{here}.name", name)
        else:
            yield from RuleTable(("name", Needs(), dns_label))(claim, here)
        names.append(name)
        sources = [source for source in _CLAIM_SOURCES if claim.get(source) is not None]
        shown = {"Name": name, **{source[0].upper() + source[1:]: claim.get(source) for source in _CLAIM_SOURCES}}
        if len(sources) > 1:
            text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            yield invalid_value(here, shown, text)
        elif not sources:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield invalid_value(here, shown, text)
        for source in sources:
            yield from dns_subdomain(claim[source], f"{here}.{source}")


_INIT_RESTARTS: Final = ("Always", "Never", "OnFailure")


def _of_the_host(spec: Object, containers: list[Object], field: str) -> Iterator[Cause]:
    """Find what a pod in namespaces of the host may not have."""
    if spec.get("hostNetwork"):
        for index, container in enumerate(containers):
            for at, port in enumerate(container.get("ports") or ()):
                if port.get("hostPort") != port.get("containerPort"):
                    where = f"{field}.containers[{index}].ports[{at}].hostPort"
                    text = "must match `containerPort` when `hostNetwork` is true"
                    yield invalid_value(where, port.get("hostPort"), text)
    if spec.get("hostUsers") is False:
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(name):
                yield forbidden_value(f"{field}.{name}", "when `hostUsers` is false")


_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"


def _annotations(metadata: Object) -> Iterator[Cause]:
    """Profiles of AppArmor that are named by annotation, as before there was a field."""
    for key, value in (metadata.get("annotations") or {}).items():
        if key.startswith(_APPARMOR) and not (
            value in ("runtime/default", "unconfined") or value.startswith("localhost/")
        ):
            yield invalid_value(f"metadata.annotations[{key}]", value, f'invalid AppArmor profile name: "{value}"')


_POD_MUTABLE: Final = (
    "containers",
    "initContainers",
    "activeDeadlineSeconds",
    "tolerations",
)
#: Fields that other writes than an update by a user set: a binding, a status update, ephemeral containers, resizing.
_SET_ONCE: Final = ("schedulingGates", "ephemeralContainers", "priority", "resources")
_WHILE_GATED: Final = ("nodeSelector", "affinity")
_MAY_CHANGE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_pod(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec")
    if old is None:
        return [*_annotations(obj.get("metadata") or {}), *validate_pod_spec(spec, "spec")]
    before = old.get("spec") or {}
    if not isinstance(spec, dict) or spec == before:
        return []
    for group in ("containers", "initContainers"):
        if len(spec.get(group) or ()) != len(before.get(group) or ()):
            return [forbidden_value(f"spec.{group}", "pod updates may not add or remove containers")]
    causes = _stored_spec(spec)
    loose = (*_POD_MUTABLE, *_SET_ONCE, *(_WHILE_GATED if before.get("schedulingGates") else ()))
    changed = {name for name in {*spec, *before} if spec.get(name) != before.get(name) and name not in loose}
    for group in ("containers", "initContainers"):
        if [_without_image(c) for c in spec.get(group) or ()] != [_without_image(c) for c in before.get(group) or ()]:
            changed.add(group)
    if changed:
        causes.append(forbidden_value("spec", f"{_MAY_CHANGE}\nchanged: {', '.join(sorted(changed))}"))
    return causes


def _stored_spec(spec: Object) -> list[Cause]:
    """Validate the spec of a pod that is there, which may have ephemeral containers, and a node with gates."""
    return validate_pod_spec({**spec, "ephemeralContainers": None, "nodeName": None}, "spec")


def validate_resize(obj: Object, old: Object | None) -> list[Cause]:
    """Validate what a pod requests now; the subresource has taken nothing else from the client."""
    assert old is not None, "a resize is an update"
    return [*_stored_spec(obj["spec"]), *resize_findings(obj, old)]


def validate_ephemeral_containers(obj: Object, old: Object | None) -> list[Cause]:
    """Containers that are added to a running pod; the real server takes none away and changes none."""
    spec, field = obj["spec"], "spec.ephemeralContainers"
    _, volumes = validate_volumes(spec.get("volumes") or [], "spec.volumes")
    names = {one.get("name") for group in ("containers", "initContainers") for one in spec.get(group) or ()}
    causes: list[Cause] = []
    for index, container in enumerate(spec.get("ephemeralContainers") or ()):
        where = f"{field}[{index}]"
        causes += validate_container(container, where, volumes, (), 0, is_init=True)
        if container.get("name") in names:
            causes.append(duplicate(f"{where}.name", container["name"]))
        names.add(container.get("name"))
        target = container.get("targetContainerName")
        if target and target not in {one.get("name") for one in spec.get("containers") or ()}:
            causes.append(not_found_value(f"{where}.targetContainerName", target))
    return causes


def _without_image(container: Object) -> Object:
    return {key: value for key, value in container.items() if key not in ("image", "imagePullPolicy")}
