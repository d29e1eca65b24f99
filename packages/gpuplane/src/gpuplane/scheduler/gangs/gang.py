"""Gangs as their pods declare them: pods that start together or not at all. Pure.

A pod declares its gang by the annotation `gpuplane.dev/gang`, by the label of a PodGroup of scheduler-plugins, or by
`spec.schedulingGroup`, which names a PodGroup of Kubernetes. The size of a gang with a PodGroup is in that object, see
`groups`; topology and time-out may be annotations in any case. All pods of a gang declare the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.karpenter import ZONE_LABEL
from kubekit.errors import InvalidInput

GPU, NODE = "gpu", "node"  # the two levels that are no label
LABELS: Final = {"nvlink": names.NVLINK_LABEL, "zone": ZONE_LABEL}
"""The labels of nodes that levels of topology stand for. A level with a slash is a label itself."""
TIMEOUT_SECONDS: Final = 60
MOST_PODS: Final = 1024
LONGEST_TIMEOUT: Final = 86400
_DIGEST: Final = 8  # characters of a uid
_LONGEST_ROUND: Final = MOST_PODS * (_DIGEST + 1)
_OWN: Final = (
    names.GANG_SIZE_ANNOTATION,
    names.GANG_REQUIRED_TOPOLOGY_ANNOTATION,
    names.GANG_PREFERRED_TOPOLOGY_ANNOTATION,
    names.GANG_TIMEOUT_ANNOTATION,
)
_LONGEST_NAME: Final = 253  # characters, as of an object
_LONGEST_QUOTED: Final = 64  # characters of a value in a message


class GangSource(StrEnum):
    """Place where the size of a gang is declared; the API group of the PodGroup for a gang that has such an object."""

    ANNOTATIONS = "annotations"
    PLUGIN_GROUP = "scheduling.x-k8s.io"
    WORKLOAD_GROUP = "scheduling.k8s.io"


_FIELDS: Final = {
    GangSource.ANNOTATIONS: names.GANG_ANNOTATION,
    GangSource.PLUGIN_GROUP: names.POD_GROUP_LABEL,
    GangSource.WORKLOAD_GROUP: "spec.schedulingGroup",
}


class DeclaredGang(msgspec.Struct, frozen=True):
    """Declaration of a pod about its gang.

    `size` is 0 for a gang with a PodGroup. `timeout` is 0 where the pod does not declare one.
    """

    source: GangSource
    name: str
    size: int = 0
    required: str = ""
    preferred: str = ""
    timeout: int = 0


class Gang(msgspec.Struct, frozen=True):
    """`size` pods start together. `required` and `preferred` are levels of topology, empty for none.

    `timeout` is the number of seconds for which a part of the gang may be bound without the rest. `minimum` are the
    resources that have to be free in the cluster before the gang starts: amounts by name, in the units of the cache.
    """

    name: str
    size: int
    required: str = ""
    preferred: str = ""
    timeout: int = TIMEOUT_SECONDS
    minimum: tuple[tuple[str, int], ...] = ()

    @property
    def alone(self) -> bool:
        """Return whether its pods may be decided one by one, as any other pod."""
        return self.size == 1 and not self.required and not self.preferred and not self.minimum


def declared_gang(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> DeclaredGang | None:
    """Return the gang that a pod belongs to, None for a pod of none. Raises InvalidInput with the name of the field.

    Args:
        metadata, spec: of the pod, as JSON.
    """
    annotations = metadata.get("annotations") or {}
    named = {
        GangSource.ANNOTATIONS: annotations.get(names.GANG_ANNOTATION) or "",
        GangSource.PLUGIN_GROUP: (metadata.get("labels") or {}).get(names.POD_GROUP_LABEL) or "",
        GangSource.WORKLOAD_GROUP: (spec.get("schedulingGroup") or {}).get("podGroupName") or "",
    }
    sources = [source for source, name in named.items() if name]
    if len(sources) > 1:
        raise InvalidInput(
            f"the pod is in several gangs: {', '.join(_FIELDS[source] for source in sources)}",
            cure="leave one of these fields",
        )
    if not sources:
        alone = [one for one in _OWN if one in annotations]
        if alone:
            raise InvalidInput(
                f"{alone[0]} is set without {names.GANG_ANNOTATION}", cure=f"name the gang in {names.GANG_ANNOTATION}"
            )
        return None
    (source,) = sources
    if len(named[source]) > _LONGEST_NAME or not named[source].isprintable():
        cure = f"at most {_LONGEST_NAME} characters that can be printed"
        raise InvalidInput(f"{_FIELDS[source]} is {_quoted(named[source])}", cure=cure)
    if source is not GangSource.ANNOTATIONS and names.GANG_SIZE_ANNOTATION in annotations:
        raise InvalidInput(f"{names.GANG_SIZE_ANNOTATION} is set, and the gang has a PodGroup", cure="leave it out")
    return DeclaredGang(
        source,
        named[source],
        _number(annotations, names.GANG_SIZE_ANNOTATION, MOST_PODS) if source is GangSource.ANNOTATIONS else 0,
        _level(annotations, names.GANG_REQUIRED_TOPOLOGY_ANNOTATION),
        _level(annotations, names.GANG_PREFERRED_TOPOLOGY_ANNOTATION),
        _number(annotations, names.GANG_TIMEOUT_ANNOTATION, LONGEST_TIMEOUT)
        if names.GANG_TIMEOUT_ANNOTATION in annotations
        else 0,
    )


def _quoted(text: str) -> str:
    """Return a value of a user as a message shows it: its beginning."""
    return repr(text) if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]!r}..."


def is_of_gang(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Return whether a pod declares a gang, also in a way that is invalid."""
    try:
        return declared_gang(metadata, spec) is not None
    except InvalidInput:
        return True


def annotated_gang(declared: DeclaredGang) -> Gang:
    """Return the gang of pods that declare all of it by annotations."""
    return Gang(
        declared.name, declared.size, declared.required, declared.preferred, declared.timeout or TIMEOUT_SECONDS
    )


def _number(annotations: Mapping[str, str], name: str, most: int) -> int:
    text = annotations.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):
        raise InvalidInput(f"{name} is {_quoted(text)}", cure=f"a number from 1 to {most}")
    return int(text)


def _level(annotations: Mapping[str, str], name: str) -> str:
    text = annotations.get(name, "")
    if text and text not in (GPU, NODE, *LABELS) and "/" not in text:
        known = ", ".join((GPU, NODE, *LABELS))
        raise InvalidInput(
            f"{name} is {_quoted(text)}", cure=f"one of {known}, or the label of nodes that names a rack"
        )
    return text


def digest(uid: str) -> str:
    """Return the part of a pod's uid that stands for it in the annotations of its gang."""
    return uid[:_DIGEST]


def round_text(uids: Collection[str]) -> str:
    """Return the annotation that each pod of a gang gets with its Binding: the pods that are bound with it."""
    return ",".join(sorted(digest(uid) for uid in uids))


def round_of(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the digests of the pods that were bound with this one; none for a pod that was bound alone.

    A text that is longer than that of MOST_PODS was written by a user of the pod, and counts as none.
    """
    text = annotations.get(names.GANG_ROUND_ANNOTATION, "")
    return _digests(text) if text and len(text) <= _LONGEST_ROUND else frozenset()


@lru_cache(maxsize=1024)
def _digests(text: str) -> frozenset[str]:
    """Return the same set for all pods of a round."""
    return frozenset(text.split(","))
