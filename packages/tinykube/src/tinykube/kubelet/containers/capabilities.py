"""The capabilities of a container: those that runtimes give, with the pod's `add` and `drop`. Pure.

Source: capabilities(7) for the numbers, containerd's default specification for the set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_NAMES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)
_BITS: Final = {name: 1 << bit for bit, name in enumerate(_NAMES)}
_ALL: Final = "ALL"
# NB: without NET_RAW, which containerd gives: all pods share the machine's network, and would read the traffic of
# others there, such as the token with which the API server asks kubelets.
_DEFAULT: Final = (
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)


def capability_mask(add: Iterable[str] = (), drop: Iterable[str] = ()) -> int:
    """Return a container's capabilities, a bit for each. As with containerd, unknown names are skipped."""
    added, dropped = ({name.upper() for name in names} for names in (add, drop))
    names = set(_NAMES) if _ALL in added else set() if _ALL in dropped else set(_DEFAULT)
    names = (names | added) - dropped
    return sum(bit for name, bit in _BITS.items() if name in names)


def beyond_default(mask: int) -> tuple[str, ...]:
    """Return the names of the capabilities that a container has only because its pod adds them."""
    return tuple(name for name, bit in _BITS.items() if mask & bit and name not in _DEFAULT)
