"""Reads a pod's request for GPUs, in any of the known dialects, as one Struct.

Containers count as Kubernetes counts them: init containers run one after another before the main ones and may use the
same GPUs again; sidecars (init containers with restartPolicy Always) stay. `Request.phases` says who runs together.

A request that can never run is refused here, with every reason at once (codes GP2xx); `findings` are the same for
`gpuplane check` and the webhook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.sharing.findings import MEMORY_UNIT_MIB, POLICIES, count, findings
from kubekit.api.core import Container, Pod
from kubekit.api.pod_requests import PodAmounts, phases
from kubekit.api.quantity import MOST, Quantity, parse_quantity
from kubekit.errors import InvalidInput

WHOLE: Final = 100  # core of one whole GPU

_MOST_REQUESTS: Final = 4096
_LONGEST_KEY: Final = 1024  # bytes
_requests: dict[bytes, Request] = {}  # by all that they were read from
_READ: Final = frozenset(  # the annotations that a request is read from
    {
        *(names.NODE_POLICY_ANNOTATION, names.HAMI_NODE_POLICY_ANNOTATION),
        *(names.GPU_POLICY_ANNOTATION, names.HAMI_GPU_POLICY_ANNOTATION),
        *(names.GPU_MODELS_ANNOTATION, names.HAMI_GPU_MODELS_ANNOTATION),
        *(names.NOT_GPU_MODELS_ANNOTATION, names.HAMI_NOT_GPU_MODELS_ANNOTATION),
        *(names.GPU_UUIDS_ANNOTATION, names.HAMI_GPU_UUIDS_ANNOTATION),
        *(names.NOT_GPU_UUIDS_ANNOTATION, names.HAMI_NOT_GPU_UUIDS_ANNOTATION),
    }
)
_POLICY_OF_HAMI: Final = {"binpack": "tightest", "spread": "spread", "topology-aware": "topology"}


class Ask(msgspec.Struct, frozen=True):
    """The request of one container.

    `core` is percent of one GPU: 1-99 a share, a multiple of 100 whole GPUs (`scale` says what a GPU counts where that
    is not 100, as in the openb experiment). `memory_mib` is that of a share; 0 where
    none was asked: the share then holds the same part of the GPU's memory as of its core. A whole GPU comes with all
    of its memory. `position` is the container's number among its kind (main or init) in the pod, `dialect` the
    resource by which it asked.
    """

    container: str
    core: int
    memory_mib: int = 0
    init: bool = False
    sidecar: bool = False
    dialect: str = names.GPU_RESOURCE
    position: int = 0
    scale: int = WHOLE

    @property
    def gpus(self) -> int:
        """Return the number of whole GPUs; 0 for a share."""
        return self.core // self.scale

    @property
    def each(self) -> int:
        """Return the container's part of each of its GPUs."""
        return min(self.core, self.scale)

    @property
    def lasts(self) -> bool:
        """Return whether it runs next to the main containers."""
        return self.sidecar or not self.init


class Request(msgspec.Struct, frozen=True):
    """A pod's request for GPUs; `asks` in the order in which the containers start, without those that ask nothing.

    `models` are any-of (see `matches`), empty for any; `uuids` likewise. Policies are names of
    `gpuplane.sharing.placement`, empty for the configured one. `cpu_milli` and `host_memory_mib` are what the pod
    requests of its node besides GPUs; policies that price free capacity read them.
    """

    asks: tuple[Ask, ...] = ()
    node_policy: str = ""
    gpu_policy: str = ""
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    cpu_milli: int = 0
    host_memory_mib: int = 0

    @property
    def selects(self) -> bool:
        """Return whether not every GPU will do."""
        return bool(self.models or self.not_models or self.uuids or self.not_uuids)

    @property
    def by_count(self) -> bool:
        """Return whether it requests `nvidia.com/gpu` alone, which may be replicas or MIG devices on some nodes."""
        return all(ask.dialect == names.GPU_RESOURCE for ask in self.asks)

    def __bool__(self) -> bool:
        return bool(self.asks)

    def phases(self) -> Iterator[tuple[Ask, ...]]:
        """Return the containers that hold GPUs at the same time: first those that last, then each init container with
        the sidecars before.
        """
        init = [(ask, ask.sidecar) for ask in self.asks if ask.init]
        return phases(self.asks[len(init) :], init)

    @property
    def core(self) -> int:
        """Return the most that the pod holds at any time, in percent of a GPU, as quotas count it."""
        return max((sum(ask.core for ask in phase) for phase in self.phases()), default=0)


def request_of(pod: Pod) -> Request:
    """Read the request of `pod`. Raises InvalidInput with all findings for a request that can never be met.

    Pods of one workload ask the same, so a request is read once for all that ask without annotations.
    """
    spec = pod.spec
    if not pod.metadata.annotations.keys().isdisjoint(_READ) or names.MPS_LABEL in spec.node_selector:
        return _read(pod)
    asking = [(one.name, one.resources, one.restart_policy) for one in (*spec.init_containers, *spec.containers)]
    key = msgspec.msgpack.encode((len(spec.init_containers), asking, spec.resources, spec.overhead))
    found = _requests.get(key)
    if found is None:
        found = _read(pod)
        _remember(key, found)
    return found


def host_request(pod: Pod) -> Request:
    """Return what a pod without GPUs requests of its node: CPU and memory. Read once for all that request the same."""
    spec = pod.spec
    asking = [(one.resources, one.restart_policy) for one in (*spec.init_containers, *spec.containers)]
    key = b"host" + msgspec.msgpack.encode((len(spec.init_containers), asking, spec.resources, spec.overhead))
    found = _requests.get(key)
    if found is None:
        found = Request(cpu_milli=of_node(pod, "cpu", 1000), host_memory_mib=of_node(pod, "memory", 1 / 2**20))
        _remember(key, found)
    return found


