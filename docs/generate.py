"""Writes docs/reference/ from the code: `python docs/generate.py`; with --check it only lists outdated pages.

Invariant: a page depends on the code alone, not on the terminal, the machine or the time, so a test can hold the pages
in the repository to what would be written now.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from gpuplane import names
from gpuplane.admission.server import admission_metrics
from gpuplane.api.codes import CODES
from gpuplane.api.crds import crds
from gpuplane.api.effects import acts, why_not
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.cloud_calls import call_samples
from gpuplane.autoscaler.counting import sample_counts
from gpuplane.autoscaler.disruption.figures import DisruptionFigures
from gpuplane.autoscaler.life_figures import LifeFigures
from gpuplane.autoscaler.metrics import AutoscalerState, autoscaler_metrics
from gpuplane.autoscaler.observed import PodView
from gpuplane.autoscaler.pod_times import PodTimes
from gpuplane.cli.parser import build
from gpuplane.cli.verbs import installed
from gpuplane.cures import CUDA, NVML, XID
from gpuplane.device_plugin.shares.gpu_manager import METRICS as GPU_MANAGER_METRICS
from gpuplane.discovery.gpu import GPU_LABELS
from gpuplane.exporter.fields import DEFAULT_FIELDS, OFFERED_LABELS, OFFERED_METRICS
from gpuplane.exporter.render import LOST
from gpuplane.limits.exposition import METRICS as SHARE_METRICS
from gpuplane.metering import METRICS as METER_METRICS
from gpuplane.operator.autoscaler_install import SETTINGS as AUTOSCALER_SETTINGS
from gpuplane.operator.gates import OPEN, PRE_INSTALLED, REMOVING
from gpuplane.operator.metrics import OperatorState, operator_metrics
from gpuplane.operator.operands import GROUP_LABEL
from gpuplane.operator.policy import FINALIZER
from gpuplane.operator.rights import granted, sentences
from gpuplane.operator.stages import OPERANDS, operand_of
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.metrics import Metrics as SchedulerMetrics
from gpuplane.scheduler.metrics import quota_families
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.queues.tree import FairQueue, QueueTree
from kubekit.api.core import Node, NodeStatus
from kubekit.api.meta import ObjectMeta
from kubekit.kube import EventRecorder, SystemClock
from kubekit.kube.exposition import MetricFamily
from kubekit.scheduling.podinfo import compile_pod
from tinykube.apiserver.metrics import Requests

REFERENCE: Final = Path(__file__).parent / "reference"
HEAD: Final = "<!-- Written by docs/generate.py from the code; changes here are lost. -->\n"
SHARED_FROM: Final = 3  # a group of fields that stands in as many places is described once

ENVIRONMENT: Final[dict[str, dict[str, str]]] = {
    "On your machine": {
        "HOME": "your home directory, for `~/.gpuplane` and `~/.kube/config`",
        "GPUPLANE_HOME": "where embedded clusters and their kubeconfig files lie, instead of `~/.gpuplane`",
        "XDG_CACHE_HOME": "where programs that were built lie, in `gpuplane/kubernetes`, instead of `~/.cache`",
        "GPUPLANE_ASCII": "`1`: only ASCII characters on the screen",
        "NO_COLOR": "anything: no colours, as with `--color never`",
        "TERM": "`dumb`: no colours, and no line is redrawn in place",
        "COLUMNS": "width of the screen where there is no terminal to ask",
        "KUBECONFIG": "kubeconfig files, separated by colons; `--kubeconfig` goes before",
    },
    "In a component's pod": {
        "NODE_NAME": "the node that an operand works for; `--node-name` goes before",
        "POD_NAME": "the component's own pod: its identity in the operator's lease, and where failures point to",
        "POD_NAMESPACE": "the namespace it works in, instead of that of its credentials",
        "POD_IP": "the address on which it serves metrics; without it all addresses",
        "GPUPLANE_IMAGE": "the image that the operator gives to the operands, instead of its own pod's",
        "GPUPLANE_DRIVER_DEFAULT": "the version to install where `driver.version` is not set; from the operator",
        "GPUPLANE_DRIVER_INSTALL": "`false`: the driver's operand looks for a driver and installs none",
        "KUBERNETES_SERVICE_HOST": "with the next one: the API server, as Kubernetes tells every pod",
        "KUBERNETES_SERVICE_PORT": "see above",
        "KUBERNETES_EXEC_INFO": "given to credential plugins, as client-go does",
        "LD_LIBRARY_PATH": "the validator puts the driver's libraries before it for its vectorAdd",
    },
    "In the autoscaler's pod (`gpuplane install --cloud-env`)": {
        **AUTOSCALER_SETTINGS,
        "AWS_ACCESS_KEY_ID": "credentials of the cloud, as every other `AWS_` name that boto3 reads; kept in a Secret",
    },
    "In the driver's pod (`driver.env`)": {
        "BASE_URL": "a mirror: where `<version>/NVIDIA-Linux-<machine>-<version>.run` lies",
        "CUDA_REPOSITORY_URL": "a copy of NVIDIA's CUDA repositories: where `ubuntu2204/x86_64` and the others lie",
        "HTTPS_PROXY": "the proxy of downloads and package managers; `HTTP_PROXY` and `NO_PROXY` likewise",
        "DRIVER_VERSION": "the version to install, or the branch with precompiled packages; from `driver.version`",
        "KERNEL_MODULE_TYPE": "`auto`, `open` or `proprietary`; from `driver.kernelModuleType`",
        "GPUPLANE_DRIVER_PRECOMPILED": "`true`: from packages made for the kernel; from `driver.usePrecompiled`",
        "GPU_DIRECT_RDMA_ENABLED": "`true`: nvidia-peermem is loaded too; from `driver.rdma.enabled`",
        "GPUPLANE_DRIVER_SOURCE": "with a driver image: which of the operand's two parts runs",
    },
    "In the device plugin's pod (`devicePlugin.env`)": {
        "MIG_STRATEGY": "`none`, `single`, `mixed`; from `mig.strategy`, also set for GPU feature discovery",
        "DEFAULT_CONFIG": "the configuration of nodes without the label; from `devicePlugin.config.default`",
        "FALLBACK_STRATEGIES": "and without a default: of `named` (a file `default`), `single`, `empty`, in order",
        "GPUPLANE_DIALECTS": "of `nvidia`, `tencent`, `alpha`: the names by which GPUs are offered, with commas",
        "FAIL_ON_INIT_ERROR": "`false`: a node without a driver is no failure",
        "NVIDIA_DRIVER_ROOT": "where the driver lies on the host; its device nodes unless the next one says otherwise",
        "NVIDIA_DEV_ROOT": "where the device nodes lie on the host",
        "PASS_DEVICE_SPECS": "`true`: containers get device nodes by the kubelet as well",
        "DEVICE_LIST_STRATEGY": "`envvar`, `volume-mounts`, `cdi-annotations`, `cdi-cri`, with commas",
        "DEVICE_ID_STRATEGY": "`uuid` or `index`",
        "CDI_ANNOTATION_PREFIX": "begins the annotations of `cdi-annotations`",
    },
    "In the exporter's pod (`dcgmExporter.env`)": {
        "DCGM_EXPORTER_COLLECTORS": "the CSV file of fields; `--config` goes before",
        "DCGM_EXPORTER_LISTEN": "where to listen, as `:9400`; `--port` goes before",
        "DCGM_EXPORTER_KUBERNETES": "`false`: no pods on the metrics",
        "KUBERNETES_VIRTUAL_GPUS": "`true`: the values of a shared GPU once for each of its holders, with its pod",
        "DCGM_EXPORTER_NO_HOSTNAME": "`true`: no label `Hostname`",
        "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME": "`true`: dashes in `modelName`",
        "NVIDIA_RESOURCE_NAMES": "GPU resources in addition to those of `nvidia.com/`, separated by commas",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true: labels of the pods that hold GPUs are on their lines",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true: their uid is, as pod_uid",
        "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX": "which labels: regular expressions with commas between",
        "DCGM_HPC_JOB_MAPPING_DIR": "the host's directory with a batch system's jobs, one file a GPU",
    },
    "In the validator's pod (`validator.*.env`)": {
        "DISABLE_DEV_CHAR_SYMLINK_CREATION": "`true`: no links in `/dev/char`",
        "CUDA_WITH_WORKLOAD": "`false`: no vectorAdd; `WITH_WORKLOAD` of `validator.cuda.env`",
        "PLUGIN_WITH_WORKLOAD": "`false`: no validation pod; `WITH_WORKLOAD` of `validator.plugin.env`",
    },
    "In containers": {
        "NVIDIA_VISIBLE_DEVICES": "the GPUs of a container by UUID; set by the device plugin, read by NVIDIA's runtime",
        "CUDA_VISIBLE_DEVICES": "which of a container's GPUs a program sees; the simulated driver follows it too",
    },
    "Limits of a share": {
        "GPUPLANE_LIMITS": "the directory with a program's limits, set by `share run`; `/etc/vcuda` goes before",
        "GPUPLANE_SAVED_MS": "in the device plugin's pod: GPU time that idle containers save besides 20 ms (default 0)",
        "GPUPLANE_ON_ESCAPE": "in the device plugin's pod: `stop` kills processes of shares that go round their limits",
        "GPUPLANE_LIMITS_MISSING": "`closed` (default): without usable limits no GPU; `open`: without them no limits",
        "XDG_RUNTIME_DIR": "where `share run` keeps files, below `gpuplane/`; else `/run/user/UID`, `/run` for root",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "the core of a share that MPS enforces",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "the memory of a share that MPS enforces",
        "CUDA_MPS_PIPE_DIRECTORY": "where the MPS daemon is looked for (`/tmp/nvidia-mps`)",
    },
    "Simulation": {
        "SIMGPU_DEV": "the directory of a simulated driver's device nodes; else the nearest `dev` above its libraries",
        "SIMGPU_MAX_INSTRUCTIONS": "instructions after which a simulated kernel has timed out (2,000,000,000)",
        "SIMHOST_MACHINE": "the machine's root where it is not `SIMHOST_ROOT`: for programs in the driver's root",
        "SIMHOST_ROOT": "the root on which the programs of a simulated machine work",
        "TINYKUBE_DIRECTORY": "marks the processes of an embedded cluster, so that `down` ends them and no others",
    },
}

CHART_JOBS: Final[dict[str, str]] = {
    "`gpuplane-take-back`": "Deletes the ClusterPolicy, so that all nodes lose gpuplane's drivers and configuration.",
    "`gpuplane-end-nodes`": "Deletes node pools and claims with their definitions, so that all bought nodes end.",
    "`gpuplane-upgrade-crds`": "Creates any definition, and changes those of gpuplane, so that their objects are lost.",
    "`gpuplane-cleanup-crds`": "Deletes gpuplane's definitions with all their objects, and lists and changes requests.",
}

MARKS: Final[dict[str, str]] = {
    FINALIZER: "finalizer of the ClusterPolicy: it goes when every node is as it was",
    GROUP_LABEL: "label of the driver's DaemonSets: which OS and kernel they are for",
}


def pages() -> dict[str, str]:
    """All pages of the reference: file name -> text."""
    return {
        "commands.md": commands(),
        "crds.md": custom_resources(),
        "karpenter.md": karpenter_kinds(),
        "names.md": all_names(),
        "metrics.md": metrics(),
        "findings.md": findings(),
        "cures.md": errors_and_cures(),
        "rights.md": rights(),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def code(text: object) -> str:
    """Text in code type, as it is; nothing for nothing."""
    shown = str(text)
    return f"`{shown}`" if shown else ""


def errors_and_cures() -> str:
    out = [
        "# Errors and their cures\n",
        HEAD,
        "The meaning of each error in messages of the validator, the device plugin and the exporter, and its cure.\n",
    ]
    for title, about, entries in (
        ("CUDA", "Of the driver API; in the validator's stages and its vectorAdd.", CUDA),
        ("NVML", "Of the management library.", NVML),
        ("Xid", "Of the kernel module, as dmesg has them; also in the exporter's `err_msg`.", XID),
    ):
        rows = [(str(number), meaning, cure) for number, (meaning, cure) in entries.items()]
        out += [f"## {title}\n", about + "\n", table(("number", "means", "cure"), rows)]
    return "\n".join(out)


# -- rights ------------------------------------------------------------------------------------------------------
def rights() -> str:
    out = [
        "# Rights\n",
        HEAD,
        "The most that a thief can do with the token of each component: for each rule of RBAC of its"
        " account, within the limits of the admission policies. The API server refuses a token once its pod"
        " is gone. A rule without a sentence here fails a test. No account may read Secrets, except those of"
        " the webhook, the extender and the dashboard their own.\n",
        "The admission policies need Kubernetes 1.30 or newer. A user who may create pods in the namespace"
        f" `{names.OPERATOR_NAMESPACE}` has every token below, and is root on the nodes.\n",
    ]
    for account, rights in sentences().items():
        rows = [(code(rule), rights.rules[str(rule)]) for rule in granted() if rule.account == account]
        out += [f"## {account}\n", f"{rights.most}\n", table(("rule", "a stolen token, at most"), rows)]
    out += [
        "## Jobs of the Helm chart\n",
        "Their accounts exist while helm runs the Job.\n",
        table(("account", "a stolen token, at most"), CHART_JOBS.items()),
    ]
    return "\n".join(out)


# -- commands ----------------------------------------------------------------------------------------------------
def commands() -> str:
    parser = build(installed())
    out = [
        "# Commands\n",
        HEAD,
        "`kubectl gpuplane` is the same program. Flags may stand before and after other arguments.\n",
        table(
            ("exit code", "means"),
            [
                ("0", "yes, done"),
                (
                    "1",
                    "the answer is no: errors in a file, a diff exists, `--wait` ran out, a stage failed, "
                    "no gpuplane there",
                ),
                ("2", "wrong usage"),
                ("3", "could not ask: no cluster, no permission"),
                ("130", "interrupted"),
            ],
        ),
        "The answer goes to stdout; progress, hints and errors go to stderr. `-o` has the forms that a command lists"
        " below, and another one is wrong usage: `json` and `yaml` have the same content, with a version; `wide` has"
        " more columns than `text`; `name` prints the names alone, one a line. Variables of the environment are"
        " listed in [names](names.md#variables-of-the-environment).\n",
    ]
    groups: dict[str, list[argparse.Action]] = {}
    sections = []
    for path, sub, about in _walk(parser, (parser.prog,)):
        # The parts of `run` have the same flags; one table says what differs.
        if path[1] == "run" and len(path) > 2:
            continue
        sections.append(_command(path, sub, about, groups))
        if path[1] == "run":
            sections.append(_parts(path, sub, groups))
    for title, actions in groups.items():
        where = "all commands" if title == "output" else "commands that ask a cluster"
        out += [f"## Flags of {where}\n", _flags(actions)]
    return "\n".join([*out, *sections])


def _walk(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser, str]]:
    """Every command with its path and its line of help, in the order in which help shows them."""
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                yield (*path, name), sub, about.get(name, "")
                yield from _walk(sub, (*path, name))


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    # NB: argparse has no public way to list a parser's arguments; shtab reads the same attribute.
    return list(parser._actions)


def _command(
    path: tuple[str, ...], parser: argparse.ArgumentParser, about: str, groups: dict[str, list[argparse.Action]]
) -> str:
    own, notes = _own(parser, groups)
    words = [f"{'#' * len(path)} {' '.join(path)}\n", about[:1].upper() + about[1:] + ".\n"]
    if own:
        words.append(_flags(own))
    if notes:
        words.append(f"Also the flags of {' and '.join(notes)}.\n")
    return "\n".join(words)


def _own(
    parser: argparse.ArgumentParser, groups: dict[str, list[argparse.Action]]
) -> tuple[list[argparse.Action], list[str]]:
    """A command's own arguments, and links to the groups of flags that it shares; these are added to `groups`.

    The forms of `-o` are the command's own: they differ.
    """
    shared: set[int] = set()
    notes = []
    for group in parser._action_groups:
        if group.title in ("output", "cluster"):
            common = [action for action in group._group_actions if action.dest != "output"]
            shared.update(id(action) for action in common)
            groups.setdefault(group.title, common)
            notes.append(f"[{group.title}]({_anchor(group.title)})")
    own = [
        action
        for action in _actions(parser)
        if id(action) not in shared and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]
    own.sort(key=lambda action: "-o" in action.option_strings)  # last
    return own, notes


def _parts(path: tuple[str, ...], parser: argparse.ArgumentParser, groups: dict[str, list[argparse.Action]]) -> str:
    """The parts of a command whose flags are mostly the same: one table of the parts, one of all flags."""
    parts = list(_walk(parser, path))
    flags: dict[str, tuple[str, list[str]]] = {}
    notes: list[str] = []
    for part, sub, _ in parts:
        own, notes = _own(sub, groups)
        for action in own:
            flags.setdefault(_spelled(action), (_help(action), []))[1].append(part[-1])
    rows = [
        (spelled, text if len(where) == len(parts) else f"{text}; of {', '.join(where)}")
        for spelled, (text, where) in flags.items()
    ]
    return "\n".join(
        [
            table(("component", "what it does"), [(code(part[-1]), about) for part, _, about in parts]),
            table(("argument", "meaning"), rows),
            f"Also the flags of {' and '.join(notes)}.\n",
        ]
    )


def _anchor(title: str) -> str:
    return "#flags-of-all-commands" if title == "output" else "#flags-of-commands-that-ask-a-cluster"


def _flags(actions: Iterable[argparse.Action]) -> str:
    return table(("argument", "meaning"), [(_spelled(action), _help(action)) for action in actions])


def _spelled(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper())
    if not action.option_strings:
        return code(f"[{value}]" if action.nargs == "?" else f"{value}..." if action.nargs == "+" else value)
    names_ = ", ".join(action.option_strings)
    return code(names_ if action.nargs == 0 else f"{names_} {value}")


def _help(action: argparse.Action) -> str:
    text = (action.help or "") % {**vars(action), "prog": "gpuplane"}
    default = action.default
    silent = default in (None, "", False, 0, []) or default is argparse.SUPPRESS or "default" in text
    shown = f"{default:.0f}s" if isinstance(default, float) else default
    return text if silent else f"{text} (default: {shown})"


# -- custom resources --------------------------------------------------------------------------------------------
def custom_resources() -> str:
    definitions = sorted(crds(), key=lambda definition: str(definition["spec"]["names"]["kind"]))
    out = [
        "# Custom resources\n",
        HEAD,
        "From the same schemas as the CRDs and `gpuplane check`. `kubectl explain` says the same of every field, and"
        " `gpuplane install --dry-run` prints the definitions.\n",
    ]
    return "\n".join([*out, *map(_kind, definitions)])


def karpenter_kinds() -> str:
    out = [
        "# Karpenter's kinds\n",
        HEAD,
        "`gpuplane install --autoscaler` applies these definitions. These admit and refuse the same objects as"
        " Karpenter's own, and the [autoscaler](../components/autoscaler.md) reads them.\n",
    ]
    return "\n".join([*out, *map(_kind, karpenter_crds())])


def _kind(definition: Mapping[str, Any]) -> str:
    spec = definition["spec"]
    version = spec["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    short = spec["names"].get("shortNames", [])
    kind = spec["names"]["kind"]
    out = [
        f"## {kind}\n",
        f"{schema.get('description', '')}\n",
        f"`{spec['group']}/{version['name']}`, {spec['scope'].lower()}-scoped, `kubectl get {spec['names']['plural']}`"
        + (f", short `{', '.join(short)}`" if short else "")
        + ".\n",
        table(
            ("column", "path", "shown"),
            [
                (column["name"], code(column["jsonPath"]), "with `-o wide`" if column.get("priority") else "always")
                for column in version.get("additionalPrinterColumns", ())
            ],
        ),
    ]
    shared = _shared(schema)
    for part in ("spec", "status"):
        if body := schema["properties"].get(part):
            out += _part(kind, part, body, shared)
    if shared:
        out.append(f"### {kind}: fields that stand in several places\n")
        for key, title in shared.items():
            others = {k: t for k, t in shared.items() if k != key}
            out += [f"#### {title}\n", _fields(json.loads(key), "", others, effects=False)]
    return "\n".join(out)


def _part(kind: str, part: str, body: Mapping[str, Any], shared: Mapping[str, str]) -> Iterator[str]:
    """Sections of a spec or a status: a table for each group of fields, one table for all that have no effect yet."""
    effects = (kind, part) == ("ClusterPolicy", "spec")
    yield f"### {kind}: {part}\n"
    yield f"{_described(body)}\n"
    if effects:
        yield (
            "Every field of the GPU operator's kind is accepted. The column *acts* says whether this release does"
            " something with it; for those that it does not act on, `gpuplane check` says why.\n"
        )
    if alone := {name: field for name, field in body["properties"].items() if not _group(field)}:
        yield _fields(alone, f"{part}.", shared, effects=effects)
    idle = []
    for name, field in body["properties"].items():
        path = f"{part}.{name}"
        if effects and not _acts(path, field):
            idle.append((name, field))
        elif _group(field):
            yield f"#### {path}\n"
            yield f"{_described(field)}\n"
            yield _fields(_group(field), f"{path}{_below(field)}.", shared, effects=effects)
    if idle:
        yield "#### Groups that are accepted without effect so far\n"
        rows = [
            (code(f"{part}.{name}"), field.get("description", ""), _why(name, field), _inside(field))
            for name, field in idle
        ]
        yield table(("group", "meaning", "why it has no effect", "fields"), rows)


def _acts(path: str, field: Mapping[str, Any]) -> bool:
    """Whether the operator acts on a field of the ClusterPolicy's spec, or on one below it."""
    below = field.get("properties", {})
    if not below:
        return acts(path.removeprefix("spec.").split("[")[0])
    return any(_acts(f"{path}.{name}", inner) for name, inner in below.items())


def _why(name: str, field: Mapping[str, Any]) -> str:
    """Why a group has no effect: the reason of its own fields, not of those that every component has."""
    reasons = Counter(why_not(f"{name}.{inner}") for inner in field["properties"])
    own = [why_not(f"{name}.{inner}") for inner in field["properties"] if inner == "enabled"]
    return own[0] if own else reasons.most_common(1)[0][0]


def _inside(field: Mapping[str, Any]) -> str:
    return ", ".join(code(name) for name in field["properties"])


def _group(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The fields below a field: of an object, of a list's entries, of a map's values."""
    inner = schema
    if schema.get("type") == "array":
        inner = schema["items"]
    elif isinstance(schema.get("additionalProperties"), dict):
        inner = schema["additionalProperties"]
    found: dict[str, Any] = inner.get("properties", {})
    return found


def _below(schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return "[]"
    return ".*" if isinstance(schema.get("additionalProperties"), dict) else ""


def _shared(schema: Mapping[str, Any]) -> dict[str, str]:
    """Groups of fields that stand in several places: their JSON -> a title."""
    seen: Counter[str] = Counter()
    titles: dict[str, str] = {}
    todo = list(schema["properties"].values())
    while todo:
        for name, field in _group(todo.pop()).items():
            if fields := _group(field):
                seen[json.dumps(fields)] += 1
                titles.setdefault(json.dumps(fields), str(field.get("description") or name).rstrip("."))
                todo.append(field)
    return {key: titles[key] for key, number in seen.items() if number >= SHARED_FROM and len(json.loads(key)) > 2}


def _described(field: Mapping[str, Any]) -> str:
    text, rules = str(field.get("description", "")), _rules(field)
    return f"{text}{'.' if rules and not text.endswith('.') else ''}{rules}".strip()


def _rules(schema: Mapping[str, Any]) -> str:
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    return f" Rules: {'; '.join(rules)}." if rules else ""


def _fields(fields: Mapping[str, Any], prefix: str, shared: Mapping[str, str], *, effects: bool) -> str:
    head = ("field", "type", "default", "meaning", *(["acts"] if effects else []))
    rows = [(code(path.removeprefix(prefix)), *cells) for path, *cells in _rows(fields, prefix, shared)]
    return table(head, [row[: len(head)] for row in rows])


def _rows(fields: Mapping[str, Any], prefix: str, shared: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for name, field in fields.items():
        path = f"{prefix}{name}"
        inner = _group(field)
        title = shared.get(json.dumps(inner)) if inner else None
        text = _described(field)
        if title is not None:
            text = f"{text} See [its fields](#{_slug(title)})."
        yield path, _type(field), _default(field), text, "yes" if _acts(path, field) else "no"
        if inner and title is None:
            yield from _rows(inner, f"{path}{_below(field)}.", shared)


def _slug(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-")


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    return "" if default in (None, {}) else code(json.dumps(default) if not isinstance(default, str) else default)


def _type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(code(value) for value in field["enum"] if value != "")
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"map of {_type(field['additionalProperties'])}"
    return str(field.get("format") or kind)


# -- names -------------------------------------------------------------------------------------------------------
def all_names() -> str:
    out = [
        "# Labels, annotations, paths and variables\n",
        HEAD,
        "All of them are interfaces: they do not change their meaning. The code has them in `gpuplane.names`.\n",
    ]
    for title, rows in named():
        if title == "environment":
            continue  # below, with those that others have named
        out += [f"## {title[:1].upper()}{title[1:]}\n", table(("name", "meaning"), rows)]
    out += [
        "## Our own marks\n",
        table(("name", "meaning"), [(code(name), about) for name, about in MARKS.items()]),
        "## Labels of a node's GPUs\n",
        "As GPU feature discovery has them: " + ", ".join(code(label) for label in sorted(GPU_LABELS)) + ".\n",
        "## Gates\n",
        "Node labels that the operator sets; each lets one DaemonSet on the node. Values:"
        f" {code(OPEN)}; {code(PRE_INSTALLED)} where what the operand makes was there before it, which then has nothing"
        f" to do; {code(REMOVING)} while the operand takes back what it did to the node.\n",
        table(
            ("label", "set when these stages hold", "makes"),
            [
                (
                    code(names.DEPLOY_PREFIX + operand.gate),
                    ", ".join(stage.value for stage in operand.needs),
                    ", ".join(stage.value for stage in operand.makes),
                )
                for operand in OPERANDS
            ],
        ),
        "## Stages\n",
        "In their order; see [the operator](../components/operator.md).\n",
        table(
            ("stage", "made by"),
            [(stage.value, operand.gate if (operand := operand_of(stage)) else "the operator") for stage in StageName],
        ),
        "## Variables of the environment\n",
    ]
    for title, variables in ENVIRONMENT.items():
        out += [f"### {title}\n", table(("variable", "meaning"), [(code(k), v) for k, v in variables.items()])]
    return "\n".join(out)


def named() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The sections of names.py: title, and its names with the comments that stand above or next to them."""
    source = Path(names.__file__).read_text()
    lines = source.splitlines()
    title, rows = "", list[tuple[str, str]]()
    starts = {node.lineno: node for node in ast.parse(source).body if isinstance(node, ast.AnnAssign)}
    for number, line in enumerate(lines, 1):
        if heading := re.match(r"# -- (.+?) -*$", line):
            if rows:
                yield title, rows
            title, rows = heading[1], []
        elif node := starts.get(number):
            assert isinstance(node.target, ast.Name)
            value = getattr(names, node.target.id)
            shown = ", ".join(map(code, value)) if isinstance(value, tuple) else code(value)
            rows.append((shown, _comment(lines, node)))
    yield title, rows


def _comment(lines: Sequence[str], node: ast.AnnAssign) -> str:
    """The comment next to a definition, or else the block of comment lines right above or inside it."""
    assert node.end_lineno is not None
    trailing = re.search(r"  # (.+)$", lines[node.end_lineno - 1])
    if trailing:
        return trailing[1]
    inside = [line.strip() for line in lines[node.lineno : node.end_lineno] if line.strip().startswith("# ")]
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.startswith("# ") or line.startswith("# --"):
            break
        above.insert(0, line)
    return " ".join(line.removeprefix("# ") for line in above + inside)


# -- metrics -----------------------------------------------------------------------------------------------------
def metrics() -> str:
    node = GPUNode(metadata=ObjectMeta(name="NODE"))
    operator = OperatorState(gpunodes=[node], writes={"nodes": 0})
    defaults = {field.name for field in DEFAULT_FIELDS}
    out = [
        "# Metrics\n",
        HEAD,
        "## Operator\n",
        "`http://<pod of deployment/gpu-operator>:8080/metrics`; also `/healthz` and `/readyz` (503 until it has"
        " the lease and has seen the cluster).\n",
        table(("metric", "type", "labels", "meaning"), _exposed(operator_metrics(operator))),
        "## Exporter\n",
        "Port 9400 on every ready GPU node, `/metrics` and `/health`: DaemonSet `nvidia-dcgm-exporter`. Labels `gpu`,"
        " `UUID`, `pci_bus_id`, `device`, `modelName`, `Hostname`, and `container`, `namespace`, `pod` of who holds the"
        " whole GPU; with `KUBERNETES_VIRTUAL_GPUS` also of who shares it, and `vgpu`, the replica;"
        " `GPU_I_PROFILE` and `GPU_I_ID` are a GPU instance's, `hpc_job` a batch system's job;"
        " `DCGM_FI_DEV_XID_ERRORS` has `err_code` and `err_msg`. Values that a GPU does not"
        " offer are left out for it. Another list of fields: see"
        " [the exporter](../components/exporter.md).\n",
        table(
            ("metric", "type", "meaning"),
            [(code(f.name), f.type.value, f.help) for f in DEFAULT_FIELDS if f.name in OFFERED_METRICS]
            + [(code(metric.name), metric.type.value, metric.help) for metric in (LOST, *METER_METRICS)],
        ),
        "A label on all of them: "
        + ", ".join(code(f.name) for f in DEFAULT_FIELDS if f.name in OFFERED_LABELS)
        + ".\n",
        "Only when a list of fields names them: "
        + ", ".join(code(name) for name in OFFERED_METRICS if name not in defaults)
        + "; and as labels on all others: "
        + ", ".join(code(name) for name in OFFERED_LABELS if name not in defaults)
        + ".\n",
        "## Device plugin\n",
        "Port 5678 on nodes that offer shares, `/metric` and `/metrics`, by gpu-manager's names. Labels `pod_name`,"
        " `namespace`, `node`, `container_name`, and `gpu` (or `gpu_memory`, `req_of_gpu`, `req_of_gpu_memory`):"
        " `gpu0`, or `total` for all of a container's GPUs.\n",
        table(
            ("metric", "type", "meaning"),
            [(code(metric.name), metric.type.value, metric.help) for metric in (*GPU_MANAGER_METRICS, *SHARE_METRICS)],
        ),
        "## Autoscaler\n",
        "Port 8080 of deployment/gpuplane-autoscaler, `/metrics`, `/healthz` and `/readyz`; Karpenter's names where"
        " Karpenter has the metric.\n",
        table(("metric", "type", "labels", "meaning"), _exposed(_autoscaler_metrics())),
        "## Admission\n",
        "`https://<pod of deployment/gpuplane-admission>:8443/metrics`, where the webhook is installed.\n",
        table(
            ("metric", "type", "labels", "meaning"), _exposed(admission_metrics(0.0, 0, {("validate", "refused"): 0}))
        ),
        "## Scheduler\n",
        "`https://<pod of deployment/gpuplane-scheduler>:3456/metrics`, where the extender is installed; all but the"
        " first three only on the replica that answers, and `gpuplane_scheduler_quota_used_gpus`, which names tenants,"
        " only for callers with a certificate of the extender's authority.\n",
        table(("metric", "type", "labels", "meaning"), _exposed(_scheduler_metrics())),
        "## Embedded API server\n",
        "`kubectl get --raw /metrics` on an embedded cluster.\n",
        table(
            ("metric", "type", "labels", "meaning"),
            [
                (name, kind, "verb, resource, subresource, user", text)
                for name, kind, _, text in _exposed([Requests().family()])
            ],
        ),
    ]
    return "\n".join(out)


def _autoscaler_metrics() -> Iterator[MetricFamily]:
    """Yield the autoscaler's metrics with one value each, so that their labels are known."""
    labels = {"karpenter.sh/nodepool": "POOL"}
    status = NodeStatus(capacity={"cpu": "1"}, allocatable={"cpu": "1"})
    meta = ObjectMeta(name="NODE", labels=labels, creation_timestamp="2026-01-01T00:00:00Z")
    node = Node(metadata=meta, status=status)
    requests = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    info = compile_pod({"metadata": {"name": "POD", "namespace": "NAMESPACE"}, "spec": requests})
    counted = PodView(info=info, daemon="DAEMON")
    figures = DisruptionFigures({"Empty": {"POOL": 0.0}}, {"Empty": 0}, {("delete", "empty", "WhenEmpty"): 0}, {"": 0})
    figures.decide("delete", "empty", "WhenEmpty", ["POOL"])
    figures.away = {"POOL": 0}
    figures.seconds.observe(0.0, reason="", consolidation_type="")
    pool = DeclaredPool("POOL", limits={"cpu": "1"}, used={"cpu": "1"})
    return autoscaler_metrics(
        AutoscalerState(
            created=sample_counts("reason", "nodepool", "min_values_relaxed"),
            disrupted={("empty", "POOL"): 0},
            terminated=sample_counts("nodepool", "capacity_type", "zone"),
            evictions={201: 0},
            notices={"health": 0},
            cost={"POOL": 0.0},
            pools=[pool],
            nodes=[node],
            disruption=figures,
            pods=lambda name: [counted],
            types=[InstanceType("TYPE", 1, 1024, 1, (("on-demand", 1.0),))],
            closed=[("on-demand", "TYPE", "ZONE")],
            more=[*LifeFigures.sample(), *PodTimes.sample(), *call_samples()],
        )
    )


def _scheduler_metrics() -> Iterator[MetricFamily]:
    no_client: Any = None
    leader = Leader(no_client, EventRecorder(no_client, "docs"), Chosen(), SystemClock(), lambda: 0, "gpuplane")
    leader.cluster.usage.add("POD", "NAMESPACE", "NODE", 100, "POD")
    counted = SchedulerMetrics()
    counted.answered("filter", HTTPStatus.OK, 0.0)
    yield from counted.families(leader)
    assert leader.pods is not None
    leader.pods.model.set_queues(QueueTree([FairQueue("QUEUE", guaranteed=(0, 0, 0, 0))]))
    yield from quota_families(leader)


def _exposed(families: Iterable[MetricFamily]) -> list[tuple[str, str, str, str]]:
    """Rows (name, type, labels, help) of metrics."""
    rows = []
    for metric, values, shared, _ in families:
        series = [*(which for which, _ in values), *(which for several, _ in shared for which in several)]
        labels = _labels(series[-1]) if series else []
        rows.append((code(metric.name), metric.type.value, ", ".join(labels), metric.help))
    return rows


def _labels(which: str) -> list[str]:
    return re.findall(r'(\w+)="', which)


# -- findings ----------------------------------------------------------------------------------------------------
def findings() -> str:
    out = [
        "# Findings\n",
        HEAD,
        "The findings of `gpuplane check FILE...`, by code; `gpuplane explain CODE` prints the same. A code keeps its"
        " meaning for ever. Findings of codes that say so are warnings, which do not change the exit code.\n",
    ]
    for name, entry in CODES.items():
        out += [f"## {name}: {entry.title}\n", f"{entry.text}\n"]
        for label, example in (("Wrong", entry.wrong), ("Right", entry.right)):
            if example:
                out.append(f"{label}:\n\n```yaml\n{example}\n```\n")
    return "\n".join(out)


def main(arguments: Sequence[str]) -> int:
    """Write the pages; with --check say which differ, 1 when one does."""
    stale = []
    for name, text in pages().items():
        path = REFERENCE / name
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            REFERENCE.mkdir(exist_ok=True)
            path.write_text(text)
    for name in stale:
        sys.stdout.write(f"{'out of date' if '--check' in arguments else 'written'}: docs/reference/{name}\n")
    if "--check" not in arguments:
        # The chart's values say the same of the ClusterPolicy's fields.
        sys.path.insert(0, str(Path(__file__).parents[1]))
        runpy.run_module("deploy.chart.generate", run_name="__main__")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
