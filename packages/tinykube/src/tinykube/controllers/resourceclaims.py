"""Resource claims of pods: made from templates, and freed when no pod uses them any more.

- A pod's claim from a template belongs to the pod; its name stands in the pod's status.
- A user of a claim (`reservedFor`) that has ended or gone is taken out. The last one takes the devices with it.
- A claim whose devices are gone loses its finalizer; one made for a pod that has ended is deleted.

Source: pkg/controller/resourceclaim of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kubekit.scheduling.devices.facts import FINALIZER
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.following import follow
from tinykube.controllers.pods import controller_of, is_finished, is_terminating
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""
OF_POD: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was made from a template: which of the pod's claims it is."""
MANAGER: Final = "ResourceClaimController"
MOST_USERS: Final = 256
_GROUP: Final = "resource.k8s.io"
_LONGEST_BASE: Final = 57  # of a generated name, which has five characters more and a hyphen


class ResourceClaimController:
    """Looks at pods with claims, and at claims."""

    def __init__(self, registry: Registry, recorder: Recorder) -> None:
        self._registry = registry
        self._recorder = recorder
        self._pods = registry.resource("pods")
        self._claims = registry.resource((_GROUP, "resourceclaims"))
        self._templates = registry.resource((_GROUP, "resourceclaimtemplates"))
        self._users: dict[Key, set[str]] = {}  # claim -> names of the pods that refer to it
        self._made: dict[str, set[Key]] = {}  # uid of a pod -> claims that it owns
        self._waiting: dict[Key, set[str]] = {}  # template -> names of the pods that refer to it
        self.pod_worker: KeyWorker[Key] = KeyWorker("resource claims of pods", self._look_at_pod)
        self.claim_worker: KeyWorker[Key] = KeyWorker("resource claims", self._look_at_claim)
        follow(registry, self._claims, self._on_claim)
        follow(registry, self._templates, self._on_template, existing=False)
        follow(registry, self._pods, self._on_pod)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.pod_worker, self.claim_worker)

    # -- what changed ------------------------------------------------------------------------------------------------

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        if not obj["spec"].get("resourceClaims"):
            return
        namespace, name = _key(obj)
        if old is not None:
            self._index(old, present=False)
        self._index(obj, present=event != "DELETED")
        if event == "DELETED" or is_done(obj) or is_finished(obj):
            for claim in claim_names(obj):
                self.claim_worker.add((namespace, claim))
        if event != "DELETED":
            self.pod_worker.add((namespace, name))

    def _index(self, pod: Object, *, present: bool) -> None:
        namespace, name = _key(pod)
        templates = [one.get("resourceClaimTemplateName") for one in pod["spec"].get("resourceClaims") or ()]
        for index, keys in ((self._users, claim_names(pod)), (self._waiting, filter(None, templates))):
            for key in keys:
                if present:
                    index.setdefault((namespace, key), set()).add(name)
                elif (namespace, key) in index:
                    index[namespace, key].discard(name)
                    if not index[namespace, key]:
                        del index[namespace, key]

    def _on_claim(self, event: str, obj: Object, old: Object | None) -> None:
        key = _key(obj)
        if (owner := _owning_pod(obj)) is not None:
            made = self._made.setdefault(owner["uid"], set())
            if event == "DELETED":
                made.discard(key)
                if not made:
                    del self._made[owner["uid"]]
            else:
                made.add(key)
        if event != "DELETED":
            self.claim_worker.add(key)
        for pod in self._users.get(key, ()):
            self.pod_worker.add((key[0], pod))

    def _on_template(self, event: str, obj: Object, old: Object | None) -> None:
        namespace, name = _key(obj)
        for pod in self._waiting.get((namespace, name), ()):
            self.pod_worker.add((namespace, pod))

    # -- pods --------------------------------------------------------------------------------------------------------

    async def _look_at_pod(self, key: Key) -> float | None:
        pod = self._registry.get(self._pods, *key)
        if pod is None or is_terminating(pod) or is_finished(pod):
            return None
        made: dict[str, str] = {}
        for one in pod["spec"].get("resourceClaims") or ():
            if not one.get("resourceClaimTemplateName") or self._has_claim(pod, one["name"]):
                continue
            try:
                made[one["name"]] = await self._make(pod, one)
            except ApiFailure as error:
                text = f"PodResourceClaim {one['name']}: {error}"
                self._recorder.record(pod, "Pod", "FailedResourceClaimCreation", text, "Warning")
                raise
        if made:
            statuses = [{"name": name, "resourceClaimName": claim} for name, claim in made.items()]
            standing = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
            statuses += [one for one in standing if one["name"] not in made]
            patch = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": key[1], "uid": pod["metadata"]["uid"]},
                "status": {"resourceClaimStatuses": statuses},
            }
            await self._registry.patch(
                self._pods, *key, patch, "apply", subresource="status", manager=MANAGER, force=True
            )
        if pod["spec"].get("nodeName"):  # else its scheduler does this
            await self._reserve(pod)
        return None

    def _has_claim(self, pod: Object, name: str) -> bool:
        """Return whether the pod's status names a claim that is there and is the pod's own."""
        namespace = pod["metadata"]["namespace"]
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
            if one["name"] == name:
                if not one.get("resourceClaimName"):
                    return True  # no claim is needed
                claim = self._registry.get(self._claims, namespace, one["resourceClaimName"])
                return claim is not None and _is_of(claim, pod)
        return False

    async def _make(self, pod: Object, wanted: Object) -> str:
        """Return the name of the pod's claim, made of its template unless an earlier try made it."""
        meta, name = pod["metadata"], wanted["name"]
        for key in sorted(self._made.get(meta["uid"], ())):
            claim = self._registry.get(self._claims, *key)
            if claim is not None and (claim["metadata"].get("annotations") or {}).get(OF_POD) == name:
                return key[1]
        source = wanted["resourceClaimTemplateName"]
        template = self._registry.get(self._templates, meta["namespace"], source)
        if template is None:
            text = f'resource claim template "{source}": resourceclaimtemplate.resource.k8s.io "{source}" not found'
            raise ApiFailure(404, "NotFound", text)
        spec = template["spec"]
        inherited = spec.get("metadata") or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
        body = {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": generated_base(meta["name"], name),
                "namespace": meta["namespace"],
                "labels": inherited.get("labels") or {},
                "annotations": {**(inherited.get("annotations") or {}), OF_POD: name},
                "ownerReferences": [owner],
            },
            "spec": spec["spec"],
        }
        created = await self._registry.create(self._claims, meta["namespace"], body)
        return str(created["metadata"]["name"])

    async def _reserve(self, pod: Object) -> None:
        """Make a pod that was bound without a scheduler a user of its claims that have devices."""
        meta = pod["metadata"]
        for name in claim_names(pod):
            claim = self._registry.get(self._claims, meta["namespace"], name)
            status = (claim or {}).get("status") or {}
            users = status.get("reservedFor") or []
            if claim is None or not status.get("allocation") or len(users) >= MOST_USERS:
                continue
            if is_terminating(claim) or any(user.get("uid") == meta["uid"] for user in users):
                continue
            user = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
            await self._write_status(claim, {**status, "reservedFor": [*users, user]})

    # -- claims ------------------------------------------------------------------------------------------------------

    async def _look_at_claim(self, key: Key) -> float | None:
        claim: Object | None = self._registry.get(self._claims, *key)
        if claim is None:
            return None
        status = claim.get("status") or {}
        users = status.get("reservedFor") or []
        left = [user for user in users if self._may_use(key[0], user)]
        protected = FINALIZER in (claim["metadata"].get("finalizers") or ())
        if len(left) < len(users):
            gone = set() if left else {"reservedFor", "allocation"} if protected else {"reservedFor"}
            status = {name: part for name, part in {**status, "reservedFor": left}.items() if name not in gone}
            claim = await self._write_status(claim, status)
            if protected and not status.get("allocation"):
                claim = await self._unprotect(claim)
        elif protected and is_terminating(claim) and not left:
            if status.get("allocation"):
                kept = {name: part for name, part in status.items() if name != "allocation"}
                claim = await self._write_status(claim, kept)
            claim = await self._unprotect(claim)
        if not left:
            await self._delete_unneeded(key, claim)
        return None

    def _may_use(self, namespace: str, user: Object) -> bool:
        if user.get("apiGroup") or user.get("resource") != "pods":
            return True  # of an unknown kind
        pod = self._registry.get(self._pods, namespace, user["name"])
        return pod is not None and pod["metadata"]["uid"] == user["uid"] and not is_done(pod)

    async def _write_status(self, claim: Object, status: Object) -> Object:
        return await self._registry.update(
            self._claims, *_key(claim), {**claim, "status": dict(status)}, subresource="status"
        )

    async def _unprotect(self, claim: Object) -> Object:
        meta = claim["metadata"]
        kept = [one for one in meta.get("finalizers") or () if one != FINALIZER]
        return await self._registry.update(
            self._claims, *_key(claim), {**claim, "metadata": {**meta, "finalizers": kept}}
        )

    async def _delete_unneeded(self, key: Key, claim: Object) -> None:
        """Delete a claim that was made for a pod which will not run. Those of deleted pods are garbage collection's."""
        owner = _owning_pod(claim)
        if owner is None or is_terminating(claim):
            return
        pod = self._registry.get(self._pods, key[0], owner["name"])
        if pod is not None and (pod["metadata"]["uid"] != owner["uid"] or is_done(pod)):
            await self._registry.delete(self._claims, *key, preconditions={"uid": claim["metadata"]["uid"]})


