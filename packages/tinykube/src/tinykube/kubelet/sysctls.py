"""Sysctls of pods: which ones a kubelet permits. Pure.

Source: the allowlist of safe sysctls of the kubelet of Kubernetes 1.36; kernels before 4.15 lack some of them, and have
no containers here. The kernel keeps a sysctl for each namespace of its kind.
"""

from __future__ import annotations

from typing import Final

from tinykube.kubelet.pod import KubeletPod

IPC: Final = "ipc"
NETWORK: Final = "net"
#: The namespace that each safe sysctl belongs to.
SAFE: Final = {
    "kernel.shm_rmid_forced": IPC,
    "net.ipv4.ip_local_port_range": NETWORK,
    "net.ipv4.tcp_syncookies": NETWORK,
    "net.ipv4.ping_group_range": NETWORK,
    "net.ipv4.ip_unprivileged_port_start": NETWORK,
    "net.ipv4.ip_local_reserved_ports": NETWORK,
    "net.ipv4.tcp_keepalive_time": NETWORK,
    "net.ipv4.tcp_fin_timeout": NETWORK,
    "net.ipv4.tcp_keepalive_intvl": NETWORK,
    "net.ipv4.tcp_keepalive_probes": NETWORK,
    "net.ipv4.tcp_rmem": NETWORK,
    "net.ipv4.tcp_wmem": NETWORK,
}
_SWAPPED: Final = str.maketrans("./", "/.")


def dotted(name: str) -> str:
    """Return the name of a sysctl with dots, where it may be written with slashes: kernel/shm_rmid_forced."""
    first = next((character for character in name if character in "./"), "")
    return name.translate(_SWAPPED) if first == "/" else name


def forbidden_sysctl(pod: KubeletPod) -> str:
    """Return why a pod's sysctls are refused, "" if they are not."""
    for sysctl in pod.spec.security_context.sysctls:
        name = dotted(sysctl.name)
        space = SAFE.get(name)
        if space is None:
            return f'forbidden sysctl: "{name}" not allowlisted'
        if (space == IPC and pod.spec.host_ipc) or (space == NETWORK and pod.spec.host_network):
            return f'forbidden sysctl: "{name}" not allowed with host {space} enabled'
    return ""


def set_sysctls(pod: KubeletPod) -> tuple[tuple[str, str], ...]:
    """Return the names and values that a pod sets; of two values for a name, the last."""
    return tuple({dotted(one.name): one.value for one in pod.spec.security_context.sysctls}.items())
