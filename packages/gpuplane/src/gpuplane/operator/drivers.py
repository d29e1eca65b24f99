"""Chooses the driver of each node: from the ClusterPolicy, or from NVIDIADriver objects, one for each pool of nodes.
Pure.

With `driver.useNvidiaDriverCRD` an NVIDIADriver has the nodes that its nodeSelector matches, and the one with
`default: true` those that no other matches. A node that several match stays with the one that it has, else it goes to
the oldest; the others say so in their condition Error and are in force everywhere else. Which one a node has stands in
its label `nvidia.com/gpu-operator.driver.owner`, by which the DaemonSets select.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.components import Env, Image, ProbeTiming, Rdma, Tolerations
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.operator.policy import has_gpus
from kubekit.api.core import Node, Resources

# Images of these carry the major version only in their tags.
_MAJOR_ONLY: Final = frozenset(("rhel", "rocky", "ol"))
LONGEST_NAME: Final = 39  # with `nvidia-driver-daemonset-` a label's value


class DriverChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One administrator's choice of a driver; `owner` is the NVIDIADriver's name, empty for the ClusterPolicy's.

    The names of ConfigMaps and Secrets are empty for none. `problem` says why it cannot be in force.
    """

    owner: str = ""
    created: str = ""
    default: bool = False
    selector: Mapping[str, str] = {}
    enabled: bool = True
    source: Image = Image()
    precompiled: bool = False
    modules: str = "auto"
    rdma: Rdma | None = None
    startup_probe: ProbeTiming | None = None
    module_config: str = ""
    repo_config: str = ""
    cert_config: str = ""
    license_secret: str = ""
    license_config: str = ""
    license_token: bool = True
    topology_config: str = ""
    secret_env: str = ""
    env: Env = ()
    args: tuple[str, ...] = ()
    resources: Resources | None = None
    host_network: bool | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    tolerations: Tolerations = ()
    priority_class: str = ""
    affinity: Mapping[str, Any] = {}
    security_context: Mapping[str, Any] = {}
    problem: str = ""

    @property
    def own_image(self) -> bool:
        """Return whether our image runs alone: no driver image is named, or no driver is to be installed."""
        return not self.enabled or not (self.source.repository or self.source.image)

    @property
    def by_kernel(self) -> bool:
        """Return whether nodes with different kernels need different DaemonSets."""
        return self.own_image or self.precompiled

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels is selected."""
        return all(labels.get(name) == value for name, value in self.selector.items())


class DriverGroup(msgspec.Struct, frozen=True, order=True):
    """Nodes that can share one driver: same OS, same kernel where the driver is made for one, same choice.

    `os` is "ubuntu", `version` "22.04", or the major version where images carry no other; `kernel` is empty where it
    does not matter; `owner` as in DriverChoice.
    """

    os: str
    version: str
    kernel: str
    owner: str = ""

    @property
    def tag(self) -> str:
        """The OS part of an image's tag, as ubuntu22.04 or rhel9."""
        return f"{self.os}{self.version}"

    @property
    def name(self) -> str:
        """For the DaemonSet's name: lower case, at most LONGEST_NAME characters, a digest where it had to be cut."""
        text = "-".join(filter(None, (self.owner, self.kernel, self.tag)))
        text = re.sub(r"[^a-z0-9.-]+", "-", text.lower())
        if len(text) <= LONGEST_NAME:
            return text.strip("-.")
        return text[: LONGEST_NAME - 7].strip("-.") + "-" + hashlib.sha256(text.encode()).hexdigest()[:6]


class DriverAssignment(msgspec.Struct, frozen=True):
    """The choice of each node, by the node's name; and for each owner its refused nodes, in words."""

    owners: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}

    def of(self, owner: str) -> list[str]:
        """The names of an owner's nodes."""
        return sorted(name for name, other in self.owners.items() if other == owner)


def choices(spec: ClusterPolicySpec, drivers: Iterable[NVIDIADriver]) -> list[DriverChoice]:
    """The choices in force, oldest first."""
    if not spec.driver.use_nvidia_driver_crd:
        return [of_policy(spec)]
    living = [driver for driver in drivers if not driver.metadata.deletion_timestamp]
    found = [of_driver(driver, enabled=spec.driver.enabled) for driver in living]
    return sorted(found, key=lambda choice: (choice.created, choice.owner))


def of_policy(spec: ClusterPolicySpec) -> DriverChoice:
    driver = spec.driver
    licensing = driver.licensing_config
    return DriverChoice(
        enabled=driver.enabled,
        source=driver,
        precompiled=driver.use_precompiled,
        modules=driver.kernel_module_type,
        rdma=driver.rdma,
        startup_probe=driver.startup_probe,
        module_config=_name(driver.kernel_module_config),
        repo_config=driver.repo_config.config_map_name if driver.repo_config is not None else "",
        cert_config=_name(driver.cert_config),
        license_secret=licensing.secret_name if licensing is not None else "",
        license_config=licensing.config_map_name if licensing is not None else "",
        license_token=licensing is None or licensing.nls_enabled is not False,
        topology_config=driver.virtual_topology.config if driver.virtual_topology is not None else "",
        secret_env=driver.secret_env,
        env=driver.env,
        args=driver.args,
        resources=driver.resources,
        host_network=driver.host_network,
        problem=_problem(driver, driver.use_precompiled) if driver.enabled else "",
    )


