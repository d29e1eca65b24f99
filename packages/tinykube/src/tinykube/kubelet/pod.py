"""Pods as a kubelet reads them: wider than the components' own view, since a kubelet runs every field it knows.

Invariant: what the simulated kubelet does not do stands nowhere here, so that an unknown field is skipped, never
half obeyed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field

from kubekit.api.core import PodStatus, Resources
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.api.quantity import Quantity, parse_quantity


class KeyRef(Struct):
    """One key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class FieldRef(Struct):
    field_path: str
    api_version: str = "v1"


class ResourceFieldRef(Struct):
    resource: str
    container_name: str = ""
    divisor: str | int = "1"


class EnvSource(Struct):
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class KubeletEnvVar(Struct):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class NamedRef(Struct):
    name: str = ""
    optional: bool = False


class EnvFrom(Struct):
    prefix: str = ""
    config_map_ref: NamedRef | None = None
    secret_ref: NamedRef | None = None


class VolumeMount(Struct):
    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""


class Exec(Struct):
    command: tuple[str, ...] = ()


class Header(Struct):
    name: str
    value: str


class HTTPGet(Struct):
    port: int | str
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[Header, ...] = ()


class TCPSocket(Struct):
    port: int | str
    host: str = ""


class GRPCAction(Struct):
    port: int
    service: str = ""


class KubeletProbe(Struct):
    """Times in seconds. Exactly one of the handlers is set (the API server validates it)."""

    exec: Exec | None = None
    http_get: HTTPGet | None = None
    tcp_socket: TCPSocket | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3


class Sleep(Struct):
    seconds: int = 0


class LifecycleHandler(Struct):
    """One of them is set. The API has `tcpSocket` too, which kubelets ignore."""

    exec: Exec | None = None
    http_get: HTTPGet | None = None
    sleep: Sleep | None = None


class Lifecycle(Struct):
    pre_stop: LifecycleHandler | None = None
    post_start: LifecycleHandler | None = None


class ContainerPort(Struct):
    container_port: int
    name: str = ""
    host_port: int = 0  # no two pods of a node have it; the service proxy listens there
    host_ip: str = field(name="hostIP", default="")
    protocol: str = "TCP"


class Capabilities(Struct):
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SecurityContext(Struct):
    """Of a container; the pod's own knows the first three and fs_group."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool = False
    capabilities: Capabilities = Capabilities()
    allow_privilege_escalation: bool | None = None
    read_only_root_filesystem: bool = False


class Sysctl(Struct):
    """A parameter of the kernel, as in /proc/sys."""

    name: str
    value: str


class PodSecurityContext(Struct):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    fs_group: int | None = None
    fs_group_change_policy: str = "Always"
    sysctls: tuple[Sysctl, ...] = ()


class ContainerClaim(Struct):
    """A claim of the pod that a container uses: all of it, or the devices of one request."""

    name: str
    request: str = ""


class ContainerResources(Resources):
    claims: tuple[ContainerClaim, ...] = ()


class ResizePolicy(Struct):
    """A rule for resizes of CPU or memory: NotRequired, or RestartContainer."""

    resource_name: str
    restart_policy: str = "NotRequired"


class SpecContainer(Struct):
    name: str
    image: str = ""
    image_pull_policy: str = "IfNotPresent"
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[KubeletEnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ContainerResources = ContainerResources()
    volume_mounts: tuple[VolumeMount, ...] = ()
    liveness_probe: KubeletProbe | None = None
    readiness_probe: KubeletProbe | None = None
    startup_probe: KubeletProbe | None = None
    lifecycle: Lifecycle = Lifecycle()
    security_context: SecurityContext = SecurityContext()
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"
    restart_policy: str | None = None  # of init containers: "Always" makes a sidecar
    resize_policy: tuple[ResizePolicy, ...] = ()
    target_container_name: str = ""  # of ephemeral containers

    @property
    def sidecar(self) -> bool:
        return self.restart_policy == "Always"


class HostPath(Struct):
    path: str
    type: str = ""


class MountedConfigMap(Struct):
    """A ConfigMap. `binary_data` is decoded from base64 by msgspec."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "ConfigMap")

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


class KeyToPath(Struct):
    key: str
    path: str
    mode: int | None = None


class ConfigMapVolume(Struct):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class SecretVolume(Struct):
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class DownwardItem(Struct):
    path: str
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    mode: int | None = None


class DownwardVolume(Struct):
    items: tuple[DownwardItem, ...] = ()
    default_mode: int = 0o644


class TokenSource(Struct):
    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class ProjectedSecret(Struct):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class Projection(Struct):
    service_account_token: TokenSource | None = None
    config_map: ConfigMapVolume | None = None
    secret: ProjectedSecret | None = None
    downward_api: DownwardVolume | None = field(name="downwardAPI", default=None)


