"""Every resource that the embedded API server has without a CRD, and how the lists and maps of its kinds merge.

One table, because four readers must agree: routing and storage, discovery, patches and server-side apply, and access
reviews. Nothing here is decided from code elsewhere; adding a kind is adding a line here and one in `api.kinds`.

`FIELDS` says only what differs from the default, which is: an object or map merges key by key, a list is atomic. The
*whole* list of a kind's fields (for OpenAPI, `kubectl explain` and strict validation) is not repeated here: it is what
`lightkube.models` declares, see `model` of a resource.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kubekit.api.kinds import built_in

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY: Final = ("create",)


class ResourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The path and the properties of one served resource.

    `subresources` are the paths below an object (`status`, `scale`, `binding`, ...). `verbs` are those of the resource
    itself, as discovery says them. `selectable` are the field selectors besides metadata.name and metadata.namespace.
    `virtual` resources are answered (reviews, bindings) and never stored. `model` names the module of
    `lightkube.models` that declares the kind; it is empty for CRDs, which bring a schema.
    """

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    selectable: tuple[str, ...] = ()
    virtual: bool = False
    model: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return self.kind + "List"

    @property
    def qualified(self) -> str:
        """As error messages name it: `pods`, `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_POD_FIELDS: Final = (
    "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork "
    "status.phase status.podIP status.nominatedNodeName"
)
_POD_SUBRESOURCES: Final = "attach binding ephemeralcontainers eviction exec log portforward proxy resize status"
_EVENT_FIELDS: Final = (
    "involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion "
    "involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type"
)
_REGARDING_FIELDS: Final = (
    "regarding.kind regarding.namespace regarding.name regarding.uid regarding.apiVersion "
    "regarding.resourceVersion regarding.fieldPath reason reportingController type"
)

# group/version, model module, then lines of: kind | V if virtual | short names | categories | subresources | selectable
# fields. Plural and scope of each kind are in `api.kinds`.
_TABLE: Final = (
    (
        "v1",
        "core_v1",
        f"""
        Namespace             |   | ns     |     | finalize status     | status.phase
        Node                  |   | no     |     | proxy status        | spec.unschedulable
        Pod                   |   | po     | all | {_POD_SUBRESOURCES} | {_POD_FIELDS}
        Service               |   | svc    | all | proxy status        | spec.clusterIP spec.type
        Endpoints             |   | ep     |     |                     |
        ConfigMap             |   | cm     |     |                     |
        Secret                |   |        |     |                     | type
        ServiceAccount        |   | sa     |     | token               |
        Event                 |   | ev     |     |                     | {_EVENT_FIELDS}
        PersistentVolume      |   | pv     |     | status              |
        PersistentVolumeClaim |   | pvc    |     | status              |
        ReplicationController |   | rc     | all | scale status        | status.replicas
        LimitRange            |   | limits |     |                     |
        ResourceQuota         |   | quota  |     | status              |
        PodTemplate           |   |        |     |                     |
        ComponentStatus       |   | cs     |     |                     |
        Binding               | V |        |     |                     |
        """,
    ),
    (
        "apps/v1",
        "apps_v1",
        """
        ControllerRevision |  |        |     |              |
        DaemonSet          |  | ds     | all | status       |
        Deployment         |  | deploy | all | scale status |
        ReplicaSet         |  | rs     | all | scale status | status.replicas
        StatefulSet        |  | sts    | all | scale status |
        """,
    ),
    (
        "batch/v1",
        "batch_v1",
        """
        CronJob |  | cj | all | status |
        Job     |  |    | all | status | status.successful
        """,
    ),
    ("coordination.k8s.io/v1", "coordination_v1", "Lease | | | | |"),
    (
        "rbac.authorization.k8s.io/v1",
        "rbac_v1",
        """
        ClusterRoleBinding |  |  |  |  |
        ClusterRole        |  |  |  |  |
        RoleBinding        |  |  |  |  |
        Role               |  |  |  |  |
        """,
    ),
    ("node.k8s.io/v1", "node_v1", "RuntimeClass | | | | |"),
    ("scheduling.k8s.io/v1", "scheduling_v1", "PriorityClass | | pc | | |"),
    ("policy/v1", "policy_v1", "PodDisruptionBudget | | pdb | | status |"),
    ("discovery.k8s.io/v1", "discovery_v1", "EndpointSlice | | | | |"),
    (
        "storage.k8s.io/v1",
        "storage_v1",
        """
        CSIDriver             |  |     |  |        |
        CSINode               |  |     |  |        |
        CSIStorageCapacity    |  |     |  |        |
        StorageClass          |  | sc  |  |        |
        VolumeAttachment      |  |     |  | status |
        VolumeAttributesClass |  | vac |  |        |
        """,
    ),
    (
        "networking.k8s.io/v1",
        "networking_v1",
        """
        IngressClass  |  |        |  |        |
        Ingress       |  | ing    |  | status |
        IPAddress     |  | ip     |  |        |
        NetworkPolicy |  | netpol |  |        |
        ServiceCIDR   |  |        |  | status |
        """,
    ),
    ("events.k8s.io/v1", "events_v1", f"Event | | ev | | | {_REGARDING_FIELDS}"),
    (
        "authentication.k8s.io/v1",
        "authentication_v1",
        """
        SelfSubjectReview | V |  |  |  |
        TokenReview       | V |  |  |  |
        """,
    ),
    (
        "authorization.k8s.io/v1",
        "authorization_v1",
        """
        LocalSubjectAccessReview | V |  |  |  |
        SelfSubjectAccessReview  | V |  |  |  |
        SelfSubjectRulesReview   | V |  |  |  |
        SubjectAccessReview      | V |  |  |  |
        """,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "admissionregistration_v1",
        """
        MutatingAdmissionPolicy          |  |  | api-extensions |        |
        MutatingAdmissionPolicyBinding   |  |  | api-extensions |        |
        MutatingWebhookConfiguration     |  |  | api-extensions |        |
        ValidatingAdmissionPolicy        |  |  | api-extensions | status |
        ValidatingAdmissionPolicyBinding |  |  | api-extensions |        |
        ValidatingWebhookConfiguration   |  |  | api-extensions |        |
        """,
    ),
    (
        "apiextensions.k8s.io/v1",
        "apiextensions_v1",
        "CustomResourceDefinition | | crd crds | api-extensions | status | ",
    ),
    (
        "apiregistration.k8s.io/v1",
        "apiregistration_v1",
        "APIService | | | api-extensions | status | ",
    ),
    (
        "autoscaling/v1",
        "autoscaling_v1",
        "HorizontalPodAutoscaler | | hpa | all | status | ",
    ),
    (
        "autoscaling/v2",
        "autoscaling_v2",
        "HorizontalPodAutoscaler | | hpa | all | status | ",
    ),
    (
        "certificates.k8s.io/v1",
        "certificates_v1",
        "CertificateSigningRequest | | csr | | approval status | spec.signerName",
    ),
    (
        "flowcontrol.apiserver.k8s.io/v1",
        "flowcontrol_v1",
        """
        FlowSchema                 |  |  |  | status |
        PriorityLevelConfiguration |  |  |  | status |
        """,
    ),
    (
        "resource.k8s.io/v1",
        "resource_v1",
        """
        DeviceClass           |  |  |  |        |
        ResourceClaim         |  |  |  | status |
        ResourceClaimTemplate |  |  |  |        |
        ResourceSlice         |  |  |  |        | spec.nodeName spec.driver
        """,
    ),
)


_SINGULAR: Final = {"endpoints": "endpoints", "componentstatuses": "componentstatus"}


def _rows() -> tuple[ResourceInfo, ...]:
    infos: list[ResourceInfo] = []
    for api_version, model, text in _TABLE:
        for line in text.strip().splitlines():
            kind, virtual, short, categories, subresources, selectable = (cell.strip() for cell in line.split("|"))
            place = built_in(api_version, kind)
            infos.append(
                ResourceInfo(
                    group=place.group,
                    version=place.version,
                    plural=place.plural,
                    singular=_SINGULAR.get(place.plural, kind.lower()),
                    kind=kind,
                    namespaced=place.namespaced,
                    short_names=tuple(short.split()),
                    categories=tuple(categories.split()),
                    subresources=tuple(subresources.split()),
                    verbs=CREATE_ONLY if virtual else _verbs(place.plural),
                    selectable=tuple(selectable.split()),
                    virtual=bool(virtual),
                    model=model,
                )
            )
    return tuple(infos)


def _verbs(plural: str) -> tuple[str, ...]:
    if plural == "componentstatuses":
        return ("get", "list")
    if plural == "namespaces":
        return tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
    return ALL_VERBS


RESOURCES: Final = _rows()

# The group order of discovery, most preferred first; groups of CRDs follow.
GROUPS: Final = tuple(dict.fromkeys(info.group for info in RESOURCES))

# -- how fields merge --------------------------------------------------------------------------------------------
# type -> {field: how}. `Type` goes on with that type; `[key ...]Type` is a list of objects told apart by these keys
# (listType=map; a strategic merge patch uses the first key); `<set>` a list of distinct scalars; `<merge>` a set that
# strategic merge patches add to as well; `=` is replaced as a whole by server-side apply, though not by a strategic
# merge patch.
FIELDS: Final[dict[str, dict[str, str]]] = {
    "ObjectMeta": {"finalizers": "<merge>", "ownerReferences": "[uid]OwnerReference"},
    "OwnerReference": {"": "="},
    # core
    "Pod": {"spec": "PodSpec", "status": "PodStatus"},
    "PodSpec": {
        "containers": "[name]Container",
        "initContainers": "[name]Container",
        "ephemeralContainers": "[name]Container",
        "volumes": "[name]Volume",
        "imagePullSecrets": "[name]LocalObjectReference",
        "hostAliases": "[ip]HostAlias",
        "topologySpreadConstraints": "[topologyKey whenUnsatisfiable]TopologySpreadConstraint",
        "schedulingGates": "[name]PodSchedulingGate",
        "resourceClaims": "[name]PodResourceClaim",
        "nodeSelector": "=",
        "affinity": "Affinity",
        "resources": "ResourceRequirements",
    },
    "Affinity": {"nodeAffinity": "NodeAffinity"},
    "NodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": "="},
    "TopologySpreadConstraint": {"labelSelector": "="},
    "LocalObjectReference": {"": "="},
    "Container": {
        "env": "[name]EnvVar",
        "ports": "[containerPort protocol]ContainerPort",
        "volumeMounts": "[mountPath]VolumeMount",
        "volumeDevices": "[devicePath]VolumeDevice",
        "resources": "ResourceRequirements",
    },
    "EnvVar": {"valueFrom": "EnvVarSource"},
    "EnvVarSource": {"configMapKeyRef": "=", "secretKeyRef": "=", "fieldRef": "=", "resourceFieldRef": "="},
    "ResourceRequirements": {"claims": "[name]ResourceClaimUse"},
    "Volume": {"persistentVolumeClaim": "PersistentVolumeClaimVolumeSource"},
    "PodStatus": {
        "conditions": "[type]Condition",
        "podIPs": "[ip]PodIP",
        "resourceClaimStatuses": "[name]PodResourceClaimStatus",
    },
    "PodTemplateSpec": {"spec": "PodSpec", "metadata": "ObjectMeta"},
    "PodTemplate": {"template": "PodTemplateSpec"},
    "Node": {"spec": "NodeSpec", "status": "NodeStatus"},
    "NodeSpec": {"podCIDRs": "<merge>", "configSource": "="},
    "NodeStatus": {"addresses": "[type]NodeAddress", "conditions": "[type]Condition"},
    "Namespace": {"status": "Conditions"},
    "Conditions": {"conditions": "[type]Condition"},
    "Service": {"spec": "ServiceSpec", "status": "Conditions"},
    "ServiceSpec": {"ports": "[port protocol]ServicePort", "selector": "="},
    "ServiceAccount": {"secrets": "[name]ObjectReference", "imagePullSecrets": "[name]LocalObjectReference"},
    "ObjectReference": {"": "="},
    "Event": {"involvedObject": "=", "related": "=", "regarding": "="},
    "PersistentVolume": {"spec": "PersistentVolumeSpec"},
    "PersistentVolumeSpec": {"claimRef": "="},
    "PersistentVolumeClaim": {"spec": "PersistentVolumeClaimSpec", "status": "Conditions"},
    "PersistentVolumeClaimSpec": {"selector": "=", "dataSource": "="},
    "ReplicationController": {"spec": "ReplicationControllerSpec", "status": "Conditions"},
    "ReplicationControllerSpec": {"selector": "=", "template": "PodTemplateSpec"},
    "ResourceQuota": {"spec": "ResourceQuotaSpec"},
    "ResourceQuotaSpec": {"scopeSelector": "="},
    # apps, batch
    "Deployment": {"spec": "WorkloadSpec", "status": "Conditions"},
    "ReplicaSet": {"spec": "WorkloadSpec", "status": "Conditions"},
    "StatefulSet": {"spec": "WorkloadSpec", "status": "Conditions"},
    "DaemonSet": {"spec": "WorkloadSpec", "status": "Conditions"},
    "WorkloadSpec": {"selector": "=", "template": "PodTemplateSpec"},
    "Job": {"spec": "JobSpec", "status": "JobStatus"},
    "JobSpec": {"selector": "=", "template": "PodTemplateSpec"},
    "JobStatus": {"uncountedTerminatedPods": "UncountedTerminatedPods"},
    "UncountedTerminatedPods": {"succeeded": "<set>", "failed": "<set>"},
    "CronJob": {"spec": "CronJobSpec"},
    "CronJobSpec": {"jobTemplate": "JobTemplateSpec"},
    "JobTemplateSpec": {"spec": "JobSpec", "metadata": "ObjectMeta"},
    # the rest
    "RoleBinding": {"roleRef": "="},
    "ClusterRoleBinding": {"roleRef": "="},
    "ClusterRole": {},
    "RuntimeClass": {"scheduling": "RuntimeScheduling"},
    "RuntimeScheduling": {"nodeSelector": "="},
    "PodDisruptionBudget": {"spec": "PodDisruptionBudgetSpec", "status": "Conditions"},
    "PodDisruptionBudgetSpec": {"selector": "="},
    "HorizontalPodAutoscaler": {"status": "Conditions"},
    "CertificateSigningRequest": {"status": "Conditions"},
    "CSINode": {"spec": "CSINodeSpec"},
    "CSINodeSpec": {"drivers": "[name]CSINodeDriver"},
    "CSIDriver": {"spec": "CSIDriverSpec"},
    "CSIDriverSpec": {"volumeLifecycleModes": "<set>"},
    "NetworkPolicy": {"spec": "NetworkPolicySpec"},
    "NetworkPolicySpec": {"podSelector": "="},
    "MutatingWebhookConfiguration": {"webhooks": "[name]Webhook"},
    "ValidatingWebhookConfiguration": {"webhooks": "[name]Webhook"},
    "Webhook": {"matchConditions": "[name]MatchCondition", "namespaceSelector": "=", "objectSelector": "="},
    "MutatingAdmissionPolicy": {"spec": "AdmissionPolicySpec"},
    "ValidatingAdmissionPolicy": {"spec": "AdmissionPolicySpec"},
    "AdmissionPolicySpec": {
        "paramKind": "=",
        "variables": "[name]Variable",
        "matchConditions": "[name]MatchCondition",
        "matchConstraints": "AdmissionMatch",
    },
    "MutatingAdmissionPolicyBinding": {"spec": "AdmissionPolicyBindingSpec"},
    "ValidatingAdmissionPolicyBinding": {"spec": "AdmissionPolicyBindingSpec"},
    "AdmissionPolicyBindingSpec": {"paramRef": "=", "matchResources": "AdmissionMatch", "validationActions": "<set>"},
    "AdmissionMatch": {"": "="},
    "FlowSchema": {"status": "Conditions"},
    "PriorityLevelConfiguration": {"status": "Conditions"},
    "CustomResourceDefinition": {"status": "Conditions"},
    "APIService": {"status": "Conditions"},
    "ResourceClaim": {"status": "ResourceClaimStatus"},
    "ResourceClaimStatus": {
        "reservedFor": "[uid]ResourceClaimConsumerReference",
        "devices": "[driver device pool shareID]AllocatedDeviceStatus",
    },
    "AllocatedDeviceStatus": {"conditions": "[type]Condition"},
}

# The default of a missing key of a list of objects, by field name.
KEY_DEFAULTS: Final = {"protocol": "TCP"}
