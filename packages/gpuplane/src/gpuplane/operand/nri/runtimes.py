"""Lists the container runtimes that work with NRI. Pure, and without the protocol's messages."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from kubekit.errors import Terminal

REQUEST_SECONDS: Final = 2.0  # what a runtime gives that does not say


class NriRuntime(msgspec.Struct, frozen=True):
    """The runtime that configured the plugin; `request_seconds` is its time limit for an answer."""

    name: str
    version: str
    request_seconds: float = REQUEST_SECONDS


class Unfit(Terminal):
    """The runtime has NRI, but would drop a part of what we answer without saying so."""


SINCE: Final = {"containerd": (2, 1), "cri-o": (1, 34)}
"""The first release that injects CDI devices for plugins; older ones drop them in silence. containerd 1.7 does so in
its last releases, where CDI is switched on, which it does not tell.

Source: containerd/containerd, pull requests 12650 and 12651; cri-o/cri-o, pull request 9128.
"""


def refuse_unfit(runtime: NriRuntime) -> None:
    """Raise Unfit unless the runtime is known to inject CDI devices for plugins."""
    found = re.match(r"v?(\d+)\.(\d+)", runtime.version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if runtime.name not in SINCE or version < SINCE[runtime.name]:
        raise Unfit(
            f"{runtime.name} {runtime.version} injects no CDI devices for plugins",
            where="NRI",
            cure=", ".join(f"{name} {major}.{minor}" for name, (major, minor) in SINCE.items()) + " and newer do",
        )
