"""Every label, annotation, resource, taint and path that others rely on, once.

These strings are interfaces: existing manifests, dashboards and scripts name them. Where a name belongs to another
project (`nvidia.com/...`, `feature.node.kubernetes.io/...`), it is spelled as that project spells it.
"""

from __future__ import annotations

from typing import Final

from gpuplane import __version__

# -- where we run ------------------------------------------------------------------------------------------------
OPERATOR_NAMESPACE: Final = "gpu-operator"  # where operator and operands run
IMAGE: Final = f"gpuplane/gpuplane:{__version__}"  # the image of operator and operands by default
VALIDATION_POD: Final = "nvidia-cuda-validator"  # begins the names of pods that prove a node; their label app
FIELD_MANAGER_PREFIX: Final = "gpuplane-"  # begins the name of each component as owner of fields

# -- resources ---------------------------------------------------------------------------------------------------
NVIDIA_PREFIX: Final = "nvidia.com/"  # begins the resources that the device plugin's configuration names
GPU_RESOURCE: Final = NVIDIA_PREFIX + "gpu"  # a whole GPU
MIG_PREFIX: Final = NVIDIA_PREFIX + "mig-"  # begins MIG devices' resources with strategy mixed: nvidia.com/mig-1g.10gb
SHARED_SUFFIX: Final = ".shared"  # ends the name of replicas that are renamed by default: nvidia.com/gpu.shared

VCUDA_CORE: Final = "tencent.com/vcuda-core"  # 1-99 a share of one GPU in percent, each 100 a whole GPU
VCUDA_MEMORY: Final = "tencent.com/vcuda-memory"  # memory of a share, in units of 256 MiB
ALPHA_GPU: Final = "alpha.kubernetes.io/nvidia-gpu"  # a whole GPU, as Kubernetes 1.3 to 1.9 spelled it
DRA_DRIVER: Final = "gpu.nvidia.com"  # NVIDIA's driver of resource claims

ALPHA_GPU_NAME_LABEL: Final = "alpha.kubernetes.io/nvidia-gpu-name"  # on a node: the model of its GPUs, as Tesla-K80
ALPHA_AFFINITY_ANNOTATION: Final = "scheduler.alpha.kubernetes.io/affinity"  # on a pod: its spec.affinity, as JSON
# On a pod: the author's values of what admission rewrote, as JSON.
TRANSLATED_ANNOTATION: Final = "gpuplane.dev/translated-from"

# -- monitoring ----------------------------------------------------------------------------------------------------
METRICS_LABEL: Final = "gpuplane.dev/metrics"  # "true" on a namespace whose pods may scrape gpuplane's metrics

# -- admission -----------------------------------------------------------------------------------------------------
ADMISSION_NAME: Final = "gpuplane-admission"  # its Service, Deployment, account and webhook configurations
ADMISSION_SECRET: Final = "gpuplane-admission-tls"  # Secret with its certificate, key and authorities
SCHEDULER_NAME_WEBHOOK: Final = "gpuplane-scheduler-name"  # its configuration that gives pods to the pod scheduler

# -- the dashboard in the cluster ----------------------------------------------------------------------------------
DASHBOARD_NAME: Final = "gpuplane-dashboard"  # its Service, Deployment and account
DASHBOARD_SECRET: Final = "gpuplane-dashboard-tls"  # Secret with its certificate, key and authorities
DASHBOARD_TOKEN_HEADER: Final = "x-gpuplane-authorization"  # a viewer's token through the API server's proxy

# -- the extender --------------------------------------------------------------------------------------------------
EXTENDER_NAME: Final = "gpuplane-scheduler"  # its Service, Deployment, account and lease
SCHEDULER_NAME: Final = "gpuplane"  # spec.schedulerName of the pods that the same process schedules, if asked to
EXTENDER_SECRET: Final = "gpuplane-scheduler-tls"  # Secret with its certificate, and the authorities with their keys
EXTENDER_CLIENT_SECRET: Final = "gpuplane-scheduler-client"  # Secret with kube-scheduler's certificate to call it with
EXTENDER_CLIENT_DIRECTORY: Final = "/etc/gpuplane/extender"  # where kube-scheduler has the files of that Secret
SECOND_SCHEDULER_NAME: Final = "gpuplane-kube-scheduler"  # the Deployment of a second kube-scheduler that asks it
# On the pod of a replica, when it took the lease: its name there. On a resource claim that an earlier leader may have
# been writing: a mark of the next one.
LEADER_ANNOTATION: Final = "gpuplane.dev/leader"
EXTENDER_NOT_ASKED: Final = "ExtenderNotAsked"  # reason of the event of a share that was bound without asking it

