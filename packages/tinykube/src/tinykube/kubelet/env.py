"""The environment and arguments of a container, as Kubernetes defines them.

Pure: everything that has to be asked of the API server is in `Sources`. Rules: later variables win; `$(VAR)` is
replaced by what was defined before it, stays as it is when unknown, and `$$(VAR)` is the escape; a key that is
missing and not optional is CreateContainerConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING
from typing import Final, TypeVar

import msgspec

from kubekit.api.quantity import parse_quantity
from kubekit.errors import Terminal
from tinykube.kubelet.pod import FieldRef, KubeletEnvVar, KubeletPod, ResourceFieldRef, SpecContainer

T = TypeVar("T")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE: Final = re.compile(r"\$(\$|\(([^()\s]+)\))")


class ConfigInvalid(Terminal):
    """A container's configuration refers to what is not there; the pod waits with CreateContainerConfigError."""


class Sources(msgspec.Struct, frozen=True):
    """ConfigMaps and Secrets of the pod's namespace by name (a missing one is not in), and facts of the node.

    `config_maps` are the texts for variables, `config_files` all data for volumes.
    """

    config_maps: Mapping[str, Mapping[str, str]] = {}
    config_files: Mapping[str, Mapping[str, bytes]] = {}
    secrets: Mapping[str, Mapping[str, bytes]] = {}
    host_ip: str = "127.0.0.1"
    pod_ip: str = "127.0.0.1"
    allocatable: Mapping[str, str] = {}


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(VAR)` replaced from `known`."""

    def one(match: re.Match[str]) -> str:
        if match.group(1) == "$":
            return "$"
        name = match.group(2)
        return known[name] if name in known else match.group(0)

    return _REFERENCE.sub(one, text)


def unknown_names(text: str, known: Mapping[str, str]) -> list[str]:
    """Return the names in `$(VAR)` that `known` does not have."""
    return [name for whole, name in _REFERENCE.findall(text) if whole != "$" and name not in known]


def environment(pod: KubeletPod, container: SpecContainer, sources: Sources, base: Mapping[str, str]) -> dict[str, str]:
    """All variables of a container; `base` are those of the cluster (KUBERNETES_SERVICE_HOST). Raises ConfigInvalid."""
    env = {"PATH": PATH, "HOSTNAME": pod.spec.hostname or pod.metadata.name, "HOME": "/root", **base}
    where = f"container {container.name}"
    for source in container.env_from:
        values: dict[str, str] = {}
        if source.config_map_ref is not None:
            found = _named(
                "configmap", sources.config_maps, source.config_map_ref.name, source.config_map_ref.optional, where
            )
            values = dict(found)
        elif source.secret_ref is not None:
            secret = _named("secret", sources.secrets, source.secret_ref.name, source.secret_ref.optional, where)
            values = {key: value.decode(errors="replace") for key, value in secret.items()}
        env.update({source.prefix + key: value for key, value in values.items()})
    for variable in container.env:
        value = _value(pod, container, variable, env, sources, where)
        if value is not None:
            env[variable.name] = value
    return env


def _named(kind: str, have: Mapping[str, Mapping[str, T]], name: str, optional: bool, where: str) -> Mapping[str, T]:
    found = have.get(name)
    if found is None and not optional:
        raise ConfigInvalid(f'{kind} "{name}" not found', where=where)
    return found or {}


def _value(
    pod: KubeletPod,
    container: SpecContainer,
    variable: KubeletEnvVar,
    env: Mapping[str, str],
    sources: Sources,
    where: str,
) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, env)
    if source.field_ref is not None:
        return field_value(pod, source.field_ref, sources)
    if source.resource_field_ref is not None:
        return resource_value(pod, container, source.resource_field_ref, sources)
    if source.config_map_key_ref is not None:
        text = source.config_map_key_ref
        value = _named("configmap", sources.config_maps, text.name, text.optional, where).get(text.key)
        if value is None and not text.optional:
            raise ConfigInvalid(
                f"couldn't find key {text.key} in ConfigMap {pod.metadata.namespace}/{text.name}", where=where
            )
        return value
    if source.secret_key_ref is not None:
        key = source.secret_key_ref
        data = _named("secret", sources.secrets, key.name, key.optional, where).get(key.key)
        if data is None and not key.optional:
            raise ConfigInvalid(
                f"couldn't find key {key.key} in Secret {pod.metadata.namespace}/{key.name}", where=where
            )
        return None if data is None else data.decode(errors="replace")
    return ""


def field_value(pod: KubeletPod, ref: FieldRef, sources: Sources) -> str:
    """The downward API's fields of a pod. Raises ConfigInvalid for a path it does not have."""
    meta, path = pod.metadata, ref.field_path
    simple = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": sources.host_ip,
        "status.hostIPs": sources.host_ip,
        "status.podIP": sources.pod_ip,
        "status.podIPs": sources.pod_ip,
        "metadata.labels": _lines(meta.labels),
        "metadata.annotations": _lines(meta.annotations),
    }
    if path in simple:
        return simple[path]
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if match is None:
        raise ConfigInvalid(f"unsupported fieldPath: {path}", where=f"pod {meta.name}")
    return (meta.labels if match.group(1) == "labels" else meta.annotations).get(match.group(2), "")


def _lines(entries: Mapping[str, str]) -> str:
    """`key="value"` lines as downward API volumes hold them."""
    return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(entries.items()))


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(pod: KubeletPod, container: SpecContainer | None, ref: ResourceFieldRef, sources: Sources) -> str:
    """`limits.cpu` and its like in units of the divisor; a limit that is not set is the node's allocatable."""
    name = ref.container_name or (container.name if container else "")
    found = [c for c in (*pod.spec.containers, *pod.spec.init_containers) if c.name == name]
    kind, _, resource = ref.resource.partition(".")
    if not found or kind not in ("limits", "requests"):
        raise ConfigInvalid(
            f"unsupported resourceFieldRef {ref.resource} of container {name!r}", where=f"pod {pod.metadata.name}"
        )
    have = found[0].resources
    amounts = have.limits if kind == "limits" else {**have.limits, **have.requests}
    fallback = sources.allocatable.get(resource, "0") if kind == "limits" else "0"
    value = parse_quantity(amounts.get(resource, fallback)) / (parse_quantity(ref.divisor) or 1)
    return str(int(value.to_integral_value(rounding=ROUND_CEILING)))


def arguments(container: SpecContainer, env: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`command` and `args` with `$(VAR)` replaced."""
    return tuple(expand(w, env) for w in container.command), tuple(expand(w, env) for w in container.args)


def cluster_env(host: str, port: int) -> dict[str, str]:
    """Return the variables that in-cluster clients read."""
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        "KUBERNETES_PORT": f"tcp://{host}:{port}",
        "KUBERNETES_PORT_443_TCP_ADDR": host,
        "KUBERNETES_PORT_443_TCP_PORT": str(port),
        "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
    }
