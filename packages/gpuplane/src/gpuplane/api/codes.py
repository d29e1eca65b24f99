"""The stable codes of findings, each with what it means and an example, for `gpuplane explain GPnnn`.

Invariant: a code once given out keeps its meaning; a test holds that every finding's code stands here.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Code(msgspec.Struct, frozen=True):
    """`title` in a few words, `text` why it matters and what to do, `wrong` and `right` an example."""

    title: str
    text: str
    wrong: str = ""
    right: str = ""


CODES: Final[dict[str, Code]] = {
    "GP100": Code(
        "not readable as YAML or JSON",
        "The file cannot be parsed, so nothing in it could be checked. The place is where the parser gave up; the "
        "mistake is often on the line before: a missing colon, a tab, an unclosed quote.",
    ),
    "GP101": Code(
        "not a Kubernetes object",
        "Every document needs apiVersion and kind, which say what it is.",
        "spec: {}",
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata:\n  name: cluster-policy\nspec: {}",
    ),
    "GP102": Code(
        "unknown kind or version",
        "The group is known, but this kind, or this version of it, does not exist.",
        "apiVersion: nvidia.com/v1beta1\nkind: ClusterPolicy",
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy",
    ),
    "GP103": Code(
        "bad name",
        "metadata.name is required: lower-case letters, digits, '-' and '.', at most 253 characters, beginning and "
        "ending with a letter or digit.",
        "name: Cluster_Policy",
        "name: cluster-policy",
    ),
    "GP104": Code(
        "a kind that nothing serves",
        "Neither Kubernetes nor gpuplane serves this kind or this version of it. The API server refuses the object "
        "unless another program has defined the kind. gpuplane check cannot say what is wrong inside.",
        "apiVersion: extensions/v1beta1\nkind: Deployment",
        "apiVersion: apps/v1\nkind: Deployment",
    ),
    "GP105": Code(
        "a configuration of earlier releases",
        "The program that the file is for reads another form today. `gpuplane run scheduler --print-config kube` "
        "prints a configuration for kube-scheduler with gpuplane's extender.",
        "apiVersion: v1\nkind: Policy",
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration",
    ),
    "GP110": Code(
        "unknown field",
        "The kind has no such field. The API server would drop it, and what it was meant to do would not happen.",
        "spec:\n  driver:\n    enable: false",
        "spec:\n  driver:\n    enabled: false",
    ),
    "GP111": Code(
        "wrong type",
        "The field wants another type of value. In YAML, quotes make text of anything, and on, off, yes and no without "
        "quotes are true and false.",
        'enabled: "true"',
        "enabled: true",
    ),
    "GP112": Code(
        "not one of the allowed values",
        "The field takes one of a fixed set of words.",
        "kernelModuleType: opensource",
        "kernelModuleType: open",
    ),
    "GP113": Code(
        "not of the required form",
        "The text does not have the form that the field wants (a path, a duration, a percentage).",
        "interval: 15 seconds",
        "interval: 15s",
    ),
    "GP114": Code("out of range", "The number is too small, or there are too many entries."),
    "GP115": Code("missing", "The field is required where it stands."),
    "GP116": Code(
        "two entries with the same key",
        "The list is a map by one field of its entries, so each value of it may stand there once.",
        "env:\n- {name: A, value: x}\n- {name: A, value: y}",
        "env:\n- {name: A, value: y}",
    ),
    "GP117": Code(
        "the same field twice",
        "A mapping has the same field twice. Parsers silently take the last one; the values before it have no effect.",
    ),
    "GP118": Code(
        "null where a value must be",
        "The field may be left out, but not be null. A key with nothing after its colon is null.",
        "driver:",
        "driver: {}",
    ),
    "GP120": Code(
        "default without a ConfigMap",
        "config.default chooses one of the configurations in the ConfigMap config.name. Without the name there is "
        "nothing to choose from, and the component would not start.",
        "devicePlugin:\n  config:\n    default: any",
        "devicePlugin:\n  config:\n    name: plugin-configs\n    default: any",
    ),
    "GP121": Code(
        "useHostMofed without rdma",
        "driver.rdma.useHostMofed says where RDMA's network driver comes from; without driver.rdma.enabled there is "
        "none.",
    ),
    "GP122": Code(
        "toleration Exists with a value",
        "A toleration with operator Exists matches every value, so it may not name one. Kubernetes would refuse every "
        "DaemonSet made with it.",
    ),
    "GP123": Code(
        "toleration without key",
        "A toleration without key means all taints, and needs operator: Exists. Kubernetes would refuse every "
        "DaemonSet made with it.",
    ),
    "GP124": Code(
        "NRI without CDI",
        "The NRI plugin injects CDI devices, so cdi.nriPluginEnabled can never work with cdi.enabled: false.",
    ),
    "GP125": Code(
        "gds without driver",
        "The module of GPUDirect Storage is built and loaded in the driver's container, which driver.enabled: false "
        "leaves out.",
    ),
    "GP126": Code(
        "gdrcopy without driver",
        "The module of GDRCopy is built and loaded in the driver's container, which driver.enabled: false leaves out.",
    ),
    "GP127": Code(
        "default driver with a node selector",
        "The default NVIDIADriver is for the nodes that no other one selects, so it can select none itself.",
        "default: true\nnodeSelector: {pool: a100}",
        "nodeSelector: {pool: a100}",
    ),
    "GP128": Code(
        "queue that is its own parent",
        "spec.parent of a GPUQueue names the queue above it. Empty is a queue at the top.",
        "metadata: {name: research}\nspec: {parent: research}",
        "metadata: {name: research}\nspec: {parent: science}",
    ),
    "GP130": Code(
        "failed without reason", "A failed stage of a GPUNode names its reason. Only gpuplane writes GPUNodes."
    ),
    "GP131": Code("unknown stage", "A GPUNode has a fixed set of stages. Only gpuplane writes GPUNodes."),
    "GP132": Code(
        "a rule of Karpenter's kind",
        "The pool or class breaks a rule about several fields. Karpenter refuses it too, and so does the API server "
        "after `gpuplane install --autoscaler`.",
        "ttlSecondsAfterEmpty: 30\nconsolidation: {enabled: true}",
        "consolidation: {enabled: true}",
    ),
    "GP140": Code(
        "accepted without effect",
        "The field is known, so that existing manifests apply, but this release does not act on it. A warning only.",
    ),
    "GP141": Code(
        "more than one ClusterPolicy",
        "The oldest ClusterPolicy of a cluster is in force; all others are ignored and say so in their status.",
    ),
    "GP150": Code(
        "wrong number of values",
        "In, NotIn and InRegexp take one value or more; Gt, Ge, Lt and Le exactly one; GtLt and GeLe exactly two, the "
        "lower first; Exists, DoesNotExist, IsTrue and IsFalse none. The rule would match nothing, or fail everywhere.",
        "AVX512F: {op: Exists, value: [true]}",
        "AVX512F: {op: Exists}",
    ),
    "GP151": Code(
        "not comparable",
        "Gt, Ge, Lt, Le, GtLt and GeLe compare whole numbers, or with type: version versions as 1.2.3.",
        'full: {op: Ge, value: ["5.15"]}',
        'full: {op: Ge, type: version, value: ["5.15"]}',
    ),
    "GP152": Code(
        "no regular expression",
        "The value of InRegexp is read as RE2 does: no look-around and no references to groups.",
        'class: {op: InRegexp, value: ["^(02"]}',
        'class: {op: InRegexp, value: ["^02"]}',
    ),
    "GP153": Code(
        "template that cannot be read",
        "labelsTemplate and varsTemplate are templates of Go's text/template, with range, if, with, variables, pipes "
        "and the functions in docs/components/discovery.md. Each line of what they make is name=value.",
        "labelsTemplate: '{{ range .pci.device }}{{ .vendor }}=true'",
        "labelsTemplate: '{{ range .pci.device }}{{ .vendor }}=true\n{{ end }}'",
    ),
    "GP154": Code(
        "name that a rule may not use",
        "Names of labels, annotations, taints and resources have a prefix (feature.node.kubernetes.io/ is put before "
        "those without one, not before taints). Prefixes of kubernetes.io belong to Kubernetes, and labels the "
        "operator sets itself are not for rules. Features are named as pci.device.",
        "labels: {node-role.kubernetes.io/gpu: ''}",
        "labels: {example.com/gpu: 'true'}",
    ),
    "GP155": Code(
        "value that a node may not have",
        "Values of labels have 63 letters, digits, '-', '_' and '.' at most; annotations 1024 bytes; extended "
        "resources are whole numbers. A value as @kernel.config.LSM is taken from the node's features.",
        'extendedResources: {example.com/port: "1.5"}',
        'extendedResources: {example.com/port: "2"}',
    ),
    "GP156": Code(
        "NodeFeatureGroup",
        "Groups are an alpha part of node feature discovery that gpuplane does not evaluate. A rule's label groups "
        "nodes as well, and schedulers understand it.",
    ),
    "GP160": Code(
        "device plugin configuration",
        "A field of the device plugin's configuration that cannot be followed: unknown, of another type, or asking for "
        "what this release does not do. The plugin would offer nothing with it, and say the same in GPUNode.",
        "sharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 1}",
        "sharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 4}",
    ),
    "GP201": Code(
        "a share that can never be met",
        "tencent.com/vcuda-core counts 100 to a GPU: 1-99 is a part of one GPU, 100, 200 and so on are whole GPUs. One "
        "GPU and a half cannot be had by one container; two containers may ask for 100 and 50.",
        'tencent.com/vcuda-core: "150"',
        'tencent.com/vcuda-core: "200"',
    ),
    "GP202": Code(
        "no whole number of a GPU resource",
        "GPU resources are counted in whole numbers. A part of a GPU is asked for by tencent.com/vcuda-core.",
        "nvidia.com/gpu: 0.5",
        'tencent.com/vcuda-core: "50"\ntencent.com/vcuda-memory: "32"',
    ),
    "GP203": Code(
        "requests that differ from limits",
        "GPUs cannot be overcommitted, so Kubernetes takes a GPU resource from limits, and from requests only the same "
        "number.",
        "requests: {nvidia.com/gpu: 1}",
        "limits: {nvidia.com/gpu: 1}",
    ),
    "GP204": Code(
        "memory without core",
        "tencent.com/vcuda-memory is the memory of a share, and a share has core: without tencent.com/vcuda-core the "
        "container would get no GPU at all.",
        'tencent.com/vcuda-memory: "20"',
        'tencent.com/vcuda-core: "30"\ntencent.com/vcuda-memory: "20"',
    ),
    "GP205": Code(
        "GPUs under two names",
        "nvidia.com/gpu, tencent.com/vcuda-core and alpha.kubernetes.io/nvidia-gpu are names for the same GPUs; one "
        "container asks by one of them.",
        'nvidia.com/gpu: 1\ntencent.com/vcuda-core: "50"',
        'tencent.com/vcuda-core: "50"',
    ),
    "GP206": Code(
        "unknown policy",
        "The annotations gpuplane.dev/node-policy and gpuplane.dev/gpu-policy name a placement policy: opportunity, "
        "fragmentation, power, tightest, spread or topology.",
        "gpuplane.dev/gpu-policy: binpack",
        "gpuplane.dev/gpu-policy: tightest",
    ),
    "GP207": Code(
        "no UUID of a GPU",
        "The annotations gpuplane.dev/gpu-uuids and gpuplane.dev/not-gpu-uuids list UUIDs, separated by commas. A "
        "number would be another GPU on every node.",
        'gpuplane.dev/gpu-uuids: "0,1"',
        "gpuplane.dev/gpu-uuids: GPU-7c41d0a3-9f0e-4c7b-8c4e-2b1f5a6d7e80",
    ),
    "GP208": Code(
        "affinity annotation that cannot be read",
        "A pod that asks for alpha.kubernetes.io/nvidia-gpu may say its affinity as Kubernetes 1.3 to 1.5 had it, in "
        "the annotation scheduler.alpha.kubernetes.io/affinity: the JSON of what is spec.affinity today.",
    ),
    "GP209": Code(
        "flag of gpu-manager without a meaning",
        "gpuplane runs its own programs in the pods of gpu-manager and gpu-admission. EXTRA_FLAGS may set the port "
        "(--query-port, --address) and logging. Other settings belong into the ClusterPolicy, or have no counterpart. "
        "The pod is refused instead of running with another meaning.",
    ),
    "GP210": Code(
        "pod of gpu-manager",
        "With admission installed, gpuplane's own programs run in the pods of gpu-manager and gpu-admission: the "
        "metrics of shares, and the scheduler's extender. The programs of these images would hand out the same GPUs "
        "once more. A pod that is there already cannot get such an image: delete it and create it again.",
    ),
    "GP211": Code(
        "list too long",
        "The annotations that list models or UUIDs of GPUs have at most 256 entries and 16,384 characters. The "
        "scheduler compares every entry with every GPU of the cluster.",
    ),
    "GP212": Code(
        "share of a divided GPU",
        "A GPU in MIG mode is allocated as MIG devices, and a GPU shared by MPS to MPS's clients. Neither has shares "
        "besides. So a container asks for a share or for such a device, a pod with a share names UUIDs of whole GPUs, "
        "and it does not select nodes by nvidia.com/mps.capable.",
        'nvidia.com/mig-1g.10gb: 1\ntencent.com/vcuda-core: "50"',
        "nvidia.com/mig-1g.10gb: 1",
    ),
}


def explain(code: str) -> Code | None:
    """The entry of `code`, whatever its case."""
    return CODES.get(code.upper())
