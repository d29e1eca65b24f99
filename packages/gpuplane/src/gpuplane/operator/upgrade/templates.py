"""The driver's DaemonSets as upgrades need them: sealed with digests, and kept to go back to.

Two digests tell two questions apart. The *driver digest* is of what decides which driver gets installed; another one is
another driver, and its node has to be emptied first. The *template digest* is of everything; a pod that differs in it
only (tolerations, resources, a newer image of our own) is replaced in place, which no GPU pod notices.

The driver's DaemonSets are OnDelete, so a pod changes when the upgrade deletes it and never before. A node that went
back to the driver before carries a label with its digest; the DaemonSets in force keep off such nodes, and a copy of
the older one, made before it was overwritten, selects them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from kubekit.api.core import DaemonSet, Pod, PodSpec

Manifest = dict[str, Any]
NAME_LABEL: Final = "app.kubernetes.io/name"
DIGITS: Final = 10
LONGEST_LABEL: Final = 63  # characters of a label's value
_MAIN: Final = 0  # the driver's container is the first


def seal(manifest: Manifest, own_image: str) -> None:
    """Make a finished driver DaemonSet fit for upgrades: OnDelete, off nodes that went back, with both digests.

    `own_image` is the operator's: which driver it installs is in arguments and environment, so a newer operator is no
    other driver.
    """
    spec = manifest["spec"]
    spec["updateStrategy"] = {"type": "OnDelete"}
    template = spec["template"]
    _keep_off(template["spec"])
    digest = driver_digest(template["spec"], own_image)
    for container in _containers(template["spec"]):
        env = [entry for entry in container.get("env") or () if entry["name"] != names.DRIVER_DIGEST_ENV]
        container["env"] = [*env, {"name": names.DRIVER_DIGEST_ENV, "value": digest}]
    annotations = template["metadata"].setdefault("annotations", {})
    annotations.pop(names.TEMPLATE_DIGEST_ANNOTATION, None)
    annotations[names.TEMPLATE_DIGEST_ANNOTATION] = _digest(template)


def driver_digest(pod_spec: Mapping[str, Any], own_image: str) -> str:
    """The digest of what a driver's pod would install: images, commands, arguments, environment."""
    return _digest(
        [
            {
                "image": "" if container.get("image") == own_image else container.get("image", ""),
                "command": container.get("command") or [],
                "args": container.get("args") or [],
                "env": sorted(
                    (entry["name"], entry.get("value", ""))
                    for entry in container.get("env") or ()
                    if "valueFrom" not in entry and entry["name"] != names.DRIVER_DIGEST_ENV
                ),
                "envFrom": container.get("envFrom") or [],
            }
            for container in _containers(pod_spec)
        ]
    )


def digest_of(spec: PodSpec) -> str:
    """The driver digest that a pod or a template carries; empty for one that is not sealed."""
    if not spec.containers:
        return ""
    return next((env.value for env in spec.containers[_MAIN].env if env.name == names.DRIVER_DIGEST_ENV), "")


def template_digest_of(obj: DaemonSet | Pod) -> str:
    """The template digest of a DaemonSet's template, or of the one that a pod was made from."""
    meta = obj.metadata if isinstance(obj, Pod) else obj.spec.template.metadata
    return meta.annotations.get(names.TEMPLATE_DIGEST_ANNOTATION, "")


def kept(live: Mapping[str, Any], digest: str) -> Manifest:
    """A DaemonSet to go back to: what `live` installs, on nodes that say so by label. `digest` is its driver's."""
    meta = live["metadata"]
    name = kept_name(meta["name"], digest)
    template = msgspec.json.decode(msgspec.json.encode(live["spec"]["template"]))
    labels = {**(meta.get("labels") or {}), NAME_LABEL: name, names.DRIVER_BEFORE_LABEL: digest}
    template["metadata"]["labels"] = {
        **(template["metadata"].get("labels") or {}),
        NAME_LABEL: name,
        names.DRIVER_BEFORE_LABEL: digest,
    }
    template["metadata"].pop("creationTimestamp", None)
    pod = template["spec"]
    pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), names.ROLLBACK_LABEL: digest}
    _let_on(pod)
    selector = {**(live["spec"]["selector"].get("matchLabels") or {}), NAME_LABEL: name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [
                {key: value for key, value in owner.items() if key != "blockOwnerDeletion"}
                for owner in meta.get("ownerReferences") or ()
            ],
        },
        "spec": {
            "selector": {"matchLabels": {**selector, names.DRIVER_BEFORE_LABEL: digest}},
            "updateStrategy": {"type": "OnDelete"},
            "template": template,
        },
    }


def kept_name(name: str, digest: str) -> str:
    """Of the copy of a DaemonSet; a label's value too, so no longer than one. Another name or digest is another one."""
    if len(name) + len(digest) < LONGEST_LABEL:
        return f"{name}-{digest}"
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: LONGEST_LABEL - len(digest) - 8].rstrip('-.')}-{mark}-{digest}"


def is_kept(found: DaemonSet) -> bool:
    """Return whether a DaemonSet is one to go back to."""
    return names.DRIVER_BEFORE_LABEL in found.metadata.labels


def driver_of(manifest: Mapping[str, Any]) -> str:
    """The driver digest of a DaemonSet's manifest; empty for one that is not sealed."""
    env = manifest["spec"]["template"]["spec"]["containers"][_MAIN].get("env") or ()
    return next((entry.get("value", "") for entry in env if entry["name"] == names.DRIVER_DIGEST_ENV), "")


def still_needed(kept_sets: Iterable[DaemonSet], needed: Iterable[str]) -> set[str]:
    """The names of those kept DaemonSets whose driver is among the digests `needed`."""
    wanted = set(needed)
    return {found.metadata.name for found in kept_sets if found.metadata.labels[names.DRIVER_BEFORE_LABEL] in wanted}


def _containers(pod_spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod_spec["containers"], *(pod_spec.get("initContainers") or ())]


def _digest(data: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()[:DIGITS]


_OFF: Final = {"key": names.ROLLBACK_LABEL, "operator": "DoesNotExist"}


def _keep_off(pod: Manifest) -> None:
    node = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        others = [expression for expression in term.get("matchExpressions") or () if expression != _OFF]
        term["matchExpressions"] = [*others, dict(_OFF)]


def _let_on(pod: Manifest) -> None:
    node = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        left = [expression for expression in term.get("matchExpressions") or () if expression != _OFF]
        rest = {key: value for key, value in term.items() if key != "matchExpressions"}
        terms.append({**rest, "matchExpressions": left} if left else rest)
    if any(terms):
        required["nodeSelectorTerms"] = [term for term in terms if term]
    else:
        # A term without expressions matches no node, no requirement matches all.
        node.pop("requiredDuringSchedulingIgnoredDuringExecution", None)
