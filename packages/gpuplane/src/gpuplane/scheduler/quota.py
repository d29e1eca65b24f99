"""GPU quotas by namespace: the ConfigMap `gpuquota` as gpu-admission reads it, and who uses how much. Pure.

    {"ml": {"quota": {"M40": 8, "P100": 2}, "pool": ["public"]}}

A namespace that is not listed is not limited. A listed one may use the models of `quota`, as many GPUs of each
(0.5 is half a GPU; without `quota` every model, without end), on nodes of the pools in `pool` (empty: any). Two labels
of a node name its model and its pool.

Invariants:

- The usage of (namespace, model) is at any time the sum over the pods that hold or have reserved something on nodes
  that carry the model's label now.
- A pod is counted once, however often it is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from kubekit.documents import LONGEST_SETTINGS, DocumentError, decode_json
from kubekit.errors import InvalidInput

REASON: Final = "ExceedsGPUQuota"  # gpu-admission's word; scripts look for it
_NAMED_HOLDERS: Final = 3


class NamespaceQuota(msgspec.Struct, frozen=True):
    """`models`: percent of a GPU allowed by model, None for no limit; `pools`: those allowed, empty for any."""

    models: dict[str, int] | None = None
    pools: tuple[str, ...] = ()


class QuotaSettings(msgspec.Struct, frozen=True):
    """The place of quotas and the labels of nodes that they use: the ConfigMap `gpu-quota-admission`."""

    name: str = names.QUOTA_CONFIGMAP
    namespace: str = names.QUOTA_NAMESPACE
    model_label: str = names.QUOTA_MODEL_LABEL
    pool_label: str = names.QUOTA_POOL_LABEL


def parse_settings(text: str) -> QuotaSettings:
    """Parse the JSON in `gpu-quota-admission.config`; absent fields have their defaults. Raises InvalidInput."""
    given = _lowered(_object(text))
    fields = {
        "name": given.get("quotaconfigmapname", names.QUOTA_CONFIGMAP),
        "namespace": given.get("quotaconfigmapnamespace", names.QUOTA_NAMESPACE),
        "model_label": given.get("gpumodellabel", names.QUOTA_MODEL_LABEL),
        "pool_label": given.get("gpupoollabel", names.QUOTA_POOL_LABEL),
    }
    for field, value in fields.items():
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"{field.replace('_', ' ')} is no name: {value!r}")
    return QuotaSettings(**fields)


def parse_quotas(text: str) -> dict[str, NamespaceQuota]:
    """Parse the JSON in `gpu_quota`, by namespace. Raises InvalidInput with every finding."""
    findings: list[str] = []
    quotas = {}
    for namespace, given in _object(text).items():
        if not isinstance(given, dict):
            findings.append(f"{namespace}: {given!r} is no object with quota and pool")
            continue
        fields = _lowered(given)
        findings += [f"{namespace}: {field} is unknown; it knows quota and pool" for field in fields.keys() - _KNOWN]
        models, pools = fields.get("quota"), fields.get("pool")
        if models is not None and not isinstance(models, dict):
            findings.append(f"{namespace}.quota: {models!r} is no object of models")
            models = None
        if pools is not None and not (isinstance(pools, list) and all(isinstance(pool, str) for pool in pools)):
            findings.append(f"{namespace}.pool: {pools!r} is no list of names")
            pools = None
        limits = None if models is None else {model: _percent(count) for model, count in models.items()}
        for model, limit in (limits or {}).items():
            if limit < 0:
                findings.append(f"{namespace}.quota.{model}: {models[model]!r} is no number of GPUs")  # type: ignore[index]  # it was one of its items
        quotas[namespace] = NamespaceQuota(limits, tuple(pools or ()))
    if findings:
        raise InvalidInput("; ".join(sorted(findings)), findings=tuple(sorted(findings)))
    return quotas


_KNOWN: Final = frozenset({"quota", "pool"})


def _object(text: str) -> dict[str, Any]:
    try:
        return decode_json(text, dict[str, Any], limit=LONGEST_SETTINGS)
    except DocumentError as error:
        raise InvalidInput(f"no JSON object: {error}") from error


def _lowered(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields by their names in lower case: Go reads names of JSON fields in any case."""
    return {name.lower(): value for name, value in given.items()}


def _percent(count: object) -> int:
    """Convert a number of GPUs to percent; -1 for an invalid number."""
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= 1e9:
        return -1
    return round(count * 100)


class QuotaPlace(msgspec.Struct, frozen=True):
    """The quota labels of a node: its GPUs' model and its pool, empty where it carries no such label.

    `part` is the percent of a GPU that one `nvidia.com/gpu` of the node is worth: less than 100 for replicas and MIG
    devices.
    """

    model: str = ""
    pool: str = ""
    part: int = 100

    def worth(self, core: int, *, by_count: bool) -> int:
        """Return the percent of a GPU that `core` percent of whole GPUs is here; `by_count` is that of the request."""
        return core * self.part // 100 if by_count else core


_NOWHERE: Final = QuotaPlace()


class _Use(msgspec.Struct, frozen=True):
    namespace: str
    node: str
    core: int
    shown: str
    by_count: bool


