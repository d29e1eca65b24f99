"""Common fields of ClusterPolicy and NVIDIADriver: images, environment, probes, upgrades, monitors.

Field names and defaults are those of the public GPU operator's API, so that existing manifests keep their meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from gpuplane.api.marks import FieldRule, at_least, keyed_by, matching, one_of, shaped
from kubekit.api.core import EnvVar, Resources, Toleration
from kubekit.api.meta import Struct

IMAGE_PATTERN: Final = r"^([a-zA-Z0-9][a-zA-Z0-9._/:@-]*)?$"
ABSOLUTE_PATH: Final = r"^(/.*)?$"
DURATION_PATTERN: Final = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
"""A Prometheus duration; years to milliseconds, each at most once, the empty text included."""
COUNT_OR_PERCENT: Final = r"^([0-9]+%?)?$"

Env = Annotated[tuple[EnvVar, ...], keyed_by("name")]
Path = Annotated[str, matching(ABSOLUTE_PATH)]
Labels = dict[str, str]
_ID: Final = {"type": "integer", "minimum": 0}
PodSecurityContext = Annotated[
    dict[str, Any],
    shaped(
        properties={
            "runAsUser": {"description": "user id of the processes", **_ID},
            "runAsGroup": {"description": "group id of the processes", **_ID},
            "runAsNonRoot": {"description": "refuse containers of root", "type": "boolean"},
            "fsGroup": {"description": "group id of the files in volumes", **_ID},
            "supplementalGroups": {
                "description": "more group ids of the processes",
                "type": "array",
                "items": _ID,
                "x-kubernetes-list-type": "atomic",
            },
        }
    ),
]
"""A pod's security context. The fields that are often written as text are typed here: Kubernetes would accept the
policy with `fsGroup: "1000"` and refuse its pods. Other fields pass as they are.
"""
Name = str
"""The name of a ConfigMap or Secret in the operator's namespace; empty for none."""


class Image(Struct):
    """The image of a component, and how it is pulled.

    Fields:
    repository: registry and path before the image's name
    image: name of the image, or the whole reference when repository and version are empty
    version: tag, or digest as sha256:...
    image_pull_policy: when the kubelet pulls; empty leaves it to the kubelet
    image_pull_secrets: Secrets in the operator's namespace to pull with
    """

    repository: str = ""
    image: Annotated[str, matching(IMAGE_PATTERN)] = ""
    version: str = ""
    image_pull_policy: Annotated[str, one_of("", "Always", "IfNotPresent", "Never")] = ""
    image_pull_secrets: tuple[str, ...] = ()


class Component(Image):
    """An operand: its image and the container it runs in.

    Fields:
    enabled: whether this component is deployed
    resources: requests and limits of its container
    args: arguments of its container
    env: environment of its container
    host_network: whether its pods use the node's network
    """

    resources: Resources | None = None
    args: tuple[str, ...] = ()
    env: Env = ()
    host_network: bool | None = None


class Named(Struct):
    """A ConfigMap by name.

    Fields:
    name: name of a ConfigMap in the operator's namespace; empty for none
    """

    name: Name = ""


class NamedDefault(Named):
    """A ConfigMap of several configurations, chosen per node by label.

    Fields:
    default: key of the configuration for nodes without the label
    """

    default: str = ""

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule="!has(self.default) || self.default == '' || (has(self.name) && self.name != '')",
            holds=lambda config: not config.get("default") or bool(config.get("name")),
            message="default names a key of a ConfigMap, but no ConfigMap is named",
            code="GP120",
            at="default",
            cure="set name too",
        ),
    )


class DriverManager(Image):
    """The init container that unloads an old driver.

    Fields:
    env: environment of its container
    """

    env: Env = ()


class ProbeTiming(Struct):
    """Timing of a container probe.

    Fields:
    initial_delay_seconds: seconds before the first probe
    timeout_seconds: seconds after which a probe counts as failed
    period_seconds: seconds between probes
    success_threshold: successes in a row that make it healthy
    failure_threshold: failures in a row that make it unhealthy
    """

    initial_delay_seconds: int | None = None
    timeout_seconds: Annotated[int | None, at_least(1)] = None
    period_seconds: Annotated[int | None, at_least(1)] = None
    success_threshold: Annotated[int | None, at_least(1)] = None
    failure_threshold: Annotated[int | None, at_least(1)] = None


# -- driver upgrades ---------------------------------------------------------------------------------------------------


class WaitForCompletion(Struct):
    """Jobs to wait for before a node's driver is changed.

    Fields:
    pod_selector: label selector of pods that must end by themselves
    timeout_seconds: seconds to wait for them at most; 0 for ever
    """

    pod_selector: str = ""
    timeout_seconds: Annotated[int, at_least(0)] = 0