# -- gangs: annotations of pods that start together or not at all; the pod scheduler reads them -----------------------
GANG_ANNOTATION: Final = "gpuplane.dev/gang"  # the name of the gang, within the namespace
GANG_SIZE_ANNOTATION: Final = "gpuplane.dev/gang-size"  # the number of pods that have to start together
GANG_REQUIRED_TOPOLOGY_ANNOTATION: Final = "gpuplane.dev/gang-required-topology"  # gpu, node, nvlink, zone, or a label
GANG_PREFERRED_TOPOLOGY_ANNOTATION: Final = "gpuplane.dev/gang-preferred-topology"  # the same, if there is room
GANG_TIMEOUT_ANNOTATION: Final = "gpuplane.dev/gang-timeout-seconds"  # the longest time that a part of it may hold GPUs
# On a pod, written by its Binding: the beginnings of the uids of the pods that were bound with it, with commas.
GANG_ROUND_ANNOTATION: Final = "gpuplane.dev/gang-round"
# On a pod: its PodGroup, as scheduler-plugins spells it; that object has the size of the gang.
POD_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
NVLINK_LABEL: Final = "nvidia.com/gpu.clique"  # on a node: the NVLink domain of several nodes that it belongs to

# -- defragmentation: annotations of pods that may be evicted after a place for their replacement is reserved ----------
MOVABLE_ANNOTATION: Final = "gpuplane.dev/movable"  # "true", by the pod's author: the scheduler may move it
MOVE_ANNOTATION: Final = "gpuplane.dev/move"  # on a pod that is to be moved: where to, for what, until when, as JSON
# On a replacement, written by its Binding: when the pods were evicted that it follows, in the last hour, with commas.
MOVED_ANNOTATION: Final = "gpuplane.dev/moved-at"
# In the operator's namespace, by the scheduler that leads: the moves under way, and those of the last hour.
MOVES_CONFIGMAP: Final = "gpuplane-moves"
MOVES_KEY: Final = "moves"  # its only key: a list in JSON

# -- queues --------------------------------------------------------------------------------------------------------
# On a pod, written by its Binding where there are queues: the LocalQueue that its label named then; empty for none.
BOUND_QUEUE_ANNOTATION: Final = "gpuplane.dev/bound-queue"
KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"  # on a pod: the LocalQueue of Kueue that it belongs to