class QuotaUsage:
    """The use of each model by namespace, updated pod by pod."""

    def __init__(self) -> None:
        self._places: dict[str, QuotaPlace] = {}
        self._uses: dict[str, _Use] = {}
        self._of_node: dict[str, set[str]] = {}
        self._of_model: dict[tuple[str, str], dict[str, int]] = {}  # (namespace, model) -> pod -> core
        self._sums: dict[tuple[str, str], int] = {}

    def place(self, node: str) -> QuotaPlace:
        return self._places.get(node, _NOWHERE)

    def set_place(self, node: str, place: QuotaPlace | None) -> None:
        """Set the quota labels of a node; None for a node that is gone."""
        if self._places.get(node) == place:
            return
        pods = sorted(self._of_node.get(node, ()))
        for pod in pods:
            self._uncount(pod)
        if place is None:
            self._places.pop(node, None)
        else:
            self._places[node] = place
        for pod in pods:
            self._count(pod)

    def add(self, pod: str, namespace: str, node: str, core: int, shown: str, *, by_count: bool = False) -> None:
        """Count `core` percent of a GPU on `node` for `pod` (a unique key); messages name the pod `shown`.

        `by_count`: it requests `nvidia.com/gpu` alone, which are parts of GPUs on some nodes.
        """
        use = _Use(namespace, node, core, shown, by_count)
        if self._uses.get(pod) == use:
            return
        self.remove(pod)
        self._uses[pod] = use
        self._of_node.setdefault(node, set()).add(pod)
        self._count(pod)

    def remove(self, pod: str) -> None:
        if pod not in self._uses:
            return
        self._uncount(pod)
        use = self._uses.pop(pod)
        pods = self._of_node[use.node]
        pods.discard(pod)
        if not pods:
            del self._of_node[use.node]

    def used(self, namespace: str, model: str, *, but: str = "") -> int:
        """Return the percent of a GPU that the namespace uses of `model`, without the pod `but`."""
        of = (namespace, model)
        return self._sums.get(of, 0) - self._of_model.get(of, {}).get(but, 0)

    def sums(self) -> dict[tuple[str, str], int]:
        """Return the percent of a GPU used, by (namespace, model)."""
        return dict(self._sums)

    def holders(self, namespace: str, model: str, *, but: str = "") -> list[tuple[str, int]]:
        """Return the pods with their use, the greatest first."""
        uses = self._of_model.get((namespace, model), {})
        found = [(self._uses[pod].shown, core) for pod, core in uses.items() if pod != but]
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def _count(self, pod: str) -> None:
        use = self._uses[pod]
        place = self.place(use.node)
        of, core = (use.namespace, place.model), place.worth(use.core, by_count=use.by_count)
        self._of_model.setdefault(of, {})[pod] = core
        self._sums[of] = self._sums.get(of, 0) + core

    def _uncount(self, pod: str) -> None:
        use = self._uses[pod]
        of = (use.namespace, self.place(use.node).model)
        self._sums[of] -= self._of_model[of].pop(pod)
        if not self._of_model[of]:
            del self._of_model[of], self._sums[of]


class QuotaVerdict(msgspec.Struct, frozen=True):
    """Why a pod may not use a node, with the use of the quota by other pods; no `reason` when it may.

    `passes`: it may when others of its namespace have gone.
    """

    reason: str = ""
    passes: bool = True


ALLOWED: Final = QuotaVerdict()


class QuotaCheck:
    """One pod against its namespace's quota, node by node; what is the same for many nodes is found out once."""

    def __init__(
        self,
        quota: NamespaceQuota | None,
        usage: QuotaUsage,
        namespace: str,
        pod: str,
        core: int,
        *,
        by_count: bool = False,
    ) -> None:
        self.unlimited = quota is None
        self._quota = quota
        self._usage = usage
        self._namespace = namespace
        self._pod = pod
        self._core = core
        self._by_count = by_count
        self._known: dict[QuotaPlace, QuotaVerdict] = {}

    def __call__(self, node: str) -> QuotaVerdict:
        """Return whether the pod may use the node."""
        if self._quota is None:
            return ALLOWED
        place = self._usage.place(node)
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = self._verdict(self._quota, place)
        return known

    def _verdict(self, quota: NamespaceQuota, place: QuotaPlace) -> QuotaVerdict:
        if quota.pools and place.pool not in quota.pools:
            return QuotaVerdict(f"{REASON}: namespace {self._namespace} may use GPU pool {_listed(quota.pools)}", False)
        if quota.models is None:
            return ALLOWED
        limit = quota.models.get(place.model)
        if limit is None:
            allowed = _listed(sorted(quota.models)) if quota.models else "no GPU"
            return QuotaVerdict(f"{REASON}: namespace {self._namespace} may use {allowed}", False)
        used = self._usage.used(self._namespace, place.model, but=self._pod)
        core = place.worth(self._core, by_count=self._by_count)
        if used + core <= limit:
            return ALLOWED
        text = f"{REASON}: namespace {self._namespace} uses {gpus(used)} of {gpus(limit)} {place.model}"
        holders = self._usage.holders(self._namespace, place.model, but=self._pod)
        named = [f"{name} {gpus(core)}" for name, core in holders[:_NAMED_HOLDERS]]
        if len(holders) > _NAMED_HOLDERS:
            named.append(f"{len(holders) - _NAMED_HOLDERS} more")
        who = f" ({' + '.join(named)})" if named else ""
        return QuotaVerdict(f"{text}{who}, and this pod asks {gpus(core)}", core <= limit)


def gpus(percent: int) -> str:
    """Format percent of a GPU as a number of GPUs: 2, 0.5."""
    return f"{percent / 100:g}"


def _listed(words: Iterable[str]) -> str:
    return " or ".join(words)
