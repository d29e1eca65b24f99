"""The admission chain: Kubernetes' own plugins, mutating webhooks, then policies and validating webhooks.

Of the plugins of a real API server those are here that change what users see: service account, nodes and their first
taint, priority, default tolerations, runtime class, default classes of claims and Ingresses, the check that no user
grants rights beyond his own, certificates, pod security, limit ranges and quotas.
A namespace that is missing or going is refused by the registry itself.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from tinykube.apiserver import (
    claim_access,
    escalation,
    ingress_defaults,
    node_taint,
    priorities,
    runtime_classes,
    signing_requests,
)
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Find, Object
from tinykube.apiserver.limit_ranges import LimitRanges
from tinykube.apiserver.mutating_policies import MutatingPolicies
from tinykube.apiserver.node_restriction import is_mirror, referenced, restrict_node
from tinykube.apiserver.pod_resizes import PodResizeValidator
from tinykube.apiserver.pod_security import PodSecurity
from tinykube.apiserver.policies import AdmissionPolicies
from tinykube.apiserver.quotas import ResourceQuotaUsage
from tinykube.apiserver.rbac import RBAC
from tinykube.apiserver.storage_defaults import CLAIMS, CLASSES, check_growth, fill_class
from tinykube.apiserver.webhooks import Webhooks

_TOLERATION_SECONDS: Final = 300
_UNREADY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
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
        self._resizes = PodResizeValidator(find)
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
                or self._resizes.covers(info.qualified, operation, subresource)
                or (self.limit_ranges is not None and self.limit_ranges.covers(info, operation, subresource))
                or (self.quotas is not None and self.quotas.covers(info, operation, subresource))
            )
        return known

    def restrict(self, request: AdmissionRequest) -> None:
        restrict_node(request, self._find)

    def _namespace(self, request: AdmissionRequest) -> Object | None:
        return self._find("namespaces", "", request.namespace) if request.namespace else None

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        if request.info.plural == "pods" and request.operation == "CREATE" and not request.subresource:
            self._admit_pod(request)
        elif self._resizes.covers(request.info.qualified, request.operation, request.subresource):
            if self.limit_ranges is not None and request.obj is not None:
                self.limit_ranges.fill_pod(request.namespace, request.obj)
        elif request.info.qualified == node_taint.NODES and request.operation == "CREATE" and not request.subresource:
            if request.obj is not None:
                node_taint.taint_new(request.obj)
        elif self._rbac is not None and request.info.group == escalation.GROUP:
            escalation.check(request, self._rbac, self._find)
        if request.info.plural == CLAIMS and request.operation == "CREATE" and request.obj is not None:
            fill_class(request.obj, self._list(CLASSES))
        if (
            request.info.qualified == ingress_defaults.QUALIFIED
            and request.operation == "CREATE"
            and request.obj is not None
        ):
            ingress_defaults.fill_class(request.obj, self._list(ingress_defaults.CLASSES))
        namespace = self._namespace(request)
        self._mutating.mutate(request, namespace)
        before = request.obj
        await self._webhooks.mutate(request, namespace)
        if request.obj != before:
            self._mutating.mutate(request, namespace, again=True)
        if (
            request.info.qualified == signing_requests.QUALIFIED
            and request.operation == "CREATE"
            and request.obj is not None
        ):
            signing_requests.identify(request.obj, request.user)
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        if self._rbac is not None and request.info.plural == claim_access.CLAIMS:
            claim_access.check_status(request, self._rbac)
        if request.info.qualified == signing_requests.QUALIFIED:
            signing_requests.check(request, self._rbac)
        if request.info.plural == CLAIMS and request.operation == "UPDATE" and not request.subresource:
            check_growth(request, self._find)
        if request.info.qualified == priorities.QUALIFIED:
            priorities.check_default(request, self._list(priorities.CLASSES))
        namespace = self._namespace(request)
        if self.pod_security is not None:
            self.pod_security.admit(request)
        self._policies.validate(request, namespace)
        await self._webhooks.validate(request, namespace)
        if self.limit_ranges is not None:
            self.limit_ranges.admit(request)
        self._resizes.admit(request)
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
        if is_mirror(pod):
            _check_mirror(request, pod)
        else:
            self._service_account(request, spec)
        priorities.fill_pod(request, spec, self._find, self._list(priorities.CLASSES))
        _default_tolerations(spec)
        self._runtime_class(request, spec)

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

    def _runtime_class(self, request: AdmissionRequest, spec: Object) -> None:
        name = spec.get("runtimeClassName")
        found = self._find("runtimeclasses", "", name) if name else None
        if name and found is None:
            problem = f'pod rejected: RuntimeClass "{name}" not found'
        else:
            problem = runtime_classes.fill_pod(spec, found)
        if problem:
            raise forbidden(request.info, request.name, problem)


def _check_mirror(request: AdmissionRequest, pod: Object) -> None:
    """Raise ApiFailure 403 for a pod made from a file that would get what only the API server gives."""
    words = {
        "serviceaccounts": "reference service accounts",
        "secrets": "reference secrets",
        "serviceaccounts (via projected volumes)": "use ServiceAccountToken volume projections",
    }
    if (wrong := words.get(referenced(pod))) is not None:
        raise forbidden(request.info, request.name, f"a mirror pod may not {wrong}")


_TOKEN_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_VOLUME: Final = {
    "defaultMode": 420,
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ],
}
# NB: decoding makes a copy ten times faster than `copy.deepcopy`, and each pod needs one.
_ENCODED_VOLUME: Final = msgspec.json.encode(_TOKEN_VOLUME)


def _mount_token(spec: Object) -> None:
    """Every container gets the account's token, the cluster's CA and the namespace, unless it mounts that path."""
    containers = [c for field in ("initContainers", "containers") for c in spec.get(field) or () if isinstance(c, dict)]
    without = [c for c in containers if all(m.get("mountPath") != _TOKEN_DIR for m in c.get("volumeMounts") or ())]
    if not without:
        return
    name = "kube-api-access-" + secrets.token_hex(3)[:5]
    volumes = spec.setdefault("volumes", [])
    volumes.append({"name": name, "projected": msgspec.json.decode(_ENCODED_VOLUME)})
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": _TOKEN_DIR}
        container.setdefault("volumeMounts", []).append(mount)


_OWN: Final = frozenset(
    (
        ("", "v1", "pods", "CREATE", ""),
        ("", "v1", node_taint.NODES, "CREATE", ""),
        ("", "v1", CLAIMS, "CREATE", ""),
        ("", "v1", CLAIMS, "UPDATE", ""),
        (ingress_defaults.GROUP, "v1", ingress_defaults.INGRESSES, "CREATE", ""),
        (priorities.GROUP, "v1", priorities.CLASSES, "CREATE", ""),
        (priorities.GROUP, "v1", priorities.CLASSES, "UPDATE", ""),
        (claim_access.GROUP, "v1", claim_access.CLAIMS, "UPDATE", "status"),
        *((signing_requests.GROUP, "v1", signing_requests.REQUESTS, *write) for write in signing_requests.WRITES),
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
    tolerated = [one.get("key") for one in present if one.get("effect") in ("NoExecute", None, "")]
    every = None in tolerated or "" in tolerated
    for key in _UNREADY:
        if not every and key not in tolerated:
            present.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _TOLERATION_SECONDS,
                }
            )