# -- shares --------------------------------------------------------------------------------------------------------
# On a pod, written by its Binding: which GPUs its containers hold, and how much of each, as JSON.
ASSIGNMENT_ANNOTATION: Final = "gpuplane.dev/assignment"
PREDICATE_INDEX_PREFIX: Final = "tencent.com/predicate-gpu-idx-"  # + number of the container: its GPUs, as 0,1
PREDICATE_NODE_ANNOTATION: Final = "tencent.com/predicate-node"  # the node, for readers of gpu-admission's annotations
PREDICATE_TIME_ANNOTATION: Final = "tencent.com/predicate-time"  # when, in nanoseconds since 1970
GPU_ASSIGNED_ANNOTATION: Final = "tencent.com/gpu-assigned"  # "true" once the pod is bound with its GPUs
ASSIGNED: Final = "true"  # value of gpu-assigned: the pod is bound with its GPUs
NOT_YET_ASSIGNED: Final = "false"  # value of gpu-assigned: GPUs are chosen, the pod is not bound yet
# On a pod, by its author; each has a name that other schedulers read, which counts where ours is absent.
NODE_POLICY_ANNOTATION: Final = "gpuplane.dev/node-policy"  # which node is preferred: the name of a policy
GPU_POLICY_ANNOTATION: Final = "gpuplane.dev/gpu-policy"  # which GPUs of the node: the name of a policy
GPU_MODELS_ANNOTATION: Final = "gpuplane.dev/gpu-models"  # models that will do, as A100,H100
NOT_GPU_MODELS_ANNOTATION: Final = "gpuplane.dev/not-gpu-models"  # models that will not
GPU_UUIDS_ANNOTATION: Final = "gpuplane.dev/gpu-uuids"  # UUIDs of GPUs that will do
NOT_GPU_UUIDS_ANNOTATION: Final = "gpuplane.dev/not-gpu-uuids"  # UUIDs of GPUs that will not
HAMI_NODE_POLICY_ANNOTATION: Final = "hami.io/node-scheduler-policy"  # binpack or spread
HAMI_GPU_POLICY_ANNOTATION: Final = "hami.io/gpu-scheduler-policy"  # binpack, spread or topology-aware
HAMI_GPU_MODELS_ANNOTATION: Final = "nvidia.com/use-gputype"  # models that will do
HAMI_NOT_GPU_MODELS_ANNOTATION: Final = "nvidia.com/nouse-gputype"  # models that will not
HAMI_GPU_UUIDS_ANNOTATION: Final = "nvidia.com/use-gpuuuid"  # UUIDs of GPUs that will do
HAMI_NOT_GPU_UUIDS_ANNOTATION: Final = "nvidia.com/nouse-gpuuuid"  # UUIDs of GPUs that will not

# On a Node: when something became free there that a waiting pod fits, so that kube-scheduler tries the pod again.
SHARE_FREED_ANNOTATION: Final = "gpuplane.dev/share-freed"

# -- quotas, by the names of gpu-admission -------------------------------------------------------------------------
QUOTA_NAMESPACE: Final = "kube-system"  # where both ConfigMaps are, unless the second one says otherwise of the first
QUOTA_CONFIGMAP: Final = "gpuquota"  # ConfigMap with the quotas
QUOTA_KEY: Final = "gpu_quota"  # its key: JSON, namespace -> quota and pool
QUOTA_SETTINGS_CONFIGMAP: Final = "gpu-quota-admission"  # ConfigMap that says where quotas stand and which labels count
QUOTA_SETTINGS_KEY: Final = "gpu-quota-admission.config"  # its key: JSON
QUOTA_MODEL_LABEL: Final = "gaia.tencent.com/gpu-model"  # on a node: model of its GPUs, as quotas call it
QUOTA_POOL_LABEL: Final = "gaia.tencent.com/gpu-pool"  # on a node: the GPU pool that it belongs to

# -- node feature discovery --------------------------------------------------------------------------------------
FEATURE_PREFIX: Final = "feature.node.kubernetes.io/"  # begins every label of discovery
PCI_PRESENT_LABELS: Final = (
    # Which of the three a cluster has depends on how its node feature discovery spells PCI classes.
    FEATURE_PREFIX + "pci-10de.present",
    FEATURE_PREFIX + "pci-0302_10de.present",
    FEATURE_PREFIX + "pci-0300_10de.present",
)
KERNEL_VERSION_LABEL: Final = FEATURE_PREFIX + "kernel-version.full"  # release of the running kernel
OS_ID_LABEL: Final = FEATURE_PREFIX + "system-os_release.ID"  # ID of os-release; with the others the driver group
# On a NodeFeature of ours: what the rules asked for when it was made, as kernel.config/X86.
FEATURES_FOR_ANNOTATION: Final = "gpuplane.dev/features-for"
# On a Node: labels that feature files and rules on the machine made, by which they are found when the files are gone.
USER_LABELS_ANNOTATION: Final = "gpuplane.dev/user-labels"
OS_VERSION_LABEL: Final = FEATURE_PREFIX + "system-os_release.VERSION_ID"  # VERSION_ID of os-release
OS_MAJOR_LABEL: Final = FEATURE_PREFIX + "system-os_release.VERSION_ID.major"  # the same up to the first dot

