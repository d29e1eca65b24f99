"""Rules for containers: ports, mounts, probes, hooks and what they request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
from tinykube.apiserver.validation.environment import VARIABLE, variables_from
from tinykube.apiserver.validation.names import dns_label, port_name
from tinykube.apiserver.validation.resources import validate_resources
from tinykube.apiserver.validation.security import CONTAINER_SECURITY
from tinykube.apiserver.validation.tables import (
    Check,
    Needs,
    Object,
    RuleTable,
    at_least,
    not_negative,
    one_of,
    port_number,
    relative_path,
    text_like,
    unique,
)


def _image(value: Any, where: str) -> Iterator[Cause]:
    if value != value.strip():
        yield invalid_value(where, value, "must not have leading or trailing whitespace")


_PORT: Final = RuleTable(
    ("name", port_name),
    ("containerPort", Needs(), port_number),
    ("hostPort", port_number),
    ("protocol", one_of("SCTP", "TCP", "UDP")),
)


def named_port(value: Any, where: str) -> Iterator[Cause]:
    """A number or a name of a port."""
    yield from port_name(value, where) if isinstance(value, str) else port_number(value, where)


_HEADER: Final = text_like(
    re.compile(r"[-A-Za-z0-9]+"),
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    "validation is '[-A-Za-z0-9]+')",
)


def _headers(value: Any, where: str) -> Iterator[Cause]:
    for header in value:
        yield from _HEADER(header.get("name") or "", where)


_HANDLERS: Final[dict[str, Check]] = {
    "exec": RuleTable(("command", Needs())),
    "httpGet": RuleTable(
        ("path", Needs()), ("port", named_port), ("scheme", one_of("HTTP", "HTTPS")), ("httpHeaders", _headers)
    ),
    "tcpSocket": RuleTable(("port", named_port)),
    "grpc": RuleTable(("port", port_number)),
}


def _handler(value: Any, where: str) -> Iterator[Cause]:
    """One action: what a probe or hook does."""
    given = [name for name in (*_HANDLERS, "sleep") if value.get(name) is not None]
    if not given:
        yield required(where, "must specify a handler type")
    for at, name in enumerate(given):
        if at:
            yield forbidden_value(f"{where}.{name}", "may not specify more than 1 handler type")
        elif name in _HANDLERS:
            yield from _HANDLERS[name](value[name], f"{where}.{name}")


_PROBE: Final = RuleTable(
    ("", _handler),
    ("initialDelaySeconds", not_negative),
    ("timeoutSeconds", not_negative),
    ("periodSeconds", not_negative),
    ("successThreshold", not_negative),
    ("failureThreshold", not_negative),
    ("terminationGracePeriodSeconds", at_least(1, "must be greater than 0")),
)


def _only_once(value: Any, where: str) -> Iterator[Cause]:
    if value.get("successThreshold") != 1:
        yield invalid_value(f"{where}.successThreshold", value.get("successThreshold"), "must be 1")


def _no_grace(value: Any, where: str) -> Iterator[Cause]:
    seconds = value.get("terminationGracePeriodSeconds")
    if seconds is not None:
        yield invalid_value(f"{where}.terminationGracePeriodSeconds", seconds, "must not be set for readinessProbes")


def _hooks(grace: int) -> Check:
    """Return the check of hooks; none may sleep longer than `grace`, the pod's grace period in seconds."""

    def sleep(value: Any, where: str) -> Iterator[Cause]:
        if not 0 <= value.get("seconds", 0) <= grace:
            text = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            yield invalid_value(where, value.get("seconds"), text)

    hook = RuleTable(("", _handler), ("sleep", sleep))
    return RuleTable(("postStart", hook), ("preStop", hook))


_BASIC: Final = RuleTable(
    ("name", Needs(), dns_label),
    ("image", Needs(), _image),
)
_PULL: Final = RuleTable(("imagePullPolicy", Needs(), one_of("Always", "IfNotPresent", "Never")))
_REST: Final = RuleTable(
    ("ports[]", _PORT),
    ("ports", unique("name")),
    ("env[]", VARIABLE),
    ("envFrom", variables_from),
)
_MESSAGES: Final = RuleTable(("terminationMessagePolicy", one_of("File", "FallbackToLogsOnError")))
_PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")


