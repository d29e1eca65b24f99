"""The isolation of containers on this machine: mount namespaces, all users or one, or rewritten paths only.

`candidates` lists what could work, the best first; the launcher takes the first mode in which a container starts. Only
a start proves a mode: AppArmor and seccomp may let a program make a namespace and then deny it everything inside.

Invariant: what a mode cannot have of a container's specification is left out by `fit`, and named there in words.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from tinykube.kubelet.containers.capabilities import beyond_default
from tinykube.kubelet.containers.rootfs import ContainerSpec

_ADMIN_PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
_MAPPERS: Final = ("newuidmap", "newgidmap")


class Isolation(StrEnum):
    ROOT = "root"  # mount namespaces, as root
    USERS = "users"  # mount namespaces inside a user namespace that maps many users
    USER = "user"  # mount namespaces inside a user namespace that maps one user
    NONE = "none"  # rewritten paths


class Extent(msgspec.Struct, frozen=True):
    """`count` ids of a user namespace from `inside` on are those of the machine from `outside` on."""

    inside: int
    outside: int
    count: int

    def __str__(self) -> str:
        return f"{self.inside} {self.outside} {self.count}"


class UserIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The user of this process, and the other users that it may become. `users` and `groups` are its own namespace's,
    as /proc/self/uid_map has them; `subuid` and `subgid` the texts of the files; `mappers` newuidmap and newgidmap."""

    uid: int
    gid: int
    name: str
    users: str = "0 0 4294967295"
    groups: str = "0 0 4294967295"
    subuid: str = ""
    subgid: str = ""
    mappers: tuple[str, ...] = ()


class IsolationMode(msgspec.Struct, frozen=True):
    """The start of containers. `users` and `groups` are the ids that a user namespace has, which `mappers` write
    (none: the shim itself); `lacks` says why it is not a better mode. `own_processes`: each container has a PID
    namespace."""

    isolation: Isolation
    users: tuple[Extent, ...] = ()
    groups: tuple[Extent, ...] = ()
    mappers: tuple[str, ...] = ()
    lacks: str = ""
    own_processes: bool = True

    def has_user(self, user: int | None) -> bool:
        """Return whether a container can be this user; None is the user that it has anyway."""
        return self.isolation is Isolation.ROOT or _has(self.users, user)

    def has_group(self, group: int | None) -> bool:
        """Return whether a container can have this group."""
        return self.isolation is Isolation.ROOT or _has(self.groups, group)

    def outside_group(self, group: int) -> int:
        """Return the machine's id of a container's group. Raises StopIteration for a group that is not mapped."""
        if self.isolation is Isolation.ROOT:
            return group
        return next(e.outside + group - e.inside for e in self.groups if e.inside <= group < e.inside + e.count)

    @property
    def words(self) -> list[str]:
        """The shim's words that make the namespaces."""
        if self.isolation is Isolation.ROOT:
            return ["unshare", "root"]
        words = ["unshare", "user"]
        if self.isolation is Isolation.USER:  # the kernel wants it so of those who have no privileges
            words += ["map", "setgroups", "-", "deny"]
        writers = self.mappers or ("-", "-")
        for file, writer, extents in zip(("uid_map", "gid_map"), writers, (self.users, self.groups), strict=True):
            words += ["map", file, writer, ("\n" if writer == "-" else " ").join(map(str, extents))]
        return words

    def __str__(self) -> str:
        what = {
            Isolation.ROOT: "mount namespaces, all users",
            Isolation.USERS: "user namespace, all users",
            Isolation.USER: "user namespace, one user",
            Isolation.NONE: "no namespaces, one user, paths rewritten",
        }[self.isolation]
        return f"{what} ({self.lacks})" if self.lacks else what


_NONE: Final = IsolationMode(Isolation.NONE, own_processes=False)


