"""A released NVIDIA driver for one host: which version, which kernel modules, where its files come from.

The wanted driver comes from the ClusterPolicy by way of the operand's environment (`WantedDriver`), the host's
properties from the GPUs on the PCI bus and from os-release (`DriverTarget`). `choose` puts the two together without
I/O: an installer on the host reports its choice of modules only after it has been unpacked.

Facts: open modules exist since 515 and drive Turing and later; Blackwell and Grace Hopper have no others; Maxwell,
Pascal and Volta have only the proprietary ones, up to branch 580, Kepler up to 470; 560 and later take open ones by
default.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.driver.image_based import image_based

MODULES: Final = ("nvidia", "nvidia-uvm", "nvidia-modeset")
_MAXWELL, _TURING, _BLACKWELL = 0x1340, 0x1E00, 0x2900  # the first PCI device id of each
_GRACE_HOPPER: Final = frozenset((0x2342, 0x2345, 0x2348))
_FIRST_OPEN, _OPEN_BY_DEFAULT, _LAST_OF_THE_OLD, _LAST_OF_KEPLER = 515, 560, 580, 470

_FOR_KEPLER: Final = "470.256.02"


class Family(StrEnum):
    """Distributions that install and name packages alike."""

    UBUNTU = "ubuntu"
    DEBIAN = "debian"
    RHEL = "rhel"
    SUSE = "suse"


_FAMILIES: Final = {
    "ubuntu": Family.UBUNTU,
    "debian": Family.DEBIAN,
    "rhel": Family.RHEL,
    "fedora": Family.RHEL,
    "centos": Family.RHEL,
    "suse": Family.SUSE,
    "sles": Family.SUSE,
    "opensuse": Family.SUSE,
}

_PACKAGED: Final[dict[Family | None, tuple[bool, ...]]] = {
    Family.UBUNTU: (False, True),
    Family.DEBIAN: (),
    Family.RHEL: (False,),
    Family.SUSE: (True,),
}
"""Which modules a family has precompiled: whether open ones, whether others."""


class DriverProblem(msgspec.Struct, frozen=True):
    """Why no driver can be chosen: a CamelCase reason, and what is wrong, where, and the cure."""

    reason: str
    what: str
    where: str
    cure: str


class WantedDriver(msgspec.Struct, frozen=True, kw_only=True):
    """The administrator's settings; without a `version` it is `default`, or for Kepler GPUs the last that knows them.

    `kind` is auto, open or proprietary. `version` is a whole version, or a branch (570) with `precompiled`.
    `parameters` are the text of module parameters by module. `repositories` and `certificates` are files by name.
    `peermem` loads the peer memory module too. `cuda_url` is a copy of NVIDIA's CUDA repositories, "" for NVIDIA's own.
    `proxies` are variables for package managers and downloads; no driver differs by them.
    """

    version: str = ""
    default: str = names.RECOMMENDED_DRIVER
    kind: str = "auto"
    precompiled: bool = False
    base_url: str = f"https://{names.DRIVER_PLACE}"
    parameters: tuple[tuple[str, str], ...] = ()
    repositories: tuple[tuple[str, bytes], ...] = ()
    certificates: tuple[tuple[str, bytes], ...] = ()
    peermem: bool = False
    cuda_url: str = ""
    proxies: tuple[tuple[str, str], ...] = ()


RECOMMENDED: Final = WantedDriver()
"""The driver where the administrator sets nothing."""


class DriverTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that a driver has to fit: os-release, machine (x86_64, aarch64), PCI device ids of the GPUs,
    NVSwitches.
    """

    os_release: Mapping[str, str] = {}
    machine: str = "x86_64"
    devices: tuple[int, ...] = ()
    switches: int = 0


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """A released driver that fits the host, or the `problem` why none does."""

    version: str
    digest: str
    family: Family | None = None
    open: bool = False
    machine: str = "x86_64"
    os_id: str = ""
    os_version: str = ""
    fabric: bool = False
    wanted: WantedDriver = WantedDriver()
    problem: DriverProblem | None = None

    @property
    def branch(self) -> str:
        return self.version.partition(".")[0]

    @property
    def run_file(self) -> str:
        return f"NVIDIA-Linux-{self.machine}-{self.version}.run"

    @property
    def url(self) -> str:
        return f"{self.wanted.base_url.rstrip('/')}/{self.version}/{self.run_file}"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules to load, in this order."""
        return (*MODULES, *(("nvidia-peermem",) if self.wanted.peermem else ()))

    def is_version(self, loaded: str) -> bool:
        """Return whether a loaded module is of this driver; of a precompiled one only the branch is chosen."""
        return loaded == self.version or (self.wanted.precompiled and loaded.partition(".")[0] == self.branch)


def choose(wanted: WantedDriver, platform: DriverTarget) -> Released:
    """The driver for a host."""
    if not wanted.version:
        wanted = msgspec.structs.replace(wanted, version=_recommended(wanted, platform.devices))
    family = family_of(platform.os_release)
    open_modules, problem = _modules(wanted, platform.devices, _PACKAGED.get(family) if wanted.precompiled else None)
    system = f"{platform.os_release.get('ID', '?')} {platform.os_release.get('VERSION_ID', '')}".strip()
    image = image_based(platform.os_release)
    if image is not None:
        problem = DriverProblem(
            "OperatingSystemImageBased",
            f"{image.name} ({system}) is an image: drivers are not installed from packages there",
            "/etc/os-release",
            image.cure,
        )
    elif family is None:
        problem = DriverProblem(
            "OperatingSystemUnknown",
            f"drivers are installed on Ubuntu, Debian, the RHEL family and SUSE; this is {system}",
            "/etc/os-release",
            "pre-install the driver, or ClusterPolicy spec.driver.repository and image with a driver for this system",
        )
    elif wanted.precompiled and open_modules not in _PACKAGED[family]:
        problem = DriverProblem(
            "NoPrecompiled",
            f"there are no precompiled {'open' if open_modules else 'proprietary'} modules for {system}",
            "ClusterPolicy spec.driver.usePrecompiled",
            "spec.driver.usePrecompiled: false",
        )
    elif not re.fullmatch(r"\d+" if wanted.precompiled else r"\d+\.\d+(\.\d+)?", wanted.version):
        problem = DriverProblem(
            "VersionUnknown",
            f"{wanted.version!r} is no {'driver branch' if wanted.precompiled else 'driver version'}",
            "ClusterPolicy spec.driver.version",
            "570" if wanted.precompiled else "570.133.20",
        )
    return Released(
        version=wanted.version,
        digest=_digest(wanted, platform, open_modules),
        family=family,
        open=open_modules,
        machine=platform.machine,
        os_id=platform.os_release.get("ID", ""),
        os_version=platform.os_release.get("VERSION_ID", ""),
        fabric=platform.switches > 0,
        wanted=wanted,
        problem=problem,
    )


def _recommended(wanted: WantedDriver, devices: tuple[int, ...]) -> str:
    """The version, or the branch of packages, where the administrator sets none."""
    version = _FOR_KEPLER if devices and all(device < _MAXWELL for device in devices) else wanted.default
    return version.partition(".")[0] if wanted.precompiled else version


def family_of(os_release: Mapping[str, str]) -> Family | None:
    """The family by ID, else by the words of ID_LIKE."""
    words = [os_release.get("ID", ""), *os_release.get("ID_LIKE", "").split()]
    return next((_FAMILIES[word.partition("-")[0]] for word in words if word.partition("-")[0] in _FAMILIES), None)


def _modules(
    wanted: WantedDriver, devices: tuple[int, ...], packaged: tuple[bool, ...] | None
) -> tuple[bool, DriverProblem | None]:
    """Return whether to take the open modules, and what does not fit. `packaged` limits the choice, None does not."""
    where = "ClusterPolicy spec.driver.kernelModuleType"
    number = re.match(r"\d+", wanted.version)
    branch = int(number.group()) if number else 0
    old = [device for device in devices if device < _TURING]
    new = [device for device in devices if device >= _BLACKWELL or device in _GRACE_HOPPER]
    if old and new:
        return False, DriverProblem(
            "GPUsDoNotGoTogether",
            f"GPU 10de:{old[0]:04x} needs proprietary modules, 10de:{new[0]:04x} open ones",
            "/sys/bus/pci/devices",
            "use GPUs of one generation in one machine",
        )
    last = _LAST_OF_KEPLER if any(device < _MAXWELL for device in old) else _LAST_OF_THE_OLD
    if old and branch > last:
        return False, DriverProblem(
            "GPUTooOld",
            f"driver {wanted.version} does not know GPU 10de:{min(old):04x}; {last} was the last to",
            "ClusterPolicy spec.driver.version",
            f"a version {last}.x for these nodes, by an NVIDIADriver",
        )
    if wanted.kind == "open" and (old or branch < _FIRST_OPEN):
        what = f"GPU 10de:{old[0]:04x} is older than Turing" if old else f"{wanted.version} has no open modules"
        return True, DriverProblem("ModulesDoNotFit", what, where, "auto, or proprietary")
    if wanted.kind == "proprietary" and new:
        return False, DriverProblem(
            "ModulesDoNotFit", f"GPU 10de:{new[0]:04x} works with open modules only", where, "auto"
        )
    if wanted.kind in ("open", "proprietary"):
        return wanted.kind == "open", None
    if packaged and len(packaged) == 1 and not old and not new:
        return packaged[0], None
    return not old and (bool(new) or branch >= _OPEN_BY_DEFAULT), None


def _digest(wanted: WantedDriver, platform: DriverTarget, open_modules: bool) -> str:
    """Names everything that the driver's root is made from, but for the kernel: one root serves several."""
    system = (platform.os_release.get("ID", ""), platform.os_release.get("VERSION_ID", ""))
    made_of = (
        *(wanted.version, wanted.precompiled, wanted.base_url, wanted.parameters, wanted.repositories),
        *(wanted.certificates, wanted.peermem, open_modules, system, platform.machine, platform.switches > 0),
        *((wanted.cuda_url,) if wanted.cuda_url else ()),
    )
    kind = "open" if open_modules else "proprietary"
    return f"{wanted.version}-{kind}-{hashlib.sha256(msgspec.json.encode(made_of)).hexdigest()[:12]}"


