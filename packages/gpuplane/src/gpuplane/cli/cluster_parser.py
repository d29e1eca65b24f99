"""The arguments of the commands that work on the cluster of a kubeconfig."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpuplane.cli.options import (
    DOCUMENTS,
    FORMS,
    cluster_options,
    completed,
    duration,
    examples,
    form_options,
    lazy,
    port,
    positive,
    scope_options,
    talk_options,
    timeout_options,
)


def add_cluster_commands(commands: Any) -> None:
    """Add `install`, `uninstall`, `status`, `explain`, `defrag`, `dashboard`, `top`, `doctor` and `cost`."""
    parents = [talk_options(), cluster_options(), timeout_options()]
    for add in (_install, _uninstall, _status, _explain, _defrag, _dashboard, _top, _doctor):
        add(commands, parents)
    _cost(commands, [talk_options(), cluster_options()])


def _install(commands: Any, parents: list[Any]) -> None:
    install = commands.add_parser(
        "install",
        parents=[*parents, form_options(*DOCUMENTS)],
        help="put gpuplane on the cluster of the current kubeconfig",
    )
    install.add_argument("--image", metavar="IMAGE", help="image of the operator and the operands")
    install.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of the ClusterPolicy's spec, as driver.enabled=false",
    )
    install.add_argument(
        "--admission",
        choices=["open", "closed", "none"],
        default="open",
        help="the webhook that refuses pods which can never run: open (default) lets pods pass while it is away, none "
        "leaves it out",
    )
    install.add_argument(
        "--scheduler",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the extender that places pods with GPUs (default); kube-scheduler must be configured to call it",
    )
    install.add_argument(
        "--pod-scheduler",
        action="store_true",
        help="schedule the pods with schedulerName gpuplane, without kube-scheduler",
    )
    install.add_argument(
        "--monitoring",
        action="store_true",
        help="ServiceMonitors and alerts, where the Prometheus operator is, and boards for Grafana",
    )
    install.add_argument(
        "--monitoring-label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label by which your Prometheus selects ServiceMonitors and rules, as release=prometheus",
    )
    install.add_argument(
        "--dashboard",
        action="store_true",
        help="the dashboard in the cluster, for all users: each sees what the API server lets the user list",
    )
    install.add_argument(
        "--dashboard-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which browsers reach the dashboard, as that of an Ingress",
    )
    install.add_argument(
        "--dashboard-claim",
        default="",
        metavar="NAME",
        help="a PersistentVolumeClaim in gpu-operator for the dashboard's sums of 400 days; else they end with its pod",
    )
    _cloud_options(install)
    install.add_argument("--only", choices=["crds", "policy"], help="apply these objects of the installation alone")
    install.add_argument("--dry-run", action="store_true", help="print the manifests instead of applying them")
    install.add_argument("--wait", action="store_true", help="until every GPU node is ready")
    install.set_defaults(command=lazy("install", "install"))
    examples(
        install,
        "gpuplane install --dry-run",
        "gpuplane install --image registry.example.com/gpuplane:0.1.0 --wait",
        "gpuplane install --scheduler --admission open --set driver.version=570.133.20",
        "gpuplane install --autoscaler --cluster-name demo",
        "gpuplane install --monitoring --monitoring-label release=prometheus",
        "gpuplane install --dashboard --dashboard-host gpus.example.com",
    )


def _cloud_options(install: Any) -> None:
    cloud = install.add_argument_group("autoscaler")
    cloud.add_argument("--autoscaler", action="store_true", help="buy nodes for pods that wait, as pools declare them")
    cloud.add_argument("--cluster-name", metavar="NAME", help="name of the cluster in the cloud's tags")
    cloud.add_argument("--cloud-endpoint", metavar="URL", help="a cloud with Amazon's interfaces instead of Amazon's")
    cloud.add_argument("--cloud-role", metavar="ARN", help="role of the cloud for the autoscaler's account")
    cloud.add_argument(
        "--cloud-env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the autoscaler, as INTERRUPTION_QUEUE=demo; credentials go into a Secret",
    )


def _uninstall(commands: Any, parents: list[Any]) -> None:
    uninstall = commands.add_parser(
        "uninstall",
        parents=[*parents, form_options(*DOCUMENTS)],
        help="take gpuplane off the cluster, every node as it was",
    )
    uninstall.add_argument(
        "--only",
        choices=["crds", "policy", "autoscaler", "nodes"],
        help="remove these objects of the installation alone; nodes: those that the autoscaler bought, and their pools",
    )
    uninstall.add_argument("--dry-run", action="store_true", help="print what would be removed")
    uninstall.set_defaults(command=lazy("install", "uninstall"))
    examples(uninstall, "gpuplane uninstall --dry-run", "gpuplane uninstall")


def _status(commands: Any, parents: list[Any]) -> None:
    status = commands.add_parser(
        "status",
        parents=[*parents, form_options(*FORMS), scope_options("nodes", "all")],
        help="nodes by stage with reasons; GPUs with their holders",
    )
    status.add_argument("what", nargs="?", choices=["nodes", "gpus"], default="nodes", help="nodes (default) or gpus")
    status.add_argument("-w", "--watch", action="store_true", help="stay and show each change")
    status.add_argument(
        "--wait", action="store_true", help="until every GPU node is ready; exit 1 when --timeout runs out"
    )
    status.set_defaults(command=lazy("status", "status"))
    examples(
        status,
        "gpuplane status",
        "gpuplane status gpus -n ml            what the pods of one namespace hold",
        "gpuplane status -l pool=train -w      the nodes of a pool, and each change",
        "gpuplane status --wait --timeout 10m",
        "gpuplane status -o json | jq .fits",
    )


def _explain(commands: Any, parents: list[Any]) -> None:
    explain = commands.add_parser(
        "explain",
        parents=[*parents, form_options(*FORMS), scope_options("pods", "the context's")],
        help="why a pod is where it is, or why it waits, GPU by GPU; what a code of a finding means",
    )
    what = explain.add_argument(
        "what",
        nargs="*",
        metavar="POD|CODE",
        help="a pod, also as NAMESPACE/NAME, or as GP201 (default: the pods that wait for GPUs)",
    )
    completed(what, "explained")
    explain.set_defaults(command=lazy("explain", "run"))
    examples(
        explain,
        "gpuplane explain ml/tune-42",
        "gpuplane explain tune-42 -n ml -o json",
        "gpuplane explain -A                   every pod that waits for GPUs",
        "gpuplane explain GP201                what a code means",
    )


def _defrag(commands: Any, parents: list[Any]) -> None:
    defrag = commands.add_parser(
        "defrag",
        parents=[*parents, form_options(*DOCUMENTS)],
        help="the fewest moves of pods that make room for what waits, or free whole nodes",
    )
    space = defrag.add_argument(
        "-n", "--namespace", default="", metavar="NAME", help="make room for pods of this namespace (default: all)"
    )
    completed(space, "namespaces")
    defrag.add_argument("--moves", type=positive, default=8, metavar="N", help="moves at most (default: 8)")
    defrag.add_argument("--free-nodes", action="store_true", help="free whole nodes with GPUs too")
    defrag.add_argument("--dry-run", action="store_true", help="print the moves instead of carrying them out")
    defrag.set_defaults(command=lazy("defrag", "defrag"))
    defrag.description = (
        "Exit codes: 0 each pod that waits gets room; 1 some get none, or a move failed;\n3 the cluster was not read."
    )
    examples(
        defrag,
        "gpuplane defrag --dry-run",
        "gpuplane defrag --dry-run --free-nodes --moves 20",
        "gpuplane defrag --dry-run -n ml -o json | jq .plans",
        "gpuplane defrag --moves 2             carry out two moves at most",
    )


def _doctor(commands: Any, parents: list[Any]) -> None:
    doctor = commands.add_parser(
        "doctor",
        parents=[*parents[:2], form_options("text", "json")],
        help="whether the installation is healthy, with cures; a file for support",
    )
    check = doctor.add_argument(
        "--check", action="append", default=[], metavar="NAME", help="this check alone; may be repeated"
    )
    completed(check, "doctor_checks")
    doctor.add_argument("--list", action="store_true", help="list the checks instead")
    doctor.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE.tar.gz",
        help="write objects, events, logs and metrics for support, without secrets",
    )
    doctor.set_defaults(command=lazy("gpuplane.cli.doctor.command", "doctor"))
    doctor.description = "Exit codes: 0 healthy, 1 findings, 3 a check could not look."
    examples(
        doctor,
        "gpuplane doctor",
        "gpuplane doctor --check extender --check webhooks",
        "gpuplane doctor -o json | jq '.checks[].findings'",
        "gpuplane doctor --bundle support.tar.gz",
    )


def _dashboard(commands: Any, parents: list[Any]) -> None:
    dashboard = commands.add_parser(
        "dashboard",
        parents=parents,
        help="every GPU, what waits and what needs you, in this machine's browser; read-only",
    )
    dashboard.add_argument("--port", type=port, default=0, help="port of this machine (default: any that is free)")
    dashboard.add_argument(
        "--local", action="store_true", help="serve it from this machine, also where the cluster has one for its users"
    )
    dashboard.set_defaults(command=lazy("gpuplane.dashboard.command", "run"))
    examples(
        dashboard,
        "gpuplane dashboard                    prints the address; Ctrl-C ends it",
        "gpuplane dashboard --context prod --port 8090",
    )


def _top(commands: Any, parents: list[Any]) -> None:
    top = commands.add_parser(
        "top",
        parents=[*parents, form_options(*DOCUMENTS)],
        help="GPUs, nodes and pods with their use, live on a terminal, those that need a person first",
    )
    top.add_argument("what", nargs="?", choices=["gpus", "nodes", "pods"], default="gpus", help="gpus (default)")
    top.add_argument(
        "--sort",
        choices=["matters", "busy", "memory", "held", "name"],
        default="matters",
        help="matters (default): lost, not usable, held and idle, over a limit, hot",
    )
    top.add_argument("--filter", default="", metavar="WORDS", help="rows that have these words in name, model or pods")
    top.add_argument("-a", "--all", action="store_true", help="healthy GPUs too")
    top.add_argument("--once", action="store_true", help="print it once, as where there is no terminal")
    top.set_defaults(command=lazy("gpuplane.cli.top.command", "top"))
    examples(
        top,
        "gpuplane top                          / filters, e explains, q ends it",
        "gpuplane top pods --sort busy --once",
        "gpuplane top --all --once -o json | jq '.rows[].busy'",
    )


def _cost(commands: Any, parents: list[Any]) -> None:
    cost = commands.add_parser(
        "cost",
        parents=[*parents, form_options("text", "json", "csv")],
        help="GPU hours held, used and idle, energy and dollars, by namespace, owner, label, pod or GPU",
    )
    space = cost.add_argument(
        "-n", "--namespace", default="", metavar="NAME", help="pods of this namespace (default: all)"
    )
    completed(space, "namespaces")
    cost.add_argument(
        "--by", default="namespace", metavar="WHAT", help="namespace (default), owner, pod, gpu, or label=NAME"
    )
    cost.add_argument(
        "--since", type=duration, default=30 * 86400.0, metavar="TIME", help="how long ago, as 30d (default) or 12h"
    )
    cost.add_argument("--prices", type=Path, metavar="FILE", help="YAML with dollars of a GPU hour by model and node")
    cost.add_argument(
        "--prometheus", default="", metavar="URL", help="Prometheus to ask (default: the cluster's, else the exporters)"
    )
    cost.set_defaults(command=lazy("cost", "cost"))
    examples(
        cost,
        "gpuplane cost",
        "gpuplane cost -n ml --by owner --since 7d",
        "gpuplane cost --by label=team -o csv --prices prices.yaml",
        "gpuplane cost --prometheus http://localhost:9090 -o json | jq .total",
    )
