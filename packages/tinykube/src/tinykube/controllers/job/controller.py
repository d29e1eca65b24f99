"""The Job controller's shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kubekit.scheduling.selectors import Selector, compile_selector
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.job import decide
from tinykube.controllers.job.indexes import INDEX, failure_annotations
from tinykube.controllers.job.policies import judge_failure
from tinykube.controllers.job.tally import TRACKING, JobTally, tally
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.templates import owner_reference, pod_from
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]


class JobController:
    """Runs Jobs to completion."""

    def __init__(self, registry: Registry, index: podstate.PodIndex, recorder: Recorder) -> None:
        self._registry = registry
        self._index = index
        self._recorder = recorder
        self._jobs = registry.resource(("batch", "jobs"))
        self._pods = registry.resource("pods")
        self._keys: dict[str, str] = {}
        self._manual: dict[str, Selector] = {}  # of Jobs with a selector of their own, by key
        self._strays: set[str] = set()  # Jobs that may have a pod to adopt
        self.worker: KeyWorker[str] = KeyWorker("job", self._look)
        for resource, callback in ((self._jobs, self._on_job), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_job(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        if event == "DELETED":
            self._keys.pop(meta["uid"], None)
            self._manual.pop(key, None)
        else:
            if meta["uid"] not in self._keys:
                self._strays.add(key)
            self._keys[meta["uid"]] = key
            if obj["spec"].get("manualSelector"):
                self._manual[key] = _selector(obj)
        self.worker.add(key)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        for pod in (obj, old):
            owner = podstate.controller_of(pod) if pod is not None else None
            if owner is None or owner["kind"] != "Job":
                continue
            if owner["uid"] in self._keys:
                self.worker.add(self._keys[owner["uid"]])
            elif podstate.is_terminating(obj):
                # Its Job is gone: no controller will count it, so no finalizer may hold it.
                self.worker.add(f"{obj['metadata']['namespace']}/{owner['name']}")
        if podstate.controller_of(obj) is None and event != "DELETED":
            for key in self._adopters(obj["metadata"]):
                self._strays.add(key)
                self.worker.add(key)

    def _adopters(self, meta: Object) -> list[str]:
        """Return the Jobs that select a pod without a controller."""
        labels, prefix = meta.get("labels") or {}, f"{meta['namespace']}/"
        found = [key for key, one in self._manual.items() if key.startswith(prefix) and one.matches(labels)]
        made_for = self._keys.get(labels.get("batch.kubernetes.io/controller-uid") or "")
        return [*found, made_for] if made_for is not None else found

    async def _claim(self, job: Object, key: str) -> None:
        """Adopt pods without a controller that the Job selects, and let go of pods that it no longer selects."""
        meta, selector = job["metadata"], _selector(job)
        if key in self._strays:
            self._strays.discard(key)
            for pod in list(self._index.orphans(meta["namespace"]).values()):
                if podstate.is_active(pod) and selector.matches(pod["metadata"].get("labels") or {}):
                    references = pod["metadata"].get("ownerReferences") or ()
                    held = sorted({*(pod["metadata"].get("finalizers") or ()), TRACKING})
                    await self._own(pod, [*references, owner_reference(job, "batch/v1", "Job")], held)
        for pod in list(self._index.owned(meta["uid"]).values()):
            if not podstate.is_terminating(pod) and not selector.matches(pod["metadata"].get("labels") or {}):
                references = [r for r in pod["metadata"]["ownerReferences"] if r["uid"] != meta["uid"]]
                others = [f for f in pod["metadata"].get("finalizers") or () if f != TRACKING]
                await self._own(pod, references, others)

    async def _own(self, pod: Object, references: list[Object], finalizers: list[str]) -> None:
        meta = pod["metadata"]
        owned = {"uid": meta["uid"], "ownerReferences": references or None, "finalizers": finalizers or None}
        await self._registry.patch(self._pods, meta["namespace"], meta["name"], {"metadata": owned}, "merge")

    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        job = self._registry.get(self._jobs, namespace, name)
        if job is None or podstate.is_terminating(job):
            await self._release_orphans(namespace, name, job)
            if job is None:
                return None
        if (job["spec"].get("managedBy") or decide.MANAGER) != decide.MANAGER:
            return None  # another controller's
        meta = job["metadata"]
        if not (podstate.is_terminating(job) or decide.is_over(job)):
            await self._claim(job, key)
        is_ending = decide.announced_end(job) is not None or podstate.is_terminating(job)
        counted = tally(job, list(self._index.owned(meta["uid"]).values()), is_ending=is_ending)
        if decide.is_over(job) or podstate.is_terminating(job):
            await self._settle(job, counted)
            return await self._expire(job)
        now = self._registry.now()
        step = decide.step(job, counted, now, _restarts(job, counted))
        for pod in step.delete:
            if step.end is None:
                await self._release(pod)  # no failure: the Job wants fewer pods
            await self._delete(job, pod)
        active = len(counted.active) - len(step.delete)
        refused: ApiFailure | None = None
        try:
            for index in step.create:
                await self._create(job, index, counted)
                active += 1
        except ApiFailure as error:
            refused = error  # pods that ended are counted and released all the same
        status = decide.status_of(job, counted, now, active=active)
        is_over = step.end is not None and counted.is_settled
        conditions = self._conditions(job, step, now, is_over=is_over)
        if conditions:
            status["conditions"] = conditions
        if is_over and step.end is not None and step.end.type == "Complete":
            status["completionTime"] = now
        if status != job.get("status"):
            body = {**job, "status": status}
            job = await self._registry.update(self._jobs, namespace, name, body, subresource="status")
            if is_over and step.end is not None:
                if step.end.type == "Complete":
                    self._recorder.record(job, "Job", "Completed", "Job completed")
                else:
                    self._recorder.record(job, "Job", step.end.reason, step.end.message, "Warning")
        for pod in counted.to_release:
            await self._release(pod)
        if counted.to_release:
            self.worker.add(key)
        if refused is not None:
            raise refused
        if is_over:
            return await self._expire(job)
        return step.wait_s

    def _conditions(self, job: Object, step: decide.JobStep, now: str, *, is_over: bool) -> list[dict[str, Any]]:
        """Suspended while it is, how the Job will end, and then that it has."""
        standing = [dict(c) for c in (job.get("status") or {}).get("conditions") or ()]
        suspended = bool(job["spec"].get("suspend"))
        before = next((c for c in standing if c["type"] == "Suspended"), None)
        if suspended != (before is not None and before["status"] == "True") and (suspended or before):
            standing = [c for c in standing if c["type"] != "Suspended"]
            reason, text = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
            standing.append(_condition("Suspended", "True" if suspended else "False", reason, text, now))
            self._recorder.record(job, "Job", reason.removeprefix("Job"), text)
        if step.end is not None:
            known = {c["type"] for c in standing if c["status"] == "True"}
            reached = (step.end.announcement, step.end.type) if is_over else (step.end.announcement,)
            end = step.end
            standing += [
                _condition(type_, "True", end.reason, end.message, now) for type_ in reached if type_ not in known
            ]
        return standing

    async def _create(self, job: Object, index: int | None, counted: JobTally) -> None:
        meta = job["metadata"]
        labels = {
            "batch.kubernetes.io/controller-uid": meta["uid"],
            "batch.kubernetes.io/job-name": meta["name"],
            "controller-uid": meta["uid"],
            "job-name": meta["name"],
        }
        pod = pod_from(job["spec"]["template"], job, "batch/v1", "Job", labels)
        pod["metadata"].setdefault("finalizers", []).append(TRACKING)
        if index is not None:
            pod["metadata"]["generateName"] = f"{meta['name'][:50]}-{index}-"
            pod["metadata"].setdefault("annotations", {})[INDEX] = str(index)
            pod["metadata"]["labels"][INDEX] = str(index)
            pod["spec"].setdefault("hostname", f"{meta['name']}-{index}")
            for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]:
                container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
            if job["spec"].get("backoffLimitPerIndex") is not None:
                replaced = counted.replaceable.get(index)
                counts = replaced is not None and judge_failure(job, replaced).counts
                pod["metadata"]["annotations"] |= failure_annotations(replaced, counts=counts)
        try:
            made = await self._registry.create(self._pods, meta["namespace"], pod)
        except ApiFailure as error:
            self._recorder.record(job, "Job", "FailedCreate", f"Error creating: {error}", "Warning")
            raise
        self._recorder.record(job, "Job", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}")

    async def _delete(self, job: Object, pod: Object) -> None:
        meta = pod["metadata"]
        try:
            await self._registry.delete(self._pods, meta["namespace"], meta["name"])
        except ApiFailure as error:
            if error.status != 404:
                raise
        self._recorder.record(job, "Job", "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    async def _settle(self, job: Object, counted: JobTally) -> None:
        """A Job that ended: what is still counted, what is still running, and no finalizer left behind."""
        for pod in counted.active:
            await self._delete(job, pod)
        status = {**(job.get("status") or {}), **decide.status_of(job, counted, self._registry.now(), active=0)}
        if not counted.active:
            status.pop("active", None)
        if status != job.get("status") and not podstate.is_terminating(job):
            meta = job["metadata"]
            body = {**job, "status": status}
            await self._registry.update(self._jobs, meta["namespace"], meta["name"], body, subresource="status")
        for pod in counted.to_release:
            await self._release(pod)
        if counted.to_release:
            self.worker.add(f"{job['metadata']['namespace']}/{job['metadata']['name']}")

    async def _release_orphans(self, namespace: str, name: str, job: Object | None) -> None:
        """Pods of a Job that is gone or going are held by nothing once they are done or being deleted."""
        for pod in self._registry.list(self._pods, namespace):
            owner = podstate.controller_of(pod)
            if owner is None or owner["kind"] != "Job" or owner["name"] != name:
                continue
            if owner["uid"] in self._keys and job is None:
                continue
            if podstate.is_terminating(pod) or podstate.is_finished(pod):
                await self._release(pod)

    async def _release(self, pod: Object) -> None:
        meta = pod["metadata"]
        fresh = self._registry.get(self._pods, meta["namespace"], meta["name"])
        if fresh is None or TRACKING not in (fresh["metadata"].get("finalizers") or ()):
            return
        left = [f for f in fresh["metadata"]["finalizers"] if f != TRACKING]
        others = {name: value for name, value in fresh["metadata"].items() if name != "finalizers"}
        body = {**fresh, "metadata": {**others, "finalizers": left} if left else others}
        await self._registry.update(self._pods, meta["namespace"], meta["name"], body)

    async def _expire(self, job: Object) -> float | None:
        left = decide.expires_in(job, self._registry.now())
        if left:
            return left
        if left == 0 and not podstate.is_terminating(job):
            meta = job["metadata"]
            await self._registry.delete(
                self._jobs,
                meta["namespace"],
                meta["name"],
                propagation="Foreground",
                preconditions={"uid": meta["uid"]},
            )
        return None


def _selector(job: Object) -> Selector:
    return compile_selector(job["spec"].get("selector")) or Selector()


def _restarts(job: Object, counted: JobTally) -> int:
    """With restartPolicy OnFailure a failing pod stays and restarts: those count against the limit."""
    if job["spec"]["template"]["spec"].get("restartPolicy") != "OnFailure":
        return 0
    return sum(
        status.get("restartCount") or 0
        for pod in counted.active
        for field in ("initContainerStatuses", "containerStatuses")
        for status in (pod.get("status") or {}).get(field) or ()
    )


def _condition(type_: str, status: str, reason: str, message: str, now: str) -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": now,
        "lastTransitionTime": now,
    }
