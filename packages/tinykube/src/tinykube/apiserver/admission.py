"""The admission chain: Kubernetes' own plugins, mutating webhooks, then policies and validating webhooks.

Of the plugins of a real API server those are here that change what users see: service account, priority, default
tolerations, runtime class, the check that no user grants rights beyond his own, pod security, limit ranges and quotas.
A namespace that is missing or going is refused by the registry itself.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Final

from tinykube.apiserver import escalation
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Object
from tinykube.apiserver.identity import Find
from tinykube.apiserver.limit_ranges import LimitRanges
from tinykube.apiserver.mutating_policies import MutatingPolicies
from tinykube.apiserver.pod_security import PodSecurity
from tinykube.apiserver.policies import AdmissionPolicies
from tinykube.apiserver.quotas import ResourceQuotaUsage
from tinykube.apiserver.rbac import RBAC
from tinykube.apiserver.webhooks import Webhooks

_TOLERATION_SECONDS: Final = 300
_UNREADY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
#: The priority classes that every cluster has.
SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
#: Resources whose writes make `AdmissionChain.changed` necessary.
CONFIGURATION: Final = (
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
)


class AdmissionChain:
    """The implementation of `Hooks.admission`. `list_all` gives the stored objects of a plural, sorted by name."""

    def __init__(
        self,
        find: Find,
        list_all: Callable[[str], list[Object]],
        webhooks: Webhooks,
        policies: AdmissionPolicies,
        mutating: MutatingPolicies,
        rbac: RBAC | None = None,
        quotas: ResourceQuotaUsage | None = None,
    ) -> None:
        self._rbac = rbac
        self.quotas = quotas
        self.limit_ranges: LimitRanges | None = None
        self.pod_security: PodSecurity | None = None
        self._find = find
        self._list = list_all
        self._webhooks = webhooks
        self._policies = policies
        self._mutating = mutating
        self._wanted: dict[tuple[str, str, str, str, str], bool] = {}
        self._stale = True

    def changed(self) -> None:
        """A configuration was written."""
        self._stale = True
        self._wanted.clear()

    def _reload(self) -> None:
        if self._stale:
            self._webhooks.load(self._list(CONFIGURATION[0]), self._list(CONFIGURATION[1]))
            self._policies.load(self._list(CONFIGURATION[2]), self._list(CONFIGURATION[3]))
            self._mutating.load(self._list(CONFIGURATION[4]), self._list(CONFIGURATION[5]))
            self._stale = False

    def wanted(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        key = (info.group, info.version, info.plural, operation, subresource)
        known = self._wanted.get(key)
        if known is None:
            self._reload()
            known = self._wanted[key] = (
                key in _OWN
                or self._webhooks.covers(info, operation, subresource)
                or self._policies.covers(info, operation, subresource)
                or self._mutating.covers(info, operation, subresource)
                or (self.pod_security is not None and self.pod_security.covers(info, operation, subresource))
                or (self.limit_ranges is not None and self.limit_ranges.covers(info, operation, subresource))
                or (self.quotas is not None and self.quotas.covers(info, operation))
            )
        return known

    def _namespace(self, request: AdmissionRequest) -> Object | None:
        return self._find("namespaces", "", request.namespace) if request.namespace else None

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        if request.info.plural == "pods" and request.operation == "CREATE" and not request.subresource:
            self._admit_pod(request)
        elif self._rbac is not None and request.info.group == escalation.GROUP:
            escalation.check(request, self._rbac, self._find)
        namespace = self._namespace(request)
        self._mutating.mutate(request, namespace)
        before = request.obj
        await self._webhooks.mutate(request, namespace)
        if request.obj != before:
            self._mutating.mutate(request, namespace, again=True)
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        namespace = self._namespace(request)
        if self.pod_security is not None:
            self.pod_security.admit(request)
        self._policies.validate(request, namespace)
        await self._webhooks.validate(request, namespace)
        if self.limit_ranges is not None:
            self.limit_ranges.admit(request)
        if self.quotas is not None:
            self.quotas.admit(request)  # last, as what is stored at once is what was counted

    # -- Kubernetes' own plugins for pods --------------------------------------------------------------------------
    def _admit_pod(self, request: AdmissionRequest) -> None:
        pod = request.obj
        if pod is None:
            return
        spec = pod.setdefault("spec", {})
        if not isinstance(spec, dict):
            return  # validation says so
        if self.limit_ranges is not None:
            self.limit_ranges.fill_pod(request.namespace, pod)
        self._service_account(request, spec)
        self._priority(request, spec)
        self._runtime_class(request, spec)
        _default_tolerations(spec)

    def _service_account(self, request: AdmissionRequest, spec: Object) -> None:
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        # NB: a real server refuses until the controller has made `default`; here a pod need not wait for that.
        account = self._find("serviceaccounts", request.namespace, name)
        if name != "default" and account is None:
            text = f'error looking up service account {request.namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden(request.info, request.name, text)
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        secrets_of_account = (account or {}).get("imagePullSecrets")
        if secrets_of_account and not spec.get("imagePullSecrets"):
            spec["imagePullSecrets"] = copy.deepcopy(secrets_of_account)
        automount = spec.get("automountServiceAccountToken")
        if automount is None:
            automount = (account or {}).get("automountServiceAccountToken")
        if automount is not False:
            _mount_token(spec)

    def _priority(self, request: AdmissionRequest, spec: Object) -> None:
        name = spec.get("priorityClassName")
        chosen: Object | None = None
        if name:
            chosen = self._find("priorityclasses", "", name)
            if chosen is None and name not in SYSTEM_PRIORITIES:
                text = f"no PriorityClass with name {name} was found"
                raise forbidden(request.info, request.name, text)
        else:
            defaults = [obj for obj in self._list("priorityclasses") if obj.get("globalDefault")]
            chosen = min(defaults, key=lambda obj: int(obj.get("value", 0)), default=None)
            if chosen is not None:
                spec["priorityClassName"] = chosen["metadata"]["name"]
        value = int(chosen.get("value", 0)) if chosen is not None else SYSTEM_PRIORITIES.get(name or "", 0)
        policy = (chosen or {}).get("preemptionPolicy", "PreemptLowerPriority")
        if spec.get("priority") not in (None, value):
            text = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            text += "priority admission controller computed " + f"{value} from the given PriorityClass name"
            raise forbidden(request.info, request.name, text)
        if spec.get("preemptionPolicy") not in (None, policy):
            text = (
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            )
            text += f"priority admission controller computed {policy} from the given PriorityClass name"
            raise forbidden(request.info, request.name, text)
        spec["priority"] = value
        spec["preemptionPolicy"] = policy

    def _runtime_class(self, request: AdmissionRequest, spec: Object) -> None:
        name = spec.get("runtimeClassName")
        if not name:
            if spec.get("overhead"):
                text = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
                raise forbidden(request.info, request.name, text)
            return
        found = self._find("runtimeclasses", "", name)
        if found is None:
            text = f'pod rejected: RuntimeClass "{name}" not found'
            raise forbidden(request.info, request.name, text)
        scheduling = found.get("scheduling") or {}
        if selector := scheduling.get("nodeSelector"):
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
        if tolerations := scheduling.get("tolerations"):
            present = spec.setdefault("tolerations", [])
            present += [toleration for toleration in tolerations if toleration not in present]
        if overhead := (found.get("overhead") or {}).get("podFixed"):
            spec.setdefault("overhead", overhead)


_TOKEN_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SOURCES: Final = (
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {
        "downwardAPI": {
            "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
        }
    },
)


def _mount_token(spec: Object) -> None:
    """Every container gets the account's token, the cluster's CA and the namespace, unless it mounts that path."""
    containers = [c for field in ("initContainers", "containers") for c in spec.get(field) or () if isinstance(c, dict)]
    without = [c for c in containers if all(m.get("mountPath") != _TOKEN_DIR for m in c.get("volumeMounts") or ())]
    if not without:
        return
    name = "kube-api-access-" + secrets.token_hex(3)[:5]
    volumes = spec.setdefault("volumes", [])
    volumes.append({"name": name, "projected": {"defaultMode": 420, "sources": copy.deepcopy(list(_TOKEN_SOURCES))}})
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": _TOKEN_DIR}
        container.setdefault("volumeMounts", []).append(mount)


_OWN: Final = frozenset(
    (
        ("", "v1", "pods", "CREATE", ""),
        *(
            (escalation.GROUP, "v1", plural, operation, "")
            for plural in (*escalation.ROLES, *escalation.BINDINGS)
            for operation in ("CREATE", "UPDATE")
        ),
    )
)


def _default_tolerations(spec: Object) -> None:
    """Pods stay five minutes on a node that is gone, unless they say otherwise."""
    present = spec.setdefault("tolerations", [])
    for key in _UNREADY:
        if not any(_tolerates(toleration, key) for toleration in present):
            present.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _TOLERATION_SECONDS,
                }
            )


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in ("NoExecute", None, "")
