"""Decides the next step on a host toward a working driver: a pure function of the facts.

The installer calls `decide` again after each step, with new facts, until it says that nothing is left to do or that
nothing can be done. So it starts in the middle as well as at the beginning, whatever died before.

    facts                                            decision
    no NVIDIA GPU on the PCI bus                     FAIL NoGPU
    host's own libraries, module not loaded          LOAD
    host's own libraries, module loaded              PRESENT
    nothing there, installing switched off           FAIL DriverDisabled

    a released driver, which has a root of its own
    it does not fit the host                         FAIL with the problem
    compiled, and the kernel would refuse it         FAIL SecureBoot
    nouveau has the GPUs                             RELEASE, or FAIL NouveauLoaded
    another digest installed, its daemons run        STOP
    ... its modules are loaded                       UNLOAD, or FAIL ModuleInUse
    ... or it was left half made                     CLEAR
    its root not mounted (after a boot, too)         MOUNT
    nothing in it                                    INSTALL
    no modules for the running kernel                BUILD
    a module not loaded                              LOAD
    a daemon not running                             START
    all of that                                      DONE
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gpuplane.driver.released import DriverProblem, Released
from gpuplane.driver.signing import SigningFacts, signing_problem


class Action(StrEnum):
    RELEASE = "release"
    CLEAR = "clear"
    MOUNT = "mount"
    INSTALL = "install"
    BUILD = "build"
    LOAD = "load"
    START = "start"
    STOP = "stop"
    UNLOAD = "unload"
    DONE = "done"
    PRESENT = "present"
    FAIL = "fail"


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the host.

    `module` is the version of the loaded kernel module, "" when none is; `users` how many hold it; `unloaded` those of
    the driver's modules that are not loaded. `library` is where the host's own libnvidia-ml lies. `installed` is the
    digest of what we put there, None when we put nothing, "" when it is not whole.

    Of a released driver: `begun` is the digest that its root was made for; `broken`, that an installer died while
    writing into it; `mounted`, that it is mounted; `mounted_other`, that another root is; `built` are the kernels with
    modules in it; `loaded` the driver's modules in the order in which they are unloaded; `daemons` those that run, with
    process ids, and `daemons_missing` those that should. `file_systems` are the host's own below `/` that package
    managers write to. `nouveau`: that module is loaded, `nouveau_users` hold
    it. `signing`: Secure Boot and the machine owner's key; modules without its signature are not `built`. `processors`
    to compile with, and the `compiler` that built the kernel, as its package is called.
    """

    package: Released
    gpus: int = 0
    module: str = ""
    users: int = 0
    unloaded: tuple[str, ...] = ()
    library: str = ""
    installed: str | None = None
    may_install: bool = True
    kernel: str = ""
    begun: str = ""
    broken: bool = False
    mounted: bool = False
    mounted_other: bool = False
    built: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    daemons: tuple[tuple[str, int], ...] = ()
    daemons_missing: tuple[str, ...] = ()
    file_systems: tuple[str, ...] = ()
    signing: SigningFacts = SigningFacts()
    nouveau: bool = False
    nouveau_users: int = 0
    processors: int = 1
    compiler: str = "gcc"


class DriverDecision(msgspec.Struct, frozen=True):
    """The next step; of FAIL also the reason, CamelCase, and what is wrong, where, and the cure."""

    action: Action
    reason: str = ""
    what: str = ""
    where: str = ""
    cure: str = ""


def decide(facts: DriverFacts) -> DriverDecision:
    if not facts.gpus:
        return DriverDecision(
            Action.FAIL, "NoGPU", "no NVIDIA GPU on the PCI bus", "/sys/bus/pci/devices", "check `lspci -d 10de:`"
        )
    if facts.installed is None and facts.library:
        return DriverDecision(Action.PRESENT if facts.module else Action.LOAD)
    if facts.installed is None and not facts.may_install:
        return DriverDecision(
            Action.FAIL,
            "DriverDisabled",
            "no driver on the host, and ClusterPolicy spec.driver.enabled is false",
            "clusterpolicy spec.driver.enabled",
            "pre-install the driver on the node, or set spec.driver.enabled to true",
        )
    return _released(facts, facts.package)


def _released(facts: DriverFacts, driver: Released) -> DriverDecision:
    if driver.problem is not None:
        return _refused(driver.problem)
    unsigned = signing_problem(facts.signing, driver)
    if unsigned is not None and not facts.module:
        return _refused(unsigned)
    if facts.nouveau and not facts.module and not facts.nouveau_users:
        return DriverDecision(Action.RELEASE)
    if facts.nouveau and not facts.module:
        return DriverDecision(
            Action.FAIL,
            "NouveauLoaded",
            f"the module nouveau has the GPUs, and {facts.nouveau_users} users, as a console",
            "/proc/modules",
            "echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf, rebuild the initramfs, reboot",
        )
    if facts.installed != driver.digest:
        if facts.module or facts.loaded:
            return _unload(facts, driver.version)
        if facts.mounted_other or (facts.begun and (facts.begun != driver.digest or facts.broken)):
            return DriverDecision(Action.CLEAR)
        return DriverDecision(Action.INSTALL if facts.mounted else Action.MOUNT)
    if facts.broken and not facts.module:
        return DriverDecision(Action.CLEAR)
    if not facts.mounted:
        return DriverDecision(Action.MOUNT)
    if facts.module and not driver.is_version(facts.module):
        return _unload(facts, driver.version)
    if facts.kernel not in facts.built:
        return DriverDecision(Action.BUILD)
    if not facts.module or facts.unloaded:
        return DriverDecision(Action.LOAD)
    return DriverDecision(Action.START if facts.daemons_missing else Action.DONE)


def _refused(problem: DriverProblem) -> DriverDecision:
    return DriverDecision(Action.FAIL, problem.reason, problem.what, problem.where, problem.cure)


def _unload(facts: DriverFacts, version: str) -> DriverDecision:
    """The way to be rid of what is loaded: first the driver's own daemons, which hold it."""
    if facts.daemons:
        return DriverDecision(Action.STOP)
    if not facts.users:
        return DriverDecision(Action.UNLOAD)
    return DriverDecision(
        Action.FAIL,
        "ModuleInUse",
        f"driver {facts.module} is loaded and in use, {version} is wanted",
        "/sys/module/nvidia",
        "end the processes that use the GPUs, or reboot the node",
    )
