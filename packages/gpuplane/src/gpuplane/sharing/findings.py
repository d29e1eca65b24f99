"""Finds the errors in a pod's request for GPUs, as far as the pod alone shows them, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from gpuplane import names
from gpuplane.api.finding import Finding
from kubekit.api.core import Container, Pod, PodSpec, Resources
from kubekit.api.quantity import Quantity, parse_quantity
from kubekit.errors import InvalidInput

NO_SHARES: Final = "GPUs in MIG mode or shared by MPS have no shares"
"""The message of everything that refuses such a share: `gpuplane check`, admission, both schedulers, device plugin."""

MEMORY_UNIT_MIB: Final = 256  # of tencent.com/vcuda-memory
POLICIES: Final = ("opportunity", "fragmentation", "power", "tightest", "spread", "topology")
"""The names of placement policies, the default first."""

_DIALECTS: Final = (names.GPU_RESOURCE, names.VCUDA_CORE, names.ALPHA_GPU)
# No machine has as many; larger numbers are mistakes, and are not made into lists of GPUs.
_MOST: Final = {names.GPU_RESOURCE: 1024, names.VCUDA_CORE: 102_400, names.ALPHA_GPU: 1024, names.VCUDA_MEMORY: 2**24}
_READABLE: Final = 2**40  # what is larger is not even made into a number
_MIG_UUID: Final = "MIG-"
_UUID_PREFIXES: Final = ("GPU-", _MIG_UUID)
_LISTS: Final = (
    names.GPU_MODELS_ANNOTATION,
    names.NOT_GPU_MODELS_ANNOTATION,
    names.GPU_UUIDS_ANNOTATION,
    names.NOT_GPU_UUIDS_ANNOTATION,
    names.HAMI_GPU_MODELS_ANNOTATION,
    names.HAMI_NOT_GPU_MODELS_ANNOTATION,
    names.HAMI_GPU_UUIDS_ANNOTATION,
    names.HAMI_NOT_GPU_UUIDS_ANNOTATION,
)
# NB: any tenant can write 256 KiB into an annotation, and the scheduler compares each entry of a list with each GPU.
MOST_LISTED: Final = 256  # entries of one annotation
LONGEST_LIST: Final = 16_384  # characters of one annotation: 256 UUIDs, and a third more
_LONGEST_NAME: Final = 100  # characters of a value that a message repeats
# Where workloads keep the template of their pods.
_TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "ReplicationController", "Job"), ("spec", "template")
    ),
}


class TooLarge(InvalidInput):
    """A count of resources that no machine has."""


def count(value: Quantity) -> int:
    """Parse a count of resources, 0 or more. Raises InvalidInput, and TooLarge for counts larger than any machine."""
    number = parse_quantity(value)
    if number > _READABLE:
        raise TooLarge(f"{value} is more than any machine has")
    if not 0 <= number == int(number):
        raise InvalidInput(f"{value} is no count of resources")
    return int(number)


def findings(pod: Pod) -> list[Finding]:
    """Find the errors of the pod, in the order of its fields; paths begin at the pod: `spec.containers[0]...`."""
    said = pod.metadata.annotations
    return [*_annotations(said), *_containers(pod.spec), *_divided(said, pod.spec)]


def findings_of_object(data: Any) -> list[Finding]:
    """Find the errors of an object of a manifest: a pod, or a workload's template; empty for other kinds."""
    steps = _TEMPLATES.get(str(data.get("kind", ""))) if isinstance(data, Mapping) else None
    if steps is None:
        return []
    for step in steps:
        data = data.get(step) if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping):
        return []
    prefix = "".join(f"{step}." for step in steps)
    meta = data.get("metadata")
    said = meta.get("annotations") if isinstance(meta, Mapping) else None
    annotations = {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}
    wrong = list(_annotations(annotations))
    with suppress(msgspec.ValidationError):  # the API server says what is wrong with it
        spec = msgspec.convert(data.get("spec"), PodSpec)
        wrong += [*_containers(spec), *_divided(annotations, spec)]
    return [msgspec.structs.replace(finding, path=prefix + finding.path) for finding in wrong]


def _annotations(said: Mapping[str, str]) -> Iterator[Finding]:
    for name in (names.NODE_POLICY_ANNOTATION, names.GPU_POLICY_ANNOTATION):
        if name in said and said[name] not in POLICIES:
            yield Finding(
                code="GP206",
                path=f"metadata.annotations.{name}",
                message=f"there is no policy {_elided(said[name]) or 'without a name'}",
                cure=f"one of {', '.join(POLICIES)}",
                shown=_shown(said[name]),
            )
    for name in _LISTS:
        if name not in said:
            continue
        text = said[name]
        entries, characters = text.count(",") + 1, len(text)
        if entries > MOST_LISTED or characters > LONGEST_LIST:
            yield Finding(
                code="GP211",
                path=f"metadata.annotations.{name}",
                message=f"{entries} entries in {characters} characters are too many",
                cure=f"at most {MOST_LISTED} entries and {LONGEST_LIST} characters",
                shown=_shown(text),
            )
        elif name in (names.GPU_UUIDS_ANNOTATION, names.NOT_GPU_UUIDS_ANNOTATION):
            yield from _uuids(name, text)


