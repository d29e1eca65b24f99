"""Failures of a host's tools as a table, first match first: the text that they print, its cause, and the cure.

The texts are those that the tools print in the C locale. Each row has a test that makes the failure and carries out its
cure. `{words}` in a message is the line that matched, `{package}` the last argument of the command, `{Tool}` the tool's
name in CamelCase; `{version}` and `{machine}` are the host's, `{precompiled}` is the setting for a driver of packages.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane import names


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A failure: the `tools` that print it (none: any tool), the text as a regular expression, cause and cure.

    `systems` are the IDs of os-release that it is limited to (none: any system), `argument` a part of the command.
    """

    tools: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    argument: str = ""
    says: str
    reason: str
    what: str = "{words}"
    cure: str


_PACKAGES: Final = ("apt-get", "apt-cache", "dnf", "zypper")
_NETWORK: Final = (*_PACKAGES, "curl")
_MODULES: Final = ("modprobe", "rmmod")
_SUSE: Final = ("sles", "sled", "sle_hpc")
_DMESG: Final = "see `dmesg | grep -i nvrm` on the node"
_PROXY: Final = "behind a proxy: ClusterPolicy spec.driver.env HTTPS_PROXY and HTTP_PROXY"
_SUSE_MODULE: Final = "SUSEConnect -p sle-module-development-tools/{version}/{machine} on the node"
_NO_HEADERS: Final = (
    r"locate package linux-headers|No packages found|No match for argument: kernel-devel|kernel-[\w-]+-devel' not found"
    r"|No matching items found"
)
_NO_TOOLS: Final = r"'(gcc\S*|make|libelf-devel)' not found"
_NO_CERTIFICATE: Final = (
    r"(?i)certificate verif\w+ failed|certificate problem|self.signed certificate|certificate is NOT trusted"
    r"|curl: \(60\)|curl error \(60\)"
)
_NO_PROXY: Final = r"(?i)proxy authentication required|\b407\b.*proxy|resolve proxy|(?:connect|connection) to proxy"
_NO_KEY: Final = (
    r"NO_PUBKEY|signatures couldn't be verified|GPG check FAILED|Public key for .* is not installed|is not signed"
    r"|GPG key retrieval failed|Signature verification failed|key is not trusted"
)
_BUSY: Final = (
    r"Could not get lock|Unable to acquire the dpkg frontend lock|Failed to obtain the transaction lock"
    r"|Waiting for process with pid|management is locked by the application"
)
_NO_ANSWER: Final = (
    r"Could not resolve|Failed to fetch|Curl error|Cannot prepare internal mirrorlist|Temporary failure"
    r"|Failed to connect|Connection timed out|Connection refused|Network is unreachable|Failed to download metadata"
    r"|Timeout exceeded"
)
_NO_SPACE: Final = (
    r"No space left on device|Disk quota exceeded|enough free (?:disk )?space|more space needed on the .* filesystem"
)
_NOT_ALLOWED: Final = r"Key was rejected by service|Required key not available"

