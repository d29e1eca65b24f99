"""From a ClusterPolicy to the objects that shall exist: the plain YAML of `operands/` with the policy's values in it.

The YAML reads as it ships; nothing in it is a template. Fields that a policy can change are changed here, one by one;
parts that it can add to a pod are YAML too (`gpuplane.operator.manifest.add_part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.components import Component
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.operator.driver_sets import GROUP_LABEL, Keys, for_group
from gpuplane.operator.drivers import DriverChoice, DriverGroup
from gpuplane.operator.exporter_objects import (
    MONITOR_FILE,
    PRIVILEGED_FILE,
    SERVICE_FILE,
    shape_daemonset,
    shape_monitor,
    shape_service,
)
from gpuplane.operator.gates import REMOVING
from gpuplane.operator.manifest import Manifest, load, set_env
from gpuplane.operator.observed import COMPONENT_LABEL, DRIVER
from gpuplane.operator.plugin_objects import FOLLOWERS, shape_follower
from gpuplane.operator.share_objects import share_objects
from gpuplane.operator.stages import OPERANDS, Operand
from gpuplane.operator.taints import EVERYTHING, tolerations
from gpuplane.operator.upgrade.templates import seal
from gpuplane.operator.validator_objects import shape_validator
from kubekit.api.core import Toleration
from kubekit.api.meta import to_dict

MANAGER: Final = names.FIELD_MANAGER_PREFIX + "operator"
NAME_LABEL: Final = "app.kubernetes.io/name"
DRIVER_IMAGE: Final = "0210-driver-image.yaml"
DEFAULT_PRIORITY: Final = "system-node-critical"
OWN_IMAGE: Final = "gpuplane/gpuplane"  # in the YAML, where the operator puts its own
DISCOVERY: Final = "0100-node-feature-discovery.yaml"
RUNTIME_CLASSES: Final = "0010-runtime-classes.yaml"
REMOVAL: Final = "-removal"


def enabled_gates(spec: ClusterPolicySpec) -> frozenset[str]:
    """The gates that the policy wants.

    The driver's operand runs with `driver.enabled: false` too: it then only looks for the host's own driver.
    """
    switched = {operand.gate: getattr(spec, operand.component).enabled for operand in OPERANDS if _switchable(operand)}
    return frozenset(operand.gate for operand in OPERANDS if switched.get(operand.gate, True))


def _switchable(operand: Operand) -> bool:
    return operand.component not in ("driver", "validator")


def manifests(
    spec: ClusterPolicySpec,
    groups: Mapping[DriverGroup, DriverChoice],
    removing: Iterable[str] = (),
    *,
    image: str,
    owner: Manifest,
    keys: Keys | None = None,
    monitored: bool = False,
    shared: bool = False,
    tainted: Iterable[str] = (),
    pools: Iterable[DeclaredPool] = (),
) -> list[Manifest]:
    """Everything that shall exist under this policy, in the order in which to apply it.

    `groups` are the driver groups with what each gets, `keys` those of the ConfigMaps that driver images mount,
    `monitored` whether exporter and shares get ServiceMonitors, `shared` whether a node offers shares,
    `tainted` the keys of `taints.seen_keys`,
    `pools` the node pools whose taints operands tolerate. `removing` are the gates that some node has at `removing`;
    their DaemonSets undo the operand's work. These are not owned by the
    policy: garbage collection must not take them while a policy is deleted with its dependents first.
    """
    wanted = [*load(RUNTIME_CLASSES), *(load(DISCOVERY) if spec.nfd.enabled else ())]
    for operand in OPERANDS:
        if operand.gate in removing:
            wanted += [_removal(manifest) for manifest in load(operand.manifest)]
    gates = enabled_gates(spec)
    for operand in OPERANDS:
        if operand.gate not in gates:
            continue
        if operand.gate == "driver":
            for group, choice in sorted(groups.items()):
                own, theirs = load(operand.manifest)[0], load(DRIVER_IMAGE)[0]
                wanted.append(for_group(own, theirs, group, choice, keys or {}))
        else:
            wanted += load(operand.manifest)
        if operand.component == "device_plugin" and shared:
            wanted += share_objects(spec, monitored=monitored)
        if operand.component == "dcgm_exporter":
            wanted += load(PRIVILEGED_FILE)
            wanted.append(shape_service(load(SERVICE_FILE)[0], spec))
            monitor = spec.dcgm_exporter.service_monitor
            if monitored and monitor is not None:
                wanted.append(shape_monitor(load(MONITOR_FILE)[0], monitor))
    allowed = tolerations(tainted, pools)
    for manifest in wanted:
        if manifest["kind"] == "DaemonSet":
            _tolerate(manifest, allowed)
    return [_customized(manifest, spec, image=image, owner=owner) for manifest in wanted]


def _removal(manifest: Manifest) -> Manifest:
    """The DaemonSet that undoes an operand's work where its gate says `removing`."""
    name = manifest["metadata"]["name"] + REMOVAL
    spec = manifest["spec"]
    pod = spec["template"]["spec"]
    gate = manifest["metadata"]["labels"][COMPONENT_LABEL]
    manifest["metadata"]["name"] = name
    for labels in (
        manifest["metadata"]["labels"],
        spec["selector"]["matchLabels"],
        spec["template"]["metadata"]["labels"],
    ):
        labels[NAME_LABEL] = name
    pod["nodeSelector"] = {names.DEPLOY_PREFIX + gate: REMOVING}
    pod["containers"][0]["args"].append("--uninstall")
    return manifest


