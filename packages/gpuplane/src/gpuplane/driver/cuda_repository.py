"""NVIDIA's CUDA repository as a plan: what only it has, and the steps that add it to the driver's root.

The .run file lacks the programs for NVSwitches (fabric manager, NSCQ, IMEX), and the RHEL family and SUSE have no
precompiled driver of their own. Where the node's repositories have these packages, which may be a mirror from
ClusterPolicy spec.driver.repoConfig, nothing is added. Otherwise NVIDIA's repository is, or the copy of it that the
environment names (`names.CUDA_REPOSITORY_ENV`), in the driver's root only: the host's own lists stay as they are.

Pure. Names and places are those of https://developer.download.nvidia.com/compute/cuda/repos and of NVIDIA's driver
images; since branch 580 the packages have no branch in their names. Debian's keyring package brings key and list; for
RPM a list with the place of the key does.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.driver import families
from gpuplane.driver.families import LONG, Put, Run, Step, Unless
from gpuplane.driver.released import Family, Released

KEYRING: Final = "cuda-keyring_1.1-1_all.deb"
_KEYRING_FILE: Final = "/usr/share/keyrings/cuda-archive-keyring.gpg"
_KEY, _KEY_OF_RHEL10 = "D42D0685.pub", "CDF6BA43.pub"
_MACHINES: Final = {"x86_64": "x86_64", "aarch64": "sbsa"}
_LIKE_RHEL: Final = frozenset(("rhel", "centos", "rocky", "almalinux", "ol"))
_VERSIONS: Final = {
    "ubuntu": ("2004", "2204", "2404"),
    "debian": ("11", "12", "13"),
    "rhel": ("8", "9", "10"),
    "fedora": ("41", "42"),
    "sles": ("15",),
    "opensuse": ("15",),
    "amzn": ("2023",),
}
"""The releases that the repository has, as it names them."""

_IMEX_SINCE, _PLAIN_SINCE = 550, 580


class CudaRepository(msgspec.Struct, frozen=True):
    """The repository for one OS and machine; `url` is its folder, `key` the address of its key for RPM."""

    name: str
    url: str
    key: str
    mirrored: bool = False


def cuda_repository(driver: Released) -> CudaRepository | None:
    """Return the repository for the host; None where NVIDIA has none."""
    system, version = driver.os_id, driver.os_version
    if system in _LIKE_RHEL:
        system, version = "rhel", version.partition(".")[0]
    elif system.startswith(("sle", "opensuse")):
        system, version = "opensuse" if system == "opensuse-leap" else "sles", version.partition(".")[0]
    elif system == "ubuntu":
        version = version.replace(".", "")
    machine = _MACHINES.get(driver.machine)
    if machine is None or version not in _VERSIONS.get(system, ()):
        return None
    base = driver.wanted.cuda_url.rstrip("/") or f"https://{names.CUDA_REPOSITORIES}"
    url = f"{base}/{system}{version}/{machine}"
    key = _KEY_OF_RHEL10 if (system, version) == ("rhel", "10") else _KEY
    return CudaRepository(f"cuda-{system}{version}-{machine}", url, f"{url}/{key}", bool(driver.wanted.cuda_url))


def add(driver: Released) -> tuple[Run | Put, ...]:
    """The steps that add the repository; none where NVIDIA has none for the host."""
    repository, family = cuda_repository(driver), driver.family
    if repository is None or family is None:
        return ()
    if family in (Family.UBUNTU, Family.DEBIAN):
        return (*_keyring(driver, repository), families.refresh(driver))
    text = (
        f"[{repository.name}]\nname={repository.name}\nbaseurl={repository.url}\nenabled=1\ngpgcheck=1\n"
        f"gpgkey={repository.key}\n"
    )
    path = f"{families.REPOSITORIES[family]}/{repository.name}.repo"
    return (Put(path, text.encode()), families.refresh(driver, new_keys=True))


def _keyring(driver: Released, repository: CudaRepository) -> tuple[Run | Put, ...]:
    there = f"{names.DRIVER_DOWNLOADS}/{KEYRING}"
    steps: tuple[Run | Put, ...] = (
        msgspec.structs.replace(families.install(driver, "curl", "ca-certificates"), unless="usr/bin/curl"),
        *families.download(f"{repository.url}/{KEYRING}", there),
        families.install(driver, f"/{there}"),
    )
    if not repository.mirrored:
        return steps
    # The package's list names NVIDIA's own place.
    text = f"deb [signed-by={_KEYRING_FILE}] {repository.url}/ /\n"
    return (*steps, Put(f"{families.REPOSITORIES[Family.DEBIAN]}/{repository.name}.list", text.encode()))


def packages(driver: Released) -> tuple[Step, ...]:
    """Add the repository for a driver of packages: where the RHEL family and SUSE have no such packages."""
    if driver.family is Family.RHEL:
        probe = Run(argv=("dnf", "-q", "module", "list", f"nvidia-driver:{driver.branch}"), timeout=LONG)
    elif driver.family is Family.SUSE:
        probe = listed(driver, "nvidia-compute-utils-G06", "")
    else:
        return ()
    return (Unless((probe,), add(driver)),)


def switch_programs(driver: Released) -> tuple[Step, ...]:
    """Install fabric manager, NSCQ and IMEX of the driver's very version, where there are NVSwitches."""
    if not driver.fabric or driver.family is None:
        return ()
    branch = int(driver.branch)
    plain, rpm = branch >= _PLAIN_SINCE, driver.family in (Family.RHEL, Family.SUSE)
    suffix = "" if plain else f"-{driver.branch}"
    found = [
        "nvidia-fabricmanager" if plain else "nvidia-fabric-manager" if rpm else f"nvidia-fabricmanager{suffix}",
        f"libnvidia-nscq{suffix}",
        *((f"nvidia-imex{suffix}",) if branch >= _IMEX_SINCE else ()),
    ]
    version = driver.version if "." in driver.version else ""
    enable: tuple[Run, ...] = ()
    if driver.family is Family.RHEL and not driver.wanted.precompiled:
        # Packages of a stream that is not enabled are hidden.
        stream = ("dnf", "-q", "-y", "module", "enable", f"nvidia-driver:{driver.branch}-dkms")
        enable = (Run(argv=stream, timeout=LONG, lenient=True),)
    probes = tuple(listed(driver, name, version) for name in found)
    exact = (_exact(driver, name, version) for name in found)
    return (*enable, Unless(probes, (*add(driver), *enable)), families.install(driver, *exact))


def _exact(driver: Released, name: str, version: str) -> str:
    if not version:
        return name
    return {Family.RHEL: f"{name}-{version}", Family.SUSE: f"{name}={version}"}.get(
        driver.family or Family.DEBIAN, f"{name}={version}*"
    )


def listed(driver: Released, name: str, version: str) -> Run:
    """The command that succeeds where the repositories have a package, of a version if there is one."""
    package = _exact(driver, name, version)
    if driver.family is Family.RHEL:
        return Run(argv=("dnf", "-q", "list", package), timeout=LONG)
    if driver.family is Family.SUSE:
        search = ("zypper", "--non-interactive", "--xmlout", "search", "--details", "--match-exact", name)
        return Run(argv=search, find=rf'edition="{re.escape(version)}')
    # NB: apt-cache succeeds, and prints nothing, where it knows the package but not the version.
    return Run(argv=("apt-cache", "show", package), find=r"(?m)^Version:")