def observe_identity() -> UserIdentity:
    """Return the user of this process."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user needs no name
        name = str(uid)
    found = [shutil.which(mapper, path=_ADMIN_PATH) for mapper in _MAPPERS]
    return UserIdentity(
        uid=uid,
        gid=os.getegid(),
        name=name,
        users=_text("/proc/self/uid_map"),
        groups=_text("/proc/self/gid_map"),
        subuid=_text("/etc/subuid"),
        subgid=_text("/etc/subgid"),
        mappers=tuple(path for path in found if path),
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def candidates(who: UserIdentity) -> list[IsolationMode]:
    """The modes that could work, the best first; the last one always does. Pure."""
    one = (Extent(0, who.uid, 1),), (Extent(0, who.gid, 1),)
    if who.uid == 0:
        # Root without CAP_SYS_ADMIN may map every user that it could become.
        everyone = IsolationMode(Isolation.USERS, _same(who.users), _same(who.groups))
        return [
            IsolationMode(Isolation.ROOT),
            everyone,
            IsolationMode(Isolation.USER, *one),
            _NONE,
        ]
    users, groups = (_given(text, who) for text in (who.subuid, who.subgid))
    if len(who.mappers) < len(_MAPPERS):
        why = "no subordinate ids: install uidmap"
    elif not users or not groups:
        why = f"no subordinate ids: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {who.name}"
    else:
        many = IsolationMode(Isolation.USERS, one[0] + users, one[1] + groups, who.mappers)
        return [many, IsolationMode(Isolation.USER, *one), _NONE]
    return [IsolationMode(Isolation.USER, *one, lacks=why), _NONE]


def _same(text: str) -> tuple[Extent, ...]:
    """All ids of a map, each for itself."""
    rows = [line.split() for line in text.splitlines()]
    return tuple(Extent(int(row[0]), int(row[0]), int(row[2])) for row in rows)


def _given(text: str, who: UserIdentity) -> tuple[Extent, ...]:
    """The subordinate ids of a user, from 1 on. Source: subuid(5)."""
    extents: list[Extent] = []
    inside = 1
    for line in text.splitlines():
        owner, _, rest = line.strip().partition(":")
        first, _, count = rest.partition(":")
        if owner in (who.name, str(who.uid)) and first.isdigit() and count.isdigit() and int(count):
            extents.append(Extent(inside, int(first), int(count)))
            inside += int(count)
    return tuple(extents)


def fit(spec: ContainerSpec, mode: IsolationMode) -> tuple[ContainerSpec, tuple[str, ...]]:
    """The container as this mode can have it, and in words what it asked for and does not get. Pure."""
    lacks: list[str] = []
    if not mode.own_processes:
        spec = msgspec.structs.replace(spec, host_pid=True)
    if spec.joins is not None and mode.isolation in (Isolation.USERS, Isolation.USER) and mode.own_processes:
        lacks.append("the processes of its target container (which has a user namespace of its own)")
        spec = msgspec.structs.replace(spec, joins=None)
    if spec.sysctls:
        own = tuple(one for one in spec.sysctls if one[0].startswith("kernel.") and mode.isolation is Isolation.ROOT)
        if others := [name for name, _ in spec.sysctls if name not in dict(own)]:
            lacks.append(f"sysctls {', '.join(others)} (it has no namespace for them, or not the right to set them)")
        spec = msgspec.structs.replace(spec, sysctls=own)
    if mode.isolation is Isolation.ROOT:
        return spec, tuple(lacks)
    unknown = [f"user {spec.user}"] if not mode.has_user(spec.user) else []
    unknown += [f"group {group}" for group in (spec.group, *spec.groups) if not mode.has_group(group)]
    if unknown:
        lacks.append(f"{', '.join(dict.fromkeys(unknown))} (it runs as the one user there is)")
        spec = msgspec.structs.replace(spec, user=None, group=None, groups=())
    if spec.in_memory:
        where = ", ".join(spec.in_memory)
        lacks.append(f"volumes in memory (what is at {where} lies on the disk, without the volume's limit)")
    if spec.host_pid and mode.own_processes and mode.isolation in (Isolation.USERS, Isolation.USER):
        # The kernel lets a process look into those of its own user namespace, and each container has another.
        lacks.append("host PID (processes of other containers are listed, their environment and files denied)")
    if mode.isolation is Isolation.NONE:
        if more := beyond_default(spec.capabilities or 0):
            lacks.append(f"capabilities {', '.join(more)}")
        if spec.read_only_root:
            lacks.append("a read-only root")
            spec = msgspec.structs.replace(spec, read_only_root=False)
        if spec.volumes:
            where = ", ".join(spec.volumes)
            lacks.append(f"mounts (what is at {where} is found through its command and variables only)")
    return spec, tuple(lacks)


def _has(extents: Sequence[Extent], one: int | None) -> bool:
    return one is None or one == 0 or any(e.inside <= one < e.inside + e.count for e in extents)