def _proxies(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The proxies in both spellings: apt and plain HTTP of curl know only the small letters, people set the others."""
    found: list[tuple[str, str]] = []
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        value = environment.get(name) or environment.get(name.lower(), "")
        found += ((name, value), (name.lower(), value)) if value else ()
    return tuple(found)


def read_wanted(environment: Mapping[str, str], files: Mapping[str, Mapping[str, bytes]]) -> WantedDriver:
    """Read the settings from the operand's environment and the ConfigMaps mounted into its pod.

    Args:
        files: the files of each mounted directory, by its path (`names.DRIVER_MODULES_DIR`, ...).
    """
    parameters = {
        name.removesuffix(".conf"): " ".join(data.decode(errors="replace").split())
        for name, data in files.get(names.DRIVER_MODULES_DIR, {}).items()
        if name.startswith("nvidia") and name.endswith(".conf")
    }
    return WantedDriver(
        version=environment.get(names.DRIVER_VERSION_ENV, ""),
        default=environment.get(names.DRIVER_DEFAULT_ENV, "") or names.RECOMMENDED_DRIVER,
        kind=environment.get(names.DRIVER_MODULES_ENV, "") or "auto",
        precompiled=environment.get(names.DRIVER_PRECOMPILED_ENV) == "true",
        base_url=environment.get(names.DRIVER_URL_ENV, "") or WantedDriver().base_url,
        parameters=tuple(sorted(parameters.items())),
        repositories=tuple(sorted(files.get(names.DRIVER_REPOSITORIES_DIR, {}).items())),
        certificates=tuple(sorted(files.get(names.DRIVER_CERTIFICATES_DIR, {}).items())),
        peermem=environment.get(names.DRIVER_RDMA_ENV) == "true",
        cuda_url=environment.get(names.CUDA_REPOSITORY_ENV, ""),
        proxies=_proxies(environment),
    )
