"""The arguments of `gpuplane driver` and `gpuplane toolkit`: one machine, by hand."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from gpuplane.cli.options import DOCUMENTS, examples, form_options, lazy, talk_options


def add_machine(commands: Any) -> None:
    """`driver plan` and the actions of `toolkit`."""
    _driver(commands)
    _toolkit(commands)


def _driver(commands: Any) -> None:
    driver = commands.add_parser("driver", help="the GPU driver of this machine, by hand")
    actions = driver.add_subparsers(title="actions", metavar="ACTION", required=True)
    plan = actions.add_parser(
        "plan",
        parents=[talk_options(), form_options(*DOCUMENTS)],
        help="the steps that installing a driver would take; changes nothing",
    )
    plan.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR", help="root of the file system")
    plan.add_argument("--driver-version", default="", metavar="VERSION", help="570.133.20, or 570 with --precompiled")
    plan.add_argument(
        "--kernel-modules", choices=["auto", "open", "proprietary"], default="auto", help="which kernel modules"
    )
    plan.add_argument("--precompiled", action="store_true", help="from packages made for the kernel")
    plan.set_defaults(command=lazy("driver", "plan"))
    lines = (
        "gpuplane driver plan                  of this machine, command by command",
        "gpuplane driver plan --driver-version 570.133.20 --kernel-modules open",
        "gpuplane driver plan --driver-version 570 --precompiled -o json",
        "gpuplane driver plan --host-root /mnt    of a root that is mounted there",
    )
    examples(driver, *lines[:2])
    examples(plan, *lines)


def _toolkit(commands: Any) -> None:
    toolkit = commands.add_parser("toolkit", help="container runtime and CDI of this machine, by hand")
    actions = toolkit.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, about: str, *parents: ArgumentParser) -> ArgumentParser:
        parser: ArgumentParser = actions.add_parser(name, parents=[talk_options(), *parents], help=about)
        root = parser.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR")
        root.help = "root of the machine's file system"
        parser.set_defaults(command=lazy("toolkit", name))
        return parser

    configure = action("configure", "let the container runtime give GPUs to containers", form_options(*DOCUMENTS))
    configure.add_argument(
        "--runtime", choices=["containerd", "docker", "crio", "cri-o"], help="default: the one that is there"
    )
    configure.add_argument(
        "--config",
        default="",
        metavar="PATH",
        help="its configuration file (default: found, also of k3s, rke2, k0s, microk8s)",
    )
    configure.add_argument("--socket", default="", metavar="PATH", help="its socket (default: found)")
    configure.add_argument("--set-as-default", action="store_true", help="make nvidia the default runtime")
    unconfigure = action(
        "unconfigure", "give the runtime its configuration back, byte for byte", form_options(*DOCUMENTS)
    )
    for parser in (configure, unconfigure):
        parser.add_argument("--dry-run", action="store_true", help="print a diff; exit 1 when there is one")
        parser.add_argument("--no-restart", action="store_true", help="do not reload the runtime")
    cdi = action("cdi", "print the CDI specification of this machine's GPUs")
    cdi.add_argument(
        "--mode",
        choices=["auto", "nvml", "management"],
        default="auto",
        help="management: for containers that look after GPUs (default: auto, which is nvml)",
    )
    cdi.add_argument("--format", choices=["yaml", "json"], help="default: by the ending of --output, or yaml")
    cdi.add_argument("--output", type=Path, metavar="FILE", help="write it there, whole or not at all")
    cdi.add_argument(
        "--device-name-strategy",
        choices=["index", "uuid", "type-index"],
        action="append",
        help="how devices are named; may be repeated (default: index and uuid)",
    )
    cdi.add_argument("--vendor", default="", metavar="NAME", help="of the kind (default: nvidia.com)")
    cdi.add_argument("--class", default="", dest="of_class", metavar="NAME", help="of the kind (default: gpu)")
    cdi.add_argument(
        "--device-id",
        action="append",
        default=[],
        metavar="ID",
        help="only this GPU or MIG device, by index or UUID; may be repeated",
    )
    cdi.add_argument("--no-all-device", action="store_true", help="no device named all")
    cdi.add_argument(
        "--disable-hook",
        choices=["create-symlinks", "enable-cuda-compat", "update-ldcache", "all"],
        action="append",
        default=[],
        help="leave a hook out; may be repeated",
    )
    cdi.add_argument(
        "--nvidia-cdi-hook-path", default="", metavar="PATH", help="NVIDIA's hook program (default: found)"
    )
    first = "gpuplane toolkit configure --dry-run    a diff; exit code 1 when there is one"
    undo = "gpuplane toolkit unconfigure          every byte as it was"
    examples(toolkit, first, undo, "gpuplane toolkit cdi                  the specification on stdout")
    examples(
        configure,
        first,
        "gpuplane toolkit configure            find the runtime, write, reload",
        "gpuplane toolkit configure --runtime containerd --set-as-default",
        "gpuplane toolkit configure --config /etc/docker/daemon.json --no-restart",
    )
    examples(unconfigure, "gpuplane toolkit unconfigure --dry-run", undo)
    examples(
        cdi,
        "gpuplane toolkit cdi",
        "gpuplane toolkit cdi --output /etc/cdi/nvidia.yaml",
        "gpuplane toolkit cdi --device-name-strategy uuid --device-id 0",
        "gpuplane toolkit cdi --mode management    for containers that look after GPUs",
    )
