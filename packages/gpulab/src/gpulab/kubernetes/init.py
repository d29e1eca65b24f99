"""Process 1 of a machine: mounts its file systems, keeps its services running, as an init system does.

Started by `node` in namespaces of its own (mount, process, network, host name, IPC). The root is an overlay: this
machine's files below those of a simulated machine, which take every write. So programs are the real ones, the operands
see the simulated hardware, and nothing is written outside the machine's directory.

    /            real /proc, /sys and /dev: what containerd and the kubelet work with
    /machine     the same files with the simulated /proc and /sys: ClusterPolicy spec.hostPaths.rootFS

Only the standard library, all of it imported before the root changes.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
RESTART_S = 0.2  # as systemd's default is 0.1 s: what ends at once shall not spin
MACHINE = "machine"
PROGRAM_PATH = "/opt/kubernetes/0:/opt/kubernetes/1:/opt/kubernetes/2"
PROGRAMS = "programs"  # those of the simulated machine that containerd and the kubelet need real ones of


def main() -> None:
    config: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    sys.stdin.readline()  # `node` writes a line once it has made the network
    _network(config)
    _mount(config)
    _boot(config)
    _keep(config["services"])


def run(*arguments: str) -> None:
    subprocess.run(arguments, check=True)


# -- network ---------------------------------------------------------------------------------------------------------


def _network(config: dict[str, Any]) -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{config['address']}/24", "dev", config["interface"])
    run("ip", "link", "set", config["interface"], "up")
    # kube-proxy turns the addresses of Services into those of pods, but not before there is a route to them.
    run("ip", "route", "add", config["services_network"], "via", config["gateway"])
    for network, address in config["neighbours"].items():
        run("ip", "route", "add", network, "via", address)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    socket.sethostname(config["name"])


# -- file systems ----------------------------------------------------------------------------------------------------


def _mount(config: dict[str, Any]) -> None:
    home = Path(config["directory"])
    root = home / "overlay"
    run("mount", "--make-rprivate", "/")
    for name in ("overlay", "work", "containerd", "kubelet"):
        (home / name).mkdir(exist_ok=True)
    layers = f"lowerdir=/,upperdir={home / 'root'},workdir={home / 'work'}"
    run("mount", "-t", "overlay", "-o", layers, "overlay", str(root))
    machine = root / MACHINE
    machine.mkdir(exist_ok=True)
    run("mount", "--bind", str(root), str(machine))  # before anything is mounted below: with the simulated proc and sys
    for program in (home / PROGRAMS).glob("usr/*bin/*"):
        place = machine / program.relative_to(home / PROGRAMS)
        if place.exists():
            run("mount", "--bind", str(program), str(place))
    for name, source in (("var/lib/containerd", "containerd"), ("var/lib/kubelet", "kubelet")):
        (root / name).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(home / source), str(root / name))
    (root / "opt/kubernetes").mkdir(parents=True, exist_ok=True)
    for index, programs in enumerate(config["programs"]):
        (root / "opt/kubernetes" / str(index)).mkdir(exist_ok=True)
        run("mount", "--bind", programs, str(root / "opt/kubernetes" / str(index)))
    run("mount", "-t", "proc", "proc", str(root / "proc"))
    run("mount", "-t", "sysfs", "sysfs", str(root / "sys"))
    run("mount", "--rbind", "/sys/fs/cgroup", str(root / "sys/fs/cgroup"))
    _hardware(root, config["cpus"])
    _dev(root)
    for name in ("run", "tmp"):
        run("mount", "-t", "tmpfs", "tmpfs", str(root / name))
    (root / "tmp").chmod(0o1777)
    for name in ("dev", "run"):
        run("mount", "--rbind", str(root / name), str(machine / name))
    old = root / "mnt"
    run("pivot_root", str(root), str(old))
    os.chdir("/")
    run("umount", "-l", "/mnt")
    run("mount", "--make-rshared", "/")  # as systemd does: operands' mounts reach the machine
    # Mounts of an operand below /machine/var/lib are below /var/lib too, where containerd finds them.
    run("mount", "--rbind", "/var/lib", f"/{MACHINE}/var/lib")
    # The hardware's state is a mount of its own, so that a container whose host is read-only can still talk to GPUs.
    Path("/var/lib/simgpu").mkdir(exist_ok=True)
    run("mount", "--bind", "/var/lib/simgpu", f"/{MACHINE}/var/lib/simgpu")


def _hardware(root: Path, cpus: int) -> None:
    """Have the kubelet find the simulated machine's CPUs and memory: its users' pods ask for more than this one's.

    NB: cpuset knows this computer's CPUs only. So each stands there several times: cpu0, cpu00, cpu000.
    """
    run("mount", "--bind", str(root / MACHINE / "proc/meminfo"), str(root / "proc/meminfo"))
    system = root / "sys/devices/system"
    kept = {name: (system / "cpu" / name).read_text() for name in ("online", "possible", "present")}
    for name in ("cpu", "node"):
        if (system / name).is_dir():
            run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(system / name))
    for name, text in kept.items():
        (system / "cpu" / name).write_text(text)
    real = sorted(os.sched_getaffinity(0))
    for number in range(cpus):
        again, which = divmod(number, len(real))
        topology = system / f"cpu/cpu{'0' * again}{real[which]}/topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{number}\n")
        (topology / "physical_package_id").write_text("0\n")


def _dev(root: Path) -> None:
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root / "dev"))
    for name, (major, minor) in DEVICES.items():
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        (root / "dev" / name).chmod(0o666)
    for name in ("kmsg", "fuse"):
        if os.path.exists(f"/dev/{name}"):  # noqa: PTH110 - a device, not a path of ours
            os.mknod(root / "dev" / name, 0o660 | stat.S_IFCHR, os.stat(f"/dev/{name}").st_rdev)  # noqa: PTH116
    for name in ("pts", "shm", "mqueue"):
        (root / "dev" / name).mkdir()
    run("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=0620,gid=5", "devpts", str(root / "dev/pts"))
    run("mount", "-t", "tmpfs", "tmpfs", str(root / "dev/shm"))
    run("mount", "-t", "mqueue", "mqueue", str(root / "dev/mqueue"))
    for name, target in {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdout": "/proc/self/fd/1"}.items():
        (root / "dev" / name).symlink_to(target)
    for name, number in (("stdin", 0), ("stderr", 2)):
        (root / "dev" / name).symlink_to(f"/proc/self/fd/{number}")


def _boot(config: dict[str, Any]) -> None:
    """Do what a boot does: another boot id, and no kernel module of the driver is loaded yet."""
    boot_id = Path("/run/boot_id")
    boot_id.write_text(config["boot_id"] + "\n")
    run("mount", "--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")
    machine = Path("/", MACHINE)
    (machine / "proc/sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (machine / "proc/sys/kernel/random/boot_id").write_text(config["boot_id"] + "\n")
    (machine / "proc/modules").write_text("")
    (machine / "proc/1/mounts").write_text("/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n")
    for name in ("proc/driver/nvidia", *(f"sys/module/{module}" for module in _modules(machine))):
        subprocess.run(["rm", "-rf", str(machine / name)], check=True)
    for place in config["cgroups"]:
        Path(place).mkdir(parents=True, exist_ok=True)


def _modules(machine: Path) -> list[str]:
    return [entry.name for entry in (machine / "sys/module").iterdir()] if (machine / "sys/module").is_dir() else []


# -- services --------------------------------------------------------------------------------------------------------


def _keep(services: dict[str, list[str]]) -> None:
    """Runs every service, starts again what ends, and takes the exit status of every orphan; until killed."""
    running: dict[int, str] = {}
    for name, arguments in services.items():
        running[_start(name, arguments)] = name
    while True:
        pid, _ = os.wait()
        name = running.pop(pid, "")
        if name:
            time.sleep(RESTART_S)
            running[_start(name, services[name])] = name


def _start(name: str, arguments: list[str]) -> int:
    environment = {**os.environ, "PATH": f"{PROGRAM_PATH}:/usr/sbin:/usr/bin:/sbin:/bin"}
    log = os.open(f"/var/log/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.execvpe(arguments[0], arguments, environment)
    os.close(log)
    return pid


if __name__ == "__main__":
    main()
