"""Writes the chart's generated files from what the code and the installation's manifests say.

    python -m deploy.chart.generate

Generated are the CRDs, one template for each file of `operator/install`, `values.yaml`, `values.schema.json`, and the
list of values without effect. By hand are only the helpers, ConfigMaps, hooks and NOTES.txt. A test holds that what is
committed is what this writes.

CRDs lie in `crds/`, where helm applies them before it looks at the rest: a ClusterPolicy in the same release could not
be created otherwise. Helm never touches them again, so a hook upgrades them, and another removes them if asked to.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from deploy.chart import plugin_values
from gpuplane import __version__, names
from gpuplane.api.crds import crds
from gpuplane.api.driver_groups import DriverSettings
from gpuplane.api.effects import acts, fields, why_not
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.api.nvidiadriver import NVIDIADriverSpec
from gpuplane.operator.autoscaler_install import ROLE_ANNOTATION
from gpuplane.operator.installation import AUTOSCALER, DASHBOARD, MONITORING, PARTS, POD_SCHEDULER, SCHEDULER_NAMING
from gpuplane.operator.manifest import parse
from gpuplane.operator.monitoring import boards
from gpuplane.sharing import POLICIES

CHART: Final = Path(__file__).parent / "gpuplane"
HEAD: Final = (
    "{{- /* Written by deploy/chart/generate.py from gpuplane/operator/install; changes here are lost. */ -}}\n"
)
Schema = dict[str, Any]

# -- values that are the chart's own -----------------------------------------------------------------------------------
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
MAP: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
ANY: Final[Schema] = {"type": "object"}
LIST: Final[Schema] = {"type": "array"}
MOVES: Final[Schema] = {"type": "integer", "minimum": 1}


def _told(schema: Schema, description: str, default: Any = None) -> Schema:
    return {**schema, "description": description, "default": default}


_CONFIG: Final[dict[str, Schema]] = {
    "create": _told(FLAG, "make the ConfigMap `name` from `data`", False),
    "data": _told({"type": ["object", "string"]}, "contents of the ConfigMap that `create` makes", {}),
}
OWN: Final[dict[str, dict[str, Schema]]] = {
    "operator": {
        "repository": _told(TEXT, "registry and path of the image of operator and operands", "gpuplane"),
        "image": _told(TEXT, "name of that image", "gpuplane"),
        "version": _told(TEXT, "its tag, or its digest as sha256:...; the chart's appVersion when empty", ""),
        "imagePullPolicy": _told(
            {"type": "string", "enum": ["Always", "IfNotPresent", "Never"]}, "when to pull it", "IfNotPresent"
        ),
        "imagePullSecrets": _told(LIST, "names of Secrets in the namespace to pull it with", []),
        "replicas": _told({"type": "integer", "minimum": 1}, "one works, others wait for its lease", 1),
        "priorityClassName": _told(TEXT, "priority of the operator's pod", "system-cluster-critical"),
        "nodeSelector": _told(MAP, "labels of the nodes that the operator may run on", {}),
        "tolerations": _told(LIST, "tolerations besides those for control planes and GPU nodes", []),
        "affinity": _told(ANY, "affinity of the operator's pod", {}),
        "resources": _told(ANY, "requests and limits of the operator's container, and of the Jobs'", {}),
        "env": _told(LIST, "more environment of the operator's container and of the Jobs around the release", []),
        "logging": {
            "type": "object",
            "description": "The operator's log.",
            "properties": {
                "level": _told({"type": "string", "enum": ["info", "debug"]}, "debug says more", "info"),
                "timeEncoding": _told(TEXT, "no effect: times are in RFC 3339", ""),
                "develMode": _told(FLAG, "no effect: level is all there is", False),
            },
        },
        "upgradeCRD": _told(FLAG, "apply this chart's CRDs before an upgrade, by a Job", True),
        "cleanupCRD": _told(
            FLAG, "remove the CRDs, and so everything of their kinds, after an uninstall, by a Job", False
        ),
    },
    "driver": {
        "nvidiaDriverCRD": {
            "type": "object",
            "description": "Drivers from NVIDIADriver objects.",
            "properties": {
                "enabled": _told(FLAG, "sets driver.useNvidiaDriverCRD", False),
                "deployDefaultCR": _told(
                    FLAG, "create the NVIDIADriver `default` with the values of driver; otherwise apply your own", True
                ),
                "driverType": _told(
                    {"type": "string", "enum": ["gpu", "vgpu", "vgpu-host-manager"]}, "its driverType", "gpu"
                ),
                "nodeSelector": _told(MAP, "its nodes; empty for all that no other NVIDIADriver selects", {}),
            },
        },
    },
    "driver.upgradePolicy": {"gpuPodDeletion": _told(ANY, "the GPU operator chart's name of podDeletion")},
    "devicePlugin.config": {
        **_CONFIG,
        "map": _told(MAP, "named configurations, as in the device plugin's own chart: makes the ConfigMap too", {}),
    },
    "dcgmExporter.config": _CONFIG,
    "migManager.config": {
        "create": _told(FLAG, "make a ConfigMap of layouts", False),
        "data": _told({"type": ["object", "string"]}, "contents of that ConfigMap", {}),
    },
}
TOP: Final[dict[str, Schema]] = {
    "clusterPolicy": {
        "type": "object",
        "description": "The ClusterPolicy that the groups above make.",
        "properties": {"deployCR": _told(FLAG, "create it; otherwise apply one yourself", True)},
    },
    "admission": {
        "type": "object",
        "description": "The webhook that refuses pods which can never run, and the policy on who says what pods hold.",
        "properties": {
            "enabled": _told(FLAG, "install it", True),
            "failurePolicy": _told(
                {"type": "string", "enum": ["Ignore", "Fail"]}, "pods with GPUs while the webhook is away", "Ignore"
            ),
            "resources": _told(ANY, "requests and limits of its container; empty for those of gpuplane", {}),
        },
    },
    "scheduler": {
        "type": "object",
        "description": "The extender that places shares; kube-scheduler must be configured to call it.",
        "properties": {
            "enabled": _told(FLAG, "install it", True),
            "nodePolicy": _told(
                {"type": "string", "enum": ["", *POLICIES]},
                f"how it and the pod scheduler choose nodes and their GPUs: {', '.join(POLICIES[:-1])} or "
                f"{POLICIES[-1]}; empty for {POLICIES[0]}",
                "",
            ),
            "resources": _told(ANY, "requests and limits of its container; empty for those of gpuplane", {}),
        },
    },
    "podScheduler": {
        "type": "object",
        "description": "The scheduler of pods with schedulerName gpuplane, in the process of the extender.",
        "properties": {
            "enabled": _told(FLAG, "schedule them, without kube-scheduler; needs scheduler.enabled", False),
            "defragmentation": {
                "type": "object",
                "description": "moves of pods that allow it, see docs/tasks/defrag.md",
                "properties": {
                    "enabled": _told(FLAG, "move pods by itself, where others wait for room", False),
                    "movesPerHour": _told(MOVES, "moves in any hour", 12),
                    "movesAtOnce": _told(MOVES, "moves under way", 1),
                    "after": _told(TEXT, "how long a pod waits before others are moved for it", "60s"),
                    "coolDown": _told(TEXT, "how long a pod stays that was moved", "1h"),
                },
                "additionalProperties": False,
            },
        },
    },
    "autoscaler": {
        "type": "object",
        "description": "What buys nodes for pods that wait, as Karpenter's pools declare them.",
        "properties": {
            "enabled": _told(FLAG, "install it, with the definitions of Karpenter's kinds", False),
            "clusterName": _told(TEXT, "name of the cluster in the cloud's tags; needed", ""),
            "cloudEndpoint": _told(TEXT, "a cloud with Amazon's interfaces, instead of Amazon's", ""),
            "cloudRole": _told(TEXT, "ARN of the cloud's role for its account", ""),
            "resources": _told(ANY, "requests and limits of its container; empty for those of gpuplane", {}),
            "env": _told(
                MAP, "more settings, as INTERRUPTION_QUEUE; credentials are in the Secret gpuplane-autoscaler", {}
            ),
        },
    },
    "monitoring": {
        "type": "object",
        "description": "ServiceMonitors and alerts for the Prometheus operator, and boards for Grafana.",
        "properties": {
            "enabled": _told(
                FLAG, "make them; without the Prometheus operator's definitions on the cluster the boards alone", False
            ),
            "labels": _told(
                MAP, "labels by which your Prometheus selects ServiceMonitors and rules, as release: prometheus", {}
            ),
        },
    },
    "dashboard": {
        "type": "object",
        "description": "The dashboard in the cluster, for all users: each sees what the API server lets the user list.",
        "properties": {
            "enabled": _told(FLAG, "install it", False),
            "hosts": _told(LIST, "names by which browsers reach it, as that of an Ingress", []),
            "claim": _told(
                TEXT, "a PersistentVolumeClaim for its sums of 400 days; empty: the sums end with its pod", ""
            ),
            "resources": _told(ANY, "requests and limits of its container; empty for those of gpuplane", {}),
        },
    },
    "config": {
        "type": "object",
        "description": "What the device plugin's own chart calls devicePlugin.config; its values files work here.",
        "properties": {
            "name": _told(TEXT, "name of a ConfigMap in the namespace", ""),
            "default": _told(TEXT, "key for nodes without the label", ""),
            "map": _told(MAP, "named configurations: makes the ConfigMap", {}),
            "fallbackStrategies": _told(LIST, "for nodes without the label: named, single, empty in their order", []),
        },
    },
    **plugin_values.TOP,
    "extraObjects": _told(LIST, "more objects to create with the release", []),
    "platform": {
        "type": "object",
        "description": "The platform.",
        "properties": {"openshift": _told({"const": False}, "OpenShift is not supported yet", False)},
    },
    "gpuCluster": {
        "type": "object",
        "description": "The GPUCluster kind of the GPU operator.",
        "properties": {"deployCR": _told({"const": False}, "there is no such kind here", False)},
    },
    "draDriver": _told(ANY, "no effect unless it is switched on, which is refused: there is no DRA driver yet", {}),
    "node-feature-discovery": _told(ANY, "no effect: discovery is a part of gpuplane, without settings of its own", {}),
    "global": _told(ANY, "no effect: nothing is shared with other charts", {}),
}


# -- the files ---------------------------------------------------------------------------------------------------------
@functools.cache
def files() -> dict[str, str]:
    """Path below the chart -> text of every generated file."""
    schema = values_schema()
    made = {
        "Chart.yaml": chart_yaml(),
        "values.yaml": values_yaml(schema),
        "values.schema.json": json.dumps(schema, indent=1) + "\n",
        "files/no-effect.json": json.dumps(no_effect(), indent=1) + "\n",
        "files/plugin-keys.json": json.dumps(sorted(plugin_values.TOP)) + "\n",
        "files/driver-fields.json": json.dumps(driver_fields()) + "\n",
        "files/refused.json": json.dumps(plugin_values.REFUSED, indent=1) + "\n",
    }
    for definition in crds():
        text = yaml.safe_dump(definition, sort_keys=False, width=120, allow_unicode=True)
        made[f"crds/{definition['metadata']['name']}.yaml"] = text
    install = resources.files("gpuplane.operator").joinpath("install")
    for entry in sorted(install.iterdir(), key=lambda e: e.name):
        if entry.is_file():
            made[f"templates/{entry.name}"] = template(entry.name, entry.read_text())
    for definition in karpenter_crds():
        made[f"templates/{AUTOSCALER}-{definition['metadata']['name']}.yaml"] = definition_template(definition)
    for part in (*PARTS, POD_SCHEDULER, SCHEDULER_NAMING, AUTOSCALER, DASHBOARD):
        for entry in install.joinpath(part).iterdir():
            made[f"templates/{part}-{entry.name}"] = part_template(part, entry.read_text())
    for entry in install.joinpath(MONITORING).iterdir():
        made[f"templates/{MONITORING}-{entry.name}"] = monitoring_template(entry.name, entry.read_text())
    for board in boards():
        ((file, text),) = board["data"].items()
        made[f"files/boards/{file}"] = text
        made[f"templates/{MONITORING}-board-{file.removesuffix('.json')}.yaml"] = board_template(board)
    return made


def chart_yaml() -> str:
    return f"""\