def _remember(key: bytes, request: Request) -> None:
    # NB: any tenant can make pods with thousands of containers.
    if len(key) <= _LONGEST_KEY:
        if len(_requests) >= _MOST_REQUESTS:
            _requests.clear()
        _requests[key] = request


def _read(pod: Pod) -> Request:
    wrong = findings(pod)
    if wrong:
        raise InvalidInput(
            wrong[0].message if len(wrong) == 1 else f"{len(wrong)} reasons why it can never run",
            where=f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}",
            cure=wrong[0].cure if len(wrong) == 1 else "",
            findings=tuple(str(finding) for finding in wrong),
        )
    asks = (*_asks(pod.spec.init_containers, init=True), *_asks(pod.spec.containers, init=False))
    if not asks:
        return Request()
    cpu_milli, host_memory_mib = of_node(pod, "cpu", 1000), of_node(pod, "memory", 1 / 2**20)
    said = pod.metadata.annotations
    if said.keys().isdisjoint(_READ):
        return Request(asks, cpu_milli=cpu_milli, host_memory_mib=host_memory_mib)
    return Request(
        asks=asks,
        node_policy=_policy(said, names.NODE_POLICY_ANNOTATION, names.HAMI_NODE_POLICY_ANNOTATION),
        gpu_policy=_policy(said, names.GPU_POLICY_ANNOTATION, names.HAMI_GPU_POLICY_ANNOTATION),
        models=_listed(said, names.GPU_MODELS_ANNOTATION, names.HAMI_GPU_MODELS_ANNOTATION),
        not_models=_listed(said, names.NOT_GPU_MODELS_ANNOTATION, names.HAMI_NOT_GPU_MODELS_ANNOTATION),
        uuids=_listed(said, names.GPU_UUIDS_ANNOTATION, names.HAMI_GPU_UUIDS_ANNOTATION),
        not_uuids=_listed(said, names.NOT_GPU_UUIDS_ANNOTATION, names.HAMI_NOT_GPU_UUIDS_ANNOTATION),
        cpu_milli=cpu_milli,
        host_memory_mib=host_memory_mib,
    )


@lru_cache(maxsize=8192)
def kind_of(request: Request) -> Request:
    """Return the kind of a request, equal for equal pods: without the names of containers and resources.

    Two requests of one kind fit the same nodes and are worth the same there, so what was found for one holds for the
    other.
    """
    asks = tuple(
        Ask(str(at), ask.core, ask.memory_mib, ask.init, ask.sidecar, "", at, ask.scale)
        for at, ask in enumerate(request.asks)
    )
    return msgspec.structs.replace(request, asks=asks)


@lru_cache(maxsize=4096)
def matches(model: str, wanted: str) -> bool:
    """Return whether a GPU's model matches `wanted`: each word of `wanted` is a word of the model.

    Words are what stands between other signs than letters and digits, whatever their case. So A100 is
    NVIDIA A100-SXM4-80GB and its label form, A10 is not, and "Tesla K80" is Tesla-K80.
    """
    return set(_words(wanted)) <= set(_words(model))


def _words(text: str) -> list[str]:
    return "".join(sign.lower() if sign.isalnum() else " " for sign in text).split()


def of_node(pod: Pod, resource: str, factor: float) -> int:
    """Return the CPU or memory that the pod requests of its node, times `factor`; an unreadable amount counts as 0."""

    def amount(*lists: Mapping[str, Quantity]) -> dict[str, int]:
        value = next((found[resource] for found in lists if resource in found), None)
        try:
            return {} if value is None else {resource: int(float(parse_quantity(value)) * factor)}
        except (InvalidInput, ArithmeticError, ValueError):
            return {}

    def of(container: Container) -> dict[str, int]:
        return amount(container.resources.requests, container.resources.limits)

    spec = pod.spec
    amounts = PodAmounts(
        tuple(map(of, spec.containers)),
        tuple((of(container), container.sidecar) for container in spec.init_containers),
        amount(spec.resources.requests),
        amount(spec.overhead),
    )
    return min(amounts.requests().get(resource, 0), MOST)


def _asks(containers: tuple[Container, ...], *, init: bool) -> Iterator[Ask]:
    for position, container in enumerate(containers):
        limits = container.resources.limits
        core, memory, dialect = 0, 0, ""
        for resource in (names.GPU_RESOURCE, names.ALPHA_GPU):
            if gpus := count(limits.get(resource, 0)):
                core, dialect = gpus * WHOLE, resource
        if share := count(limits.get(names.VCUDA_CORE, 0)):
            core, dialect = share, names.VCUDA_CORE
            memory = count(limits.get(names.VCUDA_MEMORY, 0)) * MEMORY_UNIT_MIB if core < WHOLE else 0
        if core:
            sidecar = init and container.sidecar
            yield Ask(container.name, core, memory, init, sidecar, dialect, position)


def _policy(said: dict[str, str], ours: str, theirs: str) -> str:
    if said.get(ours, "") in POLICIES:
        return said.get(ours, "")
    return _POLICY_OF_HAMI.get(said.get(theirs, "").strip().lower(), "")


def _listed(said: dict[str, str], ours: str, theirs: str) -> tuple[str, ...]:
    text = said.get(ours, said.get(theirs, ""))
    return tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
