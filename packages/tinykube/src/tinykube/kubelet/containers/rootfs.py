"""Decides the file system of a container, as instructions for `packages/tinykube/native/shim`, which carries them out.

There are no images, so a container's root is the machine's own `/` with a private writable layer, and on it the mounts
of the container: volumes from the node's root, its devices, libraries that the runtime injects.

Invariants:

- Nothing a container writes reaches the machine: overlays for /usr, /etc and their like, fresh /tmp and /run, the rest
  read-only, with all that is mounted below it. Its writes below a hostPath volume reach the node's root, as they
  should. A symbolic link in a volume leads neither a source nor a target of a mount out of it, whenever it is made.
- No container reads the files of clusters: tokens, keys, and volumes of other pods.
- /dev holds the harmless devices and the container's own; a privileged one has the node's /dev.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tinykube.images import started
from tinykube.kubelet.containers.groups import GroupLimits

_LAYERED: Final = ("bin", "etc", "home", "lib", "lib32", "lib64", "opt", "root", "sbin", "srv", "usr", "var")
_PRIVATE: Final = frozenset({"dev", "proc", "sys", "run", "tmp", "lost+found", ".old"})
PCI_BUS: Final = "sys/bus/pci"
#: Of a node's root, whose own /proc is files: the processes of the machine, for containers that share its PIDs.
PROCESSES: Final = "run/machine-processes"
STANDARD_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
_DEVICE_LINKS: Final = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
)

#: Below /proc: read-only for all containers that are not privileged, as runtimes have it.
_SETTINGS: Final = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_PROGRAM_FOLDERS: Final = ("/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin")
_LIBRARY: Final = re.compile(r"lib.+\.so(\.|$)")


class BindMount(msgspec.Struct, frozen=True):
    """`source` is a path of the machine without symbolic links, `target` one of the container."""

    source: str
    target: str
    read_only: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container with every decision made: what the runtime has to start.

    `devices` are mounts onto device paths, `links` (target, path) symbolic links in the container, `volumes` the
    targets of the mounts that the pod itself asked for, `in_memory` those of volumes in memory. `capabilities` has a
    bit for each that the container may have, None for all; `host_pid` shares the machine's PID namespace, `joins` that
    of another container's process. `sysctls` are set in the IPC namespace of the process `shares_ipc`, else in a new
    one. `programs` are those of the image that are started otherwise here, see `tinykube.images`. Servers that would
    listen on all addresses listen on `address`, unless it is empty.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str = ""
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    mounts: tuple[BindMount, ...] = ()
    devices: tuple[BindMount, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    privileged: bool = False
    capabilities: int | None = None
    no_new_privileges: bool = False
    limits: GroupLimits = GroupLimits()
    sysctls: tuple[tuple[str, str], ...] = ()
    shares_ipc: int | None = None
    host_pid: bool = False
    joins: int | None = None
    read_only_root: bool = False
    hostname: str = ""
    volumes: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()
    programs: Mapping[str, tuple[str, ...]] = {}
    address: str = ""

    def command(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command line that runs `argv` in this container. A program of a mount is that of the mount."""
        mounted = {Path(mount.target).name for mount in self.mounts if program_folder(mount)}
        return started(argv, {name: words for name, words in self.programs.items() if name not in mounted})


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The way of containers to hardware that is files of the node's root.

    Args:
        variable: where a container has no /dev of its own, this environment variable names the directory of its
            devices; empty for none.
        programs: the directory that then comes first on its search path; empty for none.
        sockets: mount targets that such a container needs next to that directory, as they are next to /dev.
        state: the directory below the root in which the hardware remembers; it can be written where the root is mounted
            read-only. Empty for none.
    """

    variable: str = ""
    programs: str = ""
    sockets: tuple[str, ...] = ()
    state: str = ""


class MachineRoot(msgspec.Struct, frozen=True):
    """The top of the machine's own file system. `keep` are paths of this program below directories that are hidden;
    `guarded` are (directory, path) of those below a directory that other users may not enter; `private` are directories
    that no container sees."""

    directories: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # (target, name)
    devices: tuple[str, ...]
    keep: tuple[str, ...]
    guarded: tuple[tuple[str, str], ...] = ()
    state: str = ""  # see Hardware
    settings: tuple[str, ...] = ()  # names below /proc that change the machine
    private: tuple[str, ...] = ()


def observe_machine(keep: Iterable[Path], state: str = "", private: Iterable[Path] = ()) -> MachineRoot:
    """Read what containers get of the machine.

    Args:
        keep: paths of this program, which containers need.
        state: see Hardware.
        private: directories that no container sees.
    """
    directories, links = [], []
    with os.scandir("/") as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name in _PRIVATE or not os.access(entry.path, os.R_OK):
            continue
        if entry.is_symlink():
            links.append((str(Path(entry.path).readlink()), entry.name))
        elif entry.is_dir():
            directories.append(entry.name)
    hidden: tuple[str, ...] = ("/tmp/", "/run/", "/var/run/", "/dev/shm/")
    closed = tuple(place for place in sorted({os.path.realpath(path) for path in private}) if _is_seen(place, hidden))
    hidden += tuple(f"{place}/" for place in closed)
    own = sorted(set(keep))
    kept = [str(path) for path in own if str(path).startswith(hidden)]
    guarded = [(str(guard), str(path)) for path in own for guard in _guards(path)[:1] if str(path) not in kept]
    devices = [name for name in STANDARD_DEVICES if _is_device(f"/dev/{name}")]
    settings = tuple(name for name in _SETTINGS if Path("/proc", name).exists())
    return MachineRoot(
        tuple(directories), tuple(links), tuple(devices), tuple(kept), tuple(guarded), state, settings, closed
    )


def _is_seen(place: str, hidden: tuple[str, ...]) -> bool:
    """Return whether containers would see a directory of the machine."""
    return place != "/" and Path(place).is_dir() and not f"{place}/".startswith(hidden)


def _guards(path: Path) -> list[Path]:
    """The directories on the way to `path` that other users may not enter, the outermost first."""
    return [parent for parent in reversed(path.parents) if not parent.stat().st_mode & stat.S_IXOTH]


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(Path(path).stat().st_mode)
    except OSError:
        return False


def isolated_words(
    spec: ContainerSpec, machine: MachineRoot, *, stage: Path, node_root: Path, groups: Sequence[str] = ()
) -> list[str]:
    """The words for a container that has a mount namespace by now.

    `stage` is an empty directory, `groups` are the words that show the container its control groups.
    """
    words = ["ipc", str(spec.shares_ipc or 0)] if spec.sysctls else []
    for name, value in spec.sysctls:
        words += ["sysctl", f"/proc/sys/{name.replace('.', '/')}", value]
    words += ["stage", str(stage)]
    for name in machine.directories:
        if name in _LAYERED:
            words += ["skeleton", f"/{name}"]
    words.append("pivot")
    mounted = {mount.target.rstrip("/") for mount in spec.mounts}
    for target, name in machine.links:
        if f"/{name}" not in mounted:  # a mount there shall not hide what the link leads to
            words += ["symlink", target, f"/{name}"]
    for name in machine.directories:
        if name not in _LAYERED:
            words += ["bind", f"/{name}", f"/{name}", "all-ro"]
    words += ["bind", "/proc", "/proc", "rw"] if spec.host_pid else ["processes", "/proc"]
    if spec.joins is not None and not spec.host_pid:
        words += ["join", str(spec.joins)]
    if not spec.privileged:
        for name in machine.settings:
            words += ["bind", f"/proc/{name}", f"/proc/{name}", "ro"]
    # NB: control groups are mounted below it. A container with the right to change them could leave its limits.
    words += ["bind", "/sys", "/sys", "ro" if spec.privileged else "all-ro", *groups]
    if (node_root / PCI_BUS).is_dir() and Path("/", PCI_BUS).is_dir():
        words += _mount_words(node_root / PCI_BUS, f"/{PCI_BUS}", "ro", node_root)  # no namespace hides a machine's bus
    words += ["tmpfs", "/tmp", "1777", "tmpfs", "/run", "1777"]
    for path in machine.private:
        words += ["tmpfs", path, "755"]
    for path in machine.keep:
        words += ["bind", path, path, "ro"]
    if spec.user:
        # The image has the program where every user can read it; the home directory that it lies in here may be closed.
        for guard in dict.fromkeys(guard for guard, _ in machine.guarded):
            words += ["tmpfs", guard, "755"]
        for _, path in machine.guarded:
            words += ["bind", path, path, "ro"]
    words += _device_words(spec, machine, node_root)
    for mount in sorted(spec.mounts, key=lambda m: m.target.rstrip("/").count("/")):
        words += _mount_words(mount.source, mount.target, "ro" if mount.read_only else "rw", node_root)
        words += _devices_below(mount, machine, node_root)
        if spec.host_pid and mount.source == str(node_root) and (node_root / PROCESSES).is_dir():
            words += ["bind", "/proc", f"{mount.target.rstrip('/')}/{PROCESSES}", "rw"]
    for target, path in spec.links:
        words += ["symlink", target, path]
    if spec.read_only_root:
        words += ["readonly", "/"]
        for name in machine.directories:
            if name in _LAYERED:
                words += ["readonly", f"/{name}"]
    if spec.hostname:
        words += ["hostname", spec.hostname]
    return words + process_words(spec.argv, spec.env, spec)


def _mount_words(source: str | Path, target: str, mode: str, node_root: Path) -> list[str]:
    """Return the words for a mount; below the node's root, where containers write, no symbolic link is followed."""
    if not Path(source).is_relative_to(node_root):
        return ["bind", str(source), target, mode]
    path = Path(source).relative_to(node_root)
    # NB: a link on the way to the node's root would lead to a path of the container's root.
    return ["below", os.path.realpath(node_root), "" if path == Path() else str(path), target, mode]


