"""The arguments of `gpuplane share`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Final

from gpuplane.cli.options import DOCUMENTS, duration, examples, form_options, lazy, talk_options
from gpuplane.cli.share_codes import FAILED

_UNITS: Final = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
}  # fmt: skip


def memory(text: str) -> int:
    """`5GiB`, `512Mi`, `1.5GB` or bare bytes, in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory: 5GiB, 512MiB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def add_share(commands: Any) -> None:
    """`share run` and `share top`."""
    share = commands.add_parser("share", help="a part of one GPU of this machine, real or simulated")
    actions = share.add_subparsers(title="actions", metavar="ACTION", required=True)

    run = actions.add_parser(
        "run", parents=[talk_options(), form_options(*DOCUMENTS)], help="run a command under limits"
    )
    run.wrong_usage = FAILED  # as docker's: what is below 125 is the command's own
    run.add_argument("--core", type=int, default=0, metavar="PERCENT", help="percent of the GPU's compute time")
    run.add_argument("--memory", type=memory, default=0, metavar="SIZE", help="GPU memory, as 5GiB or 512MiB")
    run.add_argument("--gpu", default="", metavar="GPU", help="index or UUID (default: the one with the most room)")
    run.add_argument(
        "--mode",
        choices=["hard", "burst", "weighted"],
        default="hard",
        help="never above --core; also unused time; all of the time, by --core against that of others",
    )
    run.add_argument(
        "--saved",
        type=duration,
        default=0.0,
        metavar="TIME",
        help="GPU time that the command saves while it is idle, for use at once, as 2s (default: 20 ms; 1m at most)",
    )
    run.add_argument(
        "--backend",
        choices=["interposed", "mps", "native", "none"],
        default="interposed",
        help="what holds the command to its limits: our libraries before the driver's, NVIDIA's MPS, the driver itself "
        "(r615, memory only), or nothing",
    )
    run.add_argument("--simulate", default="", metavar="MODEL", help="play a GPU, as t4 or h100; no driver is needed")
    run.add_argument("--name", default="", help="name in share top (default: the command's)")
    run.add_argument("--dry-run", action="store_true", help="print what would be done")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command with its arguments")
    run.set_defaults(command=lazy("share_run", "run"))

    top = actions.add_parser(
        "top", parents=[talk_options(), form_options(*DOCUMENTS)], help="the processes on this machine's GPUs"
    )
    top.add_argument("-w", "--watch", action="store_true", help="stay, also without a terminal: one answer a second")
    top.add_argument("--once", action="store_true", help="one answer, also on a terminal")
    top.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="time between two looks (default: %(default)s)"
    )
    top.add_argument(
        "--host-root", type=Path, metavar="DIR", help="a node whose root is there, also one of the embedded cluster"
    )
    top.add_argument("--simulate", default="", metavar="MODEL", help="the GPU that is played")
    top.set_defaults(command=lazy("share_top", "top"))

    runs = (
        "gpuplane share run --core 30 --memory 5GiB -- python train.py",
        "gpuplane share run --core 30 --simulate t4 -- python train.py    without a GPU",
        "gpuplane share run --core 50 --mode burst --gpu 1 -- python serve.py",
        "gpuplane share run --memory 5GiB --dry-run -- python train.py",
    )
    tops = (
        "gpuplane share top                    live on a terminal",
        "gpuplane share top --simulate t4",
        "gpuplane share top --once -o json",
        "gpuplane share top --host-root ~/.gpuplane/clusters/demo/nodes/sim-1/root",
    )
    examples(share, *runs[:2], tops[0])
    examples(run, *runs)
    examples(top, *tops)
