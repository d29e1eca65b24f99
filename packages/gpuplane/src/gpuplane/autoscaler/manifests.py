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
from gpuplane.api.nodeoverlay import NodeOverlay, is_overlay, read_overlay
from gpuplane.autoscaler.asks import read_pod
from gpuplane.autoscaler.manifest_volumes import VOLUME_KINDS, volumes_of, with_templates
from gpuplane.autoscaler.options import SharingSettings
from gpuplane.autoscaler.policies import plugin_environment, policy_sharing
from gpuplane.autoscaler.volumes import VolumeFacts, claims_of
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput

_REPLICATED: Final = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController")
_MOST_PODS: Final = 100_000


class NodeQuestion(msgspec.Struct, frozen=True):
    """The pods that wait and the pools that may buy for them. `pods` and `daemons` are pod objects.

    `overlays` are sound each for itself; whether two are in conflict depends on the offers.
    """

    pools: tuple[DeclaredPool, ...] = ()
    classes: tuple[DeclaredClass, ...] = ()
    pods: tuple[dict[str, Any], ...] = ()
    daemons: tuple[dict[str, Any], ...] = ()
    sharing: SharingSettings = SharingSettings()
    overlays: tuple[NodeOverlay, ...] = ()
    volumes: VolumeFacts = VolumeFacts(complete=False)
    others: tuple[str, ...] = ()


def read_question(objects: Iterable[Any]) -> NodeQuestion:
    """Sort objects by what they say. Raises InvalidInput for an invalid pool, overlay, workload or ClusterPolicy."""
    pools: list[DeclaredPool] = []
    classes: list[DeclaredClass] = []
    pods: list[dict[str, Any]] = []
    daemons: list[dict[str, Any]] = []
    policies: list[ClusterPolicy] = []
    maps: dict[str, dict[str, str]] = {}
    values: list[Mapping[str, Any]] = []
    overlays: dict[str, NodeOverlay] = {}
    volumes: list[Mapping[str, Any]] = []
    made: list[Mapping[str, Any]] = []  # claims of templates; those of files count instead
    others: dict[str, None] = {}
    for data in _flattened(objects):
        kind = data.get("kind")
        if is_pool(data):
            pools.append(read_pool(data))
        elif is_class(data):
            classes.append(read_class(data))
        elif is_overlay(data):
            overlay = read_overlay(data)
            if overlays.setdefault(_name(data), overlay) is not overlay:
                raise InvalidInput("there are two overlays of this name", where=_where(data), cure="give each its own")
        elif kind == "DaemonSet":
            daemons += _pods_of(data, 1)
        elif kind == "ClusterPolicy":
            policies.append(_policy(data))
        elif kind == "ConfigMap":
            maps[_name(data)] = {str(key): str(text) for key, text in _fields(data, data, "data").items()}
        elif kind in VOLUME_KINDS:
            volumes.append(data)
        elif is_values(data):
            values.append(data)
        elif (count := _replicas(data)) is None:
            others[str(kind or "a document without a kind")] = None
        else:
            if len(pods) + count > _MOST_PODS:
                raise InvalidInput(f"more than {_MOST_PODS:,} pods", where=_where(data), cure="lower the replicas")
            more = _pods_of(data, count)
            if _fields(data, data, "spec").get("volumeClaimTemplates"):
                more, claims = with_templates(data, more)
                made += claims
            pods += [pod for pod in more if not pod["spec"].get("nodeName")]
    _distinct(pools)
    return NodeQuestion(
        *(tuple(pools), tuple(classes), tuple(pods), tuple(daemons), _sharing(policies, maps, values)),
        tuple(overlays.values()),
        volumes_of([*made, *volumes]),
        tuple(others),
    )


def _flattened(objects: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for data in objects:
        if data is None:
            continue
        if not isinstance(data, Mapping):
            what = f"{str(data)[:40]!r} is no object of Kubernetes"
            raise InvalidInput(what, where="one of the files", cure="gpuplane check names the place")
        if data.get("kind") == "List":
            if not isinstance(data.get("items"), list):
                raise InvalidInput("items is no list", where="List", cure="a list of objects, as kubectl prints it")
            yield from _flattened(data["items"])
        else:
            yield data


def _replicas(data: Mapping[str, Any]) -> int | None:
    """Return how many pods a workload wants at the same time; None for other kinds."""
    kind = data.get("kind")
    if kind == "Pod":
        return 1
    if kind not in (*_REPLICATED, "Job", "CronJob"):
        return None
    spec = _fields(data, data, "spec")
    if kind == "CronJob":
        spec = _fields(data, _fields(data, spec, "jobTemplate"), "spec")
    if kind in ("Job", "CronJob"):
        wanted = [spec.get("parallelism", 1), spec.get("completions")]
        return min(_whole(data, number) for number in wanted if number is not None)
    return _whole(data, spec.get("replicas", 1))


def _whole(data: Mapping[str, Any], number: Any) -> int:
    if type(number) is not int or number < 0:
        raise InvalidInput(f"{number!r} is no number of pods", where=_where(data), cure="a whole number")
    return number


def _pods_of(data: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the pods of a workload, or the pod itself. Raises InvalidInput for a pod that cannot be read."""
    template: Mapping[str, Any] = data
    if data.get("kind") == "CronJob":
        template = _fields(data, _fields(data, data, "spec"), "jobTemplate")
    if data.get("kind") != "Pod":
        template = _fields(data, _fields(data, template, "spec"), "template")
    spec = _fields(data, template, "spec")
    if not spec.get("containers"):
        raise InvalidInput("has no pod with containers", where=_where(data), cure="gpuplane check names the place")
    own = _fields(data, data, "metadata")
    meta = {**_fields(data, template, "metadata"), "namespace": own.get("namespace", "default")}
    if data.get("kind") == "Pod":
        pods = [{"metadata": {**meta, "name": _name(data)}, "spec": spec}]
    else:
        pods = [{"metadata": {**meta, "name": f"{_name(data)}-{number}"}, "spec": spec} for number in range(count)]
    if pods:
        _require_pod(data, pods[0])
    return pods


def _require_pod(data: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    """Raise InvalidInput, with the object that it is part of, for a pod that the scheduler's code cannot read."""
    try:
        msgspec.convert(pod, Pod)
        read_pod(pod)
        claims_of(pod["metadata"]["name"], pod["spec"])
    except msgspec.ValidationError as error:
        raise InvalidInput(f"its pod: {error}", where=_where(data), cure="gpuplane check names the place") from error
    except InvalidInput as error:
        raise InvalidInput(f"its pod: {error.what}", where=_where(data), cure=error.cure) from error
    except (AttributeError, TypeError) as error:
        what, cure = "its pod: its volumes cannot be read", "gpuplane check names the place"
        raise InvalidInput(what, where=_where(data), cure=cure) from error


def _fields(data: Mapping[str, Any], part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the fields of a part of an object; none where it is absent. Raises InvalidInput if it has no fields."""
    found = part.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        what = f"{name} is {type(found).__name__} instead of fields"
        raise InvalidInput(what, where=_where(data), cure="gpuplane check names the place")
    return found


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
    name = _fields(data, data, "metadata").get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInput("has no name", where=str(data.get("kind")), cure="set metadata.name")
    return name


def _where(data: Mapping[str, Any]) -> str:
    meta = data.get("metadata")
    return f"{data.get('kind')}/{meta.get('name', '') if isinstance(meta, Mapping) else ''}"