def is_done(pod: Object) -> bool:
    """Return whether a pod will not use its claims any more: it has ended, or is deleted and was never bound."""
    return is_finished(pod) or (is_terminating(pod) and not pod["spec"].get("nodeName"))


def claim_names(pod: Object) -> Iterator[str]:
    """Yield the names of a pod's claims, as far as they are known."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    made = {one["name"]: one.get("resourceClaimName") for one in statuses}
    for one in pod["spec"].get("resourceClaims") or ():
        if name := one.get("resourceClaimName") or made.get(one["name"]):
            yield name


def generated_base(pod: str, claim: str) -> str:
    """Return the beginning of a generated claim's name; of long names each part is cut in proportion."""
    base = f"{pod}-{claim}-"
    if len(base) <= _LONGEST_BASE:
        return base
    return f"{pod[: len(pod) * _LONGEST_BASE // len(base)]}-{claim[: len(claim) * _LONGEST_BASE // len(base)]}"


def _key(obj: Object) -> Key:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _owning_pod(claim: Object) -> Object | None:
    owner = controller_of(claim)
    return owner if owner is not None and (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Pod") else None


def _is_of(claim: Object, pod: Object) -> bool:
    owner = _owning_pod(claim)
    return owner is not None and owner["uid"] == pod["metadata"]["uid"]