# Written by deploy/chart/generate.py; changes here are lost.
apiVersion: v2
name: gpuplane
description: GPUs on Kubernetes, from bare machines to a shared cluster
type: application
version: {__version__}
appVersion: "{__version__}"
kubeVersion: ">=1.30.0-0"
home: https://gpuplane.dev
keywords: [gpu, nvidia, device-plugin, cdi, operator]
"""


POLICY_FILE: Final = "40-cluster-policy.yaml"
REPLACED: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "27-validation-pods.yaml": (
        (
            f"      expression: \"'{names.IMAGE.rpartition(':')[0]}'\"\n",
            '      expression: {{ include "gpuplane.imageName" . | squote | quote }}\n',
        ),
    ),
    "30-operator.yaml": (
        ("  replicas: 1\n", "  replicas: {{ .Values.operator.replicas | default 1 }}\n"),
        (
            "      priorityClassName: system-cluster-critical\n",
            "      priorityClassName: {{ .Values.operator.priorityClassName | default "
            '"system-cluster-critical" }}\n{{- with include "gpuplane.pod" . }}{{ . | nindent 6 }}{{ end }}\n',
        ),
        (
            "      containers:\n",
            '{{- with include "gpuplane.tolerations" . }}{{ . | nindent 8 }}{{ end }}\n      containers:\n',
        ),
        (f"          image: {names.IMAGE.rpartition(':')[0]}\n", '          image: {{ include "gpuplane.image" . }}\n'),
        ("          args: [run, operator]\n", '          args: {{ include "gpuplane.args" . }}\n'),
        (
            "          ports:\n",
            "{{- with .Values.operator.env }}{{ toYaml . | nindent 12 }}{{ end }}\n"
            '{{- with include "gpuplane.container" . }}{{ . | nindent 10 }}{{ end }}\n          ports:\n',
        ),
    ),
    POLICY_FILE: (("spec: {}\n", 'spec: {{- include "gpuplane.spec" . }}\n'),),
}
# NB: `default true` would make true of false.
_RESOURCES: Final = re.compile(r"^          resources:\n((?:            .*\n)+)", re.MULTILINE)
WRAPPED: Final = {POLICY_FILE: 'if ne (toString (.Values.clusterPolicy).deployCR) "false"'}


def _with_resources(text: str, group: str) -> str:
    """A manifest whose container takes the values of a group instead of its own requests and limits."""
    given = f"{{{{- with (.Values.{group}).resources }}}}{{{{ toYaml . | nindent 12 }}}}{{{{ else }}}}"
    return _RESOURCES.sub(lambda found: f"          resources:\n{given}\n{found[1]}{{{{- end }}}}\n", text)


def template(name: str, text: str) -> str:
    """A manifest of the installation as a template: the same text, with values where the chart has some."""
    for old, new in REPLACED.get(name, ()):
        if text.count(old) != 1:
            raise SystemExit(f"{name}: {old!r} stands there {text.count(old)} times; see REPLACED")
        text = text.replace(old, new)
    text = _with_resources(text, "operator")
    if name.startswith("10-"):
        # Where the release has the namespace already, as with helm's --create-namespace, it is not ours to make.
        first, rest = text.split("---\n", 1)
        own = f'{{{{- if ne .Release.Namespace "{names.OPERATOR_NAMESPACE}" }}}}\n{first}---\n{{{{- end }}}}\n'
        text = own + rest
    if name in WRAPPED:
        text = f"{{{{- {WRAPPED[name]} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"
    if name == POLICY_FILE:
        why = "operator.setSchedulerName needs podScheduler.enabled and admission.enabled"
        unset = f"(.Values.operator).setSchedulerName (not ({ASKED[SCHEDULER_NAMING]}))"
        text = f'{{{{- if and {unset} }}}}{{{{ fail "{why}" }}}}{{{{ end }}}}\n{text}'
    return HEAD + text


# Which values keep a part of the installation; only `false` leaves it out.
_KEPT: Final = '(ne (toString .Values.{}.enabled) "false")'
ASKED: Final = {
    "shares": f"or {_KEPT.format('admission')} {_KEPT.format('scheduler')}",
    "scheduler": _KEPT.format("scheduler"),
    "admission": _KEPT.format("admission"),
    POD_SCHEDULER: "(.Values.podScheduler).enabled",
    SCHEDULER_NAMING: f"and (.Values.podScheduler).enabled {_KEPT.format('admission')}",
    AUTOSCALER: "(.Values.autoscaler).enabled",
    DASHBOARD: "(.Values.dashboard).enabled",
}
# The autoscaler's settings come from the values.
AUTOSCALER_REPLACED: Final = (
    ("          ports:\n", '{{- include "gpuplane.autoscalerEnv" . | nindent 12 }}\n          ports:\n'),
    (
        "kind: ServiceAccount\nmetadata:\n",
        "kind: ServiceAccount\nmetadata:\n{{- with .Values.autoscaler.cloudRole }}\n  annotations:\n"
        f"    {ROLE_ANNOTATION}: {{{{ . | quote }}}}\n{{{{- end }}}}\n",
    ),
)


# Which values a file of the monitoring part needs, besides its own.
MONITORED: Final = {
    "20-scheduler.yaml": "scheduler",
    "30-admission.yaml": "admission",
    "40-autoscaler.yaml": AUTOSCALER,
}
MONITORING_WANTED: Final = "(.Values.monitoring).enabled"
_LABELS: Final = "{{- with .Values.monitoring.labels }}{{ toYaml . | nindent 4 }}{{ end }}"


def monitoring_template(name: str, text: str) -> str:
    """A file of the monitoring part: kinds of the Prometheus operator are left out where they are not served."""
    asked = f"({ASKED[MONITORED[name]]})" if name in MONITORED else ""
    made = []
    for document in text.rstrip().split("\n---\n"):
        (manifest,) = parse(document)
        # An alert's own templates are for Prometheus.
        shown = re.sub(r"{{|}}", lambda found: f'{{{{ "{found[0]}" }}}}', document)
        place = f"{manifest['apiVersion']}/{manifest['kind']}"
        if manifest["kind"] != "Service":
            shown = re.sub(r"(?m)^(  labels:\n(?:    .*\n)+)", lambda found: f"{found[1]}{_LABELS}\n", shown, count=1)
            shown = f'{{{{- if .Capabilities.APIVersions.Has "{place}" }}}}\n{shown}\n{{{{- end }}}}'
        made.append(shown)
    body = "\n---\n".join(made)
    wanted = f"and {MONITORING_WANTED} {asked}" if asked else MONITORING_WANTED
    return f"{HEAD}{{{{- if {wanted} }}}}\n{body}\n{{{{- end }}}}\n"


def board_template(board: Schema) -> str:
    """The ConfigMap of a board, whose text is a file of the chart."""
    ((file, _),) = board["data"].items()
    text = yaml.safe_dump({**board, "data": None}, sort_keys=False).replace(
        "data: null\n", f'data:\n  {file}: {{{{ .Files.Get "files/boards/{file}" | toJson }}}}\n'
    )
    return f"{HEAD}{{{{- if {MONITORING_WANTED} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"


def definition_template(definition: Schema) -> str:
    """A definition of Karpenter's, which helm leaves on the cluster: with it would go all pools and claims."""
    meta = {**definition["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}
    text = yaml.safe_dump({**definition, "metadata": meta}, sort_keys=False, width=120, allow_unicode=True)
    return f"{HEAD}{{{{- if {ASKED[AUTOSCALER]} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"


def part_template(part: str, text: str) -> str:
    """A manifest of what is installed when asked for."""
    for old, new in (
        (f"image: {names.IMAGE.rpartition(':')[0]}\n", 'image: {{ include "gpuplane.image" . }}\n'),
        (
            "          args: [run, scheduler]\n",
            "          args: [run, scheduler{{ with (.Values.scheduler).nodePolicy }}, --node-policy={{ . }}{{ end }}"
            f"{{{{ if {ASKED[POD_SCHEDULER]} }}}}, "
            f"--scheduler-name={names.SCHEDULER_NAME}"
            "{{- with .Values.podScheduler.defragmentation }}"
            "{{ if .enabled }}, --defragment{{ end }}"
            "{{ with .movesPerHour }}, --moves-per-hour={{ . }}{{ end }}"
            "{{ with .movesAtOnce }}, --moves-at-once={{ . }}{{ end }}"
            "{{ with .after }}, --move-after={{ . }}{{ end }}"
            "{{ with .coolDown }}, --move-cool-down={{ . }}{{ end }}"
            "{{ end }}{{ end }}]\n",
        ),
        (
            "          args: [run, admission]\n",
            f"          args: [run, admission{{{{ if {ASKED[POD_SCHEDULER]} }}}}, "
            f"--scheduler-name={names.SCHEDULER_NAME}{{{{ end }}}}]\n",
        ),
        (
            "          args: [run, dashboard, --history-dir=/var/lib/gpuplane]\n",
            "          args: [run, dashboard, --history-dir=/var/lib/gpuplane{{ range .Values.dashboard.hosts }}, "
            '{{ printf "--host=%s" . | quote }}{{ end }}]\n',
        ),
        (
            "        - name: history\n          emptyDir: {}\n",
            "        - name: history\n          {{- with .Values.dashboard.claim }}\n          persistentVolumeClaim:\n"
            "            claimName: {{ . | quote }}\n          {{- else }}\n          emptyDir: {}\n"
            "          {{- end }}\n",
        ),
        (f"value: {names.IMAGE.rpartition(':')[0]}\n", 'value: {{ include "gpuplane.image" . }}\n'),
        # Of the webhooks on pods; the one that only warns never fails.
        (
            "failurePolicy: Ignore\n    matchPolicy: Equivalent\n    timeoutSeconds: 5\n",
            'failurePolicy: {{ .Values.admission.failurePolicy | default "Ignore" }}\n'
            "    matchPolicy: Equivalent\n    timeoutSeconds: 5\n",
        ),
    ):
        text = text.replace(old, new)
    for old, new in AUTOSCALER_REPLACED if part == AUTOSCALER else ():
        text = text.replace(old, new)
    text = _with_resources(text, part)
    refused = ""
    if part == POD_SCHEDULER:
        why = '{{ fail "podScheduler needs scheduler.enabled" }}'
        refused = f"{{{{- if not {ASKED['scheduler']} }}}}{why}{{{{ end }}}}\n"
    return f"{HEAD}{{{{- if {ASKED[part]} }}}}\n{refused}{text.rstrip()}\n{{{{- end }}}}\n"


def driver_fields() -> list[str]:
    """Names of the fields that an NVIDIADriver and a ClusterPolicy's `driver` have in common.

    NB: the upgrade policy is the ClusterPolicy's for all nodes, and `repoConfig` and `licensingConfig` differ inside.
    """
    ours, theirs = (
        {field.encode_name for field in msgspec.structs.fields(kind)} for kind in (NVIDIADriverSpec, DriverSettings)
    )
    return sorted(ours & theirs - {"upgradePolicy", "repoConfig", "licensingConfig"})


# -- values ------------------------------------------------------------------------------------------------------------
def policy_schema() -> Schema:
    (definition,) = (crd for crd in crds() if crd["spec"]["names"]["kind"] == "ClusterPolicy")
    found: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def values_schema() -> Schema:
    """JSON schema of the values: the ClusterPolicy's own, closed, and the chart's."""
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **_closed(policy_schema())}
    for path, extra in (*OWN.items(), *plugin_values.OWN.items()):
        group = schema
        for name in path.split("."):
            group = group["properties"][name]
        group["properties"] |= {name: _closed(value) for name, value in extra.items()}
    schema["properties"]["operator"]["properties"]["version"]["type"] = ["string", "number"]
    schema["properties"] |= {name: _closed(value) for name, value in TOP.items()}
    schema["description"] = "Values of the gpuplane chart"
    return schema


def _closed(schema: Schema) -> Schema:
    """A structural schema as JSON schema has it; objects take no unknown names."""
    kept = {
        key: value for key, value in schema.items() if not key.startswith("x-") and key not in ("nullable", "format")
    }
    if "properties" in kept:
        kept["properties"] = {name: _closed(value) for name, value in kept["properties"].items()}
        if kept["properties"].get("version", {}).get("type") == "string":
            kept["properties"]["version"]["type"] = ["string", "number"]  # --set driver.version=570
        kept["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if "items" in kept:
        kept["items"] = _closed(kept["items"])
    if kept.get("anyOf") and schema.get("x-kubernetes-int-or-string"):
        del kept["anyOf"]
        kept["type"] = ["integer", "string"]
    if schema.get("nullable") and isinstance(kept.get("type"), str):
        kept["type"] = [kept["type"], "null"]
    elif schema.get("nullable") and isinstance(kept.get("type"), list):
        kept["type"] = [*kept["type"], "null"]
    return kept


VALUES_HEAD: Final = """\
# Values of gpuplane. Names and meaning are those of the GPU operator's chart.
#
# Every value has a default, which stands here as a comment; the ClusterPolicy is written with what you set and nothing
# else. A name that is not here is refused. What has no effect in this release is accepted, so that existing files work,
# and named after the installation.
#
# Written by deploy/chart/generate.py; changes here are lost.
"""


def values_yaml(schema: Schema) -> str:
    parts = [VALUES_HEAD]
    for name, group in schema["properties"].items():
        if name == "global":
            continue
        parts.append(_comment(group.get("description", ""), 0))
        shown = {"array": "[]", "object": "{}"}.get(first_type(group), "null")
        parts.append(f"{name}: {shown}\n" + "".join(_shown(group, name, 1)) + "\n")
    return "".join(parts).rstrip() + "\n"


def _shown(group: Schema, path: str, depth: int) -> list[str]:
    """The values of a group as comments, with what each is for above it."""
    lines = []
    indent = "  " * depth
    refused = plugin_values.refused()
    for name, schema in group.get("properties", {}).items():
        place = f"{path}.{name}"
        about = schema.get("description", "")
        if "properties" in schema:
            lines += [_comment(about, depth), f"{indent}# {name}:\n", *_shown(schema, place, depth + 1)]
            continue
        if place in refused and not about.startswith("refused"):
            about = f"{about} (refused when set: {refused[place]})"
        elif place in _policy_fields() and not acts(place):
            about = f"{about} (no effect: {why_not(place)})"
        default = json.dumps(_default(schema, place))
        lines += [_comment(about, depth), f"{indent}# {name}: {default}\n"]
    return lines


def _default(schema: Schema, path: str) -> Any:
    if schema.get("default") is not None:
        return schema["default"]
    known = _policy_fields().get(path)
    if known is not None:
        return known
    return {"object": {}, "array": [], "string": "", "boolean": False}.get(first_type(schema))


def first_type(schema: Schema) -> str:
    """Return the JSON type of a value, the first of several; empty when any will do."""
    kind = schema.get("type", "")
    return str(kind[0] if isinstance(kind, list) else kind)


def _comment(text: str, depth: int) -> str:
    indent = "  " * depth + "# "
    return "".join(
        f"{indent}-- {line}\n" if not n else f"{indent}   {line}\n"
        for n, line in enumerate(textwrap.wrap(" ".join(text.split()), 112 - 2 * depth))
    )


@functools.cache
def _policy_fields() -> dict[str, Any]:
    """Path -> default of every field of a ClusterPolicy's spec."""
    return dict(fields())


def no_effect() -> list[dict[str, Any]]:
    """Every value that changes nothing, with why and its default; NOTES.txt names those that are set."""
    found = [
        {"path": path.split("."), "default": default, "why": why_not(path)}
        for path, default in fields()
        if not acts(path) and path not in plugin_values.refused()
    ]
    for group, extra in (*OWN.items(), *plugin_values.OWN.items()):
        found += _own_no_effect(extra, group)
    return found + _own_no_effect(TOP, "")


def _own_no_effect(values: dict[str, Schema], group: str) -> list[dict[str, Any]]:
    found = []
    for name, schema in values.items():
        path = f"{group}.{name}".lstrip(".")
        if "properties" in schema:
            found += _own_no_effect(schema["properties"], path)
        elif schema["description"].startswith("no effect"):
            why = schema["description"].removeprefix("no effect").lstrip(":, ")
            found.append({"path": path.split("."), "default": schema["default"], "why": why})
    return found


def write() -> list[str]:
    """Writes what differs; the paths."""
    wanted = files()
    changed = []
    for stale in sorted((CHART / "crds").glob("*.yaml")):
        if f"crds/{stale.name}" not in wanted:
            stale.unlink()
            changed.append(f"removed crds/{stale.name}")
    for name, text in wanted.items():
        path = CHART / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            changed.append(name)
    return changed


if __name__ == "__main__":
    for name in write():
        sys.stdout.write(f"written: deploy/chart/gpuplane/{name}\n")
