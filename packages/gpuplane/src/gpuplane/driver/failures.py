"""Reads the messages of a host's failed tools: reason, message and cure of a failed stage.

The meanings are in `failure_table`. An unknown failure keeps the tool's last lines.
"""

from __future__ import annotations

import re
from typing import Final

from gpuplane.driver.failure_table import TABLE, FailureRow
from gpuplane.driver.released import Family, Released
from gpuplane.host import Completed
from kubekit.errors import Terminal

_PACKAGES: Final = {
    **dict.fromkeys(("apt-get", "apt-cache"), "apt"),
    **dict.fromkeys(("modprobe", "rmmod", "depmod"), "kmod"),
    **dict.fromkeys(("env", "mkdir", "mv", "rm", "install"), "coreutils"),
    **dict.fromkeys(("update-ca-certificates", "update-ca-trust"), "ca-certificates"),
}
"""The package of a tool where it has another name than the tool."""


class DriverError(Terminal):
    """The driver cannot be made to work; `reason` is the CamelCase cause that the stage shows."""

    def __init__(self, reason: str, what: str, *, where: str = "", cure: str = "") -> None:
        super().__init__(what, where=where, cure=cure)
        self.reason = reason


def failure(done: Completed, root: str, driver: Released | None = None) -> DriverError:
    """Return the error that a failed command is.

    Args:
        root: the one that it ran in.
        driver: the driver that is being installed, for what the cure depends on.
    """
    argv = _without_env(done.command.argv)
    tool = argv[0].rpartition("/")[2]
    where = f"{done.command}, in {root}"
    name = "".join(part.capitalize() for part in re.split(r"[^a-zA-Z0-9]+", tool))
    if done.code in (126, 127):
        package = _PACKAGES.get(tool, tool)
        return DriverError(
            f"{name}Missing", f"the host has no {tool}", where=where, cure=f"install the package {package} on the node"
        )
    if done.code < 0:
        what = f"{tool} was killed by signal {-done.code}: {done.last_words}"
        return DriverError(f"{name}Killed", what, where=where, cure="see `dmesg` on the node: is it short of memory?")
    row = meaning(done, driver.os_id if driver is not None else "")
    about = {
        "words": _telling(done, row.says),
        "package": argv[-1].strip("*"),
        "version": driver.os_version if driver is not None else "",
        "machine": driver.machine if driver is not None else "",
        "precompiled": _precompiled(driver),
    }
    return DriverError(
        row.reason.format(Tool=name), row.what.format(**about), where=where, cure=row.cure.format(**about)
    )


def _precompiled(driver: Released | None) -> str:
    """The setting for a driver of packages; another kernel where such packages do not exist."""
    if driver is None or driver.family in (None, Family.DEBIAN):
        return "boot another kernel"
    return f'ClusterPolicy spec.driver.usePrecompiled: true and version: "{driver.branch}"'


def meaning(done: Completed, os_id: str = "") -> FailureRow:
    """Return the first row of the table that fits a failed command on a system."""
    argv = _without_env(done.command.argv)
    tool = argv[0].rpartition("/")[2]
    said = f"{done.stdout}\n{done.stderr}"
    return next(row for row in TABLE if _fits(row, tool, " ".join(argv), os_id) and re.search(row.says, said))


def _fits(row: FailureRow, tool: str, command: str, os_id: str) -> bool:
    return (
        (not row.tools or tool in row.tools) and (not row.systems or os_id in row.systems) and row.argument in command
    )


def _telling(done: Completed, says: str) -> str:
    """The line that made the difference, without the tool's own decoration."""
    lines = [line.strip() for line in (*done.stderr.splitlines(), *done.stdout.splitlines())]
    line = next((line for line in lines if says and re.search(says, line)), done.last_words)
    return re.sub(r"^(E: |Error: |FATAL: |modprobe: FATAL: |modprobe: ERROR: |rmmod: ERROR: )+", "", line)[:300]


def _without_env(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command that `env` starts."""
    if argv[0] != "env":
        return argv
    rest = list(argv[1:])
    while rest and (rest[0] == "-C" or "=" in rest[0]):
        del rest[: 2 if rest[0] == "-C" else 1]
    return tuple(rest) or argv
