"""Serves metrics.k8s.io/v1beta1 from inside the API server.

The APIService `v1beta1.metrics.k8s.io` says who serves: without `spec.service` this module, with one the user's own
metrics-server, and without that object no one. So a user's `kubectl apply` of metrics-server takes over, and `kubectl
delete apiservice` makes the cluster one without metrics.

Source: the API and the answers of metrics-server 0.8.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kubekit.api.kinds import built_in
from tinykube.apiserver.asgi import HttpRequest, HttpResponse, json_response
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure, method_not_allowed, not_found
from tinykube.apiserver.hooks import KindRules, Object
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.negotiation import View
from tinykube.apiserver.selectors import parse_fields, parse_labels
from tinykube.apiserver.store import Selection, StoreEntry
from tinykube.metrics.points import node_use, oldest, pod_use
from tinykube.metrics.sampler import NodeSampler, Read, distinct
from tinykube.metrics.tables import node_metrics, pod_metrics, table

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

GROUP: Final = "metrics.k8s.io"
VERSION: Final = "v1beta1"
_API_SERVICE: Final = f"{VERSION}.{GROUP}"
_READER: Final = "system:aggregated-metrics-reader"
_AGGREGATE: Final = "rbac.authorization.k8s.io/aggregate-to-"


def _info(plural: str, kind: str, *, namespaced: bool) -> ResourceInfo:
    return ResourceInfo(
        group=GROUP,
        version=VERSION,
        plural=plural,
        singular="",
        kind=kind,
        namespaced=namespaced,
        verbs=("get", "list"),
        virtual=True,
    )


_PODS: Final = _info("pods", "PodMetrics", namespaced=True)
_NODES: Final = _info("nodes", "NodeMetrics", namespaced=False)


class MetricsService:
    """The metrics API of one cluster. `read` scrapes a node's kubelet."""

    def __init__(
        self,
        registry: Registry,
        read: Read,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._sampler = NodeSampler(read, clock, sleep)
        for info in (_PODS, _NODES):
            registry.hooks.computed[info.group, info.plural] = self._answer
        registry.subscribe("nodes", self._follow_node)
        registry.subscribe("apiservices", lambda event, obj, old: self._follow_service(event, obj))
        standing = registry.get("apiservices", "", _API_SERVICE)
        if standing is not None:
            self._follow_service("ADDED", standing)

    async def furnish(self) -> None:
        """Write the APIService and the ClusterRole of metrics-server, where they are missing."""
        for obj in (_api_service(), reader()):
            plural = built_in(obj["apiVersion"], obj["kind"]).plural
            name = obj["metadata"]["name"]
            if self._registry.get(plural, "", name) is None:
                await self._registry.create(plural, None, obj)

    # -- what is served ----------------------------------------------------------------------------------------------
    def _follow_service(self, event: str, obj: Mapping[str, Any]) -> None:
        if obj["metadata"]["name"] != _API_SERVICE:
            return
        kinds = self._registry.kinds
        wanted = event != "DELETED" and not obj["spec"].get("service")
        for info in (_PODS, _NODES):
            served = kinds.served(info.group, info.version, info.plural) is not None
            if wanted and not served:
                kinds.add(info, KindRules())
            elif served and not wanted:
                kinds.remove(info.group, info.plural)

    def _follow_node(self, event: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
        if event == "DELETED":
            self._sampler.forget(obj["metadata"]["name"])

    # -- answers -----------------------------------------------------------------------------------------------------
    async def _answer(
        self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str, verb: str
    ) -> HttpResponse | None:
        kind = self._registry.kinds.find(info)
        if verb == "watch":
            text = f'watch is not supported on resources of kind "{kind.info.qualified}"'
            raise ApiFailure(405, "MethodNotAllowed", text, {"group": GROUP, "kind": kind.info.plural})
        if verb not in ("get", "list"):
            raise method_not_allowed()
        view = View(request)
        of = self._pod_metrics if kind.info.namespaced else self._node_metrics
        items = await of(self._select(request, kind, namespace, name))
        if name and not items:
            raise self._missing(kind, namespace, name)
        if view.table is not None:
            rows = table(items, version=view.table, include=view.include)
            return view.respond(json_response(rows).body)
        if view.metadata is not None:
            entries = [StoreEntry(namespace, item["metadata"]["name"], "", item, 0) for item in items]
            return view.respond(view.one(kind, entries[0]) if name else view.many(kind, entries, {}))
        if name:
            return view.respond(json_response(_typed(kind.info, items[0])).body)
        listed = {"kind": kind.info.list_kind, "apiVersion": kind.info.api_version, "metadata": {}, "items": items}
        return view.respond(json_response(listed).body)

    def _select(self, request: HttpRequest, kind: Kind, namespace: str, name: str) -> list[Object]:
        """Return the pods or nodes that a request asks for. Raises ApiFailure 404 for a single one that is missing."""
        core = self._registry.kinds.find(kind.info.plural)
        if name:
            entry = core.table.get(namespace, name)
            if entry is None:
                raise not_found(core.info, name)
            return [entry.obj]
        labels, fields = request.query.get("labelSelector"), request.query.get("fieldSelector")
        selection = Selection(
            namespace=namespace,
            labels=parse_labels(labels) if labels else None,
            fields=parse_fields(fields, ()) if fields else None,
        )
        return [entry.obj for entry in core.table.select(selection)]

    @staticmethod
    def _missing(kind: Kind, namespace: str, name: str) -> ApiFailure:
        whole = f"{namespace}/{name}" if namespace else name
        resource = kind.info.kind.lower()
        details = {"name": whole, "group": GROUP, "kind": resource}
        return ApiFailure(404, "NotFound", f'{resource}.{GROUP} "{whole}" not found', details)

    async def _pod_metrics(self, pods: Sequence[Object]) -> list[Object]:
        names = {pod["spec"].get("nodeName") for pod in pods if pod["spec"].get("nodeName")}
        nodes = [node for name in sorted(names) if (node := self._registry.get("nodes", "", name)) is not None]
        scrapes = await self._sampler.sample(self._alone(nodes))
        now, items = self._registry.now(), []
        for pod in pods:
            found = scrapes.get(pod["spec"].get("nodeName") or "")
            meta = pod["metadata"]
            uses = pod_use(*found, meta["namespace"], meta["name"]) if found is not None else {}
            if uses:
                items.append(pod_metrics(meta, uses, oldest(uses), now))
        return sorted(items, key=lambda one: (one["metadata"]["namespace"], one["metadata"]["name"]))

    async def _node_metrics(self, nodes: Sequence[Object]) -> list[Object]:
        scrapes = await self._sampler.sample(self._alone(nodes))
        now, items = self._registry.now(), []
        for node in nodes:
            found = scrapes.get(node["metadata"]["name"])
            use = node_use(*found) if found is not None else None
            if use is not None:
                items.append(node_metrics(node["metadata"], use, now))
        return sorted(items, key=lambda one: str(one["metadata"]["name"]))

    def _alone(self, nodes: Sequence[Object]) -> list[Object]:
        """Return the nodes that share their kubelet with no other node of the cluster."""
        distinct_ = {id(node) for node in distinct(self._registry.list("nodes"))}
        return [node for node in nodes if id(node) in distinct_]


def _typed(info: ResourceInfo, item: Object) -> Object:
    return {"kind": info.kind, "apiVersion": info.api_version, **item}


def _api_service() -> Object:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": _API_SERVICE, "labels": {"k8s-app": "metrics-server"}},
        "spec": {"group": GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100},
    }


def reader() -> Object:
    """Return the ClusterRole of metrics-server, which lets the roles view, edit and admin read measured use."""
    labels = {f"{_AGGREGATE}{role}": "true" for role in ("view", "edit", "admin")}
    rule = {"apiGroups": [GROUP], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _READER, "labels": {"k8s-app": "metrics-server", **labels}},
        "rules": [rule],
    }