def _device_words(spec: ContainerSpec, machine: MachineRoot, node_root: Path) -> list[str]:
    words: list[str] = []
    if spec.privileged:
        words += _mount_words(node_root / "dev", "/dev", "rw", node_root)
    else:
        # NB: in a sticky directory the kernel refuses `> /dev/null` to users that do not own /dev/null.
        words += ["tmpfs", "/dev", "755"]
        for target, path in _DEVICE_LINKS:
            words += ["symlink", target, path]
    # NB: /dev/ptmx works only next to the terminals that it makes, so it cannot be bound by itself.
    for name in machine.devices:
        if spec.privileged or name != "ptmx":
            words += ["bind", f"/dev/{name}", f"/dev/{name}", "rw"]
    words += ["tmpfs", "/dev/shm", "1777"]
    if spec.privileged and Path("/dev/pts").is_dir():
        words += ["bind", "/dev/pts", "/dev/pts", "rw"]
    if not spec.privileged:
        words += ["terminals", "/dev/pts", "symlink", "pts/ptmx", "/dev/ptmx"]
        for device in spec.devices:
            words += _mount_words(device.source, device.target, "rw", node_root)
    return words


def _devices_below(mount: BindMount, machine: MachineRoot, node_root: Path) -> list[str]:
    """Mount what is no part of the node's root file system below a mount of it.

    The node's dev/null is an empty file; a container that mounts the node's root gets real devices there too. The
    state of the hardware can be written where the root is mounted read-only.
    """
    words: list[str] = []
    state = machine.state
    if state and mount.source == str(node_root) and mount.read_only and (node_root / state).is_dir():
        words += _mount_words(node_root / state, f"{mount.target.rstrip('/')}/{state}", "rw", node_root)
    where = {str(node_root): "/dev", str(node_root / "dev"): ""}.get(mount.source)
    if where is not None:
        for name in machine.devices:
            target = f"{mount.target.rstrip('/')}{where}/{name}"
            words += ["bind", f"/dev/{name}", target, "rw"]
    return words


