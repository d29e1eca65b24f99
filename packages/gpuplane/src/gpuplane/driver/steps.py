"""The commands and files of each action in their order, made from facts alone.

A released driver lives in a root of its own, `run/nvidia/driver`: the host's file system under a writable layer
(overlayfs) below `var/lib/gpuplane/driver/root`. Package managers and installers write into that layer, so the host
itself stays as it is, and taking the driver back is unmounting and deleting. The kernel finds firmware there by its
search path, CDI and the validator by `driver-ready`.
"""

from __future__ import annotations

from typing import Final

from gpuplane import names
from gpuplane.driver import cuda_repository, families
from gpuplane.driver.decide import Action, DriverFacts
from gpuplane.driver.families import LONG, Parameter, Put, Run, Step
from gpuplane.driver.node_command import NODE_COMMAND
from gpuplane.driver.released import Family, Released
from gpuplane.driver.signing import SigningKey

ROOT: Final = f"/{names.DRIVER_ROOT}"
STORE: Final = f"/{names.DRIVER_STORE}"
FIRMWARE: Final = f"{ROOT}/lib/firmware"
FIRMWARE_PATH: Final = "/sys/module/firmware_class/parameters/path"
FABRIC_CONFIG: Final = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
PID_FILES: Final = {
    "nvidia-persistenced": "run/nvidia-persistenced/nvidia-persistenced.pid",
    "nv-fabricmanager": "run/nvidia-fabricmanager/nv-fabricmanager.pid",
}
UNLOAD_ORDER: Final = ("nvidia_drm", "nvidia_peermem", "nvidia_modeset", "nvidia_uvm", "nvidia")
_INSTALLER_FLAGS: Final = (
    "--silent",
    "--no-kernel-module",
    "--no-nouveau-check",
    "--no-nvidia-modprobe",
    "--no-rpms",
    "--no-backup",
    "--no-check-for-alternate-installs",
    "--no-libglx-indirect",
    "--no-install-libglvnd",
    "--x-prefix=/tmp/null",
    "--x-module-path=/tmp/null",
    "--x-library-path=/tmp/null",
    "--x-sysconfig-path=/tmp/null",
)
# As drivers before 580 do by themselves: memory of coherent GPUs must not become a NUMA node of the kubelet's.
_COHERENT: Final = "NVreg_CoherentGPUMemoryMode=driver"


def steps(action: Action, facts: DriverFacts, kernel: str = "") -> tuple[Step, ...]:
    """The steps of `action` for a released driver; `kernel` is another than the running one to build for."""
    driver = facts.package
    kernel = kernel or facts.kernel
    if action is Action.RELEASE:
        return (Run(argv=("modprobe", "-r", "nouveau"), in_root=False),)
    if action is Action.CLEAR:
        return clear(facts.mounted or facts.mounted_other)
    if action is Action.MOUNT:
        return mount(facts.file_systems)
    if action is Action.INSTALL:
        return install(driver, kernel)
    if action is Action.BUILD:
        return build(driver, kernel, facts.processors, compiler=facts.compiler, key=facts.signing.wanted)
    if action is Action.LOAD:
        return load(driver)
    if action is Action.START:
        return start(facts.daemons_missing)
    if action is Action.STOP:
        return stop(facts.daemons)
    if action is Action.UNLOAD:
        return tuple(Run(argv=("rmmod", module), in_root=False) for module in facts.loaded)
    return ()


def mount(file_systems: tuple[str, ...]) -> tuple[Step, ...]:
    """The driver's root, with a layer for each of the host's file systems that package managers write to."""
    commands: list[tuple[str, ...]] = []
    for path in ("", *file_systems):
        layer = f"{STORE}/{path.replace('/', '-') or 'host'}"
        options = f"lowerdir=/{path},upperdir={layer}/upper,workdir={layer}/work"
        commands.append(("mkdir", "-p", f"{ROOT}/{path}".rstrip("/"), f"{layer}/upper", f"{layer}/work"))
        commands.append(("mount", "-t", "overlay", "gpuplane-driver", "-o", options, f"{ROOT}/{path}".rstrip("/")))
    for path in ("proc", "sys", "dev"):
        commands.append(("mount", "--rbind", f"/{path}", f"{ROOT}/{path}"))
        commands.append(("mount", "--make-rslave", f"{ROOT}/{path}"))
    # NB: not recursive, for the driver's root lies in there itself.
    commands.append(("mount", "--bind", "/run", f"{ROOT}/run"))
    return tuple(Run(argv=command, in_root=False) for command in commands)


def refresh(file_systems: tuple[str, ...]) -> tuple[Run, ...]:
    """Let the driver's root see files that came to the host since it was mounted, such as a package that was missing.

    NB: overlayfs remembers which files it did not find. The kernel forgets that when a file system is mounted again
    with `remount`. From util-linux 2.39 on, mount(8) passes the options of before too, which overlayfs may refuse.
    """
    places = (f"{ROOT}/{path}".rstrip("/") for path in ("", *file_systems))
    return tuple(
        Run(
            argv=("mount", "-o", "remount,rw", place),
            otherwise=("mount", "--options-mode=ignore", "-o", "remount,rw", place),
            in_root=False,
            lenient=True,
        )
        for place in places
    )


def unmount() -> Run:
    """Lazily: what still looks at a file of it must not keep the whole."""
    return Run(argv=("umount", "-R", "-l", ROOT), in_root=False)


