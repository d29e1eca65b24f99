"""Validates Deployments, DaemonSets, ReplicaSets, StatefulSets, Jobs and CronJobs."""

from __future__ import annotations

import re
from typing import Any

from tinykube.apiserver.failure import Cause, invalid_value, not_supported, required
from tinykube.apiserver.selectors import selector_of
from tinykube.apiserver.validation.names import validate_labels, validate_selector
from tinykube.apiserver.validation.pods import validate_pod_spec
from tinykube.apiserver.validation.unbuilt import unbuilt_of_job

Object = dict[str, Any]


def validate_workload(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    template = spec.get("template")
    selector = spec.get("selector")
    causes: list[Cause] = []
    if not selector:
        causes.append(required("spec.selector"))
    if not isinstance(template, dict):
        return [*causes, required("spec.template")]
    labels = (template.get("metadata") or {}).get("labels")
    if selector:
        bad = validate_selector(selector, "spec.selector")
        causes += bad
        found = None if bad else selector_of(selector)
        if found is not None and not found.matches(labels):
            shown = "{" + ", ".join(f'"{k}":"{v}"' for k, v in (labels or {}).items()) + "}"
            text = f"Invalid value: {shown}: `selector` does not match template `labels`"
            causes.append(Cause("FieldValueInvalid", text, "spec.template.metadata.labels"))
    if old is not None and selector != (old.get("spec") or {}).get("selector"):
        causes.append(invalid_value("spec.selector", str(selector), "field is immutable"))
    causes += validate_labels(labels or {}, "spec.template.metadata.labels")
    causes += validate_pod_spec(template.get("spec"), "spec.template.spec")
    if (template.get("spec") or {}).get("restartPolicy") in ("OnFailure", "Never"):
        policy = template["spec"]["restartPolicy"]
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    causes += _rolling_update(spec)
    replicas = spec.get("replicas")
    if replicas is not None and (not isinstance(replicas, int) or replicas < 0):
        causes.append(invalid_value("spec.replicas", replicas, "must be greater than or equal to 0"))
    return causes


def _rolling_update(spec: Object) -> list[Cause]:
    """The pace of a DaemonSet (`updateStrategy`) or Deployment (`strategy`): numbers, or percentages."""
    causes = []
    for field in ("updateStrategy", "strategy"):
        rolling = (spec.get(field) or {}).get("rollingUpdate") or {}
        for name in ("maxUnavailable", "maxSurge"):
            value = rolling.get(name)
            if isinstance(value, str) and not re.fullmatch(r"[0-9]+%", value):
                what = "a valid percent string must be a numeric string followed by an ending '%'"
                causes.append(invalid_value(f"spec.{field}.rollingUpdate.{name}", value, what))
    return causes


def validate_job(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    template = spec.get("template")
    if old is not None:
        before = old.get("spec") or {}
        names = ["selector", "completionMode"]
        if not before.get("suspend") and spec.get("completionMode") != "Indexed":
            names += ["template", "completions"]
        return [
            invalid_value(f"spec.{name}", str(spec.get(name)), "field is immutable")
            for name in names
            if spec.get(name) != before.get(name)
        ]
    if not isinstance(template, dict):
        return [required("spec.template")]
    return _job_spec(spec, "spec")


def validate_cron_job(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    job = (spec.get("jobTemplate") or {}).get("spec")
    if not isinstance(job, dict) or not isinstance(job.get("template"), dict):
        return [required("spec.jobTemplate.spec.template")]
    return _job_spec(job, "spec.jobTemplate.spec")


def _job_spec(spec: Object, field: str) -> list[Cause]:
    pod = spec["template"].get("spec")
    where = f"{field}.template.spec"
    causes = [*validate_pod_spec(pod, where), *unbuilt_of_job(spec, field)]
    if (pod or {}).get("restartPolicy") == "Always":
        what = 'Required value: valid values: "OnFailure", "Never"'
        causes.append(Cause("FieldValueNotSupported", what, f"{where}.restartPolicy"))
    return causes
