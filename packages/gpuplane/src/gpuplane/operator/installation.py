"""The objects that `gpuplane install` applies: CRDs, accounts, the operator and a ClusterPolicy, in the order to apply.

The manifests below `install/` are the single source; nothing else says what an installation is. Its folders are parts
that the user asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec
from gpuplane.api.crds import crds
from gpuplane.api.validation import decode
from gpuplane.operator.autoscaler_install import (
    AutoscalerInstall,
    autoscaler_everything,
    autoscaler_manifests,
    is_of_nodes,
)
from gpuplane.operator.manifest import Manifest, parse
from gpuplane.operator.monitoring import KINDS, boards, monitor_exporter, monitoring_manifests
from kubekit.api.kinds import built_in
from kubekit.api.meta import Resource
from kubekit.documents import LONGEST_VALUE
from kubekit.errors import InvalidInput
from kubekit.yaml_documents import load_yaml

MANAGER: Final = "gpuplane-install"
POLICY_KIND: Final = "ClusterPolicy"


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Return where a manifest of the installation is served."""
    place = manifest["apiVersion"], manifest["kind"]
    policy = ClusterPolicy.RESOURCE
    return policy if place == (policy.api_version, policy.kind) else KINDS.get(place) or built_in(*place)


# Objects that the chart's hooks apply and remove by themselves.
ONLY: Final = {"crds": "CustomResourceDefinition", "policy": POLICY_KIND}
# Parts that uninstall may remove alone, besides these: the autoscaler with the nodes it bought, or these nodes alone.
REMOVED_ALONE: Final = (*ONLY, "autoscaler", "nodes")
# Parts that an installation may leave out, in the order to apply; what they share comes first.
PARTS: Final = ("shares", "scheduler", "admission")
# Parts that are left out unless asked for.
AUTOSCALER: Final = "autoscaler"
POD_SCHEDULER: Final = "pod-scheduler"
SCHEDULER_NAMING: Final = "scheduler-name"  # with both the pod scheduler and admission
MONITORING: Final = "monitoring"
DASHBOARD: Final = "dashboard"
ADMISSION: Final = {"open": "Ignore", "closed": "Fail"}  # by what is asked for: failurePolicy of webhooks on pods


def installation(
    *,
    image: str = "",
    settings: Iterable[str] = (),
    only: str | None = None,
    admission: str = "open",
    scheduler: bool = True,
    pod_scheduler: bool = False,
    autoscaler: AutoscalerInstall | None = None,
    monitoring: Mapping[str, str] | None = None,
    dashboard: Sequence[str] | None = None,
    dashboard_claim: str = "",
) -> list[Manifest]:
    """The manifests, or those of one kind: `only` is a key of ONLY, and `admission` one of ADMISSION, empty for none.
    `autoscaler` is None for none. `pod_scheduler`: the scheduler's process also schedules the pods that name it.
    `monitoring`: the labels by which Prometheus selects ServiceMonitors and rules; None for no monitoring objects.
    `dashboard`: names by which browsers reach the dashboard, besides its Service; None for no dashboard.
    `dashboard_claim`: the PersistentVolumeClaim of its store of sums; empty for a store that ends with its pod.

    `image` is what operator and operands run, this release's own when it is empty; `settings` are
    `path.to.field=value` of the policy's spec.

    Raises InvalidInput for a pod scheduler without the scheduler, for pods given to a pod scheduler that is not
    installed, for a setting without a value, and with every finding
    for settings that no ClusterPolicy has: the API server would drop them in silence.
    """
    if pod_scheduler and not scheduler:
        raise InvalidInput(
            "the pod scheduler runs in the scheduler's process",
            where="--pod-scheduler",
            cure="leave out --no-scheduler",
        )
    wanted = crds() + manifests()
    asked = {"shares": bool(admission or scheduler), "scheduler": scheduler, "admission": bool(admission)}
    for part in PARTS:
        wanted += manifests(part) if asked[part] else []
    wanted += manifests(POD_SCHEDULER) if pod_scheduler else []
    names_schedulers = pod_scheduler and bool(admission)
    wanted += manifests(SCHEDULER_NAMING) if names_schedulers else []
    wanted += autoscaler_manifests(manifests(AUTOSCALER), autoscaler) if autoscaler is not None else []
    wanted += manifests(DASHBOARD) if dashboard is not None else []
    if monitoring is not None:
        asked |= {AUTOSCALER: autoscaler is not None}
        parts = ["gpu-operator", *(f"gpuplane-{part}" for part, there in asked.items() if there)]
        wanted += monitoring_manifests(manifests(MONITORING), monitoring, parts)
    for manifest in wanted:
        if manifest["kind"] == "Deployment":
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["image"] = image or names.IMAGE
                named = pod_scheduler and container["name"] == names.EXTENDER_NAME
                if named or (names_schedulers and container["name"] == names.ADMISSION_NAME):
                    container["args"].append(f"--scheduler-name={names.SCHEDULER_NAME}")
                if container["name"] == names.DASHBOARD_NAME:
                    container["args"] += [f"--host={host}" for host in dashboard or ()]
                    if dashboard_claim:
                        volume = {"name": "history", "persistentVolumeClaim": {"claimName": dashboard_claim}}
                        manifest["spec"]["template"]["spec"]["volumes"] = [volume]
                for variable in container.get("env", ()):
                    if variable["name"] == "GPUPLANE_IMAGE":
                        variable["value"] = container["image"]
        if manifest["kind"] == "ValidatingAdmissionPolicy":
            for variable in manifest["spec"].get("variables", ()):
                if variable["name"] == "image":
                    variable["expression"] = f"'{repository(image or names.IMAGE)}'"
        for webhook in manifest.get("webhooks", ()):
            if webhook["name"].startswith("pods."):
                webhook["failurePolicy"] = ADMISSION[admission]
        if manifest["kind"] == POLICY_KIND:
            if monitoring is not None:
                monitor_exporter(manifest["spec"], monitoring)
            for setting in settings:
                _set(manifest["spec"], setting)
            if decode(ClusterPolicy, manifest).spec.operator.set_scheduler_name and not names_schedulers:
                raise InvalidInput(
                    "the pod scheduler or the webhook that gives pods to it is not installed",
                    where="--set operator.setSchedulerName",
                    cure="--pod-scheduler, and --admission open or closed",
                )
    return [manifest for manifest in wanted if only is None or manifest["kind"] == ONLY[only]]


