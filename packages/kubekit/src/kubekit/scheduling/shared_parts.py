"""Stores equal parts of pods once, for caches of whole clusters: most pods belong to a workload with many pods."""

from __future__ import annotations

from typing import Final

import msgspec

from kubekit.api.interned import Interner
from kubekit.scheduling.podinfo import Affinity, PodInfo, PodToleration, Requests, SpreadConstraint

_LABELS: Final[Interner[dict[str, str]]] = Interner()
_AMOUNTS: Final[Interner[Requests]] = Interner()
_AFFINITIES: Final[Interner[Affinity]] = Interner()
_TOLERATIONS: Final[Interner[tuple[PodToleration, ...]]] = Interner()
_SPREADS: Final[Interner[tuple[SpreadConstraint, ...]]] = Interner()
_IMAGES: Final[Interner[tuple[str, ...]]] = Interner()


def shared_parts(info: PodInfo) -> PodInfo:
    """Return the pod with the parts that are equal in many pods stored once."""
    return msgspec.structs.replace(
        info,
        labels=_LABELS.same(info.labels),
        requests=_AMOUNTS.same(info.requests),
        affinity=_AFFINITIES.same(info.affinity),
        tolerations=_TOLERATIONS.same(info.tolerations),
        spread=_SPREADS.same(info.spread),
        images=_IMAGES.same(info.images),
    )
