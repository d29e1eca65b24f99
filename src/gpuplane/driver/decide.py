"""What to do next on a host so that its driver works: a pure function of what is there.

The installer calls `decide` again after each step, with new facts, until it says that nothing is left to do or that
nothing can be done. So it starts in the middle as well as at the beginning, whatever died before.

    facts                                            decision
    no NVIDIA GPU on the PCI bus                     FAIL NoGPU
    host's own libraries, module not loaded          LOAD
    host's own libraries, module loaded              PRESENT
    module loaded, no libraries, none to install     FAIL DriverIncomplete
    nothing there, nothing to install                FAIL NoInstaller
    nothing there, installing switched off           FAIL DriverDisabled
    not installed, or another digest installed       INSTALL
    installed, a module not loaded                   LOAD
    installed, another version loaded                UNLOAD, or FAIL ModuleInUse
    installed and loaded                             DONE
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gpuplane.driver.package import Package


class Action(StrEnum):
    INSTALL = "install"
    LOAD = "load"
    UNLOAD = "unload"
    DONE = "done"
    PRESENT = "present"
    FAIL = "fail"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the host.

    `module` is the version of the loaded kernel module, "" when none is; `users` how many hold it; `unloaded` those of
    the package's modules that are not loaded. `library` is where the host's own libnvidia-ml lies. `installed` is the
    digest of what we put there, None when we put nothing.
    """

    gpus: int = 0
    module: str = ""
    users: int = 0
    unloaded: tuple[str, ...] = ()
    library: str = ""
    installed: str | None = None
    package: Package | None = None
    may_install: bool = True
    kernel: str = ""
    library_dir: str = ""


class Decision(msgspec.Struct, frozen=True):
    """The next step; of FAIL also the reason, CamelCase, and what is wrong, where, and the cure."""

    action: Action
    reason: str = ""
    what: str = ""
    where: str = ""
    cure: str = ""


def decide(facts: Facts) -> Decision:
    if not facts.gpus:
        return Decision(
            Action.FAIL, "NoGPU", "no NVIDIA GPU on the PCI bus", "/sys/bus/pci/devices", "check `lspci -d 10de:`"
        )
    if facts.installed is None and facts.library:
        return Decision(Action.PRESENT if facts.module else Action.LOAD)
    if facts.installed is None and not facts.may_install:
        return Decision(
            Action.FAIL,
            "DriverDisabled",
            "no driver on the host, and ClusterPolicy spec.driver.enabled is false",
            "clusterpolicy spec.driver.enabled",
            "pre-install the driver on the node, or set spec.driver.enabled to true",
        )
    package = facts.package
    if package is None:
        return _no_package(facts)
    if package.missing or not package.version:
        what = ", ".join(package.missing) or "the hardware's driver version"
        return Decision(
            Action.FAIL,
            "PackageIncomplete",
            f"the simulated driver lacks {what}",
            "gpuplane/_native",
            "python native/build.py",
        )
    if facts.installed != package.digest:
        return Decision(Action.INSTALL)
    if not facts.module or (facts.module == package.version and facts.unloaded):
        return Decision(Action.LOAD)
    if facts.module != package.version:
        if not facts.users:
            return Decision(Action.UNLOAD)
        return Decision(
            Action.FAIL,
            "ModuleInUse",
            f"driver {facts.module} is loaded and in use, {package.version} is installed",
            "/sys/module/nvidia",
            "stop what uses the GPUs, or reboot the node",
        )
    return Decision(Action.DONE)


def _no_package(facts: Facts) -> Decision:
    if facts.module:
        return Decision(
            Action.FAIL,
            "DriverIncomplete",
            f"the kernel module {facts.module} is loaded, but libnvidia-ml.so.1 is nowhere",
            "/usr/lib",
            f"install the driver's libraries of version {facts.module}",
        )
    return Decision(
        Action.FAIL,
        "NoInstaller",
        f"no driver on the host, and none can be installed for kernel {facts.kernel or '?'}",
        f"/lib/modules/{facts.kernel}",
        "install the NVIDIA driver with the distribution's packages; it is found by itself then",
    )
