"""The command line of `gpuplane simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from gpuplane.cli.options import DOCUMENTS, examples, form_options, lazy, talk_options

_POLICIES: Final = ("opportunity", "fragmentation", "power", "tightest", "spread", "topology")
_THROUGH: Final = ("policy", "extender", "scheduler")


def add_simulate(commands: Any) -> None:
    """`simulate packing` and `simulate nodes`."""
    simulate = commands.add_parser("simulate", help="simulate a placement policy, with the code that a cluster runs")
    experiments = simulate.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    packing = experiments.add_parser(
        "packing",
        parents=[talk_options(), form_options(*DOCUMENTS)],
        help="how much of a cluster's GPUs a trace of pods can hold: the openb experiment",
    )
    packing.add_argument("--nodes", type=Path, required=True, metavar="CSV", help="sn,cpu_milli,memory_mib,gpu,model")
    pods = packing.add_mutually_exclusive_group(required=True)
    pods.add_argument("--pods", type=Path, metavar="CSV", help="name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec]")
    pods.add_argument(
        "--trace",
        type=Path,
        metavar="CSV",
        help="pods that also leave: as --pods, and creation_time[,deletion_time] in seconds",
    )
    packing.add_argument("--policy", choices=_POLICIES, default=_POLICIES[0], help="default: %(default)s")
    packing.add_argument(
        "--through",
        choices=_THROUGH,
        help="the program that decides: the policy alone (default), kube-scheduler with the extender, or our pod "
        "scheduler",
    )
    packing.add_argument(
        "--compare",
        type=_way,
        nargs="+",
        metavar="WAY",
        help=f"compare several: policies, or {', '.join(_THROUGH)}, alone or as scheduler:tightest",
    )
    packing.add_argument(
        "--learn", action="store_true", help="a policy alone learns the mix of pods as they arrive, as a cluster does"
    )
    packing.add_argument(
        "--inflate",
        type=_above_zero,
        metavar="RATIO",
        help="pods arrive, some again, until so many times the GPUs were asked for (default: 1.3)",
    )
    packing.add_argument("--seed", type=int, default=42, help="of orders that no file gives (default: %(default)s)")
    packing.add_argument("--arrival-order", type=Path, metavar="FILE", help="names of the pods that arrive, one a line")
    packing.add_argument("--node-order", type=Path, metavar="FILE", help="names of all nodes, the preferred ones first")
    packing.add_argument("--placements", type=Path, metavar="FILE", help="write a CSV of where each pod went")
    packing.add_argument("--html", type=Path, metavar="FILE", help="also write a page for a browser, with curves")
    packing.set_defaults(command=lazy("simulate", "packing"))
    nodes = _add_nodes(experiments)

    pack = "gpuplane simulate packing --nodes n.csv --pods p.csv"
    buy = "gpuplane simulate nodes --pools pools.yaml --pods pods.yaml"
    examples(simulate, pack, buy)
    examples(
        packing,
        f"{pack} --policy tightest",
        f"{pack} --through scheduler",
        f"{pack} --compare scheduler",
        f"{pack} --html packing.html",
        "gpuplane simulate packing --nodes n.csv --trace t.csv -o json",
    )
    examples(nodes, buy, f"{buy} --types t.csv", f"{buy} --html nodes.html", f"{buy} -o json")


def _add_nodes(experiments: Any) -> Any:
    nodes = experiments.add_parser(
        "nodes",
        parents=[talk_options(), form_options(*DOCUMENTS)],
        help="which nodes to buy for pods that wait, for how much, compared with Karpenter's own way",
    )
    nodes.add_argument(
        "--pools",
        type=Path,
        required=True,
        action="extend",
        nargs="+",
        metavar="FILE",
        help="manifests of Provisioners or NodePools and their classes, with the ClusterPolicy, the device plugin's "
        "configurations and DaemonSets",
    )
    nodes.add_argument(
        "--pods",
        type=Path,
        required=True,
        action="extend",
        nargs="+",
        metavar="FILE",
        help="manifests of pods and workloads, or a CSV as of simulate packing, which asks for shares",
    )
    nodes.add_argument(
        "--types",
        type=Path,
        metavar="CSV",
        help="type,vcpu,memory_mib,max_pods,on_demand[,spot,arch,gpus,gpu,gpu_memory_mib] (default: NVIDIA types of "
        "AWS in us-east-1)",
    )
    nodes.add_argument("--zones", default="", metavar="ZONES", help="zones that offer the types, with commas")
    nodes.add_argument("--html", type=Path, metavar="FILE", help="also draw the nodes on a page for a browser")
    nodes.set_defaults(command=lazy("simulate_nodes", "nodes"))
    return nodes


def _way(text: str) -> Any:
    from gpuplane.cli.simulate_ways import read_way  # late: other commands do without

    return read_way(text)


def _above_zero(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no ratio above 0, as 1.3")
    return ratio
