"""The paths under which Kubernetes serves the kinds without a CRD.

One table for the client, the installation and the embedded API server. A kind of a CRD names its place in its Struct.
"""

from __future__ import annotations

from typing import Final

from kubekit.api.meta import Resource

# apiVersion -> lines of: plural, kind, scope
_TABLE: Final = {
    "v1": """
        namespaces             Namespace             Cluster
        nodes                  Node                  Cluster
        pods                   Pod                   Namespaced
        services               Service               Namespaced
        endpoints              Endpoints             Namespaced
        configmaps             ConfigMap             Namespaced
        secrets                Secret                Namespaced
        serviceaccounts        ServiceAccount        Namespaced
        events                 Event                 Namespaced
        persistentvolumes      PersistentVolume      Cluster
        persistentvolumeclaims PersistentVolumeClaim Namespaced
        replicationcontrollers ReplicationController Namespaced
        limitranges            LimitRange            Namespaced
        resourcequotas         ResourceQuota         Namespaced
        podtemplates           PodTemplate           Namespaced
        componentstatuses      ComponentStatus       Cluster
        bindings               Binding               Namespaced
    """,
    "apps/v1": """
        controllerrevisions ControllerRevision Namespaced
        daemonsets          DaemonSet          Namespaced
        deployments         Deployment         Namespaced
        replicasets         ReplicaSet         Namespaced
        statefulsets        StatefulSet        Namespaced
    """,
    "batch/v1": """
        cronjobs CronJob Namespaced
        jobs     Job     Namespaced
    """,
    "coordination.k8s.io/v1": """
        leases Lease Namespaced
    """,
    "rbac.authorization.k8s.io/v1": """
        clusterrolebindings ClusterRoleBinding Cluster
        clusterroles        ClusterRole        Cluster
        rolebindings        RoleBinding        Namespaced
        roles               Role               Namespaced
    """,
    "node.k8s.io/v1": """
        runtimeclasses RuntimeClass Cluster
    """,
    "scheduling.k8s.io/v1": """
        priorityclasses PriorityClass Cluster
    """,
    "policy/v1": """
        poddisruptionbudgets PodDisruptionBudget Namespaced
    """,
    "discovery.k8s.io/v1": """
        endpointslices EndpointSlice Namespaced
    """,
    "storage.k8s.io/v1": """
        csidrivers              CSIDriver             Cluster
        csinodes                CSINode               Cluster
        csistoragecapacities    CSIStorageCapacity    Namespaced
        storageclasses          StorageClass          Cluster
        volumeattachments       VolumeAttachment      Cluster
        volumeattributesclasses VolumeAttributesClass Cluster
    """,
    "networking.k8s.io/v1": """
        ingressclasses  IngressClass  Cluster
        ingresses       Ingress       Namespaced
        ipaddresses     IPAddress     Cluster
        networkpolicies NetworkPolicy Namespaced
        servicecidrs    ServiceCIDR   Cluster
    """,
    "events.k8s.io/v1": """
        events Event Namespaced
    """,
    "authentication.k8s.io/v1": """
        selfsubjectreviews SelfSubjectReview Cluster
        tokenreviews       TokenReview       Cluster
    """,
    "authorization.k8s.io/v1": """
        localsubjectaccessreviews LocalSubjectAccessReview Namespaced
        selfsubjectaccessreviews  SelfSubjectAccessReview  Cluster
        selfsubjectrulesreviews   SelfSubjectRulesReview   Cluster
        subjectaccessreviews      SubjectAccessReview      Cluster
    """,
    "admissionregistration.k8s.io/v1": """
        mutatingadmissionpolicies         MutatingAdmissionPolicy          Cluster
        mutatingadmissionpolicybindings   MutatingAdmissionPolicyBinding   Cluster
        mutatingwebhookconfigurations     MutatingWebhookConfiguration     Cluster
        validatingadmissionpolicies       ValidatingAdmissionPolicy        Cluster
        validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding Cluster
        validatingwebhookconfigurations   ValidatingWebhookConfiguration   Cluster
    """,
    "apiextensions.k8s.io/v1": """
        customresourcedefinitions CustomResourceDefinition Cluster
    """,
    "apiregistration.k8s.io/v1": """
        apiservices APIService Cluster
    """,
    "autoscaling/v1": """
        horizontalpodautoscalers HorizontalPodAutoscaler Namespaced
    """,
    "autoscaling/v2": """
        horizontalpodautoscalers HorizontalPodAutoscaler Namespaced
    """,
    "certificates.k8s.io/v1": """
        certificatesigningrequests CertificateSigningRequest Cluster
    """,
    "flowcontrol.apiserver.k8s.io/v1": """
        flowschemas                 FlowSchema                 Cluster
        prioritylevelconfigurations PriorityLevelConfiguration Cluster
    """,
    "resource.k8s.io/v1": """
        deviceclasses          DeviceClass           Cluster
        resourceclaims         ResourceClaim         Namespaced
        resourceclaimtemplates ResourceClaimTemplate Namespaced
        resourceslices         ResourceSlice         Cluster
    """,
}

RESOURCES: Final[dict[tuple[str, str], Resource]] = {
    (api_version, kind): Resource(*api_version.rpartition("/")[::2], plural, kind, scope == "Namespaced")
    for api_version, lines in _TABLE.items()
    for plural, kind, scope in map(str.split, lines.strip().splitlines())
}
"""(apiVersion, kind) -> where it is served: how a plain dict finds its URL without asking the server."""


def built_in(api_version: str, kind: str) -> Resource:
    """Return where a kind is served. Raises KeyError for a kind that Kubernetes does not have without a CRD."""
    return RESOURCES[api_version, kind]
