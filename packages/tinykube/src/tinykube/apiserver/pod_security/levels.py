"""The labels of a namespace that set the levels of its pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tinykube.apiserver.failure import Cause, invalid_value

PREFIX: Final = "pod-security.kubernetes.io/"
_VERSION: Final = re.compile(r"v1\.(0|[1-9][0-9]*)")
_LATEST: Final = 10_000


class Level(StrEnum):
    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"

    @property
    def rank(self) -> int:
        """Return how strict it is; larger is stricter."""
        return list(Level).index(self)


class PodSecurityLevel(msgspec.Struct, frozen=True):
    """A level as of a minor version of Kubernetes."""

    level: Level = Level.PRIVILEGED
    minor: int = _LATEST

    def __str__(self) -> str:
        return f"{self.level}:{'latest' if self.minor == _LATEST else f'v1.{self.minor}'}"


class PodSecurityLabels(msgspec.Struct, frozen=True):
    """The levels that a namespace's labels set, and what is wrong with those labels."""

    enforce: PodSecurityLevel = PodSecurityLevel()
    warn: PodSecurityLevel = PodSecurityLevel()
    causes: tuple[Cause, ...] = ()


def read_labels(labels: Mapping[str, str]) -> PodSecurityLabels:
    """Return the levels of a namespace. A level that no one knows counts as restricted."""
    causes: list[Cause] = []
    enforce, _, warn = (_read(labels, mode, causes) for mode in ("enforce", "audit", "warn"))
    return PodSecurityLabels(enforce, warn, tuple(causes))


def _read(labels: Mapping[str, str], mode: str, causes: list[Cause]) -> PodSecurityLevel:
    level, minor = Level.PRIVILEGED, _LATEST
    key = f"{PREFIX}{mode}"
    if key in labels:
        try:
            level = Level(labels[key])
        except ValueError:
            level = Level.RESTRICTED
            text = "must be one of privileged, baseline, restricted"
            causes.append(invalid_value(f"metadata.labels[{key}]", labels[key], text))
    key += "-version"
    if labels.get(key, "latest") != "latest":
        found = _VERSION.fullmatch(labels[key])
        if found:
            minor = int(found[1])
        else:
            text = 'must be "latest" or "v1.x"'
            causes.append(invalid_value(f"metadata.labels[{key}]", labels[key], text))
    return PodSecurityLevel(level, minor)