def process_words(argv: Iterable[str], env: Mapping[str, str], spec: ContainerSpec) -> list[str]:
    words: list[str] = []
    words += ["cwd", spec.cwd or "/"]
    for group in spec.groups:
        words += ["group", str(group)]
    if spec.user is not None or spec.group is not None:
        words += ["user", str(-1 if spec.user is None else spec.user), str(spec.group or 0)]
    if spec.capabilities is not None:
        words += ["capabilities", f"{spec.capabilities:x}"]
    if spec.no_new_privileges:
        words.append("nonewprivileges")
    for name, value in env.items():
        words += ["env", f"{name}={value}"]
    for arg in argv:
        words += ["arg", arg]
    return words


# -- without namespaces ----------------------------------------------------------------------------------------------


def rewrite_paths(text: str, mounts: Iterable[BindMount]) -> str:
    """`text` with every path below a mount's target moved to its source, the longest target first.

    Only whole path components count: with /host mounted, `/host/etc` and `--root=/host` change, `/hostile` does not.
    """
    targets = {m.target.rstrip("/"): m.source for m in mounts if m.target.rstrip("/")}
    if not targets:
        return text
    longest = sorted(targets, key=len, reverse=True)
    pattern = r"(?<![\w./-])(" + "|".join(map(re.escape, longest)) + r")(?=[/:;,\s\"']|$)"
    return re.sub(pattern, lambda match: targets[match.group(1)], text)


