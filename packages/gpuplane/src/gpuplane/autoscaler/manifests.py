"""Pools, pods that wait, DaemonSets and the sharing of GPUs, from manifests: a question without a cluster.

Objects of any kind may be among them; `others` counts the kinds that say nothing here, so that no object is ignored
silently. Pure: objects in, one Struct out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuplane.api.chartvalues import is_values
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.karpenter import DeclaredClass, DeclaredPool
from gpuplane.api.karpenter_checks import is_class, is_pool, read_class, read_pool
from gpuplane.autoscaler.options import SharingSettings
from gpuplane.autoscaler.policies import plugin_environment, policy_sharing
from kubekit.errors import InvalidInput

_REPLICATED: Final = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController")
_MOST_PODS: Final = 100_000


class NodeQuestion(msgspec.Struct, frozen=True):
    """The pods that wait and the pools that may buy for them. `pods` and `daemons` are pod objects."""

    pools: tuple[DeclaredPool, ...] = ()
    classes: tuple[DeclaredClass, ...] = ()
    pods: tuple[dict[str, Any], ...] = ()
    daemons: tuple[dict[str, Any], ...] = ()
    sharing: SharingSettings = SharingSettings()
    others: tuple[str, ...] = ()


def read_question(objects: Iterable[Any]) -> NodeQuestion:
    """Sort objects by what they say. Raises InvalidInput for an invalid pool, workload or ClusterPolicy."""
    pools: list[DeclaredPool] = []
    classes: list[DeclaredClass] = []
    pods: list[dict[str, Any]] = []
    daemons: list[dict[str, Any]] = []
    policies: list[ClusterPolicy] = []
    maps: dict[str, dict[str, str]] = {}
    values: list[Mapping[str, Any]] = []
    others: dict[str, None] = {}
    for data in _flattened(objects):
        kind = data.get("kind")
        if is_pool(data):
            pools.append(read_pool(data))
        elif is_class(data):
            classes.append(read_class(data))
        elif kind == "DaemonSet":
            daemons += _pods_of(data, 1)
        elif kind == "ClusterPolicy":
            policies.append(_policy(data))
        elif kind == "ConfigMap":
            maps[_name(data)] = {str(key): str(text) for key, text in (data.get("data") or {}).items()}
        elif is_values(data):
            values.append(data)
        elif (count := _replicas(data)) is None:
            others[str(kind or "a document without a kind")] = None
        else:
            if len(pods) + count > _MOST_PODS:
                raise InvalidInput(f"more than {_MOST_PODS:,} pods", where=_where(data), cure="lower the replicas")
            pods += [pod for pod in _pods_of(data, count) if not pod["spec"].get("nodeName")]
    _distinct(pools)
    return NodeQuestion(
        tuple(pools), tuple(classes), tuple(pods), tuple(daemons), _sharing(policies, maps, values), tuple(others)
    )


def _flattened(objects: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for data in objects:
        if not isinstance(data, Mapping):
            continue
        if data.get("kind") == "List" and isinstance(data.get("items"), list):
            yield from _flattened(data["items"])
        else:
            yield data


def _replicas(data: Mapping[str, Any]) -> int | None:
    """Return how many pods a workload wants at the same time; None for other kinds."""
    kind, spec = data.get("kind"), data.get("spec") or {}
    if kind == "Pod":
        return 1
    if kind == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    if kind in ("Job", "CronJob"):
        wanted = [spec.get("parallelism", 1), spec.get("completions")]
        return min(_whole(data, number) for number in wanted if number is not None)
    return _whole(data, spec.get("replicas", 1)) if kind in _REPLICATED else None


def _whole(data: Mapping[str, Any], number: Any) -> int:
    if type(number) is not int or number < 0:
        raise InvalidInput(f"{number!r} is no number of pods", where=_where(data), cure="a whole number")
    return number


def _pods_of(data: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the pods of a workload, or the pod itself."""
    template: Any = data
    if data.get("kind") == "CronJob":
        template = (data.get("spec") or {}).get("jobTemplate") or {}
    if data.get("kind") != "Pod":
        template = (template.get("spec") or {}).get("template")
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not isinstance(spec, Mapping) or not spec.get("containers"):
        raise InvalidInput("has no pod with containers", where=_where(data), cure="gpuplane check names the place")
    meta = {**(template.get("metadata") or {}), "namespace": (data.get("metadata") or {}).get("namespace", "default")}
    if data.get("kind") == "Pod":
        return [{"metadata": {**meta, "name": _name(data)}, "spec": spec}]
    return [{"metadata": {**meta, "name": f"{_name(data)}-{number}"}, "spec": spec} for number in range(count)]


def _policy(data: Mapping[str, Any]) -> ClusterPolicy:
    try:
        return msgspec.convert(data, ClusterPolicy)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), where=_where(data), cure="gpuplane check names the place") from error


def _distinct(pools: Iterable[DeclaredPool]) -> None:
    seen = set()
    for pool in pools:
        if pool.name in seen:
            raise InvalidInput("there are two pools of this name", where=pool.name, cure="give each its own name")
        seen.add(pool.name)


def _sharing(
    policies: list[ClusterPolicy], maps: Mapping[str, dict[str, str]], values: list[Mapping[str, Any]]
) -> SharingSettings:
    """Return the configuration that the device plugin will have: the ClusterPolicy's, else that of a values file."""
    if len(policies) > 1:
        raise InvalidInput(f"{len(policies)} ClusterPolicies", cure="pass the one that is in force")
    if not policies:
        return _of_values(values)
    spec = policies[0].spec
    config = spec.device_plugin.config
    if config is None or not config.name:
        return msgspec.structs.replace(_of_values(values), environment=plugin_environment(spec))
    if config.name not in maps:
        what = f"spec.devicePlugin.config names the ConfigMap {config.name}, which is not among the files"
        raise InvalidInput(what, where="ClusterPolicy", cure="pass its manifest too")
    return policy_sharing(spec, maps[config.name])


def _of_values(values: Iterable[Mapping[str, Any]]) -> SharingSettings:
    found = SharingSettings()
    for data in values:
        plugin = data.get("devicePlugin")
        for group in (data, plugin if isinstance(plugin, Mapping) else {}):
            config = group.get("config")
            texts = (config.get("map") or config.get("data")) if isinstance(config, Mapping) else None
            if isinstance(config, Mapping) and isinstance(texts, Mapping):
                named = {str(name): str(text) for name, text in texts.items()}
                found = SharingSettings(named, str(config.get("default") or ""))
    return found


def _name(data: Mapping[str, Any]) -> str:
    name = (data.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInput("has no name", where=str(data.get("kind")), cure="set metadata.name")
    return name


def _where(data: Mapping[str, Any]) -> str:
    return f"{data.get('kind')}/{(data.get('metadata') or {}).get('name', '')}"
