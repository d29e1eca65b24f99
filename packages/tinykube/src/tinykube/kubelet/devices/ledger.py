"""Records which container holds which device of one node, and chooses ids for a container. No I/O.

Invariants: a device has at most one holding pod, and at most one container of it that lasts; what an init container got
goes to the pod's next containers first, as in a kubelet; ids of unhealthy devices are never allocated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec


class ListedDevice(msgspec.Struct, frozen=True):
    """A device as its plugin lists it."""

    healthy: bool
    numa: tuple[int, ...] = ()


class DeviceMount(msgspec.Struct, frozen=True):
    """A mount or device node of an Allocate response; `read_only` matters for mounts only."""

    host_path: str
    container_path: str
    read_only: bool = False


class ContainerDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The responses of Allocate for a container, of all its resources together."""

    envs: dict[str, str] = {}
    mounts: tuple[DeviceMount, ...] = ()
    devices: tuple[DeviceMount, ...] = ()
    annotations: dict[str, str] = {}
    cdi: tuple[str, ...] = ()

    def joined(self, other: ContainerDevices) -> ContainerDevices:
        return ContainerDevices(
            envs=self.envs | other.envs,
            mounts=self.mounts + tuple(m for m in other.mounts if m not in self.mounts),
            devices=self.devices + tuple(d for d in other.devices if d not in self.devices),
            annotations=self.annotations | other.annotations,
            cdi=self.cdi + tuple(name for name in other.cdi if name not in self.cdi),
        )


NOTHING = ContainerDevices()


class DeviceHolding(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of one container."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    given: ContainerDevices


class DeviceLedger:
    """All holdings of a node, by (pod uid, container, resource)."""

    def __init__(self, holdings: Iterable[DeviceHolding] = ()) -> None:
        self._held = {(h.pod_uid, h.container, h.resource): h for h in holdings}

    def hold(self, holding: DeviceHolding) -> None:
        self._held[(holding.pod_uid, holding.container, holding.resource)] = holding

    def release(self, pod_uid: str) -> bool:
        """Gives a pod's devices back; False when it held none."""
        gone = [key for key in self._held if key[0] == pod_uid]
        for key in gone:
            del self._held[key]
        return bool(gone)

    def of(self, pod_uid: str, container: str) -> list[DeviceHolding]:
        return [h for (uid, name, _), h in self._held.items() if uid == pod_uid and name == container]

    def all(self) -> list[DeviceHolding]:
        return list(self._held.values())

    def pods(self) -> set[str]:
        return {key[0] for key in self._held}

    def in_use(self, resource: str) -> set[str]:
        return {i for h in self._held.values() if h.resource == resource for i in h.ids}

    def reusable(self, pod_uid: str, resource: str, passing: Collection[str]) -> list[str]:
        """Return the ids that another container of the pod may get again, in the order in which they were allocated.

        These are the ids of the init containers in `passing`, which end before the next container starts. Ids that a
        main container or a sidecar got after them are not free again.
        """
        of_pod = [h for h in self._held.values() if h.pod_uid == pod_uid and h.resource == resource]
        lasting = {i for h in of_pod if h.container not in passing for i in h.ids}
        return list(dict.fromkeys(i for h in of_pod if h.container in passing for i in h.ids if i not in lasting))


class AllocationOptions(msgspec.Struct, frozen=True):
    """The ids to choose from: `must` (of the pod's init containers) and `available` with them."""

    must: tuple[str, ...]
    available: tuple[str, ...]


def candidates(
    devices: Mapping[str, ListedDevice], used: set[str], reusable: Sequence[str], wanted: int
) -> AllocationOptions | None:
    """Return the ids for a container that wants `wanted` devices; None when there are too few."""
    must = tuple(reusable[:wanted])
    free = sorted(i for i, device in devices.items() if device.healthy and i not in used)
    if len(must) + len(free) < wanted:
        return None
    return AllocationOptions(must, (*must, *free))


def choose(choice: AllocationOptions, preferred: Sequence[str], wanted: int) -> tuple[str, ...]:
    """The ids. A preference counts if it is enough, available, distinct and holds what must be in; else the first ones.

    NB: a kubelet takes any ids without a preference; that these are the first in order is no promise.
    """
    good = len(preferred) == wanted == len(set(preferred)) and set(preferred) <= set(choice.available)
    if good and set(choice.must) <= set(preferred):
        return tuple(preferred)
    return choice.available[:wanted]