def _mounts(container: Object, where: str, volumes: dict[str, Object]) -> Iterator[Cause]:
    paths = set()
    devices = {one.get("name") for one in container.get("volumeDevices") or ()}
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        here = f"{where}.volumeMounts[{index}]"
        name, path = mount.get("name") or "", mount.get("mountPath")
        if not name:
            yield required(f"{here}.name")
        if name not in volumes:
            yield not_found_value(f"{here}.name", name)
        if not path:
            yield required(f"{here}.mountPath")
        elif path in paths:
            yield invalid_value(f"{here}.mountPath", path, "must be unique")
        paths.add(path)
        if name in devices:
            yield invalid_value(f"{here}.name", name, "must not already exist in volumeDevices")
        if mount.get("subPath") and mount.get("subPathExpr"):
            yield invalid_value(
                f"{here}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive"
            )
        yield from _ways(mount, f"{where}.volumeMounts", container)


def _ways(mount: Object, where: str, container: Object) -> Iterator[Cause]:
    """Sub-paths and propagation; the real server names the list here, not the mount."""
    for field in ("subPath", "subPathExpr"):
        if mount.get(field):
            yield from relative_path(mount[field], f"{where}.{field}")
    propagation = mount.get("mountPropagation")
    if propagation is not None and propagation not in _PROPAGATIONS:
        yield not_supported(f"{where}.mountPropagation", propagation, _PROPAGATIONS)
    if propagation == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        text = "Bidirectional mount propagation is available only to privileged containers"
        yield forbidden_value(f"{where}.mountPropagation", text)
    if mount.get("recursiveReadOnly") in ("Enabled", "IfPossible") and not mount.get("readOnly"):
        yield forbidden_value(f"{where}.recursiveReadOnly", "may only be specified when readOnly is true")


def _devices(container: Object, where: str, volumes: dict[str, Object]) -> Iterator[Cause]:
    mounts = {one.get("name") for one in container.get("volumeMounts") or ()}
    for index, device in enumerate(container.get("volumeDevices") or ()):
        here, name = f"{where}.volumeDevices[{index}]", device.get("name") or ""
        if not name:
            yield required(f"{here}.name")
        elif name not in volumes:
            yield not_found_value(f"{here}.name", name)
        elif not {"persistentVolumeClaim", "ephemeral"} & set(volumes[name]):
            text = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            yield invalid_value(f"{here}.name", name, text)
        if not device.get("devicePath"):
            yield required(f"{here}.devicePath")
        if name in mounts:
            yield invalid_value(f"{here}.name", name, "must not already exist in volumeMounts")


_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")


def validate_container(
    container: Object, where: str, volumes: dict[str, Object], claims: Iterable[str], grace: int, *, is_init: bool
) -> Iterator[Cause]:
    """The rules of one container.

    Args:
        volumes: those that it may mount, by name.
        claims: the names of the pod's resource claims.
        grace: the pod's grace period in seconds.
    """
    sidecar = container.get("restartPolicy") == "Always"
    yield from _BASIC(container, where)
    yield from _MESSAGES(container, where)
    yield from _REST(container, where)
    yield from _mounts(container, where, volumes)
    yield from _devices(container, where, volumes)
    yield from _PULL(container, where)
    yield from validate_resources(container.get("resources") or {}, f"{where}.resources", claims)
    if container.get("securityContext"):
        yield from CONTAINER_SECURITY(container["securityContext"], f"{where}.securityContext")
    if is_init and not sidecar:
        for name in ("lifecycle", *_PROBES):
            if container.get(name) is not None:
                yield forbidden_value(
                    f"{where}.{name}", "may not be set for init containers without restartPolicy=Always"
                )
        return
    if container.get("lifecycle"):
        yield from _hooks(grace)(container["lifecycle"], f"{where}.lifecycle")
    for name in _PROBES:
        probe = container.get(name)
        if probe is not None:
            yield from _PROBE(probe, f"{where}.{name}")
            if name == "readinessProbe":
                yield from _no_grace(probe, f"{where}.{name}")
            else:
                yield from _only_once(probe, f"{where}.{name}")


def host_ports(containers: list[Object], where: str) -> Iterator[Cause]:
    """No two ports of a pod are one port of the host."""
    taken = set()
    for index, container in enumerate(containers):
        for at, port in enumerate(container.get("ports") or ()):
            if not port.get("hostPort"):
                continue
            key = f"{port.get('protocol')}/{port.get('hostIP') or ''}/{port['hostPort']}"
            if key in taken:
                yield duplicate(f"{where}[{index}].ports[{at}].hostPort", key)
            taken.add(key)
