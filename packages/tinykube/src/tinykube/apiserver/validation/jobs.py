"""Validates Jobs and CronJobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from zoneinfo import ZoneInfo

from kubekit.errors import InvalidInput
from tinykube import cron
from tinykube.apiserver.failure import Cause, invalid_value, required
from tinykube.apiserver.validation.job_policies import (
    FAILED_INDEXES,
    validate_failed_indexes,
    validate_policies,
)
from tinykube.apiserver.validation.tables import Object, RuleTable, immutable, not_negative, one_of
from tinykube.apiserver.validation.workloads import matches_template, validate_template

_MANAGED_BY: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/_.-]+")
_MOST_INDEXES: Final = 100_000
_MOST_NAME: Final = 52  # of a CronJob: 63 less the eleven characters that it adds to the names of its Jobs


def _managed_by(value: Any, where: str) -> Iterator[Cause]:
    if not _MANAGED_BY.fullmatch(value):
        yield invalid_value(where, value, 'must be a domain-prefixed path (such as "acme.io/foo")')


_JOB: Final = RuleTable(
    ("parallelism", not_negative),
    ("completions", not_negative),
    ("activeDeadlineSeconds", not_negative),
    ("backoffLimit", not_negative),
    ("ttlSecondsAfterFinished", not_negative),
    ("managedBy", _managed_by),
    ("completionMode", one_of("NonIndexed", "Indexed")),
)


def _job_spec(spec: Object, where: str, *, has_selector: bool) -> Iterator[Cause]:
    template = spec.get("template") or {}
    yield from _JOB(spec, where)
    yield from FAILED_INDEXES(spec, where)
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        yield required(f"{where}.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if spec.get("completionMode") == "Indexed":
        if spec.get("completions") is None:
            yield required(f"{where}.completions", "when completion mode is Indexed")
        elif (spec.get("parallelism") or 0) > _MOST_INDEXES and spec["completions"] > _MOST_INDEXES:
            text = f"must be less than or equal to {_MOST_INDEXES} when completion mode is Indexed"
            yield invalid_value(f"{where}.parallelism", spec["parallelism"], text)
    yield from validate_failed_indexes(spec, where)
    yield from validate_policies(spec, where)
    yield from validate_template(template, f"{where}.template")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if template and policy not in ("OnFailure", "Never"):
        yield required(f"{where}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif policy != "Never" and spec.get("podFailurePolicy") is not None:
        text = 'only "Never" is supported when podFailurePolicy is specified'
        yield invalid_value(f"{where}.template.spec.restartPolicy", policy, text)
    if has_selector:
        yield from _own_selector(spec, template, where)


def _own_selector(spec: Object, template: Object, where: str) -> Iterator[Cause]:
    """The selector that the server made, or the client where it may (`manualSelector`)."""
    selector = spec.get("selector")
    if selector is None:
        yield required(f"{where}.selector")
    elif not spec.get("manualSelector"):
        labels = (template.get("metadata") or {}).get("labels") or {}
        made = {"batch.kubernetes.io/controller-uid": labels.get("batch.kubernetes.io/controller-uid")}
        if selector.get("matchLabels") != made or selector.get("matchExpressions"):
            yield invalid_value(f"{where}.selector", selector, "`selector` not auto-generated")
    yield from matches_template(selector, template, where)


def validate_job(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is None:
        return list(_job_spec(spec, "spec", has_selector=True))
    before = old.get("spec") or {}
    if spec == before:
        return []
    names = ["selector", "completionMode", "managedBy", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy"]
    if not (spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")):
        names.append("completions")
    # NB: a real server looks at the parallelism of an update twice.
    parallelism = not_negative(spec.get("parallelism") or 0, "spec.parallelism")
    causes = [*_JOB(spec, "spec"), *parallelism, *immutable(spec, before, *names, where="spec")]
    # A suspended Job may still get other nodes; never other containers.
    template = _without_place(spec) if before.get("suspend") else (spec.get("template") or {})
    fixed = _without_place(before) if before.get("suspend") else (before.get("template") or {})
    if template.get("spec") != fixed.get("spec"):
        causes.append(invalid_value("spec.template.spec", template.get("spec"), "field is immutable"))
    return causes


_PLACE: Final = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


def _without_place(spec: Object) -> Object:
    template = spec.get("template") or {}
    pod = {name: value for name, value in (template.get("spec") or {}).items() if name not in _PLACE}
    return {**template, "spec": pod}


_CRON_JOB: Final = RuleTable(
    ("concurrencyPolicy", one_of("Allow", "Forbid", "Replace")),
    ("startingDeadlineSeconds", not_negative),
    ("successfulJobsHistoryLimit", not_negative),
    ("failedJobsHistoryLimit", not_negative),
)


def validate_cron_job(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    name = obj["metadata"].get("name") or ""
    causes: list[Cause] = []
    if old is None and len(name) > _MOST_NAME:
        causes.append(invalid_value("metadata.name", name, f"must be no more than {_MOST_NAME} characters"))
    if old is not None and spec == old.get("spec"):
        return []
    causes += _schedule(spec)
    causes += _CRON_JOB(spec, "spec")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    return [*causes, *_job_spec(job, "spec.jobTemplate.spec", has_selector=False)]


def _schedule(spec: Object) -> Iterator[Cause]:
    schedule, zone = spec.get("schedule") or "", spec.get("timeZone")
    if not schedule:
        yield required("spec.schedule")
    elif "TZ" in schedule:
        text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        yield invalid_value("spec.schedule", schedule, text)
    else:
        try:
            cron.parse(schedule)
        except InvalidInput as error:
            yield invalid_value("spec.schedule", schedule, error.what)
    if zone == "":
        yield invalid_value("spec.timeZone", "", "timeZone must be nil or non-empty string")
    elif zone is not None and not _is_zone(zone):
        yield invalid_value("spec.timeZone", zone, f"unknown time zone {zone}")


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return False
    return True