def clear(mounted: bool) -> tuple[Step, ...]:
    """Take the driver's root away with all that was installed into it."""
    remove = Run(argv=("rm", "-rf", "--one-file-system", STORE), in_root=False)
    return (unmount(), remove) if mounted else (remove,)


def install(driver: Released, kernel: str) -> tuple[Step, ...]:
    """User space, and all that building modules needs. The driver's own nvidia-smi is the only one in the root."""
    return (Run(argv=("rm", "-rf", f"/{NODE_COMMAND}")), *_packages(driver, kernel))


def _packages(driver: Released, kernel: str) -> tuple[Step, ...]:
    """User space from packages or NVIDIA's installer, with what building modules needs."""
    if driver.wanted.precompiled:
        return (
            *families.sources(driver),
            *cuda_repository.packages(driver),
            *families.packaged_user_space(driver),
            *cuda_repository.switch_programs(driver),
        )
    target = sources_dir(driver)
    run_file = f"/{names.DRIVER_DOWNLOADS}/{driver.run_file}"
    return (
        *families.sources(driver),
        *families.find_headers(driver, kernel),
        families.tools(driver),
        families.install_headers(driver, kernel),
        *cuda_repository.switch_programs(driver),
        *families.download(driver.url, run_file.lstrip("/")),
        Run(argv=("sh", run_file, "--check")),
        Run(argv=("rm", "-rf", target)),
        Run(argv=("sh", run_file, "--extract-only", "--target", target), timeout=LONG),
        Run(argv=("env", "-C", target, "./nvidia-installer", *_INSTALLER_FLAGS), timeout=LONG),
    )


def sources_dir(driver: Released) -> str:
    return f"/usr/src/gpuplane-nvidia-{driver.version}"


def build(
    driver: Released, kernel: str, processors: int, *, compiler: str = "gcc", key: SigningKey | None = None
) -> tuple[Step, ...]:
    """Kernel modules for one kernel: from packages, or compiled."""
    if driver.wanted.precompiled:
        return (families.refresh(driver), *families.packaged_modules(driver, kernel), Run(argv=("depmod", kernel)))
    there = families.makefile(kernel)
    directory = f"{sources_dir(driver)}/{'kernel-open' if driver.open else 'kernel'}"
    make = ("make", "-s", "-C", directory, f"KERNEL_UNAME={kernel}", "IGNORE_CC_MISMATCH=1", f"CC={compiler}")
    modules = tuple(f"{directory}/{module}.ko" for module in (*driver.modules, "nvidia-drm"))
    tool = f"/lib/modules/{kernel}/build/scripts/sign-file"
    sign = (tool, "sha512", key.private, key.certificate) if key is not None else ()
    target = f"/lib/modules/{kernel}/updates/gpuplane"
    return (
        families.refresh(driver, unless=there),
        *families.find_headers(driver, kernel),
        families.install_headers(driver, kernel),
        *families.compiler(driver, compiler),
        Run(argv=(*make, "clean"), lenient=True),
        Run(argv=(*make, f"-j{max(1, processors)}", "modules"), timeout=LONG),
        *(Run(argv=(*sign, module)) for module in modules if sign),
        Run(argv=("install", "-D", "-m", "0644", "-t", target, *modules)),
        Run(argv=("depmod", kernel)),
    )


def load(driver: Released) -> tuple[Step, ...]:
    """Parameters, firmware, what the modules need of the kernel, the modules."""
    wanted = dict(driver.wanted.parameters)
    if int(driver.branch) >= 580:
        wanted["nvidia"] = f"{_COHERENT} {wanted.get('nvidia', '')}".strip()
    steps: list[Step] = [
        Put(f"etc/modprobe.d/{module}.conf", f"options {module} {text}\n".encode()) for module, text in wanted.items()
    ]
    if "NVreg_EnableGpuFirmware=0" not in wanted.get("nvidia", ""):
        steps.append(Parameter(FIRMWARE_PATH, FIRMWARE))  # a search path of another program stays
    if driver.family is Family.SUSE:
        # SUSE's kernels refuse modules of others otherwise; its own file of this name lies in /lib.
        steps.append(Put("etc/modprobe.d/10-unsupported-modules.conf", b"allow_unsupported_modules 1\n"))
    steps.append(Run(argv=("modprobe", "-a", "i2c_core", "ipmi_msghandler", "ipmi_devintf"), lenient=True))
    steps.append(Run(argv=("modprobe", "-a", *driver.modules)))
    return tuple(steps)


def reset_firmware() -> Parameter:
    """Give the search path back, if it is ours."""
    return Parameter(FIRMWARE_PATH, "", FIRMWARE)


def start(daemons: tuple[str, ...]) -> tuple[Step, ...]:
    """The driver's daemons; they go into the background by themselves."""
    commands = {
        "nvidia-persistenced": ("nvidia-persistenced", "--persistence-mode"),
        "nv-fabricmanager": ("nv-fabricmanager", "-c", FABRIC_CONFIG),
    }
    return tuple(Run(argv=commands[daemon]) for daemon in daemons)


def stop(daemons: tuple[tuple[str, int], ...]) -> tuple[Step, ...]:
    """Ask the running daemons (name, process id) to end."""
    return tuple(Run(argv=("kill", "-TERM", str(pid)), in_root=False, lenient=True) for _, pid in daemons)
