"""Reading files that may have no answer."""

from __future__ import annotations

import logging

from gpuplane.host import Host, HostError

log = logging.getLogger("gpuplane.discovery")


def text(host: Host, path: str) -> str | None:
    """The text of a file; None also where the kernel has no answer to give in it."""
    try:
        return host.read_text(path)
    except HostError as error:
        log.debug("source skipped: %s", error)
        return None


def names(host: Host, path: str) -> tuple[str, ...]:
    """List a directory; nothing when it cannot be read."""
    try:
        return host.list(path)
    except HostError as error:
        log.debug("source skipped: %s", error)
        return ()


def values(host: Host, directory: str, wanted: tuple[str, ...]) -> dict[str, str]:
    """Those of the files in one directory that have an answer."""
    try:
        return host.read_files(directory, wanted)
    except HostError as error:
        log.debug("source skipped: %s", error)
        return {}


def boolean(value: bool) -> str:
    return "true" if value else "false"
