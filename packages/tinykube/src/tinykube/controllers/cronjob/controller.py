"""The CronJob controller's shell. A Job is named after the minute it is for, so that it is made at most once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kubekit.api.durations import format_time, parse_time
from kubekit.errors import InvalidInput
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.owners import OwnerKeys
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.templates import copied, owner_reference
from tinykube.controllers.worker import KeyWorker
from tinykube.cron import parse

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_TIMESTAMP: Final = "batch.kubernetes.io/cronjob-scheduled-timestamp"
_MISSED: Final = 100


def due(spec: Object, since: datetime, now: datetime) -> tuple[datetime | None, float | None]:
    """The latest time that came after `since` and was not missed for too long, and seconds until the next one.

    Raises InvalidInput for an invalid schedule or time zone.
    """
    try:
        zone = ZoneInfo(spec["timeZone"]) if spec.get("timeZone") else since.tzinfo
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidInput(f"{spec['timeZone']!r} is no time zone") from error
    schedule = parse(spec["schedule"])
    latest: datetime | None = None
    moment = schedule.after(since.astimezone(zone))
    for _ in range(_MISSED):
        if moment is None or moment > now:
            break
        latest, moment = moment, schedule.after(moment)
    else:  # so many were missed that only the present matters
        latest = None
        moment = schedule.after(now.astimezone(zone))
    deadline = spec.get("startingDeadlineSeconds")
    if latest is not None and deadline is not None and (now - latest).total_seconds() > deadline:
        latest = None
    return latest, None if moment is None else (moment - now).total_seconds()


class CronJobController:
    """Makes Jobs when their time comes."""

    def __init__(self, registry: Registry, recorder: Recorder) -> None:
        self._registry = registry
        self._recorder = recorder
        self._crons = registry.resource(("batch", "cronjobs"))
        self._jobs = registry.resource(("batch", "jobs"))
        self._owned: dict[str, dict[str, Object]] = {}
        self.worker: KeyWorker[str] = KeyWorker("cronjob", self._look)
        self._keys = OwnerKeys(self.worker)
        follow(registry, self._jobs, self._on_job)
        follow(registry, self._crons, self._keys.on_owner)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_job(self, event: str, obj: Object, old: Object | None) -> None:
        owner = podstate.controller_of(obj)
        if owner is None or owner["kind"] != "CronJob":
            return
        known = self._owned.setdefault(owner["uid"], {})
        if event == "DELETED":
            known.pop(obj["metadata"]["name"], None)
            if not known:
                del self._owned[owner["uid"]]
        else:
            known[obj["metadata"]["name"]] = obj
        self._keys.look(owner)

    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        obj = self._registry.get(self._crons, namespace, name)
        if obj is None or podstate.is_terminating(obj):
            return None
        spec, status = obj["spec"], dict(obj.get("status") or {})
        jobs = list(self._owned.get(obj["metadata"]["uid"], {}).values())
        running = [
            job for job in jobs if not podstate.condition(job, "Complete") and not podstate.condition(job, "Failed")
        ]
        now = parse_time(self._registry.now())
        since = parse_time(status.get("lastScheduleTime") or obj["metadata"]["creationTimestamp"])
        try:
            latest, wait = due(spec, since, now)
        except InvalidInput as error:  # stored before schedules were validated, or the machine has lost a time zone
            self._recorder.record(obj, "CronJob", "UnparseableSchedule", str(error), "Warning")
            return None
        if spec.get("suspend"):
            latest = wait = None
        policy = spec.get("concurrencyPolicy", "Allow")
        if latest is not None and policy == "Forbid" and running:
            self._recorder.record(
                obj, "CronJob", "JobAlreadyActive", "Not starting job because prior execution is running"
            )
            latest = None
        if latest is not None:
            for job in running if policy == "Replace" else ():
                await self._delete(obj, job)
            await self._start(obj, latest)
            status["lastScheduleTime"] = format_time(latest)
            jobs = list(self._owned.get(obj["metadata"]["uid"], {}).values())
        await self._write_status(obj, status, jobs)
        await self._clean_up(obj, jobs)
        return wait

    async def _start(self, obj: Object, moment: datetime) -> None:
        meta, template = obj["metadata"], copied(obj["spec"]["jobTemplate"])
        about = template.get("metadata") or {}
        name = f"{meta['name']}-{int(moment.timestamp()) // 60}"
        job = {
            "metadata": {
                "name": name,
                "labels": about.get("labels") or {},
                "annotations": {**(about.get("annotations") or {}), _TIMESTAMP: format_time(moment)},
                "ownerReferences": [owner_reference(obj, "batch/v1", "CronJob")],
            },
            "spec": template["spec"],
        }
        try:
            await self._registry.create(self._jobs, meta["namespace"], job)
        except ApiFailure as error:
            if error.reason == "AlreadyExists":
                return
            self._recorder.record(obj, "CronJob", "FailedCreate", f"Error creating job: {error}", "Warning")
            raise
        self._recorder.record(obj, "CronJob", "SuccessfulCreate", f"Created job {name}")

    async def _write_status(self, obj: Object, status: dict[str, Any], jobs: list[Object]) -> None:
        active = []
        for job in sorted(jobs, key=lambda j: str(j["metadata"]["name"])):
            done = podstate.condition(job, "Complete")
            if done is not None:
                status["lastSuccessfulTime"] = max(status.get("lastSuccessfulTime", ""), done["lastTransitionTime"])
            elif podstate.condition(job, "Failed") is None:
                meta = job["metadata"]
                reference = {"kind": "Job", "apiVersion": "batch/v1", "namespace": meta["namespace"]}
                active.append({**reference, "name": meta["name"], "uid": meta["uid"]})
        status.pop("active", None)
        if active:
            status["active"] = active
        if status != (obj.get("status") or {}):
            meta = obj["metadata"]
            body = {**obj, "status": status}
            await self._registry.update(self._crons, meta["namespace"], meta["name"], body, subresource="status")

    async def _clean_up(self, obj: Object, jobs: list[Object]) -> None:
        """Finished Jobs beyond the history limits go, the oldest first."""
        spec = obj["spec"]
        for type_, limit in (
            ("Complete", spec.get("successfulJobsHistoryLimit", 3)),
            ("Failed", spec.get("failedJobsHistoryLimit", 1)),
        ):
            ended = [job for job in jobs if podstate.condition(job, type_) and not podstate.is_terminating(job)]
            ended.sort(key=lambda job: str(job["metadata"]["creationTimestamp"]))
            for job in ended[: max(0, len(ended) - limit)]:
                await self._delete(obj, job)

    async def _delete(self, obj: Object, job: Object) -> None:
        meta = job["metadata"]
        await self._registry.delete(self._jobs, meta["namespace"], meta["name"], propagation="Background")
        self._recorder.record(obj, "CronJob", "SuccessfulDelete", f"Deleted job {meta['name']}")