def _tolerate(manifest: Manifest, allowed: Sequence[Toleration]) -> None:
    """Let an operand's pods run on nodes with taints. Pods that undo an operand's work run on every node."""
    if manifest["metadata"]["labels"].get(COMPONENT_LABEL) not in {operand.gate for operand in OPERANDS}:
        return
    wanted = (EVERYTHING,) if is_removal(manifest) else allowed
    pod = manifest["spec"]["template"]["spec"]
    pod["tolerations"] = [*map(to_dict, wanted), *pod.get("tolerations", ())]


def is_removal(manifest: Manifest) -> bool:
    """Return whether a manifest is of a DaemonSet that undoes an operand's work."""
    name: str = manifest["metadata"]["name"]
    return manifest["kind"] == "DaemonSet" and name.endswith(REMOVAL)


def _customized(manifest: Manifest, spec: ClusterPolicySpec, *, image: str, owner: Manifest) -> Manifest:
    meta = manifest["metadata"]
    if not is_removal(manifest):
        meta["ownerReferences"] = [owner]
    meta["labels"] = {**spec.operator.labels, **meta["labels"]}
    if spec.operator.annotations:
        meta["annotations"] = {**meta.get("annotations", {}), **spec.operator.annotations}
    if manifest["kind"] not in ("DaemonSet", "Deployment"):
        return manifest
    meta["namespace"] = names.OPERATOR_NAMESPACE
    if manifest["kind"] == "DaemonSet":
        manifest["spec"]["updateStrategy"] = _update_strategy(spec, manifest["spec"]["updateStrategy"])
    template = manifest["spec"]["template"]
    pod = template["spec"]
    _shared(template, spec)
    component = next((o.component for o in OPERANDS if o.gate == meta["labels"][COMPONENT_LABEL]), "")
    if GROUP_LABEL in meta["labels"]:
        component = ""  # a driver's own fields are in already, the ClusterPolicy's or an NVIDIADriver's
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        if container["image"] == OWN_IMAGE:
            container["image"] = image
        container["terminationMessagePolicy"] = "FallbackToLogsOnError"
        container["args"] = [_host_path(argument, spec) for argument in container["args"]]
        if component:
            _component(pod, container, getattr(spec, component))
    if component in FOLLOWERS:
        shape_follower(manifest, spec)
    nri = meta["labels"][COMPONENT_LABEL] in ("container-toolkit", "device-plugin") and spec.cdi.nri_plugin_enabled
    if nri and not is_removal(manifest):
        for container in pod["containers"]:
            if all(entry["name"] != names.NRI_ENV for entry in container["env"]):  # the component's own env goes before
                set_env(container, names.NRI_ENV, "true")
    if component == "dcgm_exporter":
        shape_daemonset(manifest, spec)
    if component == "validator":
        shape_validator(manifest, spec)
    if meta["labels"][COMPONENT_LABEL] == DRIVER and not is_removal(manifest):
        seal(manifest, image)
    return manifest


def _shared(template: Manifest, spec: ClusterPolicySpec) -> None:
    """Apply `daemonsets` and `hostPaths` to an operand's pods."""
    common, pod = spec.daemonsets, template["spec"]
    template["metadata"]["labels"] = {**spec.operator.labels, **common.labels, **template["metadata"]["labels"]}
    own = template["metadata"].get("annotations", {})
    if annotations := {**spec.operator.annotations, **common.annotations, **own}:
        template["metadata"]["annotations"] = annotations
    pod["tolerations"] += [to_dict(toleration) for toleration in common.tolerations]
    theirs = GROUP_LABEL in template["metadata"]["labels"] and pod["priorityClassName"] != DEFAULT_PRIORITY
    if common.priority_class_name and not theirs:
        pod["priorityClassName"] = common.priority_class_name
    if common.pod_security_context:
        pod["securityContext"] = pod.get("securityContext", {}) | common.pod_security_context
    for volume in pod.get("volumes", ()):
        if volume["name"] == "host":
            volume["hostPath"]["path"] = spec.host_paths.root_fs or "/"


def _host_path(argument: str, spec: ClusterPolicySpec) -> str:
    flag = "--kubelet-dir="
    return f"{flag}/host{spec.host_paths.kubelet_root_dir}" if argument.startswith(flag) else argument


def _component(pod: Manifest, container: Manifest, component: Component) -> None:
    """Apply one component of the policy to its pod: env, resources, network, image pull."""
    for variable in component.env:
        set_env(container, variable.name, variable.value)
    if component.image_pull_policy:
        container["imagePullPolicy"] = component.image_pull_policy
    if component.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in component.image_pull_secrets]
    if component.resources is not None:
        container["resources"] = to_dict(component.resources)
    if component.host_network is not None:
        pod["hostNetwork"] = component.host_network


def _update_strategy(spec: ClusterPolicySpec, default: Manifest) -> Manifest:
    if spec.daemonsets.update_strategy == "OnDelete":
        return {"type": "OnDelete"}
    rolling = spec.daemonsets.rolling_update
    limit = rolling.max_unavailable if rolling is not None else None
    if limit is None or limit == "":
        return default
    # NB: Kubernetes reads a text as a percentage only; NVIDIA's chart has "1".
    number = int(limit) if isinstance(limit, str) and limit.isdigit() else limit
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": number}}
