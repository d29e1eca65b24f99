"""The built-in kinds that clients read, as narrow Structs, and where each is served.

Invariants:

- Narrow: a field stands here because some component reads it. Decoding skips the rest (see `kubekit.api.meta`).
- `kind` and `apiVersion` are no fields: items of a list come without them. The client adds both from RESOURCE.
- A field that Go serialises as null (`eventTime`, `lastTimestamp`) admits None; all others are absent when empty.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field

from kubekit.api.kinds import built_in
from kubekit.api.meta import Condition, ObjectMeta, Resource, Struct
from kubekit.api.quantity import Quantity

# -- parts shared by several kinds ---------------------------------------------------------------------------------


class ObjectReference(Struct):
    kind: str = ""
    api_version: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class LabelSelectorRequirement(Struct):
    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist
    values: tuple[str, ...] = ()


class LabelSelector(Struct):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class Toleration(Struct):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Resources(Struct):
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class EnvVar(Struct):
    name: str
    value: str = ""


# -- Node ----------------------------------------------------------------------------------------------------------


class Taint(Struct):
    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(Struct):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    provider_id: str = field(name="providerID", default="")


class NodeAddress(Struct):
    type: str
    address: str


class DaemonEndpoint(Struct):
    port: int = field(name="Port", default=0)


class DaemonEndpoints(Struct):
    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeInfo(Struct):
    machine_id: str = field(name="machineID", default="")
    boot_id: str = field(name="bootID", default="")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""  # "containerd://1.7.2"
    kubelet_version: str = ""
    architecture: str = ""


class NodeStatus(Struct):
    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    daemon_endpoints: DaemonEndpoints = DaemonEndpoints()
    node_info: NodeInfo = NodeInfo()


class Node(Struct):
    RESOURCE: ClassVar[Resource] = built_in("v1", "Node")

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# -- Pod -----------------------------------------------------------------------------------------------------------


class Container(Struct):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    resources: Resources = Resources()
    restart_policy: str | None = None  # of init containers: "Always" makes a sidecar

    @property
    def sidecar(self) -> bool:
        return self.restart_policy == "Always"


class PodSpec(Struct):
    node_name: str = ""
    node_selector: dict[str, str] = {}
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    service_account_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    tolerations: tuple[Toleration, ...] = ()
    resources: Resources = Resources()  # of the pod as a whole, instead of the sum over its containers
    overhead: dict[str, Quantity] = {}


class Waiting(Struct):
    reason: str = ""
    message: str = ""


class Running(Struct):
    started_at: str | None = None


class Terminated(Struct):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Struct):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct):
    name: str
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    image: str = ""
    container_id: str = field(name="containerID", default="")


class PodCondition(Struct):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


def has_ended(phase: str | None) -> bool:
    """Return whether a pod in this phase has ended for good: its containers never run again, and it holds nothing."""
    return phase in ("Succeeded", "Failed")


class PodStatus(Struct):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    pod_ip: str = field(name="podIP", default="")
    host_ip: str = field(name="hostIP", default="")
    start_time: str | None = None

    @property
    def ended(self) -> bool:
        return has_ended(self.phase)


class Pod(Struct):
    RESOURCE: ClassVar[Resource] = built_in("v1", "Pod")

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# -- workloads -----------------------------------------------------------------------------------------------------


class TemplateMeta(Struct):
    """Metadata of a pod template; narrower than ObjectMeta since servers write `creationTimestamp: null` here."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplate(Struct):
    metadata: TemplateMeta = TemplateMeta()
    spec: PodSpec = PodSpec()


class DaemonSetSpec(Struct):
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class DaemonSetStatus(Struct):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_ready: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    number_misscheduled: int = 0


class DaemonSet(Struct):
    RESOURCE: ClassVar[Resource] = built_in("apps/v1", "DaemonSet")

    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class DeploymentSpec(Struct):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class DeploymentStatus(Struct):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0


class Deployment(Struct):
    RESOURCE: ClassVar[Resource] = built_in("apps/v1", "Deployment")

    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


# -- configuration and identity ------------------------------------------------------------------------------------


class NamespaceStatus(Struct):
    phase: str = ""


class Namespace(Struct):
    RESOURCE: ClassVar[Resource] = built_in("v1", "Namespace")

    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()


class ConfigMap(Struct):
    RESOURCE: ClassVar[Resource] = built_in("v1", "ConfigMap")

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}


class Secret(Struct):
    """`data` is decoded from base64 by msgspec."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "Secret")

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, bytes] = {}
    type: str = ""


class ServiceAccount(Struct):
    RESOURCE: ClassVar[Resource] = built_in("v1", "ServiceAccount")

    metadata: ObjectMeta = ObjectMeta()


class RuntimeClass(Struct):
    RESOURCE: ClassVar[Resource] = built_in("node.k8s.io/v1", "RuntimeClass")

    metadata: ObjectMeta = ObjectMeta()
    handler: str = ""


class LeaseSpec(Struct):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class LeaseObject(Struct):
    """`coordination.k8s.io/v1` Lease; called LeaseObject since `kubekit.kube.Lease` is the election over it."""

    RESOURCE: ClassVar[Resource] = built_in("coordination.k8s.io/v1", "Lease")

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


# -- events and definitions ----------------------------------------------------------------------------------------


class EventSource(Struct):
    component: str = ""
    host: str = ""


class Event(Struct):
    RESOURCE: ClassVar[Resource] = built_in("v1", "Event")

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""  # Normal, Warning
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    source: EventSource = EventSource()
    reporting_component: str = ""
    reporting_instance: str = ""


class CRDNames(Struct):
    plural: str = ""
    kind: str = ""
    short_names: tuple[str, ...] = ()


class CRDVersion(Struct):
    name: str
    served: bool = False
    storage: bool = False


class CRDSpec(Struct):
    group: str = ""
    scope: str = ""  # Cluster, Namespaced
    names: CRDNames = CRDNames()
    versions: tuple[CRDVersion, ...] = ()


class CRDStatus(Struct):
    conditions: tuple[Condition, ...] = ()


class CustomResourceDefinition(Struct):
    RESOURCE: ClassVar[Resource] = built_in("apiextensions.k8s.io/v1", "CustomResourceDefinition")

    metadata: ObjectMeta = ObjectMeta()
    spec: CRDSpec = CRDSpec()
    status: CRDStatus = CRDStatus()


def reference(obj: Any, kind: Resource | None = None) -> ObjectReference:
    """An ObjectReference to a Struct, as Events want it."""
    resource = kind or type(obj).RESOURCE
    meta: ObjectMeta = obj.metadata
    return ObjectReference(
        kind=resource.kind,
        api_version=resource.api_version,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )
