"""Reads the messages of a host's failed tools: reason, message and cure of a failed stage.

The texts are those that the tools print in the C locale. An unknown failure keeps the tool's last lines.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gpuplane.host import Completed
from kubekit.errors import Terminal


class DriverError(Terminal):
    """The driver cannot be made to work; `reason` is the CamelCase cause that the stage shows."""

    def __init__(self, reason: str, what: str, *, where: str = "", cure: str = "") -> None:
        super().__init__(what, where=where, cure=cure)
        self.reason = reason


class _Meaning(msgspec.Struct, frozen=True):
    """`tools` that may say it ("" for all), `says` as a regular expression, and what it comes to."""

    tools: tuple[str, ...]
    says: str
    reason: str
    what: str
    cure: str


_PACKAGES: Final = ("apt-get", "apt-cache", "dnf", "zypper")
_MODULES: Final = ("modprobe", "rmmod")
_DMESG: Final = "see `dmesg | grep -i nvrm` on the node"
_NO_HEADERS: Final = (
    r"locate package linux-headers|No packages found|No match for argument: kernel-devel|kernel-[\w-]+-devel' not found"
    r"|No matching items found"
)
_MEANINGS: Final = (
    _Meaning((), r"No space left on device", "DiskFull", "{words}", "free space below /var/lib/gpuplane on the node"),
    _Meaning((), r"Read-only file system", "HostFileSystem", "{words}", "remount the file system read-write"),
    _Meaning(
        _PACKAGES,
        _NO_HEADERS,
        "KernelHeadersMissing",
        "no {package} in the node's repositories",
        "boot a kernel that they have headers for, or ClusterPolicy spec.driver.repoConfig",
    ),
    _Meaning(
        _PACKAGES,
        r"locate package \S*nvidia|No match for argument: \S*nvidia|nvidia\S*' not found",
        "NoPrecompiled",
        "no package {package} in the node's repositories",
        "ClusterPolicy spec.driver.repoConfig with a repository that has it, or usePrecompiled: false",
    ),
    _Meaning(
        _PACKAGES,
        r"locate package gcc|No match for argument: gcc|'gcc\S*' not found",
        "CompilerMissing",
        "no package {package}, the kernel's compiler, in the node's repositories",
        "ClusterPolicy spec.driver.repoConfig with a repository that has it, or usePrecompiled: true",
    ),
    _Meaning(
        _PACKAGES,
        r"404 +Not Found|Status code: 404|HTTP response: 404",
        "PackageGone",
        "{words}",
        "the mirror has dropped the package: boot a newer kernel, or ClusterPolicy spec.driver.repoConfig",
    ),
    _Meaning(
        _PACKAGES,
        r"Could not resolve|Failed to fetch|Curl error|Cannot prepare internal mirrorlist|Temporary failure",
        "RepositoryUnreachable",
        "{words}",
        "see the node's proxy and DNS, or ClusterPolicy spec.driver.repoConfig with a mirror",
    ),
    _Meaning(("curl",), r"error: 404", "VersionUnknown", "there is no {package}", "ClusterPolicy spec.driver.version"),
    _Meaning(("curl",), r"", "DownloadFailed", "{words}", "see the node's proxy, or put it into /var/cache/gpuplane"),
    _Meaning(
        ("modprobe",),
        r"Key was rejected by service|Required key not available",
        "SecureBoot",
        "{words}: Secure Boot refuses modules without a known signature",
        "mokutil --import the certificate that signed the modules, reboot and confirm it, or switch Secure Boot off",
    ),
    _Meaning(
        ("modprobe",),
        r"Unknown symbol|Exec format error|disagrees about version|Invalid module format",
        "KernelMismatch",
        "{words}: the modules were not made for the running kernel",
        _DMESG,
    ),
    _Meaning(_MODULES, r"in use", "ModuleInUse", "{words}", "stop what uses the GPUs first"),
    _Meaning(_MODULES, r"", "{Tool}Failed", "{words}", _DMESG),
    _Meaning(("make",), r"", "CompileFailed", "{words}", "a driver version that knows this kernel"),
    _Meaning((), r"", "{Tool}Failed", "{words}", "run it by hand on the node"),
)


def failure(done: Completed, root: str, downloads: str = "") -> DriverError:
    """The error that a failed command is; `root` is the one that it ran in."""
    argv = _without_env(done.command.argv)
    tool = argv[0].rpartition("/")[2]
    where = f"{done.command}, in {root}"
    name = "".join(part.capitalize() for part in re.split(r"[^a-zA-Z0-9]+", tool))
    if done.code in (126, 127):
        package = "kmod" if tool in _MODULES else tool
        return DriverError(
            f"{name}Missing", f"the host has no {tool}", where=where, cure=f"install the package {package} on the node"
        )
    if done.code < 0:
        what = f"{tool} was killed by signal {-done.code}: {done.last_words}"
        return DriverError(f"{name}Killed", what, where=where, cure="see `dmesg` on the node: is it short of memory?")
    said = f"{done.stdout}\n{done.stderr}"
    for meaning in _MEANINGS:
        if (not meaning.tools or tool in meaning.tools) and re.search(meaning.says, said):
            words = _telling(done, meaning.says)
            text = meaning.what.format(words=words, package=argv[-1].strip("*"))
            return DriverError(meaning.reason.format(Tool=name), text, where=where, cure=meaning.cure)
    raise AssertionError("the last meaning is for everything")


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
    return tuple(rest)
