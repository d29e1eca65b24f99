"""Indexes of an Indexed Job: their text in a status, and what its pods carry of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

Object = Mapping[str, Any]
INDEX: Final = "batch.kubernetes.io/job-completion-index"
_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
_IGNORED: Final = "batch.kubernetes.io/job-index-ignored-failure-count"


def parse_indexes(text: str) -> set[int]:
    """`0-2,5` -> {0, 1, 2, 5}"""
    found: set[int] = set()
    for part in text.split(","):
        if part:
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def index_of(pod: Object) -> int | None:
    return _number(pod, INDEX)


def failures_before(pod: Object) -> int:
    """Return how many counted failures the pod's index had before it."""
    return _number(pod, _FAILURES) or 0


def attempts_before(pod: Object) -> int:
    """Return how many failures the pod's index had before it, those that a policy ignores included."""
    return failures_before(pod) + (_number(pod, _IGNORED) or 0)


def failure_annotations(replaced: Object | None, *, counts: bool) -> dict[str, str]:
    """Return the annotations of a pod that replaces a failed pod; `counts`: whether that failure counts."""
    if replaced is None:
        return {_FAILURES: "0"}
    failures = failures_before(replaced) + counts
    ignored = attempts_before(replaced) + 1 - failures
    return {_FAILURES: str(failures), **({_IGNORED: str(ignored)} if ignored else {})}


def _number(pod: Object, annotation: str) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(annotation)
    return int(text) if text is not None and text.isdigit() else None