def is_library(mount: BindMount) -> bool:
    return _LIBRARY.match(Path(mount.target).name) is not None


def program_folder(mount: BindMount) -> str:
    """Return the folder of the search path that a mounted program lies in; empty when it lies in none."""
    folder = str(Path(mount.target).parent)
    return folder if folder in _PROGRAM_FOLDERS else ""


def view(spec: ContainerSpec, place: Path) -> dict[Path, str]:
    """Links, path -> target, below `place`: the container's libraries side by side, as they would be in its own root,
    and its programs.

    The loader looks for a library's own needs in its directory, and there they would not be where each lies on the
    node.
    """
    links = {place / m.target.lstrip("/"): m.source for m in spec.mounts if is_library(m) or program_folder(m)}
    folders = {path.parent for path in links}
    for target, path in spec.links:
        if (place / path.lstrip("/")).parent in folders:
            links.setdefault(place / path.lstrip("/"), target)
    made = made_folders(spec.mounts)
    for mount in spec.mounts:
        above = set(map(str, Path(mount.target).parents))
        if above & made and not above & {m.target.rstrip("/") for m in spec.mounts}:
            links[place / mount.target.strip("/")] = mount.source
    return links


def made_folders(mounts: Iterable[BindMount]) -> set[str]:
    """The directories that a container has only because something is mounted below them."""
    targets = {m.target.rstrip("/") for m in mounts}
    above = {folder for target in targets for folder in Path(target).parents}
    return {
        str(folder)
        for folder in above
        if not folder.exists() and not targets & {str(place) for place in (folder, *folder.parents)}
    }


def preloaded(mounts: Iterable[BindMount]) -> str:
    """The libraries that a mounted /etc/ld.so.preload names, as LD_PRELOAD takes them; "" without one."""
    source = next((m.source for m in mounts if m.target == "/etc/ld.so.preload"), None)
    if source is None or not Path(source).is_file():
        return ""
    return " ".join(Path(source).read_text(encoding="utf-8").split())


def plain_words(spec: ContainerSpec, *, added: Mapping[str, str], place: Path, programs: str = "") -> list[str]:
    """The words for a container without a namespace: paths rewritten, libraries on the search path.

    `added` are environment variables, such as the one that names the directory of the container's devices. `place`
    holds the links of `view`; `programs` is the directory that comes first on the search path.
    """
    inside = {m.target: str(place / m.target.lstrip("/")) for m in spec.mounts if is_library(m)}
    moved = [BindMount(inside.get(m.target, m.source), m.target) for m in spec.mounts]
    moved += [BindMount(f"{place}{folder}", folder) for folder in sorted(made_folders(spec.mounts))]
    folders = list(dict.fromkeys(str(Path(target).parent) for target in inside))
    env = dict(spec.env)
    if preload := preloaded(spec.mounts):
        env["LD_PRELOAD"] = " ".join(filter(None, (env.get("LD_PRELOAD"), preload)))
    given = [folder for folder in env.pop("LD_LIBRARY_PATH", "").split(":") if folder]
    search = [f"{place}{folder}" for folder in folders if folder not in given]
    for folder in given:
        search += [f"{place}{folder}"] if folder in folders else []
        search.append(rewrite_paths(folder, moved))
    env = {name: rewrite_paths(value, moved) for name, value in env.items()}
    if search:
        env["LD_LIBRARY_PATH"] = ":".join(search)
    own = dict.fromkeys(f"{place}{folder}" for folder in map(program_folder, spec.mounts) if folder)
    if programs or own:
        env["PATH"] = ":".join(filter(None, (programs, *own, env.get("PATH", ""))))
    env |= added
    process = ContainerSpec(
        argv=(), env={}, cwd=rewrite_paths(spec.cwd or "/", moved), no_new_privileges=spec.no_new_privileges
    )
    return process_words([rewrite_paths(arg, moved) for arg in spec.argv], env, process)