def of_driver(obj: NVIDIADriver, *, enabled: bool = True) -> DriverChoice:
    driver = obj.spec
    licensing = driver.licensing_config
    problem = _problem(driver, bool(driver.use_precompiled))
    if driver.driver_type != "gpu" and not driver.repository and not driver.image:
        problem = f"driverType {driver.driver_type} needs an image of yours: repository, image and version"
    return DriverChoice(
        owner=obj.metadata.name,
        created=obj.metadata.creation_timestamp,
        default=driver.default,
        selector=driver.node_selector,
        enabled=enabled,
        source=driver,
        precompiled=bool(driver.use_precompiled),
        modules=driver.kernel_module_type,
        rdma=driver.rdma,
        startup_probe=driver.startup_probe,
        module_config=_name(driver.kernel_module_config),
        repo_config=_name(driver.repo_config),
        cert_config=_name(driver.cert_config),
        license_secret=licensing.secret_name if licensing is not None else "",
        license_config=licensing.name if licensing is not None else "",
        license_token=licensing is None or licensing.nls_enabled is not False,
        topology_config=_name(driver.virtual_topology_config),
        secret_env=driver.secret_env,
        env=driver.env,
        args=driver.args,
        resources=driver.resources,
        host_network=driver.host_network,
        labels=driver.labels,
        annotations=driver.annotations,
        tolerations=driver.tolerations,
        priority_class=driver.priority_class_name,
        affinity=driver.node_affinity,
        security_context=driver.pod_security_context,
        problem=problem if enabled else "",
    )


def _name(config: Any) -> str:
    return config.name if config is not None else ""


def _problem(source: Image, precompiled: bool) -> str:
    """Return the error in the fields that make an image's name."""
    if source.image and not source.repository and not source.version:
        return "usePrecompiled needs repository, image and version apart" if precompiled else ""
    if (source.repository or source.image) and not (source.repository and source.image and source.version):
        return "repository, image and version go together: set all three, or only version for gpuplane's own installer"
    if precompiled and source.version.startswith("sha256:"):
        return "usePrecompiled needs a driver branch as version, for the tag is made with each kernel"
    return ""


def image_of(choice: DriverChoice, group: DriverGroup) -> str:
    """The driver image of a group, as nvcr.io/nvidia/driver:570.133.20-ubuntu22.04; empty for our own."""
    source = choice.source
    if choice.own_image:
        return ""
    if not source.repository:
        whole = source.image
    elif source.version.startswith("sha256:"):
        whole = f"{source.repository}/{source.image}@{source.version}"
    else:
        whole = f"{source.repository}/{source.image}:{source.version}"
    if "sha256:" in whole:
        return whole
    return "-".join(filter(None, (whole, group.kernel if choice.precompiled else "", group.tag)))


def _taken(labels: Mapping[str, str], found: Sequence[DriverChoice]) -> list[str]:
    """The owners that a node may have, oldest first; the one that it has stands in front."""
    taken = [choice.owner for choice in found if not choice.default and choice.takes(labels)]
    taken = taken or [choice.owner for choice in found if choice.default]
    before = labels.get(names.DRIVER_OWNER_LABEL, "")
    return sorted(taken, key=lambda owner: owner != before)


def owner_of(labels: Mapping[str, str], found: Sequence[DriverChoice]) -> str | None:
    """Return the name of the choice whose driver a node with these labels has; None without one."""
    return next(iter(_taken(labels, found)), None)


def assign(nodes: Iterable[Node], found: Sequence[DriverChoice]) -> DriverAssignment:
    """Give each GPU node its choice. A choice with a problem keeps its nodes, so that nothing else comes upon them."""
    owners: dict[str, str] = {}
    contested: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        if not has_gpus(node.metadata.labels):
            continue
        for place, other in enumerate(_taken(node.metadata.labels, found)):
            owner = owners.setdefault(node.metadata.name, other)
            if place:
                contested.setdefault(other, {}).setdefault(owner, []).append(node.metadata.name)
    refused = {
        other: "; ".join(f"NVIDIADriver {owner} has {_listed(sorted(of))}" for owner, of in sorted(lost.items()))
        for other, lost in contested.items()
    }
    return DriverAssignment(owners, refused)


def _listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ("node " if len(found) == 1 else "nodes ") + ", ".join(found[:3]) + more


def group_of(node: Node, choice: DriverChoice) -> DriverGroup | None:
    """The group of a node; None while discovery has not said what its system is."""
    labels = node.metadata.labels
    system, version = labels.get(names.OS_ID_LABEL), labels.get(names.OS_VERSION_LABEL, "")
    kernel = labels.get(names.KERNEL_VERSION_LABEL)
    if not system or not kernel or not has_gpus(labels):
        return None
    if not choice.own_image and system in _MAJOR_ONLY:
        version = version.partition(".")[0]
    return DriverGroup(system, version, kernel if choice.by_kernel else "", choice.owner)


def driver_groups(
    nodes: Iterable[Node], found: Sequence[DriverChoice], assignment: DriverAssignment
) -> dict[DriverGroup, DriverChoice]:
    """The groups of all nodes, each with its choice; none for a choice with a problem."""
    by_owner = {choice.owner: choice for choice in found}
    groups: dict[DriverGroup, DriverChoice] = {}
    for node in nodes:
        choice = by_owner.get(assignment.owners.get(node.metadata.name, ""))
        group = group_of(node, choice) if choice is not None and not choice.problem else None
        if choice is not None and group is not None:
            groups[group] = choice
    return groups


def why_none(owner: str | None, found: Sequence[DriverChoice]) -> tuple[str, str, str]:
    """(reason, message, cure) why there is no driver's DaemonSet for a node of `owner`; empty texts when there is."""
    if owner is None:
        return "NoDriverForNode", "no NVIDIADriver selects this node", "an NVIDIADriver with default: true"
    problem = next((choice.problem for choice in found if choice.owner == owner), "")
    if not problem:
        return "", "", ""
    where = f"NVIDIADriver {owner} spec" if owner else "ClusterPolicy spec.driver"
    return "DriverImageInvalid", f"{where}: {problem}", where
