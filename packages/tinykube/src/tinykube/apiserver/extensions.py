"""Installs the extensions of the core on a registry: discovery, OpenAPI, CRDs, identity, access, admission, tables.

`install` is called once, after a journal was restored; from then on the parts follow what is written, by subscription,
so that a CRD is served and a role holds with the very write that creates it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable

import msgspec

from kubekit.api.kinds import built_in
from tinykube.apiserver import (
    bootstrap,
    configurations,
    crd,
    crd_findings,
    discovery,
    limit_ranges,
    quotas,
    services,
)
from tinykube.apiserver.account_tokens import ServiceAccountTokens
from tinykube.apiserver.admission import CONFIGURATION, AdmissionChain
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.authenticator import RequestAuthenticator
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.discovery import DiscoveryAnswer
from tinykube.apiserver.hooks import Object
from tinykube.apiserver.issuer_discovery import CONFIGURATION_PATH, KEYS_PATH, IssuerDiscovery
from tinykube.apiserver.limit_ranges import LimitRanges
from tinykube.apiserver.mutating_policies import MutatingPolicies
from tinykube.apiserver.openapi import OpenAPI
from tinykube.apiserver.pod_security import PodSecurity
from tinykube.apiserver.policies import AdmissionPolicies
from tinykube.apiserver.priorities import SYSTEM_PRIORITIES
from tinykube.apiserver.rbac import RBAC
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.reviews import Reviews
from tinykube.apiserver.schema import Schema
from tinykube.apiserver.streams import Streams
from tinykube.apiserver.token_key import TokenKey
from tinykube.apiserver.token_requests import TokenRequests
from tinykube.apiserver.webhooks import Webhooks

logger = logging.getLogger("tinykube.apiserver")

_RBAC_KINDS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
_VALIDATORS = {
    "mutatingwebhookconfigurations": configurations.webhooks,
    "validatingwebhookconfigurations": configurations.webhooks,
    "mutatingadmissionpolicies": configurations.mutating_policy,
    "mutatingadmissionpolicybindings": configurations.mutating_policy_binding,
    "validatingadmissionpolicies": configurations.policy,
    "validatingadmissionpolicybindings": configurations.policy_binding,
    "resourcequotas": quotas.findings,
    "limitranges": limit_ranges.findings,
}
_HEALTH = ("healthz", "livez", "readyz")
_MOST_PAGES = 256  # of discovery that are remembered, the longest with 100 KB


class Extensions:
    """The objects that `install` set up; `identity.add(token, user)` adds a user, from `streams.kubelet_secret` come
    the tokens of kubelets.
    """

    def __init__(self, registry: Registry, token_key: TokenKey, clock: Callable[[], float]) -> None:
        self.registry = registry
        self.rbac = RBAC(registry.list, self.find, self._pods_of)
        self.identity = RequestAuthenticator(ServiceAccountTokens(token_key, self.find, clock), self.rbac)
        self.webhooks = Webhooks(self.resolve)
        self.admission = AdmissionChain(
            self.find,
            registry.list,
            self.webhooks,
            AdmissionPolicies(self._params, self.rbac.answer),
            MutatingPolicies(self._params, self.rbac.answer, self._merging),
            self.rbac,
        )
        self.streams = Streams(self.find)
        self._schemas: dict[tuple[str, str, str], Object] = {}
        self._openapi = OpenAPI(self._resources, self._schema, lambda: registry.kinds.changes)
        self._pages: dict[str, DiscoveryAnswer | None] = {}
        self._pages_of = -1

    def close(self) -> None:
        self.webhooks.close()

    # -- looking things up -----------------------------------------------------------------------------------------
    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        return self.registry.get(plural, namespace, name)

    def _pods_of(self, node: str) -> list[Object]:
        return self.registry.list("pods", fields=f"spec.nodeName={node}")

    def _resources(self) -> list[ResourceInfo]:
        return [kind.info for kind in self.registry.kinds]

    def _schema(self, info: ResourceInfo) -> Object | None:
        return self._schemas.get((info.group, info.version, info.plural))

    def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        return services.endpoint(self.find, self.registry.list, namespace, name, port)

    def _merging(self, info: ResourceInfo) -> Schema:
        return self.registry.kinds.find(info).rules.schema

    def _params(self, api_version: str, kind: str, namespace: str, name: str | None) -> list[Object]:
        found = self.registry.kinds.of(api_version, kind)
        if found is None:
            return []
        where = namespace if found.info.namespaced else ""
        if name is None:
            return self.registry.list(found.info, where or None)
        obj = self.registry.get(found.info, where, name)
        return [] if obj is None else [obj]

    # -- CRDs --------------------------------------------------------------------------------------------------------
    def fill_crd(self, obj: Object) -> None:
        """Defaults and the status, in the write itself: a CRD is established by being accepted."""
        crd.fill_defaults(obj)
        if not crd_findings.findings(obj):
            conflict = crd.name_conflict(obj, self.registry.list("customresourcedefinitions"))
            obj["status"] = crd.status(obj, conflict, self.registry.now())

    def follow_crd(self, event: str, obj: Object, old: Object | None) -> None:
        spec = obj["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        served = (group, plural) in self._served()
        if event == "DELETED" or not crd.established(obj):
            if served and event == "DELETED":
                self._forget(group, plural)
                self.registry.withdraw(group, plural)
            return
        if served and old is not None and old["spec"] == spec:
            return
        if served:
            self._forget(group, plural)
            self.registry.kinds.remove(group, plural)
        for version in crd.served(obj):
            info = version.info
            self._schemas[info.group, info.version, info.plural] = version.schema
            self.registry.serve(
                info,
                version.rules,
                preferred=version.storage,
                printer=version.printer,
                outward=None if version.storage else _as_version(info.api_version),
                inward=None if version.storage else _as_version(crd.storage_version(obj)),
            )
            if version.storage:
                self.registry.reread(info)

    def _served(self) -> set[tuple[str, str]]:
        return {(group, plural) for group, _, plural in self._schemas}

    def _forget(self, group: str, plural: str) -> None:
        for key in [key for key in self._schemas if (key[0], key[2]) == (group, plural)]:
            del self._schemas[key]

    # -- pages -------------------------------------------------------------------------------------------------------
    async def page(self, request: HttpRequest) -> HttpResponse | None:
        """Discovery, OpenAPI, version, health."""
        if request.method not in ("GET", "HEAD"):
            return None
        first = request.parts[0]
        if first in _HEALTH:
            return HttpResponse(200, b"ok", "text/plain; charset=utf-8")
        if first == "":
            names = (f"/{name}" for name in _HEALTH)
            paths = [CONFIGURATION_PATH, "/api", "/apis", *names, "/openapi/v2", "/openapi/v3", KEYS_PATH, "/version"]
            return HttpResponse(200, msgspec.json.encode({"paths": paths}))
        accept = request.header(b"accept")
        if first == "openapi":
            # NB: the first document imports the models of all kinds; the event loop does not wait for that.
            answer = await asyncio.to_thread(self._openapi.respond, request.path, accept)
            if answer is None:
                return HttpResponse(404, b"", "text/plain; charset=utf-8")
        else:
            answer = self._discovery(request.path, accept, request.header(b"host"))
        return None if answer is None else _response(answer, request.header(b"if-none-match"))

    def _discovery(self, path: str, accept: str, host: str) -> DiscoveryAnswer | None:
        if self._pages_of != self.registry.kinds.changes:
            self._pages_of = self.registry.kinds.changes
            self._pages.clear()
        key = f"{path} {accept} {host}"
        if key not in self._pages:
            if len(self._pages) >= _MOST_PAGES:
                del self._pages[next(iter(self._pages))]  # NB: the key is the client's text, and has no end of values
            self._pages[key] = discovery.respond(path, accept, self._resources(), address=host)
        return self._pages[key]


def _response(answer: DiscoveryAnswer, known: str) -> HttpResponse:
    headers: tuple[tuple[bytes, bytes], ...] = ((b"vary", b"Accept"),)
    if answer.etag:
        headers += ((b"etag", answer.etag.encode()),)
        if answer.etag == known:
            return HttpResponse(304, b"", answer.content_type, headers)
    return HttpResponse(200, answer.body, answer.content_type, headers)


def _as_version(api_version: str) -> Callable[[Object], Object]:
    return lambda obj: {**obj, "apiVersion": api_version}


def install(
    registry: Registry,
    *,
    token_key: TokenKey | None = None,
    clock: Callable[[], float] = time.time,
    address: str = "kubernetes.default.svc",
) -> Extensions:
    """Set every hook of `registry`.

    `token_key` signs service account tokens; without it a new key does. Clients reach the server at `address`.
    """
    key = token_key or TokenKey.make()
    made = Extensions(registry, key, clock)
    hooks, kinds = registry.hooks, registry.kinds
    definitions = kinds.find("customresourcedefinitions")
    rules = definitions.rules
    own = dataclasses.replace(rules, default=made.fill_crd, validate=crd_findings.findings)
    kinds.add(definitions.info, own)
    for plural, validate in _VALIDATORS.items():
        kind = kinds.find(plural)
        kinds.add(kind.info, dataclasses.replace(kind.rules, validate=validate))
    registry.subscribe("customresourcedefinitions", made.follow_crd)
    for obj in registry.list("customresourcedefinitions"):
        made.follow_crd("ADDED", obj, None)
    for plural in _RBAC_KINDS:
        registry.subscribe(plural, lambda *_: made.rbac.changed())
    for plural in CONFIGURATION:
        registry.subscribe(plural, lambda *_: made.admission.changed())
    made.admission.limit_ranges = LimitRanges(registry)
    made.admission.pod_security = PodSecurity(registry, made.admission.changed)
    made.admission.quotas = quotas.ResourceQuotaUsage(registry, made.admission.changed)
    hooks.admission = made.admission
    hooks.authenticator = made.identity
    hooks.authorizer = made.rbac
    hooks.reviews.update(Reviews(made.identity, made.rbac).by_plural())
    tokens = TokenRequests(made.identity.accounts, made.find, registry.resource, clock)
    hooks.connect["serviceaccounts", "token"] = tokens.connect
    hooks.connect.update(made.streams.by_subresource())
    hooks.pages += (IssuerDiscovery(key, address).page, made.page)
    return made


async def furnish(registry: Registry) -> None:
    """Write the objects that every cluster has, where they are missing: roles, bindings, priority classes."""
    for obj in (*bootstrap.cluster_roles(), *bootstrap.cluster_role_bindings(), *_priority_classes()):
        plural = built_in(obj["apiVersion"], obj["kind"]).plural
        if registry.get(plural, "", obj["metadata"]["name"]) is None:
            await registry.create(plural, None, obj)


def _priority_classes() -> list[Object]:
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": "Used for system critical pods that must run in the cluster.",
        }
        for name, value in SYSTEM_PRIORITIES.items()
    ]