class PodDeletion(Struct):
    """The eviction of pods that use a GPU from a node.

    Fields:
    force: also delete pods that no controller would make again
    timeout_seconds: seconds after which giving up counts as failed; 0 for never
    delete_empty_dir: also delete pods with emptyDir volumes, whose data is lost
    """

    force: bool = False
    timeout_seconds: Annotated[int, at_least(0)] = 300
    delete_empty_dir: bool = False


class Drain(Struct):
    """The drain of the whole node when removing GPU pods was not enough.

    Fields:
    enable: drain the node
    force: also delete pods that no controller would make again
    pod_selector: label selector of the pods to drain; empty for all
    timeout_seconds: seconds after which giving up counts as failed; 0 for never
    delete_empty_dir: also delete pods with emptyDir volumes, whose data is lost
    """

    enable: bool = False
    force: bool = False
    pod_selector: str = ""
    timeout_seconds: Annotated[int, at_least(0)] = 300
    delete_empty_dir: bool = False


class UpgradePolicy(Struct):
    """The rules for driver upgrades: how many nodes at a time, and how their pods are evicted.

    Fields:
    auto_upgrade: upgrade nodes when the wanted driver changes
    max_parallel_upgrades: nodes upgraded at the same time; 0 for no limit
    max_unavailable: nodes that may be unschedulable at the same time, a number or a percentage
    wait_for_completion: jobs to wait for first
    pod_deletion: how GPU pods are removed
    drain: whether the node is drained
    """

    auto_upgrade: bool = True
    max_parallel_upgrades: Annotated[int, at_least(0)] = 1
    max_unavailable: Annotated[int | str, matching(COUNT_OR_PERCENT)] = "25%"
    wait_for_completion: WaitForCompletion | None = None
    pod_deletion: PodDeletion | None = None
    drain: Drain | None = None


class Rdma(Struct):
    """GPUDirect RDMA.

    Fields:
    enabled: load the peer memory module
    use_host_mofed: the host has its own network driver
    """

    enabled: bool = False
    use_host_mofed: bool = False

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule="!has(self.useHostMofed) || !self.useHostMofed || (has(self.enabled) && self.enabled)",
            holds=lambda rdma: not rdma.get("useHostMofed") or bool(rdma.get("enabled")),
            message="useHostMofed has a meaning only with enabled: true",
            code="GP121",
            at="useHostMofed",
            cure="enabled: true",
        ),
    )


# -- monitoring --------------------------------------------------------------------------------------------------------

Duration = Annotated[str, matching(DURATION_PATTERN)]


class ServiceMonitor(Struct):
    """A ServiceMonitor for the Prometheus operator.

    Fields:
    enabled: create it
    interval: time between scrapes, as 15s; Prometheus' own when empty
    scrape_timeout: time a scrape may take; not above interval
    honor_labels: keep labels of the metrics that collide with those of the target
    additional_labels: labels of the ServiceMonitor, by which Prometheus selects it
    relabelings: relabel configurations, as Prometheus writes them
    """

    enabled: bool | None = None
    interval: Duration = ""
    scrape_timeout: Duration = ""
    honor_labels: bool | None = None
    additional_labels: Labels = {}
    relabelings: tuple[dict[str, Any], ...] = ()


class Monitored(Struct):
    """Metrics of the operator itself.

    Fields:
    service_monitor: a ServiceMonitor for them
    """

    service_monitor: ServiceMonitor | None = None


Tolerations = tuple[Toleration, ...]

TOLERATION_RULES: Final = (
    FieldRule(
        rule="!has(self.tolerations) || self.tolerations.all(t, !(has(t.operator) && t.operator == 'Exists' "
        "&& has(t.value) && t.value != ''))",
        holds=lambda pods: all(
            t.get("operator") != "Exists" or not t.get("value") for t in pods.get("tolerations") or ()
        ),
        message="a toleration with operator Exists takes no value",
        code="GP122",
        at="tolerations",
        cure="leave out its value, or operator: Equal",
    ),
    FieldRule(
        rule="!has(self.tolerations) || self.tolerations.all(t, (has(t.key) && t.key != '') "
        "|| (has(t.operator) && t.operator == 'Exists'))",
        holds=lambda pods: all(t.get("key") or t.get("operator") == "Exists" for t in pods.get("tolerations") or ()),
        message="a toleration without key needs operator Exists",
        code="GP123",
        at="tolerations",
        cure="operator: Exists",
    ),
)
