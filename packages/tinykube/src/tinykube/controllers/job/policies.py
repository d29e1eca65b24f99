"""Decides what a failed pod means to its Job, and whether enough indexes succeeded. Pure, on plain data.

The first rule of `spec.podFailurePolicy` that matches a failed pod decides; without one the failure counts. The first
rule of `spec.successPolicy` that the completed indexes fulfil ends the Job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tinykube.controllers import pods as podstate
from tinykube.controllers.job.indexes import parse_indexes

Object = Mapping[str, Any]


class FailureVerdict(msgspec.Struct, frozen=True):
    """The consequence of a failed pod: whether it counts, whether its index fails, and why the whole Job fails."""

    counts: bool = True
    fails_index: bool = False
    fails_job: str = ""


def replaces_failed_only(job: Object) -> bool:
    """Return whether a pod under deletion is replaced, and counts as failed, only once it has ended."""
    spec = job["spec"]
    return spec.get("podReplacementPolicy") == "Failed" or spec.get("podFailurePolicy") is not None


def has_failed(job: Object, pod: Object) -> bool:
    """Return whether a pod counts as failed: it ended so, or it is under deletion and will not end otherwise."""
    phase = podstate.phase(pod)
    if phase == "Failed":
        return True
    if phase == "Succeeded" or not podstate.is_terminating(pod):
        return False
    ends_later = pod["spec"].get("nodeName") and pod["metadata"].get("deletionGracePeriodSeconds")
    return not (ends_later and replaces_failed_only(job))


def judge_failure(job: Object, pod: Object) -> FailureVerdict:
    """Decide the consequence of a failed pod."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    for number, rule in enumerate(rules):
        cause = _cause(rule, pod)
        if not cause:
            continue
        action = rule.get("action")
        if action == "FailJob":
            return FailureVerdict(fails_job=f"{cause} matching FailJob rule at index {number}")
        return FailureVerdict(counts=action != "Ignore", fails_index=action == "FailIndex")
    return FailureVerdict()


def _cause(rule: Object, pod: Object) -> str:
    """Return why a rule matches a pod, in words; empty when it does not."""
    meta, status = pod["metadata"], pod.get("status") or {}
    name = f"{meta['namespace']}/{meta['name']}"
    codes = rule.get("onExitCodes")
    if codes is not None:
        for container, code in _exit_codes(status, codes.get("containerName")):
            if (code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
                return f"Container {container} for pod {name} failed with exit code {code}"
        return ""
    wanted = [(p.get("type"), p.get("status") or "True") for p in rule.get("onPodConditions") or ()]
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) in wanted:
            return f"Pod {name} has condition {condition['type']}"
    return ""


def _exit_codes(status: Object, only: str | None) -> Iterator[tuple[str, int]]:
    """The containers that ended with an error, and their exit codes."""
    for field in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(field) or ():
            code = ((container.get("state") or {}).get("terminated") or {}).get("exitCode") or 0
            if code and only in (None, container["name"]):
                yield container["name"], code


def matched_success_rule(job: Object, completed: frozenset[int]) -> int | None:
    """Return the number of the first rule of the success policy that these indexes fulfil."""
    for number, rule in enumerate((job["spec"].get("successPolicy") or {}).get("rules") or ()):
        indexes, count = rule.get("succeededIndexes"), rule.get("succeededCount")
        chosen = completed if indexes is None else completed & parse_indexes(indexes)
        needed = count if count is not None else len(parse_indexes(indexes or ""))
        if len(chosen) >= needed:
            return number
    return None