TABLE: Final = (
    FailureRow(says=_NO_SPACE, reason="DiskFull", cure="free space below /var/lib/gpuplane on the node"),
    FailureRow(says=r"Read-only file system", reason="HostFileSystem", cure="remount the file system read-write"),
    FailureRow(
        tools=_PACKAGES,
        says=_BUSY,
        reason="PackageManagerBusy",
        cure="wait for the other package manager, the installer tries again; `fuser -v` on the lock names a stuck one",
    ),
    FailureRow(
        tools=_NETWORK,
        says=_NO_CERTIFICATE,
        reason="CertificateUnknown",
        cure="ClusterPolicy spec.driver.certConfig: a ConfigMap with the authority's certificate as NAME.crt",
    ),
    FailureRow(
        tools=_NETWORK,
        says=_NO_PROXY,
        reason="ProxyRefused",
        cure="ClusterPolicy spec.driver.env HTTPS_PROXY and HTTP_PROXY: http://USER:PASSWORD@HOST:PORT",
    ),
    FailureRow(
        tools=_PACKAGES,
        says=_NO_KEY,
        reason="SignatureUnknown",
        cure="name the key in the file of ClusterPolicy spec.driver.repoConfig: Signed-By: (.sources), gpgkey= (.repo)",
    ),
    FailureRow(
        tools=("zypper",),
        systems=_SUSE,
        says=_NO_HEADERS,
        reason="KernelHeadersMissing",
        what="no {package} in the node's repositories",
        cure=f"{_SUSE_MODULE}, boot the newest kernel, or ClusterPolicy spec.driver.repoConfig",
    ),
    FailureRow(
        tools=("zypper",),
        systems=_SUSE,
        says=_NO_TOOLS,
        reason="CompilerMissing",
        cure=f"{_SUSE_MODULE}, or {{precompiled}}",
    ),
    FailureRow(
        tools=_PACKAGES,
        says=_NO_HEADERS,
        reason="KernelHeadersMissing",
        what="no {package} in the node's repositories",
        cure="boot a kernel that they have headers for, or ClusterPolicy spec.driver.repoConfig",
    ),
    FailureRow(
        tools=_PACKAGES,
        argument="nvidia-fabric",
        says=r"locate package|Version '.*' for '.*' was not found|No match for argument|' not found",
        reason="SwitchProgramsMissing",
        what="the node's repositories lack fabric manager, NSCQ or IMEX of this driver: {words}",
        cure=f"ClusterPolicy spec.driver.repoConfig, or spec.driver.env {names.CUDA_REPOSITORY_ENV}, with a repository",
    ),
    FailureRow(
        tools=_PACKAGES,
        says=r"locate package \S*nvidia|No match for argument: \S*nvidia|nvidia\S*' not found",
        reason="NoPrecompiled",
        what="no package {package} in the node's repositories",
        cure="ClusterPolicy spec.driver.repoConfig with a repository that has it, or usePrecompiled: false",
    ),
    FailureRow(
        tools=_PACKAGES,
        says=r"locate package gcc|No match for argument: gcc|'gcc\S*' not found",
        reason="CompilerMissing",
        what="no package {package}, the kernel's compiler, in the node's repositories",
        cure="ClusterPolicy spec.driver.repoConfig with a repository that has it, or {precompiled}",
    ),
    FailureRow(
        tools=_PACKAGES,
        says=r"404 +Not Found|Status code: 404|HTTP response: 404",
        reason="PackageGone",
        cure="the mirror has dropped the package: boot a newer kernel, or ClusterPolicy spec.driver.repoConfig",
    ),
    FailureRow(
        tools=_PACKAGES,
        says=_NO_ANSWER,
        reason="RepositoryUnreachable",
        cure=f"{_PROXY}; without the internet: spec.driver.repoConfig with a mirror; else see the node's DNS",
    ),
    FailureRow(
        tools=("curl",),
        argument="cuda-keyring",
        says="",
        reason="RepositoryUnreachable",
        what="NVIDIA's CUDA repository: {words}",
        cure=f"{_PROXY}; without the internet: spec.driver.repoConfig, or spec.driver.env {names.CUDA_REPOSITORY_ENV}",
    ),
    FailureRow(
        tools=("curl",),
        says=r"error: 404",
        reason="VersionUnknown",
        what="there is no {package}",
        cure=f"ClusterPolicy spec.driver.version: one of https://{names.DRIVER_PLACE}, or of spec.driver.env BASE_URL",
    ),
    FailureRow(
        tools=("curl",),
        says="",
        reason="DownloadFailed",
        cure=f"{_PROXY}; with a mirror: spec.driver.env BASE_URL; or put it into /{names.DRIVER_DOWNLOADS} on the node",
    ),
    FailureRow(
        tools=("modprobe",),
        says=_NOT_ALLOWED,
        reason="SecureBoot",
        what="{words}: Secure Boot refuses modules without a known signature",
        cure="mokutil --import the certificate that signed them, reboot and confirm it, or switch Secure Boot off",
    ),
    FailureRow(
        tools=("modprobe",),
        says=r"is unsupported|allow_unsupported",
        reason="ModuleUnsupported",
        cure="echo 'allow_unsupported_modules 1' > /etc/modprobe.d/10-unsupported-modules.conf on the node",
    ),
    FailureRow(
        tools=("modprobe",),
        says=r"No such device",
        reason="GPUNotDriven",
        what="{words}: another module has the GPUs, or this driver does not know them",
        cure="`lspci -k -d 10de:` names the module: unbind vfio-pci, blacklist others; or another spec.driver.version",
    ),
    FailureRow(
        tools=("modprobe",),
        says=r"Unknown symbol|Exec format error|disagrees about version|Invalid module format",
        reason="KernelMismatch",
        what="{words}: the modules were not made for the running kernel",
        cure=f"umount -R -l /{names.DRIVER_ROOT}; rm -rf /{names.DRIVER_STORE} on the node: they are made again",
    ),
    FailureRow(tools=_MODULES, says=r"in use", reason="ModuleInUse", cure="end the processes that use the GPUs first"),
    FailureRow(tools=_MODULES, says="", reason="{Tool}Failed", cure=_DMESG),
    FailureRow(
        tools=("make",),
        says=r"unrecognized command.line option|requires gcc|compiler differs|gcc-\d+: (?:No such file|not found)",
        reason="CompilerMismatch",
        what="{words}: the kernel was built with another compiler",
        cure="{precompiled}; or the kernel's configuration, which names its compiler, as /boot/config-RELEASE",
    ),
    FailureRow(
        tools=("make",),
        says="",
        reason="CompileFailed",
        cure="ClusterPolicy spec.driver.version: one that knows this kernel; or {precompiled}",
    ),
    FailureRow(says="", reason="{Tool}Failed", cure="run it by hand on the node"),
)
