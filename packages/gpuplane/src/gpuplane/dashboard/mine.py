"""The dashboard's page for one namespace: pods with their use, waiting pods with cures, quota, and what fits now."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gpuplane import names
from gpuplane.cli.explain import explained_waiting
from gpuplane.cli.gpus_text import amount_of
from gpuplane.cli.holders import in_units
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.documents import explained_document, pod_use
from gpuplane.dashboard.hiding import HIDDEN, spaces_of
from gpuplane.explain.answer import Explanation
from gpuplane.explain.reading import read_facts, read_quotas
from gpuplane.explain.world import World
from gpuplane.scheduler.quota import NamespaceQuota
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden

PODS: Final = 200  # that are listed, those that hold most; all are counted
SPACES: Final = 50  # namespaces to choose from
WAITING: Final = 20
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
ExplainSpace = Callable[[str], Awaitable[Sequence[Explanation]]]
REMEMBERED_SECONDS: Final = 5.0  # for which the waiting pods and the quota are not read again


class NamespaceFacts:
    """Facts about the pods of one namespace, with the rights of the client's user.

    Args:
        explain: explains the pods of a namespace that wait longest, the longest first; by default as that user may.
    """

    def __init__(self, client: Client, monotonic: Callable[[], float], explain: ExplainSpace | None = None) -> None:
        self._client = client
        self._monotonic = monotonic
        self._explain = explain or (lambda space: explained_waiting(client, space, most=WAITING))
        self._reading = asyncio.Lock()
        self._answers: dict[str, tuple[float, dict[str, Any]]] = {}

    async def mine(self, namespace: str, seen: Overview, use: MeasuredUse) -> dict[str, Any]:
        """Return the page of a namespace; empty for that of the context. Raises InvalidInput for no name.

        Args:
            seen, use: the cluster, as the viewer may have it.
        """
        space = namespace or self._client.namespace or "default"
        require_namespace(space)
        async with self._reading:
            now = self._monotonic()
            self._answers = {key: one for key, one in self._answers.items() if now - one[0] < REMEMBERED_SECONDS}
            if space not in self._answers:
                found = await self._explain(space)
                slow = {"waiting": [explained_document(one) for one in found], "quota": await self._quota(space)}
                self._answers[space] = self._monotonic(), slow
            slow = self._answers[space][1]
        pods = running(seen, space, use)
        return {
            "namespace": space,
            "spaces": spaces(seen, space),
            "running": pods[:PODS],
            "more": max(0, len(pods) - PODS),
            "measured": not use.why,
            "fits": fitting(seen.fits),
            **slow,
        }

    async def _quota(self, space: str) -> list[dict[str, Any]]:
        """Return the quota of a namespace by model; nothing where none is set, or the user may not read it."""
        _, quotas = await read_quotas(self._client)
        quota = quotas.get(space)
        if quota is None or quota.models is None:
            return []
        with contextlib.suppress(Forbidden):
            return quota_lines(quota, World(await read_facts(self._client)).usage.sums(), space)
        return []


def require_namespace(name: str) -> None:
    """Raise InvalidInput for what cannot be the name of a namespace. Pure."""
    if not _NAMESPACE.fullmatch(name):
        raise InvalidInput(f"{name!r} is no namespace", where="ns", cure="kubectl get namespaces lists them")


def quota_lines(quota: NamespaceQuota, used: Mapping[tuple[str, str], int], space: str) -> list[dict[str, Any]]:
    """Return what the namespace uses and may use of each model, in GPUs. Pure."""
    return [
        {"model": model, "used": used.get((space, model), 0) / 100, "of": percent / 100}
        for model, percent in sorted((quota.models or {}).items())
    ]


def running(seen: Overview, space: str, use: MeasuredUse) -> list[dict[str, Any]]:
    """Return the namespace's pods on GPUs, those that hold most first. Pure."""
    pods: dict[str, dict[str, Any]] = {}
    for node in seen.nodes:
        for holder in node.held_by:
            if not holder.pod.startswith(f"{space}/"):
                continue
            held = [f"{node.name}/{part.index} {amount_of(part)}" for part in holder.parts]
            one = pods.setdefault(holder.pod, {"pod": holder.pod, "gpus": 0.0, "holds": [], "idleMinutes": 0})
            one["gpus"] = round(one["gpus"] + holder.gpus, 2)
            one["holds"] += held or [f"{node.name} {in_units(holder.units, node.units) or f'{holder.gpus:g} GPU'}"]
            one["idleMinutes"] = max(one["idleMinutes"], _idle_minutes(node, [p.index for p in holder.parts], use))
    for pod, one in pods.items():
        one["use"] = pod_use(pod, seen.nodes, use)
    return sorted(pods.values(), key=lambda one: (-one["gpus"], one["pod"]))


def _idle_minutes(node: NodeView, indexes: Iterable[int], use: MeasuredUse) -> int:
    """Return for how long no GPU of a pod has been used; 0 where one is used, or that is unknown."""
    known = [use.gpus.get(gpu.uuid) for gpu in node.gpus if gpu.index in indexes]
    if not known or any(one is None or not one.idle for one in known):
        return 0
    return int(min(one.idle_seconds for one in known if one is not None) // 60)


def spaces(seen: Overview, own: str) -> list[str]:
    """Return the namespaces with pods that hold or wait for GPUs, and `own`. Pure."""
    found = sorted(spaces_of(seen) - {own, HIDDEN})
    return sorted([own, *found[: SPACES - 1]])


def fitting(fits: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the sizes that fit now, the largest first, with a manifest for those of whole GPUs. Pure."""
    whole = sorted((int(size) for size in fits if size.isdecimal() and fits[size] > 0), reverse=True)
    others = [size for size in fits if not size.isdecimal() and fits[size] > 0]
    return [
        *({"size": str(size), "pods": fits[str(size)], "manifest": manifest(size)} for size in whole),
        *({"size": size, "pods": fits[size]} for size in others),
    ]


def manifest(gpus: int) -> str:
    """Return a pod with so many GPUs, as YAML to begin with. Pure."""
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  generateName: gpus-
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: ubuntu:24.04
      command: [nvidia-smi]
      resources:
        limits:
          {names.GPU_RESOURCE}: "{gpus}"
"""