def _uuids(name: str, text: str) -> Iterator[Finding]:
    shown = _shown(text)
    for uuid in filter(None, (part.strip() for part in text.split(","))):
        if not uuid.startswith(_UUID_PREFIXES):
            yield Finding(
                code="GP207",
                path=f"metadata.annotations.{name}",
                message=f"{_elided(uuid)} is no UUID of a GPU",
                cure="as gpuplane status gpus -o json shows them: GPU-7c41...",
                shown=shown,
            )


def _divided(said: Mapping[str, str], spec: PodSpec) -> Iterator[Finding]:
    """Find what asks for a share of a GPU that is divided by MIG or MPS already."""
    asking = False
    for kind, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            limits = container.resources.limits
            if names.VCUDA_CORE not in limits:
                continue
            asking = True
            for name in limits:
                if name.startswith(names.MIG_PREFIX) or name.endswith(names.SHARED_SUFFIX):
                    path = f"spec.{kind}[{index}].resources.limits.{name}"
                    yield _no_share(path, name, f"{name} or {names.VCUDA_CORE}, not both", at="key")
    if not asking:
        return
    path = f"metadata.annotations.{names.GPU_UUIDS_ANNOTATION}"
    text = said.get(names.GPU_UUIDS_ANNOTATION, "")
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    if wanted and all(uuid.startswith(_MIG_UUID) for uuid in wanted):
        yield _no_share(path, _shown(text), "UUIDs of whole GPUs, or a request for the MIG device")
    if spec.node_selector.get(names.MPS_LABEL) == "true":
        yield _no_share(f"spec.nodeSelector.{names.MPS_LABEL}", names.MPS_LABEL, "nodes that offer shares", at="key")


def _no_share(path: str, shown: str, cure: str, at: Literal["value", "key"] = "value") -> Finding:
    return Finding(code="GP212", path=path, message=NO_SHARES, cure=cure, shown=shown, at=at)


def _containers(spec: PodSpec) -> Iterator[Finding]:
    for kind, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            yield from _of_container(container, f"spec.{kind}[{index}].resources")


def _of_container(container: Container, path: str) -> Iterator[Finding]:
    asked: dict[str, int] = {}
    wrong = False
    limits, requests = container.resources.limits, container.resources.requests
    for name in _MOST:
        if name not in limits and name not in requests:
            continue
        found = list(_of_resource(name, container.resources, path))
        yield from found
        wrong = wrong or bool(found)
        if not found and name in limits:
            asked[name] = count(limits[name])
    if wrong:
        return
    dialects = [name for name in _DIALECTS if asked.get(name)]
    if len(dialects) > 1:
        yield Finding(
            code="GP205",
            path=f"{path}.limits.{dialects[1]}",
            message=f"{dialects[0]} asks for GPUs too, and both are the same GPUs",
            cure="keep one of them",
            at="key",
            shown=dialects[1],
        )
    if asked.get(names.VCUDA_MEMORY) and not dialects:
        yield Finding(
            code="GP204",
            path=f"{path}.limits.{names.VCUDA_MEMORY}",
            message="asks for memory of a GPU without any of its core",
            cure=f'add {names.VCUDA_CORE}: "10"',
            at="key",
            shown=names.VCUDA_MEMORY,
        )


def _of_resource(name: str, resources: Resources, path: str) -> Iterator[Finding]:
    limit, request = resources.limits.get(name), resources.requests.get(name)
    short = name.rpartition("/")[2]
    for where, value in (("limits", limit), ("requests", request)):
        if value is None:
            continue
        at = f"{path}.{where}.{name}"
        try:
            number = count(value)
        except TooLarge:
            yield Finding(code="GP201", path=at, message=f"{value} is more than any node has", shown=_shown(value))
            return
        except InvalidInput:
            yield Finding(
                code="GP202",
                path=at,
                message=f"{value} is no whole number of {short}",
                cure='"1", "2", ...',
                shown=_shown(value),
            )
            return
        most = _MOST[name]
        if number > most or (name == names.VCUDA_CORE and number > 100 and number % 100):
            yield _never(at, name, number, value)
            return
    if limit is None and request is not None and count(request):
        yield Finding(
            code="GP203",
            path=f"{path}.requests.{name}",
            message="stands in requests alone; GPUs are asked for in limits",
            cure=f'limits: {{{name}: "{request}"}}',
            at="key",
            shown=name,
        )
    elif limit is not None and request is not None and count(limit) != count(request):
        yield Finding(
            code="GP203",
            path=f"{path}.requests.{name}",
            message=f"{request} is not the limit, {limit}; GPUs cannot be overcommitted",
            cure=f'"{limit}", or leave it out',
            shown=_shown(request),
        )


def _never(path: str, name: str, number: int, value: Quantity) -> Finding:
    """Return the finding for more than any node has."""
    if number > _MOST[name]:
        return Finding(code="GP201", path=path, message=f"{value} is more than any node has", shown=_shown(value))
    below = number // 100 * 100
    return Finding(
        code="GP201",
        path=path,
        message=f"{value} can never be met: 1-99 is a part; 100, 200, … whole GPUs",
        cure=f'"{below}" or "{below + 100}"',
        shown=_shown(value),
    )


def _elided(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"


def _shown(value: Quantity) -> str:
    return msgspec.json.encode(value).decode()