# -- the operator's node labels ----------------------------------------------------------------------------------
GPU_PRESENT_LABEL: Final = "nvidia.com/gpu.present"  # "true" on nodes with an NVIDIA GPU
MPS_LABEL: Final = "nvidia.com/mps.capable"  # "true" on a node whose replicas are clients of MPS
DEPLOY_PREFIX: Final = "nvidia.com/gpu.deploy."  # begins the gates, one for each operand
DEPLOY_OPERANDS_LABEL: Final = DEPLOY_PREFIX + "operands"  # "false" is the node's opt-out
RUNTIME_CLASS_LABEL: Final = "gpuplane.dev/runtime-class.nvidia"  # "true": pods of RuntimeClass nvidia can run
DRIVER_OWNER_LABEL: Final = "nvidia.com/gpu-operator.driver.owner"  # the NVIDIADriver that a node has its driver from
NOT_READY_TAINT: Final = "nvidia.com/gpu-not-ready"  # on nodes not ready yet, with operator.notReadyTaint
SHARED_TAINT: Final = "nvidia.com/gpu-shared"  # of node pools whose GPUs are shared; operands tolerate it
RETRY_ANNOTATION: Final = "gpuplane.dev/retry"  # on a GPUNode, any new value: validate again now
PAUSED_ANNOTATION: Final = "gpuplane.dev/paused"  # "true" on the ClusterPolicy: the operator changes nothing

# -- autoscaler ----------------------------------------------------------------------------------------------------
AUTOSCALER_NAME: Final = "gpuplane-autoscaler"  # its Deployment, account and lease
KARPENTER_GROUP: Final = "karpenter.sh"  # API group of pools and claims of nodes, and prefix of their labels
# On a NodeClaim: the allocatable that was predicted of its node, as JSON.
PREDICTED_ANNOTATION: Final = "gpuplane.dev/predicted-allocatable"
# On a NodeClaim and its node: dollars an hour when the instance was launched, by its capacity type and overlays.
PRICE_ANNOTATION: Final = "gpuplane.dev/price"
# On an instance of AWS: the token of its launch, since a claim of an equal name has another.
LAUNCH_TOKEN_TAG: Final = "gpuplane.dev/launch-token"
# On an instance of AWS: the version of the launch template that its class names.
TEMPLATE_VERSION_TAG: Final = "gpuplane.dev/launch-template-version"
# On a NodeClaim: when the cloud was asked to restart its instance, for a repair.
REBOOT_ISSUED_ANNOTATION: Final = "gpuplane.dev/reboot-issued"

# -- sharing -------------------------------------------------------------------------------------------------------
SHARE_LABEL: Final = "nvidia-device-enable"  # on a node, "enable": it offers shares, as gpu-manager's nodes do
PLUGIN_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"  # on a node: which of the plugin's configurations it has
MIG_CONFIG_LABEL: Final = "nvidia.com/mig.config"  # on a node: the layout of MIG devices that its MIG manager makes

# -- upgrades of the driver ----------------------------------------------------------------------------------------
UPGRADE_STATE_LABEL: Final = "nvidia.com/gpu-driver-upgrade-state"  # on a node: how far its upgrade is
UPGRADE_SKIP_LABEL: Final = "nvidia.com/gpu-driver-upgrade.skip"  # "true" on a node: its driver is not upgraded
UPGRADE_ENABLED_ANNOTATION: Final = "nvidia.com/gpu-driver-upgrade-enabled"  # "false" on a node: the same
UPGRADE_REQUESTED_ANNOTATION: Final = "nvidia.com/gpu-driver-upgrade-requested"  # "true" on a node: upgrade it again
# "true" on a node: it was unschedulable before its upgrade, and stays so after it.
UPGRADE_INITIAL_ANNOTATION: Final = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
UPGRADE_DRAIN_SKIP_LABEL: Final = "nvidia.com/gpu-driver-upgrade-drain.skip"  # "true" on a pod: it is not drained
UPGRADE_RECORD_ANNOTATION: Final = "gpuplane.dev/driver-upgrade"  # on a node: what is remembered of its upgrade, JSON
ROLLBACK_LABEL: Final = "gpuplane.dev/driver-rollback"  # on a node: digest of the driver that it went back to
DRIVER_BEFORE_LABEL: Final = "gpuplane.dev/driver-before"  # on a DaemonSet kept to go back to: the driver's digest
DRIVER_DIGEST_ENV: Final = "DRIVER_CONFIG_DIGEST"  # of a driver's container: another value is another driver
TEMPLATE_DIGEST_ANNOTATION: Final = "gpuplane.dev/template-digest"  # on a driver's pod: digest of what it was made from

