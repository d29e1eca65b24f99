"""Sets the defaults of the kinds that make pods, and of disruption budgets."""

from __future__ import annotations

from tinykube.apiserver.defaults.filling import Object, fill, fill_status, spec_of
from tinykube.apiserver.defaults.pods import fill_template


def deployment(obj: Object) -> None:
    spec = spec_of(obj)
    fill(obj, status={})
    fill(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={})
    strategy = spec["strategy"]
    fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        fill(strategy, rollingUpdate={})
        fill(strategy["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")
    fill_template(spec)


def daemon_set(obj: Object) -> None:
    spec = spec_of(obj)
    fill_status(obj, currentNumberScheduled=0, desiredNumberScheduled=0, numberMisscheduled=0, numberReady=0)
    fill(spec, revisionHistoryLimit=10, updateStrategy={})
    strategy = spec["updateStrategy"]
    fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        fill(strategy, rollingUpdate={})
        fill(strategy["rollingUpdate"], maxUnavailable=1, maxSurge=0)
    fill_template(spec)


def replica_set(obj: Object) -> None:
    spec = spec_of(obj)
    fill_status(obj, replicas=0)
    fill(spec, replicas=1)
    fill_template(spec)


def replication_controller(obj: Object) -> None:
    spec = spec_of(obj)
    template = spec.get("template")
    labels = (template.get("metadata") or {}).get("labels") if isinstance(template, dict) else None
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)
    replica_set(obj)


def stateful_set(obj: Object) -> None:
    spec = spec_of(obj)
    fill_status(obj, availableReplicas=0, replicas=0)
    fill(spec, replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady", updateStrategy={})
    fill(spec, serviceName="")
    fill(spec, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"})
    fill(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        fill(spec["updateStrategy"], rollingUpdate={"partition": 0})
    fill_template(spec)


def _job_spec(spec: Object) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    fill(
        spec,
        parallelism=1,
        backoffLimit=6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1,
        completionMode="NonIndexed",
        suspend=False,
        podReplacementPolicy="TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed",
    )
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            fill(pattern, status="True")
    fill_template(spec)


def job(obj: Object) -> None:
    spec = spec_of(obj)
    _job_spec(spec)
    fill(obj, status={})
    if spec.get("manualSelector") or not isinstance(spec.get("template"), dict):
        return
    uid, name = obj["metadata"].get("uid", ""), obj["metadata"].get("name", "")
    fill(spec, selector={}, manualSelector=False)
    spec["selector"].setdefault("matchLabels", {}).setdefault("batch.kubernetes.io/controller-uid", uid)
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for prefix in ("batch.kubernetes.io/", ""):
        labels.setdefault(prefix + "controller-uid", uid)
        labels.setdefault(prefix + "job-name", name)
    if not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def cron_job(obj: Object) -> None:
    spec = spec_of(obj)
    fill(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    fill(obj, status={})
    template = spec.get("jobTemplate")
    if isinstance(template, dict):
        fill(template, metadata={})
        fill_template(spec_of(template))


def disruption_budget(obj: Object) -> None:
    fill_status(obj, currentHealthy=0, desiredHealthy=0, disruptionsAllowed=0, expectedPods=0)
