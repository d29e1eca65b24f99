"""The additions of gpulab to `gpuplane`: `up`, `down`, `demo`, an embedded cluster's components, simulated GPUs.

The entry point group `gpuplane.verbs` names `VERBS`. `gpuplane --help` loads this module, so it imports nothing that
only a command needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gpulab.cloud.parser import add_cloud
from gpuplane.cli.components import ComponentCommand
from gpuplane.cli.options import (
    DOCUMENTS,
    FORMS,
    completed,
    duration,
    examples,
    form_options,
    lazy,
    port,
    talk_options,
    whole,
)
from gpuplane.cli.verbs import Verbs


def add_commands(commands: Any) -> None:
    """Add `up`, `down` and `demo` to the subparsers of `gpuplane`."""
    parents = [talk_options(), form_options(*DOCUMENTS)]
    lists = [talk_options(), form_options(*FORMS)]
    up = commands.add_parser("up", parents=lists, help="start the embedded cluster: no Kubernetes, no Docker, no GPU")
    up.add_argument("--name", default="gpuplane", help="name of the cluster (default: %(default)s)")
    node = up.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="[NAME=]MACHINE",
        help="a simulated machine, see --list-machines; may be repeated (default: the three of the demo)",
    )
    completed(node, "gpulab.up:machine_names")
    up.add_argument("--light-nodes", type=whole, default=0, metavar="N", help="as many nodes without processes")
    up.add_argument("--port", type=port, default=0, help="port of the API server (default: a free one)")
    up.add_argument("--persist", action="store_true", help="keep objects on disk: a killed API server loses nothing")
    up.add_argument(
        "--scheduler-config",
        type=Path,
        metavar="FILE",
        help="a KubeSchedulerConfiguration, or a Policy of old releases, that names other extenders than gpuplane's",
    )
    up.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="take the programs of an image from DIR/bin, such as a virtual environment's; NAME may have *, DIR may be "
        "python; may be repeated",
    )
    up.add_argument(
        "--cloud",
        action="store_true",
        help="with a simulated AWS whose instances become nodes (default: and one machine without GPUs)",
    )
    up.add_argument(
        "--launch-template",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="a launch template of the cloud, in the form of aws ec2 create-launch-template; may be repeated",
    )
    release = up.add_argument(
        "--kubernetes",
        default="",
        metavar="RELEASE",
        help="run the API server, etcd, controller manager and scheduler of this release of Kubernetes, such as 1.36; "
        "they are built from their Go modules once, in minutes",
    )
    completed(release, "gpulab.up:releases")
    _add_kubelet(up)
    up.add_argument(
        "--dry-run", action="store_true", help="with --kubernetes: print what would be built and started, and end"
    )
    up.add_argument("-d", "--detach", action="store_true", help="return once kubectl is answered")
    up.add_argument(
        "--list-machines",
        action="store_true",
        help="list the machines that can be simulated; -o wide also their kernels and systems",
    )
    up.set_defaults(command=lazy("gpulab.up", "up"))

    down = commands.add_parser("down", parents=parents, help="stop an embedded cluster and remove its files")
    name = down.add_argument("name", nargs="?", help="name of the cluster (default: the only one there is)")
    completed(name, "gpulab.up:cluster_names")
    named = down.add_argument("--name", dest="named", metavar="NAME", help="the same, as up has it")
    completed(named, "gpulab.up:cluster_names")
    down.add_argument("--keep-files", action="store_true", help="leave the cluster's directory, to look at")
    down.set_defaults(command=lazy("gpulab.up", "down"))

    add_cloud(commands)

    listed = commands.add_parser("ls", parents=lists, help="the embedded clusters of this user")
    listed.set_defaults(command=lazy("gpulab.up", "ls"))

    demo = commands.add_parser("demo", parents=parents, help="the whole story on an embedded cluster, in half a minute")
    demo.add_argument(
        "--progress", choices=["auto", "tty", "plain", "json", "quiet"], default="auto", help="form of progress"
    )
    demo.add_argument(
        "--timeout",
        type=duration,
        metavar="TIME",
        help="how long an act may take at most (default: 60s; 120s with --cloud or --kubernetes)",
    )
    demo.add_argument(
        "--cloud", action="store_true", help="nodes bought on a simulated AWS, shared and given back, in a minute"
    )
    release = demo.add_argument(
        "--kubernetes",
        default="",
        metavar="RELEASE",
        help="on Kubernetes' own API server, scheduler and controllers, such as 1.36; built once, in minutes",
    )
    completed(release, "gpulab.up:releases")
    _add_kubelet(demo)
    demo.add_argument("--down", action="store_true", help="stop the cluster at the end")
    demo.set_defaults(command=lazy("gpulab.demo", "demo"))
    examples(
        up,
        "gpuplane up --detach",
        "gpuplane up --node h100-ubuntu22 --node big=a10g-rhel9",
        "gpuplane up --light-nodes 1000",
        "gpuplane up --cloud --detach",
        "gpuplane up --kubernetes 1.36 --dry-run",
        "gpuplane up --list-machines -o wide",
    )
    examples(down, "gpuplane down", "gpuplane down demo --keep-files")
    examples(
        listed,
        "gpuplane ls",
        "gpuplane ls -o wide                   with their kubeconfig files",
        "gpuplane ls -o name | xargs -n 1 gpuplane down",
    )
    examples(
        demo,
        "gpuplane demo",
        "gpuplane demo --cloud",
        "gpuplane demo --kubernetes 1.36",
        "gpuplane demo --down -q -o json",
    )


def _add_kubelet(parser: Any) -> None:
    parser.add_argument(
        "--kubelet",
        choices=("auto", "real", "simulated"),
        default="auto",
        help="with --kubernetes: containerd and that release's kubelet on each machine, which needs root, or simulated "
        "kubelets (default: real where this machine can have them)",
    )


_MODULE: Final = "gpulab.components"
COMPONENTS: Final[dict[str, ComponentCommand]] = {
    "cluster": ComponentCommand(
        _MODULE, "embedded API server, controllers and scheduler", ("config",), "run_cluster", busy=True
    ),
    "kubelet": ComponentCommand(
        _MODULE, "one node of the embedded cluster", ("kubeconfig", "node-name", "config"), "run_kubelet"
    ),
    "light-nodes": ComponentCommand(
        _MODULE, "many simulated nodes without processes", ("kubeconfig", "config"), "run_light_nodes", busy=True
    ),
    "cloud": ComponentCommand(_MODULE, "the embedded cluster's simulated AWS", ("kubeconfig", "config"), "run_cloud"),
    "cluster-supervisor": ComponentCommand(
        _MODULE, "keeps the embedded cluster's processes alive", ("config",), "run_supervisor"
    ),
}
VERBS: Final = Verbs(add_commands, COMPONENTS, simulator="gpulab.simulator:Simulator")
