"""The StatefulSet controller's shell: reads a StatefulSet and its pods, asks `decide`, writes what changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kubekit.scheduling.selectors import Selector, compile_selector
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.owners import OwnerKeys
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.revisions import Revisions, TemplateRevision, template_of
from tinykube.controllers.statefulset import decide, identity
from tinykube.controllers.templates import owner_reference, template_hash
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_KIND: Final = "StatefulSet"
_HASH_LABEL: Final = "controller.kubernetes.io/hash"
_AGAIN_S: Final = 5.0  # after a refused pod: the reason may go away without an event


class StatefulSetController:
    """Keeps StatefulSets at their pods."""

    def __init__(self, registry: Registry, index: podstate.PodIndex, recorder: Recorder) -> None:
        self._registry = registry
        self._index = index
        self._recorder = recorder
        self._sets = registry.resource(("apps", "statefulsets"))
        self._pods = registry.resource("pods")
        self._claims = registry.resource("persistentvolumeclaims")
        self._revisions = Revisions(registry)
        self.worker: KeyWorker[str] = KeyWorker("statefulset", self._look)
        self._keys = OwnerKeys(self.worker)
        for resource, callback in ((self._sets, self._keys.on_owner), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    # -- what changed --------------------------------------------------------------------------------------------
    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        owners = [podstate.controller_of(pod) for pod in (obj, old) if pod is not None]
        for owner in owners:
            self._keys.look(owner)
        if owners[0] is None or event == "DELETED":
            # A stray may be adopted; one that goes may have held the name of a pod.
            self._keys.look_at(obj["metadata"]["namespace"], obj["metadata"]["name"].rpartition("-")[0])

    # -- one StatefulSet -----------------------------------------------------------------------------------------
    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        obj = self._registry.get(self._sets, namespace, name)
        if obj is None:
            return None
        await self._claim(obj, compile_selector(obj["spec"].get("selector")) or Selector())
        wanted = TemplateRevision(obj, _KIND, {_HASH_LABEL: template_hash(obj["spec"]["template"])}, _notes(obj))
        before = (obj.get("status") or {}).get("currentRevision") or ""
        await self._revisions.ensure(wanted, used={before, *map(decide.revision_of, self._owned(obj))})
        update = wanted.name
        current = before if before in self._revisions.of(obj) else update
        now, failed, wait = self._registry.now(), False, None
        if not podstate.is_terminating(obj):
            step = decide.step(obj, self._owned(obj), current, update, now)
            wait = step.wait_s
            await self._keep_claims(obj)  # first, since a claim may have to go with a pod that is deleted now
            for pod in step.delete:
                await self._delete(obj, pod)
            failed = not await self._create(obj, step.create, update)
        await self._write_status(obj, current, update, now)
        return _AGAIN_S if failed else wait

    def _owned(self, obj: Object) -> Sequence[Object]:
        return list(self._index.owned(obj["metadata"]["uid"]).values())

    async def _claim(self, obj: Object, selector: Selector) -> None:
        """Adopt strays that have the name of a pod of ours, and let go of pods that are no longer selected."""
        if podstate.is_terminating(obj):
            return
        meta = obj["metadata"]
        for pod in list(self._index.orphans(meta["namespace"]).values()):
            fits = selector.matches(pod["metadata"].get("labels") or {}) and podstate.is_active(pod)
            if fits and decide.ordinal_of(obj, pod) is not None:
                references = [*(pod["metadata"].get("ownerReferences") or ()), owner_reference(obj, "apps/v1", _KIND)]
                await self._own(pod, references)
        for pod in self._owned(obj):
            if not selector.matches(pod["metadata"].get("labels") or {}) and not podstate.is_terminating(pod):
                await self._own(pod, [r for r in pod["metadata"]["ownerReferences"] if r["uid"] != meta["uid"]])

    async def _own(self, pod: Object, references: list[Object]) -> None:
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "ownerReferences": references or None}}
        await self._registry.patch(self._pods, meta["namespace"], meta["name"], patch, "merge")

    # -- pods ----------------------------------------------------------------------------------------------------
    async def _create(self, obj: Object, wanted: Sequence[tuple[int, str]], update: str) -> bool:
        """Make pods and their claims; return whether all could be made."""
        namespace = obj["metadata"]["namespace"]
        for ordinal, revision in wanted:
            name = identity.pod_name(obj, ordinal)
            stored = self._revisions.of(obj).get(revision) if revision != update else None
            template = template_of(stored) if stored is not None else obj["spec"]["template"]
            try:
                for claim in identity.claims_of(obj, ordinal):
                    await self._create_claim(obj, claim, name)
                await self._registry.create(self._pods, namespace, identity.new_pod(obj, template, revision, ordinal))
            except ApiFailure as error:
                text = f"Create Pod {name} in StatefulSet {obj['metadata']['name']} failed error: {error}"
                self._recorder.record(obj, _KIND, "FailedCreate", text, "Warning")
                return False
            text = f"Create Pod {name} in StatefulSet {obj['metadata']['name']} successful"
            self._recorder.record(obj, _KIND, "SuccessfulCreate", text)
        return True

    async def _create_claim(self, obj: Object, claim: dict[str, Any], pod: str) -> None:
        meta = claim["metadata"]
        if self._registry.get(self._claims, meta["namespace"], meta["name"]) is not None:
            return
        await self._registry.create(self._claims, meta["namespace"], claim)
        text = f"Create Claim {meta['name']} Pod {pod} in StatefulSet {obj['metadata']['name']} success"
        self._recorder.record(obj, _KIND, "SuccessfulCreate", text)

    async def _keep_claims(self, obj: Object) -> None:
        """Give the claims of pods the owners that the retention policy asks for."""
        if not obj["spec"].get("volumeClaimTemplates"):
            return
        gone = {pod["metadata"]["uid"] for pod in decide.beyond(obj, self._owned(obj))}
        for pod in self._owned(obj):
            ordinal = decide.ordinal_of(obj, pod)
            for made in identity.claims_of(obj, ordinal) if ordinal is not None else ():
                meta = made["metadata"]
                claim = self._registry.get(self._claims, meta["namespace"], meta["name"])
                if claim is None:
                    continue
                owners = identity.claim_owners(obj, claim, pod, goes=pod["metadata"]["uid"] in gone)
                if owners != (claim["metadata"].get("ownerReferences") or []):
                    patch = {"metadata": {"ownerReferences": owners or None}}
                    await self._registry.patch(self._claims, meta["namespace"], meta["name"], patch, "merge")

    async def _delete(self, obj: Object, pod: Object) -> None:
        meta = pod["metadata"]
        try:
            preconditions = {"uid": meta["uid"]}
            await self._registry.delete(self._pods, meta["namespace"], meta["name"], preconditions=preconditions)
        except ApiFailure as error:
            if error.status != 404:
                raise
        text = f"Delete Pod {meta['name']} in StatefulSet {obj['metadata']['name']} successful"
        self._recorder.record(obj, _KIND, "SuccessfulDelete", text)

    # -- status --------------------------------------------------------------------------------------------------
    async def _write_status(self, obj: Object, current: str, update: str, now: str) -> None:
        meta = obj["metadata"]
        fresh = self._registry.get(self._sets, meta["namespace"], meta["name"])
        if fresh is None:
            return
        # NB: the generation that was acted on, not one that came in between.
        status = decide.status_of(obj, self._owned(obj), current, update, now)
        conditions = (fresh.get("status") or {}).get("conditions")
        if conditions:
            status["conditions"] = conditions
        if fresh.get("status") != status:
            body = {**fresh, "status": status}
            await self._registry.update(self._sets, meta["namespace"], meta["name"], body, subresource="status")


def _notes(obj: Object) -> dict[str, str]:
    """The annotations of a StatefulSet's revisions."""
    return dict(obj["metadata"].get("annotations") or {})
