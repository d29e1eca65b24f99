"""The checks of the level baseline: no known way to more rights on the node. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tinykube.apiserver.hooks import Object
from tinykube.apiserver.pod_security.subjects import CheckRow, PodUnderCheck, allowed, listed, named, quoted

_ADDABLE: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
        *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
#: Sysctls that each namespace has for itself, by the minor version that allowed them first.
_SYSCTLS: Final = (
    (
        0,
        "kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_unprivileged_port_start "
        "net.ipv4.tcp_syncookies net.ipv4.ping_group_range",
    ),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (
        29,
        "net.ipv4.tcp_keepalive_time net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_intvl "
        "net.ipv4.tcp_keepalive_probes",
    ),
    (32, "net.ipv4.tcp_rmem net.ipv4.tcp_wmem"),
)
_SELINUX_TYPES: Final = ((0, "container_t container_init_t container_kvm_t"), (31, "container_engine_t"))
_VOLUMES: Final = frozenset(
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
)


def _privileged(pod: PodUnderCheck) -> str:
    found = pod.having(lambda context: context.get("privileged"))
    return f"{named('container', found)} must not set securityContext.privileged=true" if found else ""


def _host_namespaces(pod: PodUnderCheck) -> str:
    return ", ".join(f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(name))


def _host_paths(pod: PodUnderCheck) -> str:
    found = [volume["name"] for volume in pod.spec.get("volumes") or () if volume.get("hostPath")]
    return named("volume", found) if found else ""


def _host_ports(pod: PodUnderCheck) -> str:
    found, ports = [], set()
    for container in pod.containers:
        own = {port["hostPort"] for port in container.get("ports") or () if port.get("hostPort")}
        found += [container["name"]] if own else []
        ports |= own
    if not found:
        return ""
    uses = "use" if len(found) > 1 else "uses"
    return f"{named('container', found)} {uses} hostPort{'s' if len(ports) > 1 else ''} {listed(map(str, ports))}"


def _hosts_of_probes(pod: PodUnderCheck) -> str:
    found, hosts = [], set()
    for container in pod.containers:
        own = set(_hosts(container))
        found += [container["name"]] if own else []
        hosts |= own
    if not found:
        return ""
    uses = "use" if len(found) > 1 else "uses"
    return f"{named('container', found)} {uses} {named('probe or lifecycle host', sorted(hosts))}"


def _hosts(container: Object) -> Iterator[str]:
    lifecycle = container.get("lifecycle") or {}
    handlers = [container.get(f"{kind}Probe") for kind in ("liveness", "readiness", "startup")]
    handlers += [lifecycle.get("postStart"), lifecycle.get("preStop")]
    for handler in handlers:
        for kind in ("httpGet", "tcpSocket"):
            host = ((handler or {}).get(kind) or {}).get("host")
            if host:
                yield host


def _capabilities(pod: PodUnderCheck) -> str:
    return added(pod, _ADDABLE)


def added(pod: PodUnderCheck, allowed: frozenset[str]) -> str:
    def extra(context: Object) -> set[str]:
        return set((context.get("capabilities") or {}).get("add") or ()) - allowed

    found = pod.having(extra)
    if not found:
        return ""
    names = {name for c in pod.containers for name in extra(c.get("securityContext") or {})}
    return f"{named('container', found)} must not include {quoted(sorted(names))} in securityContext.capabilities.add"


def _proc_mount(pod: PodUnderCheck) -> str:
    return "" if pod.own_users else unmasked(pod)


def unmasked(pod: PodUnderCheck) -> str:
    def wrong(context: Object) -> bool:
        return context.get("procMount") not in (None, "Default")

    found = pod.having(wrong)
    kinds = {c["securityContext"]["procMount"] for c in pod.containers if wrong(c.get("securityContext") or {})}
    what = f"must not set securityContext.procMount to {quoted(sorted(kinds))}"
    return f"{named('container', found)} {what}" if found else ""


def _selinux(pod: PodUnderCheck) -> str:
    types = allowed(_SELINUX_TYPES, pod.minor) | {""}

    def wrong(context: Object) -> list[str]:
        options = context.get("seLinuxOptions") or {}
        kind = options.get("type") or ""
        return [
            *([f'type "{kind}"'] if kind not in types else []),
            *(f"{name} may not be set" for name in ("user", "role") if options.get(name)),
        ]

    contexts = [pod.spec, *pod.containers]
    every = [text for one in contexts for text in wrong(one.get("securityContext") or {})]
    setters = pod.setters(wrong)
    order = ("type", "user", "role")
    texts = sorted(dict.fromkeys(every), key=lambda text: order.index(text.split()[0]))
    verb = "set" if " and " in setters or setters.startswith("containers") else "sets"
    return f"{setters} {verb} forbidden securityContext.seLinuxOptions: {'; '.join(texts)}" if texts else ""


def seccomp(pod: PodUnderCheck) -> str:
    if pod.minor < 19:
        return ""

    def wrong(context: Object) -> bool:
        return (context.get("seccompProfile") or {}).get("type") == "Unconfined"

    setters = pod.setters(wrong)
    return f'{setters} must not set securityContext.seccompProfile.type to "Unconfined"' if setters else ""


def _apparmor(pod: PodUnderCheck) -> str:
    def wrong(context: Object) -> bool:
        return (context.get("appArmorProfile") or {}).get("type") == "Unconfined"

    setters = pod.setters(wrong)
    return f'{setters} must not set AppArmor profile type to "Unconfined"' if setters else ""


def _sysctls(pod: PodUnderCheck) -> str:
    given = (pod.spec.get("securityContext") or {}).get("sysctls") or ()
    return listed({one["name"] for one in given} - allowed(_SYSCTLS, pod.minor))


def _host_process(pod: PodUnderCheck) -> str:
    setters = pod.setters(lambda context: (context.get("windowsOptions") or {}).get("hostProcess"))
    return f"{setters} must not set securityContext.windowsOptions.hostProcess=true" if setters else ""


BASELINE: Final = (
    CheckRow("appArmorProfile", "forbidden AppArmor profile", _apparmor),
    CheckRow("capabilities", "non-default capabilities", _capabilities),
    CheckRow("hostNamespaces", "host namespaces", _host_namespaces),
    CheckRow("hostPathVolumes", "hostPath volumes", _host_paths),
    CheckRow("hostPorts", "hostPort", _host_ports),
    CheckRow("hostProbesAndHostLifecycle", "probe or lifecycle host", _hosts_of_probes, since=34),
    CheckRow("privileged", "privileged", _privileged),
    CheckRow("procMount", "procMount", _proc_mount),
    CheckRow("seLinuxOptions", "seLinuxOptions", _selinux),
    CheckRow("seccompProfile", "seccompProfile", seccomp),
    CheckRow("sysctls", "forbidden sysctls", _sysctls),
    CheckRow("windowsHostProcess", "hostProcess", _host_process),
)