def repository(image: str) -> str:
    """Return an image's name without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def everything() -> list[Manifest]:
    """All that an installation may have put on a cluster, in the order to apply."""
    names_of_parts = (*PARTS, POD_SCHEDULER, SCHEDULER_NAMING, MONITORING, DASHBOARD)
    parts = (manifest for part in names_of_parts for manifest in manifests(part))
    return [*crds(), *manifests(), *parts, *boards(), *autoscaler_everything(manifests(AUTOSCALER))]


def removals(only: str | None = None) -> list[Manifest]:
    """All that `uninstall` takes away, in its order. `only` is one of REMOVED_ALONE."""
    wanted = everything()
    if only == "nodes":
        wanted = [manifest for manifest in wanted if is_of_nodes(manifest)]
    elif only == AUTOSCALER:
        wanted = autoscaler_everything(manifests(AUTOSCALER))
    elif only is not None:
        wanted = [manifest for manifest in wanted if manifest["kind"] == ONLY[only]]
    return wanted[::-1]


def manifests(part: str = "") -> list[Manifest]:
    """Those of one folder, in the order to apply."""
    folder = resources.files(__package__).joinpath("install", part)
    entries = sorted((entry for entry in folder.iterdir() if entry.is_file()), key=lambda entry: entry.name)
    return [document for entry in entries for document in parse(entry.read_text())]


def _set(spec: Manifest, setting: str) -> None:
    path, equals, value = setting.partition("=")
    if not equals or not path:
        raise InvalidInput(
            f"{setting!r} sets nothing",
            where="--set",
            cure="--set driver.enabled=false: a path, an equals sign, a value",
        )
    *parents, last = path.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
        if not isinstance(spec, dict):
            raise InvalidInput(f"{parent} in {path} is no group of fields", where="--set")
    read = load_yaml(value, where=f"--set {path}", limit=LONGEST_VALUE)
    # What YAML reads as a number may be the text of a version: driver.version=535.
    text = isinstance(read, int | float) and not isinstance(read, bool) and _is_text(path.split("."))
    spec[last] = value if text else read


def _is_text(path: Sequence[str]) -> bool:
    """Return whether the field of a ClusterPolicy's spec is text; False for a field that there is not."""
    found: Any = msgspec.inspect.type_info(ClusterPolicySpec)
    for name in path:
        fields = {field.encode_name: field.type for kind in _kinds(found) for field in getattr(kind, "fields", ())}
        if name not in fields:
            return False
        found = fields[name]
    kinds = list(_kinds(found))
    numbers = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
    return any(isinstance(kind, msgspec.inspect.StrType) for kind in kinds) and not any(
        isinstance(kind, numbers) for kind in kinds
    )


def _kinds(found: Any) -> Iterator[Any]:
    """Yield the types that a field may have, without their marks."""
    if isinstance(found, msgspec.inspect.Metadata):
        yield from _kinds(found.type)
    elif isinstance(found, msgspec.inspect.UnionType):
        for one in found.types:
            yield from _kinds(one)
    else:
        yield found