# -- environment ---------------------------------------------------------------------------------------------------
MIG_STRATEGY_ENV: Final = "MIG_STRATEGY"  # none, single or mixed: how labels tell MIG devices
# "false" where ClusterPolicy spec.driver.enabled is: the driver's operand then looks for a driver and installs none.
DRIVER_INSTALL_ENV: Final = "GPUPLANE_DRIVER_INSTALL"
DRIVER_SOURCE_ENV: Final = "GPUPLANE_DRIVER_SOURCE"  # "container": NVIDIA's image installs, the operand only watches
# Settings of the driver's operand, with the names of NVIDIA's driver images where these have them.
RECOMMENDED_DRIVER: Final = "580.82.07"  # its branch is the newest that supports every GPU since Maxwell
DRIVER_DEFAULT_ENV: Final = "GPUPLANE_DRIVER_DEFAULT"  # the version where none is set: another one is another driver
DRIVER_VERSION_ENV: Final = "DRIVER_VERSION"  # 570.133.20, or the branch 570 with precompiled packages
DRIVER_MODULES_ENV: Final = "KERNEL_MODULE_TYPE"  # auto, open or proprietary
DRIVER_PRECOMPILED_ENV: Final = "GPUPLANE_DRIVER_PRECOMPILED"  # "true": packages made for the kernel, nothing compiled
DRIVER_URL_ENV: Final = "BASE_URL"  # where <version>/NVIDIA-Linux-<machine>-<version>.run lies, with its scheme
CUDA_REPOSITORY_ENV: Final = "CUDA_REPOSITORY_URL"  # a copy of NVIDIA's CUDA repositories, with its scheme
DRIVER_RDMA_ENV: Final = "GPU_DIRECT_RDMA_ENABLED"  # "true": nvidia-peermem is loaded too

PLUGIN_DEFAULT_ENV: Final = "DEFAULT_CONFIG"  # the configuration of nodes without the label
# The resources that nodes offer: of nvidia, tencent and alpha, with commas. Several only where the extender runs, which
# keeps one ledger for all of them. Without it tencent on nodes with the label nvidia-device-enable, else nvidia.
DIALECTS_ENV: Final = "GPUPLANE_DIALECTS"
PLUGIN_FALLBACKS_ENV: Final = "FALLBACK_STRATEGIES"  # and without a default: of named, single, empty, in order

# The program that brings GPUs into containers: "true" the NRI plugin, where the runtime offers NRI; "false" the
# kubelet. Without it the NRI plugin brings shares, and the kubelet whole GPUs. By its name in NVIDIA's toolkit.
NRI_ENV: Final = "ENABLE_NRI_PLUGIN"

SAVED_ENV: Final = "GPUPLANE_SAVED_MS"  # in the device plugin: GPU time that idle containers save
ON_ESCAPE_ENV: Final = "GPUPLANE_ON_ESCAPE"  # `stop`: the device plugin kills processes that go round their limits
LIMITS_ENV: Final = "GPUPLANE_LIMITS"  # the directory with a program's limits, where LIMITS_MOUNT has none
LIMITS_MISSING_ENV: Final = "GPUPLANE_LIMITS_MISSING"  # closed or open: what a program without usable limits gets

# -- CDI ---------------------------------------------------------------------------------------------------------
CDI_ANNOTATION_PREFIX: Final = "cdi.k8s.io/"  # of annotations that name CDI devices
CDI_KIND: Final = "nvidia.com/gpu"  # GPUs in CDI specifications: by index, by UUID, and "all"
CDI_MANAGEMENT_KIND: Final = "management.nvidia.com/gpu"  # the same for management containers
MPS_ROOT: Final = "/run/nvidia/mps"  # on a node: pipes and logs of its MPS control daemons
MPS_ROOT_ENV: Final = "MPS_ROOT"  # another place for it, on the host
MPS_PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"  # where a client of MPS finds its daemon
MPS_LOG_ENV: Final = "CUDA_MPS_LOG_DIRECTORY"  # where a control daemon writes control.log
RUNTIME_HANDLER: Final = "nvidia"  # NVIDIA's runtime in RuntimeClasses and in configurations of container runtimes
VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"  # the GPUs of a container, for runtimes that go by it