class ProjectedVolume(Struct):
    sources: tuple[Projection, ...] = ()
    default_mode: int = 0o644


class VolumeByClaim(Struct):
    claim_name: str
    read_only: bool = False


class EmptyDir(Struct):
    """`medium` is "" for the disk, or Memory."""

    medium: str = ""
    size_limit: str | int | None = None


class ImageVolume(Struct):
    reference: str = ""
    pull_policy: str = "IfNotPresent"


class KubeletVolume(Struct):
    """Exactly one source is set; a kind of volume that is not here leaves none set, and the pod says so in an event."""

    name: str
    host_path: HostPath | None = None
    empty_dir: EmptyDir | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    projected: ProjectedVolume | None = None
    downward_api: DownwardVolume | None = field(name="downwardAPI", default=None)
    persistent_volume_claim: VolumeByClaim | None = None
    ephemeral: dict[str, Any] | None = None
    image: ImageVolume | None = None


class PodResourceClaim(Struct):
    """A resource claim of the pod: a named one, or one made from a template."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class HostAlias(Struct):
    ip: str
    hostnames: tuple[str, ...] = ()


class DNSOption(Struct):
    name: str = ""
    value: str | None = None


class PodDNSConfig(Struct):
    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[DNSOption, ...] = ()


class KubeletPodSpec(Struct):
    node_name: str = ""
    containers: tuple[SpecContainer, ...] = ()
    init_containers: tuple[SpecContainer, ...] = ()
    ephemeral_containers: tuple[SpecContainer, ...] = ()
    volumes: tuple[KubeletVolume, ...] = ()
    restart_policy: str = "Always"
    service_account_name: str = "default"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    security_context: PodSecurityContext = PodSecurityContext()
    runtime_class_name: str | None = None
    hostname: str = ""
    host_pid: bool = field(name="hostPID", default=False)
    host_ipc: bool = field(name="hostIPC", default=False)
    share_process_namespace: bool = False
    host_network: bool = False
    host_aliases: tuple[HostAlias, ...] = ()
    subdomain: str = ""
    enable_service_links: bool = True
    dns_policy: str = "ClusterFirst"
    dns_config: PodDNSConfig = PodDNSConfig()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    resources: Resources = Resources()
    overhead: dict[str, Quantity] = {}
    priority: int = 0


class PodMeta(ObjectMeta):
    deletion_grace_period_seconds: int | None = None


class PodClaimStatus(Struct):
    """The claim that was made from a template; None where none is needed."""

    name: str
    resource_claim_name: str | None = None


class KubeletPodStatus(PodStatus):
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


class KubeletPod(Struct):
    RESOURCE: ClassVar[Resource] = built_in("v1", "Pod")

    metadata: PodMeta = PodMeta()
    spec: KubeletPodSpec = KubeletPodSpec()
    status: KubeletPodStatus = KubeletPodStatus()

    @property
    def grace_seconds(self) -> int:
        """Return how long a stop may take: by the deletion, else by the pod's spec."""
        asked = self.metadata.deletion_grace_period_seconds
        return self.spec.termination_grace_period_seconds if asked is None else asked


def all_containers(pod: KubeletPod) -> tuple[SpecContainer, ...]:
    """Init containers first: the order of admission."""
    return pod.spec.init_containers + pod.spec.containers


def every_container(pod: KubeletPod) -> tuple[SpecContainer, ...]:
    """Those of `all_containers`, then the ephemeral ones, which have no devices."""
    return all_containers(pod) + pod.spec.ephemeral_containers


def memory_limit(container: SpecContainer) -> int | None:
    """Return a container's limit of memory in bytes; None without one."""
    limit = container.resources.limits.get("memory")
    return None if limit is None else int(parse_quantity(limit))


def memory_size(volume: EmptyDir, pod: KubeletPod, allocatable: str) -> int:
    """Return how many bytes a volume in memory holds: the least of its limit, the pod's and what the node has.

    Source: calculateEmptyDirMemorySize of Kubernetes 1.36.
    """
    limits = [memory_limit(container) for container in pod.spec.containers]
    known = [limit for limit in limits if limit is not None]
    sizes = [int(parse_quantity(allocatable)), int(parse_quantity(volume.size_limit or 0))]
    sizes += [sum(known)] if len(known) == len(limits) else []
    return min((size for size in sizes if size > 0), default=0)


def passing(pod: KubeletPod) -> frozenset[str]:
    """Return the names of the init containers that end before the next container starts."""
    return frozenset(container.name for container in pod.spec.init_containers if not container.sidecar)
