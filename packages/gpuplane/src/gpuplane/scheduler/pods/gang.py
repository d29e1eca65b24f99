"""Gangs as their pods declare them: pods that start together or not at all. Pure; reads annotations alone.

A gang is named by `gpuplane.dev/gang` within its namespace. All its pods say the same size, topology and time-out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.karpenter import ZONE_LABEL
from kubekit.errors import InvalidInput

GPU, NODE = "gpu", "node"  # the two levels that are no label
LABELS: Final = {"nvlink": names.NVLINK_LABEL, "zone": ZONE_LABEL}
"""The labels of nodes that levels of topology stand for. A level with a slash is a label itself."""
TIMEOUT_SECONDS: Final = 60
MOST_PODS: Final = 1024
_LONGEST_TIMEOUT: Final = 86400
_DIGEST: Final = 8  # characters of a uid
_OWN: Final = (
    names.GANG_SIZE_ANNOTATION,
    names.GANG_REQUIRED_TOPOLOGY_ANNOTATION,
    names.GANG_PREFERRED_TOPOLOGY_ANNOTATION,
    names.GANG_TIMEOUT_ANNOTATION,
)


class Gang(msgspec.Struct, frozen=True):
    """`size` pods start together. `required` and `preferred` are levels of topology, empty for none.

    `timeout` is the number of seconds for which a part of the gang may be bound without the rest.
    """

    name: str
    size: int
    required: str = ""
    preferred: str = ""
    timeout: int = TIMEOUT_SECONDS


def gang_of(annotations: Mapping[str, str]) -> Gang | None:
    """Return the gang that a pod belongs to, None for a pod of none. Raises InvalidInput with the annotation's name."""
    name = annotations.get(names.GANG_ANNOTATION, "")
    if not name:
        alone = [one for one in _OWN if one in annotations]
        if alone:
            raise InvalidInput(
                f"{alone[0]} is set without {names.GANG_ANNOTATION}", cure=f"name the gang in {names.GANG_ANNOTATION}"
            )
        return None
    return Gang(
        name,
        _number(annotations, names.GANG_SIZE_ANNOTATION, MOST_PODS),
        _level(annotations, names.GANG_REQUIRED_TOPOLOGY_ANNOTATION),
        _level(annotations, names.GANG_PREFERRED_TOPOLOGY_ANNOTATION),
        _number(annotations, names.GANG_TIMEOUT_ANNOTATION, _LONGEST_TIMEOUT, TIMEOUT_SECONDS),
    )


def _number(annotations: Mapping[str, str], name: str, most: int, default: int = 0) -> int:
    text = annotations.get(name, "")
    if not text and default:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):
        raise InvalidInput(f"{name} is {text!r}", cure=f"a number from 1 to {most}")
    return int(text)


def _level(annotations: Mapping[str, str], name: str) -> str:
    text = annotations.get(name, "")
    if text and text not in (GPU, NODE, *LABELS) and "/" not in text:
        known = ", ".join((GPU, NODE, *LABELS))
        raise InvalidInput(f"{name} is {text!r}", cure=f"one of {known}, or the label of nodes that names a rack")
    return text


def digest(uid: str) -> str:
    """Return the part of a pod's uid that stands for it in the annotations of its gang."""
    return uid[:_DIGEST]


def round_text(uids: Collection[str]) -> str:
    """Return the annotation that each pod of a gang gets with its Binding: the pods that are bound with it."""
    return ",".join(sorted(digest(uid) for uid in uids))


def round_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the digests of the pods that were bound with this one; none for a pod that was bound alone."""
    text = annotations.get(names.GANG_ROUND_ANNOTATION, "")
    return tuple(text.split(",")) if text else ()
