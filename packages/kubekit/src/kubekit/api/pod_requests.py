"""Compute what a pod requests of its node, by the rule of Kubernetes.

The containers of a pod do not all run at the same time. Init containers run one after another, each next to the
sidecars (init containers with restartPolicy Always) that started before it. Then the main containers run next to all
sidecars. Of each resource, a pod requests the most that any of these phases uses. Scheduler, quotas, kubelet and the
ledger of GPUs all count by `phases`.

Source: `PodRequests` and `PodLimits` of k8s.io/component-helpers/resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")
N = TypeVar("N", int, Decimal)


def phases(main: Sequence[T], init: Sequence[tuple[T, bool]] = ()) -> Iterator[tuple[T, ...]]:
    """Yield the containers that run at the same time, for each phase of a pod; the phase of the main containers first.

    Args:
        main: the main containers.
        init: the init containers in their order, each with whether it is a sidecar.
    """
    sidecars: list[T] = []
    passing = []
    for container, sidecar in init:
        if sidecar:
            sidecars.append(container)
        else:
            passing.append((*sidecars, container))
    yield (*sidecars, *main)
    yield from passing


class PodAmounts(msgspec.Struct, Generic[N], frozen=True):
    """The requests, or the limits, of each container of a pod, and those of the pod itself.

    Amounts are numbers of one unit for each resource, and not negative. `init` is as in `phases`.
    """

    main: tuple[Mapping[str, N], ...] = ()
    init: tuple[tuple[Mapping[str, N], bool], ...] = ()
    pod_level: Mapping[str, N] = {}
    overhead: Mapping[str, N] = {}

    def requests(self, missing: Mapping[str, N] | None = None) -> dict[str, N]:
        """Return what the pod requests; a container without a request for a resource in `missing` counts as that."""
        total = self._most(missing or {})
        if self.pod_level:
            total |= _supported(self.pod_level)
        return _add(total, self.overhead) if self.overhead else total

    def limits(self) -> dict[str, N]:
        """Return the pod's limits; overhead is added only to a limit that is set."""
        total = self._most({}) | _supported(self.pod_level)
        return _add(total, {name: amount for name, amount in self.overhead.items() if total.get(name)})

    def _most(self, missing: Mapping[str, N]) -> dict[str, N]:
        others = phases(self.main, self.init)
        most = _sum(next(others), missing)
        for phase in others:
            for name, amount in _sum(phase, missing).items():
                if name not in most or amount > most[name]:
                    most[name] = amount
        return most


def read_amounts(
    spec: Mapping[str, Any], field: Literal["requests", "limits"], parse: Callable[[str, Any], N]
) -> PodAmounts[N]:
    """Read the amounts of a pod's `spec` in its JSON form.

    A container's limit without a request counts as its request, as API defaulting makes it.

    Args:
        parse: makes a number of a resource and its quantity; what it raises is passed on.
    """

    def amounts(raw: Mapping[str, Any] | None) -> dict[str, N]:
        return {name: parse(name, value) for name, value in raw.items()} if raw else {}

    def of(container: Mapping[str, Any]) -> dict[str, N]:
        resources = container.get("resources")
        if not resources:
            return {}
        limits, own = resources.get("limits"), resources.get(field)
        return amounts({**limits, **(own or {})} if limits and field == "requests" else own)

    return PodAmounts(
        tuple(of(container) for container in spec.get("containers") or ()),
        tuple((of(c), c.get("restartPolicy") == "Always") for c in spec.get("initContainers") or ()),
        amounts((spec.get("resources") or {}).get(field)),
        amounts(spec.get("overhead")),
    )


def _sum(containers: Sequence[Mapping[str, N]], missing: Mapping[str, N]) -> dict[str, N]:
    used: dict[str, N] = {}
    for container in containers:
        _add(used, {**missing, **container} if missing else container)
    return used


def _add(total: dict[str, N], more: Mapping[str, N]) -> dict[str, N]:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount
    return total


def _supported(pod_level: Mapping[str, N]) -> dict[str, N]:
    """The amounts that Kubernetes takes from the pod level."""
    return {n: a for n, a in pod_level.items() if n in ("cpu", "memory") or n.startswith("hugepages-")}