# -- paths on a host, relative to its root -----------------------------------------------------------------------
DRIVER_ROOT: Final = "run/nvidia/driver"  # where a driver in a container, or an installed one, keeps its root
DRIVER_CONTAINER_READY: Final = "run/nvidia/validations/.driver-ctr-ready"  # by the start-up probe of NVIDIA's image
NEW_KERNEL: Final = "run/nvidia/new-kernel"  # release of a kernel that was just installed, by the kernel-update hook
VALIDATIONS_DIR: Final = "run/nvidia/validations"  # status files; each is written by the owner of its fact
CDI_DIR: Final = "var/run/cdi"  # CDI specifications
TOOLKIT_DIR: Final = "usr/local/nvidia/toolkit"  # NVIDIA's programs, and their configuration

# -- what the host-side operands leave on a host, relative to its root -------------------------------------------
STATE_DIR: Final = "var/lib/gpuplane"  # what was changed and how it was before, one folder a component
DRIVER_READY: Final = VALIDATIONS_DIR + "/driver-ready"  # an env file, see gpuplane.host.ready
HOST_DRIVER_READY: Final = VALIDATIONS_DIR + "/host-driver-ready"  # older releases' word for a driver of the host's own
TOOLKIT_READY: Final = VALIDATIONS_DIR + "/toolkit-ready"  # the stage toolkit holds
CUDA_READY: Final = VALIDATIONS_DIR + "/cuda-ready"  # the stage cuda holds
PLUGIN_READY: Final = VALIDATIONS_DIR + "/plugin-ready"  # the stage plugin holds
WRONG_GPUS: Final = VALIDATIONS_DIR + "/wrong-gpus"  # GPUs of a ready node that began to compute wrongly, as JSON
CHAR_LINKS: Final = VALIDATIONS_DIR + "/char-links"  # the links in dev/char that the validator made, a path a line
DRIVER_STORE: Final = STATE_DIR + "/driver/root"  # the writable layer of the driver's root
DRIVER_DOWNLOADS: Final = "var/cache/gpuplane"  # .run files; one that lies there is not downloaded

# -- limits --------------------------------------------------------------------------------------------------------
LIMITS_DIR: Final = STATE_DIR + "/limits"  # on a host: the pages of its containers, leases of its GPUs, the libraries
LIMITS_MOUNT: Final = "/etc/vcuda"  # in a container: its pages
# In a container: the interposed libraries. Images made for GPUs look here first, by their LD_LIBRARY_PATH.
LIMITER_MOUNT: Final = "/usr/local/nvidia/lib64"

# -- NRI -----------------------------------------------------------------------------------------------------------
NRI_SOCKET: Final = "run/nri/nri.sock"  # on a host: where a container runtime takes plugins
NO_GPU_ENV: Final = "GPUPLANE_NO_GPU"  # of a container that NRI has brought nothing: why
NRI_GIVEN_PREFIX: Final = "nri.gpuplane.dev/"  # begins annotations of containers: what the NRI plugin brings them, JSON

# -- in the driver's pod ------------------------------------------------------------------------------------------
DRIVER_PLACE: Final = "us.download.nvidia.com/tesla"  # NVIDIA's own place for its data centre drivers
CUDA_REPOSITORIES: Final = "developer.download.nvidia.com/compute/cuda/repos"  # NVIDIA's own packages, by OS
DRIVER_MODULES_DIR: Final = "/drivers"  # <module>.conf with module parameters, from driver.kernelModuleConfig
DRIVER_REPOSITORIES_DIR: Final = "/config/repositories"  # from driver.repoConfig
DRIVER_CERTIFICATES_DIR: Final = "/config/certificates"  # from driver.certConfig

# -- the embedded cluster ----------------------------------------------------------------------------------------
LIGHT_LABEL: Final = "gpuplane.dev/light"  # "true" on nodes without processes
