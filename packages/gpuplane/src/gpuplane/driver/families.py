"""The differences between families of distributions: package managers, names of packages, lists of repositories.

Pure: commands as data. They run in the driver's root, which has the host's own package manager and repositories, so
proxies, mirrors and subscriptions of the host hold there too.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gpuplane.driver.released import Family, Released

QUICK, LONG = 300.0, 1800.0  # seconds


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One command.

    `in_root`: in the driver's root, otherwise on the host itself. `unless` names
    a path there that makes it needless. `otherwise` is tried when it fails. `lenient`: its failure does not matter.
    `find` is looked for in what it prints; the first group replaces `{found}` in later commands, and nothing found is a
    failure.
    """

    argv: tuple[str, ...]
    in_root: bool = True
    timeout: float = QUICK
    unless: str = ""
    otherwise: tuple[str, ...] = ()
    lenient: bool = False
    find: str = ""


class Put(msgspec.Struct, frozen=True):
    """A file of the driver's root."""

    path: str
    data: bytes
    mode: int = 0o644


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of the host's kernel: a file that gets `value` if it has `instead_of`. Failure does not matter."""

    path: str
    value: str
    instead_of: str = ""


class Unless(msgspec.Struct, frozen=True):
    """Steps that are needed only if one of the commands `probes` fails, or does not print what it looks for."""

    probes: tuple[Run, ...]
    steps: tuple[Run | Put, ...]


Step = Run | Put | Parameter | Unless

_APT: Final = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0")
_DNF: Final = ("dnf", "-q", "-y")
_ZYPPER: Final = ("zypper", "--non-interactive")
_APT_INSTALL: Final = (*_APT, "install", "--no-install-recommends")
_DNF_INSTALL: Final = (*_DNF, "install")
_ZYPPER_INSTALL: Final = (*_ZYPPER, "install", "--no-recommends")
_INSTALL: Final = {
    Family.UBUNTU: _APT_INSTALL,
    Family.DEBIAN: _APT_INSTALL,
    Family.RHEL: _DNF_INSTALL,
    Family.SUSE: _ZYPPER_INSTALL,
}
_REFRESH: Final = {
    Family.UBUNTU: (*_APT, "update"),
    Family.DEBIAN: (*_APT, "update"),
    Family.RHEL: (*_DNF, "makecache"),
    Family.SUSE: (*_ZYPPER, "refresh"),
}
# Packages for compiling and unpacking besides the kernel's headers.
_TOOLS: Final = {
    Family.UBUNTU: ("gcc", "make", "libc6-dev", "libelf-dev", "kmod", "file", "curl", "ca-certificates"),
    Family.DEBIAN: ("gcc", "make", "libc6-dev", "libelf-dev", "kmod", "file", "curl", "ca-certificates"),
    Family.RHEL: ("gcc", "make", "elfutils-libelf-devel", "kmod", "cpio", "/usr/bin/curl", "ca-certificates"),
    Family.SUSE: ("gcc", "make", "libelf-devel", "kmod", "curl", "ca-certificates"),
}
_SUSE_LINKS: Final = "/usr/lib/module-init-tools/weak-modules2"
REPOSITORIES: Final = {
    Family.UBUNTU: "etc/apt/sources.list.d",
    Family.DEBIAN: "etc/apt/sources.list.d",
    Family.RHEL: "etc/yum.repos.d",
    Family.SUSE: "etc/zypp/repos.d",
}
_CERTIFICATES: Final = {
    Family.UBUNTU: ("usr/local/share/ca-certificates", ("update-ca-certificates",)),
    Family.DEBIAN: ("usr/local/share/ca-certificates", ("update-ca-certificates",)),
    Family.RHEL: ("etc/pki/ca-trust/source/anchors", ("update-ca-trust", "extract")),
    Family.SUSE: ("etc/pki/trust/anchors", ("update-ca-certificates",)),
}
_UBUNTU_USER_SPACE: Final = (
    "nvidia-utils-{branch}-server",
    "nvidia-headless-no-dkms-{branch}-server",
    "libnvidia-decode-{branch}-server",
    "libnvidia-encode-{branch}-server",
    "libnvidia-extra-{branch}-server",
    "libnvidia-fbc1-{branch}-server",
)


def download(url: str, file: str) -> tuple[Run, ...]:
    """Fetch a file whole, unless it is there: a person may have put it on the host.

    NB: nothing is made in the file's directory before the file is there whole. Some kernels hide a directory of the
    host's below a new one of the driver's root, with the file that a person puts there after a failed download.
    """
    directory, _, name = file.rpartition("/")
    part = f"{directory}.part/{name}"
    fetch = ("curl", "-fsSL", "--retry", "3", "--create-dirs", "-o", f"/{part}", url)
    return (
        Run(argv=fetch, timeout=LONG, unless=file),
        Run(argv=("mkdir", "-p", f"/{directory}"), unless=file),
        Run(argv=("mv", f"/{part}", f"/{file}"), unless=file),
    )


def sources(driver: Released) -> tuple[Step, ...]:
    """Certificates and repositories of the ClusterPolicy, then fresh lists of packages."""
    family = _family(driver)
    directory, update = _CERTIFICATES[family]
    steps: list[Step] = [Put(f"{directory}/{name}", data) for name, data in driver.wanted.certificates]
    if driver.wanted.certificates:
        steps.append(Run(argv=update))
    steps += [Put(f"{REPOSITORIES[family]}/{name}", data) for name, data in driver.wanted.repositories]
    return (*steps, refresh(driver))


