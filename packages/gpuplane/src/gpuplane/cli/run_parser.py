"""The arguments of `gpuplane run`: the components, each with the flags that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpuplane import names
from gpuplane.cli.components import OPERANDS, OTHERS
from gpuplane.cli.options import cluster_options, completed, duration, examples, lazy, port, positive
from gpuplane.cli.verbs import Verbs

_POLICIES: Final = ("opportunity", "fragmentation", "power", "tightest", "spread", "topology")
_RUN_FLAGS: Final[dict[str, dict[str, Any]]] = {
    "node-name": {"default": "", "help": "the node it works for (default: $NODE_NAME)"},
    "host-root": {
        "type": Path, "default": Path("/"), "metavar": "DIR", "help": "root of the node's file system",
    },
    "kubelet-dir": {
        "type": Path, "default": Path("/var/lib/kubelet"), "metavar": "DIR", "help": "the kubelet's directory",
    },
    "config": {"type": Path, "metavar": "FILE", "help": "the component's configuration file"},
    "port": {"type": port, "help": "port to serve on"},
    "cdi-specification": {
        "type": Path, "metavar": "FILE",
        "help": "the CDI specification that its container has its GPUs from: it ends when it changes, for a container "
        "with the new ones",
    },
    "lease-duration": {
        "type": int, "default": 15, "metavar": "SECONDS",
        "help": "how long another replica waits for one that is silent (default: 15)",
    },
    "tls-cert-file": {"type": Path, "metavar": "FILE", "help": "serve HTTPS with this certificate, in PEM"},
    "tls-private-key-file": {"type": Path, "metavar": "FILE", "help": "its key; both are read again when they change"},
    "client-ca-file": {
        "type": Path, "metavar": "FILE", "help": "with that certificate: answer only callers of this authority",
    },
    "plain-http": {
        "action": "store_true",
        "help": "serve HTTP, and answer everyone who reaches the port: for files of gpu-admission's time",
    },
    "node-policy": {
        "choices": _POLICIES, "default": "opportunity", "help": "how nodes are chosen (default: %(default)s)",
    },
    "gpu-policy": {
        "choices": _POLICIES, "default": "", "help": "how GPUs of a node are chosen (default: as --node-policy)",
    },
    "scheduler-name": {
        "default": "", "metavar": "NAME",
        "help": "schedule, without kube-scheduler, the pods that name this scheduler in spec.schedulerName; admission "
        "writes it into pods that request GPUs, if the ClusterPolicy says operator.setSchedulerName",
    },
    "defragment": {
        "action": "store_true",
        "help": "with --scheduler-name: move pods by itself that allow it, where others wait for room",
    },
    "moves-per-hour": {
        "type": positive, "default": 12, "metavar": "N", "help": "moves of pods in any hour (default: %(default)s)",
    },
    "moves-at-once": {
        "type": positive, "default": 1, "metavar": "N", "help": "moves of pods under way (default: %(default)s)",
    },
    "move-after": {
        "type": duration, "default": 60.0, "metavar": "TIME",
        "help": "with --defragment: how long a pod waits before others are moved for it (default: 60s)",
    },
    "move-cool-down": {
        "type": duration, "default": 3600.0, "metavar": "TIME",
        "help": "how long a pod stays that was moved, and until moves for a waiting pod are tried again (default: 1h)",
    },
    "print-config": {
        "choices": ["kube", "policy", "second"], "default": "",
        "help": "print the configuration for kube-scheduler, and end: its current format (kube), the file of releases "
        "before 1.23 (policy), or a second scheduler (second)",
    },
    "certificate-dir": {
        "default": "", "metavar": "DIR",
        "help": "with --print-config: where kube-scheduler has ca.crt, tls.crt and tls.key of the Secret "
        f"{names.EXTENDER_CLIENT_SECRET} (default: {names.EXTENDER_CLIENT_DIRECTORY})",
    },
    "url": {"default": "", "help": "with --print-config: where kube-scheduler reaches it (default: the Service)"},
    "host": {
        "action": "append", "default": [], "metavar": "NAME",
        "help": "a name by which browsers reach it, besides its Service and localhost; may be repeated",
    },
    "history-dir": {
        "default": "", "metavar": "DIR",
        "help": "a directory for hourly sums of 400 days, for clusters without Prometheus (default: none are stored)",
    },
    "uninstall": {"action": "store_true", "help": "undo what this component did to the node, and end"},
}  # fmt: skip


def add_run(commands: Any, extensions: Iterable[Verbs]) -> None:
    """Add `run` with gpuplane's own components and those of `extensions`."""
    run = commands.add_parser("run", help="start one component: what the pods start, and just as well a shell")
    components = run.add_subparsers(title="components", metavar="COMPONENT", required=True)
    known = OPERANDS | OTHERS
    for verbs in extensions:
        known = known | dict(verbs.components)
    for name, component in known.items():
        parents = [cluster_options()] if "kubeconfig" in component.flags else []
        part = components.add_parser(name, parents=parents, help=component.about)
        part.add_argument("-v", "--verbose", action="store_true", help="log details")
        for flag in component.flags:
            if flag in _RUN_FLAGS:
                argument = part.add_argument(f"--{flag}", **_RUN_FLAGS[flag])
                if flag == "node-name":
                    completed(argument, "nodes")
        part.set_defaults(command=lazy("run", "run"), component=name, entry=component)
    examples(
        run,
        "gpuplane run operator --kubeconfig ~/.kube/config    from a shell",
        "gpuplane run scheduler --print-config kube    what kube-scheduler needs",
        "gpuplane run device-plugin --node-name gpu-t-01 -v",
    )
