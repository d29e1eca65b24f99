"""Reads the values of metrics from the three metrics APIs, as the autoscaler of kube-controller-manager does.

`metrics.k8s.io` has CPU and memory of pods; `custom.metrics.k8s.io` and `external.metrics.k8s.io` are served by an
adapter that the user installs, such as prometheus-adapter. All are asked through the API server, so that whatever
serves them there is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

from kubekit.api.durations import parse_time
from kubekit.api.formats import go_duration
from kubekit.errors import InvalidInput
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.scales import selector_text
from tinykube.controllers.autoscaling.metrics import MetricValues
from tinykube.controllers.autoscaling.replicas import PodSample, thousandths

Object = Mapping[str, Any]
_CUSTOM: Final = "custom.metrics.k8s.io"
_CUSTOM_VERSIONS: Final = ("custom.metrics.k8s.io/v1beta2", "custom.metrics.k8s.io/v1beta1")
_WINDOW_S: Final = 60.0  # of a custom metric that has none


class ApiReader(Protocol):
    async def get(self, path: str, query: dict[str, str], subject: str) -> Any:
        """Return the JSON of a path. Raises ApiFailure."""
        ...


class Plurals(Protocol):
    def __call__(self, api_version: str, kind: str) -> str | None:
        """Return the qualified plural of a kind, such as `deployments.apps`; None for an unknown kind."""
        ...


class MetricSources:
    """The metrics APIs of one cluster."""

    def __init__(self, api: ApiReader, plurals: Plurals) -> None:
        self._api = api
        self._plurals = plurals

    async def read(self, metric: Object, namespace: str, selector: str) -> MetricValues:
        """Return the values of one entry of `spec.metrics`; `selector` selects the target's pods."""
        kind = metric["type"]
        source = metric[kind[0].lower() + kind[1:]]
        try:
            if kind in ("Resource", "ContainerResource"):
                return await self._resource(source, namespace, selector)
            if kind == "Pods":
                return await self._pods(source["metric"], namespace, selector)
            if kind == "Object":
                return await self._object(source, namespace)
            return await self._external(source["metric"], namespace)
        except ApiFailure as error:
            api = {"External": "external", "Pods": "custom", "Object": "custom"}.get(kind, "resource")
            return MetricValues(error=f"unable to fetch metrics from {api} metrics API: {error.message}")
        except (AttributeError, InvalidInput, KeyError, TypeError, ValueError) as error:
            # An adapter of the user's is not to be trusted with the form of its answers.
            api = {"External": "external", "Pods": "custom", "Object": "custom"}.get(kind, "resource")
            return MetricValues(error=f"unable to fetch metrics from {api} metrics API: invalid answer: {error!r}")

    async def _resource(self, source: Object, namespace: str, selector: str) -> MetricValues:
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
        answer = await self._api.get(path, {"labelSelector": selector}, "pods.metrics.k8s.io")
        items = answer.get("items") or ()
        if not items:
            return MetricValues(error="no metrics returned from resource metrics API")
        return MetricValues(samples=resource_samples(items, source["name"], source.get("container") or ""))

    async def _pods(self, metric: Object, namespace: str, selector: str) -> MetricValues:
        name = metric["name"]
        query = {"labelSelector": selector, "metricLabelSelector": selector_text(metric.get("selector") or {})}
        items = await self._custom(f"namespaces/{namespace}/pods/*/{name}", query, "pods", "*")
        if not items:
            return MetricValues(error="no metrics returned from custom metrics API")
        return MetricValues(samples={one["describedObject"]["name"]: _custom_sample(one) for one in items})

    async def _object(self, source: Object, namespace: str) -> MetricValues:
        metric, described = source["metric"], source["describedObject"]
        name, group = metric["name"], (described.get("apiVersion") or "").rpartition("/")[0]
        query = {"metricLabelSelector": selector_text(metric.get("selector") or {})}
        if described["kind"] == "Namespace" and not group:
            path, resource = f"namespaces/{namespace}/metrics/{name}", "metrics"
        else:
            plural = self._plurals(described.get("apiVersion") or "", described["kind"])
            if plural is None:
                what = f"{described['kind']}{f'.{group}' if group else ''}"
                why = f'no matches for kind "{described["kind"]}" in group "{group}"'
                raise ApiFailure(404, "", f"unable to map kind {what} to resource: {why}")
            path, resource = f"namespaces/{namespace}/{plural}/{described['name']}/{name}", plural
        items = await self._custom(path, query, resource, described["name"])
        if len(items) != 1:
            found = f"returned {len(items)} results when we asked for exactly one"
            raise ApiFailure(500, "", f"the custom metrics API server {found}")
        return MetricValues(values=(thousandths(items[0]["value"]),))

    async def _custom(self, path: str, query: dict[str, str], resource: str, name: str) -> list[Object]:
        """Return the values that the newest version of the custom metrics API has."""
        groups = (await self._api.get("/apis", {}, "")).get("groups") or ()
        group = next((one for one in groups if one["name"] == _CUSTOM), None)
        if group is None:
            raise ApiFailure(404, "", f"no custom metrics API ({_CUSTOM}) registered")
        preferred = group.get("preferredVersion") or {}
        served = [one["groupVersion"] for one in (preferred, *group["versions"]) if one.get("groupVersion")]
        version = next((one for one in served if one in _CUSTOM_VERSIONS), None)
        if version is None:
            raise ApiFailure(404, "", "no known available metric versions found")
        query = {key: value for key, value in query.items() if value}
        answer = await self._api.get(f"/apis/{version}/{path}", query, f"{resource}.{_CUSTOM} {name}")
        return list(answer.get("items") or ())

    async def _external(self, metric: Object, namespace: str) -> MetricValues:
        name, text = metric["name"], selector_text(metric.get("selector") or {})
        path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{quote(name, safe='')}"
        query = {"labelSelector": text} if text else {}
        answer = await self._api.get(path, query, f"{name}.external.metrics.k8s.io")
        items = answer.get("items") or ()
        if not items:
            return MetricValues(error="no metrics returned from external metrics API")
        return MetricValues(values=tuple(thousandths(one["value"]) for one in items))


def resource_samples(items: Iterable[Object], resource: str, container: str) -> dict[str, PodSample]:
    """Return the use of a resource by pod, or of one container of each, from the items of a PodMetricsList.

    A pod of which one container has no value is left out.
    """
    samples = {}
    for item in items:
        parts = [one for one in item.get("containers") or () if container in ("", one["name"])]
        if parts and all(resource in one["usage"] for one in parts):
            value = sum(thousandths(one["usage"][resource]) for one in parts)
            time, window = parse_time(item["timestamp"]).timestamp(), go_duration(item["window"]).total_seconds()
            samples[item["metadata"]["name"]] = PodSample(value, time, window)
    return samples


def _custom_sample(item: Object) -> PodSample:
    seconds = item.get("windowSeconds")
    time = parse_time(item["timestamp"]).timestamp() if item.get("timestamp") else 0.0
    return PodSample(thousandths(item["value"]), time, _WINDOW_S if seconds is None else float(seconds))