def refresh(driver: Released, unless: str = "", *, new_keys: bool = False) -> Run:
    """Fetch the lists of packages. zypper takes the keys that a list names (`new_keys`) only if it is asked to."""
    argv = _REFRESH[_family(driver)]
    if driver.family is Family.SUSE and (new_keys or driver.wanted.repositories):
        argv = (*_ZYPPER, "--gpg-auto-import-keys", "refresh")
    return Run(argv=argv, timeout=LONG, unless=unless)


def install(driver: Released, *packages: str) -> Run:
    """Install packages from the repositories, or files of packages."""
    return Run(argv=(*_INSTALL[_family(driver)], *packages), timeout=LONG)


def tools(driver: Released) -> Run:
    family = _family(driver)
    return Run(argv=(*_INSTALL[family], *_TOOLS[family]), timeout=LONG)


def compiler(driver: Released, name: str) -> tuple[Run, ...]:
    """Install the kernel's own compiler: another major version does not know all of its options."""
    there = f"usr/bin/{name}"
    install = Run(argv=(*_INSTALL[_family(driver)], name), timeout=LONG, unless=there)
    return (refresh(driver, unless=there), install)


def makefile(kernel: str) -> str:
    """The file that says that a kernel's headers are there."""
    return f"lib/modules/{kernel}/build/Makefile"


def find_headers(driver: Released, kernel: str) -> tuple[Run, ...]:
    """Asks whether the repositories have the kernel's headers, before anything large is fetched."""
    there = makefile(kernel)
    if _family(driver) in (Family.UBUNTU, Family.DEBIAN):
        return (Run(argv=("apt-cache", "show", f"linux-headers-{kernel}"), unless=there, find=r"(?m)^Version: *(\S+)"),)
    if driver.family is Family.SUSE:
        version, _, flavour = kernel.rpartition("-")
        search = (*_ZYPPER, "--xmlout", "search", "--details", "--match-exact", f"kernel-{flavour}-devel")
        # The package's edition has one number more than the release that the kernel tells.
        return (Run(argv=search, unless=there, find=rf'edition="({re.escape(version)}(?:\.[\d.]+)?)"'),)
    return ()


def install_headers(driver: Released, kernel: str) -> Run:
    """Installs the kernel's headers; after `find_headers`, whose finding it uses."""
    family, there = _family(driver), makefile(kernel)
    if family is Family.RHEL:
        # The mirrors' lists of a major version go on to its newest minor one; the kernel's own may be older.
        minor = re.search(r"\.el(\d+)_(\d+)", kernel)
        command = (*_DNF_INSTALL, f"kernel-devel-{kernel}")
        older = (*_DNF, f"--releasever={minor[1]}.{minor[2]}", "install", f"kernel-devel-{kernel}") if minor else ()
        return Run(argv=command, otherwise=older, timeout=LONG, unless=there)
    if family is Family.SUSE:
        package = f"kernel-{kernel.rpartition('-')[2]}-devel={{found}}"
        return Run(argv=(*_ZYPPER_INSTALL, package), timeout=LONG, unless=there)
    return Run(argv=(*_APT_INSTALL, f"linux-headers-{kernel}"), timeout=LONG, unless=there)


def packaged_user_space(driver: Released) -> tuple[Run, ...]:
    """Libraries and programs from precompiled packages."""
    branch = driver.branch
    if driver.family is Family.UBUNTU:
        packages = tuple(name.format(branch=branch) for name in _UBUNTU_USER_SPACE)
        return (Run(argv=(*_APT_INSTALL, *packages), timeout=LONG),)
    if driver.family is Family.RHEL:
        return (
            Run(argv=(*_DNF, "module", "enable", f"nvidia-driver:{branch}"), timeout=LONG),
            Run(argv=(*_DNF_INSTALL, "nvidia-driver-cuda", "nvidia-persistenced"), timeout=LONG),
        )
    return (Run(argv=(*_ZYPPER_INSTALL, "nvidia-compute-utils-G06"), timeout=LONG),)


def packaged_modules(driver: Released, kernel: str) -> tuple[Run, ...]:
    """Kernel modules made and signed for the kernel by those who made the kernel, or by NVIDIA."""
    branch = driver.branch
    if driver.family is Family.UBUNTU:
        kind = "server-open" if driver.open else "server"
        packages = [f"linux-signatures-nvidia-{kernel}", f"linux-modules-nvidia-{branch}-{kind}-{kernel}"]
        if not driver.open:
            packages.append(f"linux-objects-nvidia-{branch}-server-{kernel}")
        return (Run(argv=(*_APT_INSTALL, *packages), timeout=LONG),)
    if driver.family is Family.RHEL:
        release = re.sub(r"\.el\d.*", "", kernel)
        return (Run(argv=(*_DNF_INSTALL, f"kmod-nvidia-{branch}*-{release}"), timeout=LONG),)
    flavour = kernel.rpartition("-")[2]
    # The package is made for one kernel and linked to those that it fits, which is done for the kernels of the day.
    link = ("env", "INITRD_IN_POSTTRANS=1", _SUSE_LINKS, "--add-kernel-modules", kernel)
    return (
        Run(argv=(*_ZYPPER_INSTALL, f"nvidia-open-driver-G06-signed-kmp-{flavour}"), timeout=LONG),
        Run(argv=link, timeout=LONG, lenient=True),
    )


def _family(driver: Released) -> Family:
    assert driver.family is not None, "a driver without a family has a problem, and nothing is done for it"
    return driver.family
