"""Formats `gpuplane share run` and `share top`, from plain data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpuplane.cli.models import short_model
from gpuplane.cli.terminal import Console
from gpuplane.limits import GpuView, LimitBackend, OutsideView, ShareView, gib

if TYPE_CHECKING:
    from gpuplane.cli.share_run import PlannedRun, RunReport

HISTORY: Final = 10  # looks
_BAR: Final = 12
_LEVELS: Final = ("▁▂▃▄▅▆▇█", "._-=+*%#")
_ENFORCED: Final = {
    LimitBackend.INTERPOSED: "our libraries before {driver}",
    LimitBackend.MPS: "NVIDIA's MPS, whose daemon has to run",
    LimitBackend.NATIVE: "the driver, for a cgroup of its own",
    LimitBackend.NONE: "nothing",
}


def plan_text(plan: PlannedRun) -> str:
    """Format the plan of a run."""
    limit = plan.limit
    names = ["variables", *[""] * len(plan.environment)]
    rows = [
        ("GPU", f"{plan.gpu}, {short_model(plan.model)}{' (simulated)' if plan.simulated else ''}, {plan.uuid}"),
        ("core", f"{limit.core}%, {limit.mode.value}" if limit.core else "no limit"),
        ("memory", gib(limit.memory_bytes) if limit.memory_bytes else "no limit"),
        ("held by", _ENFORCED[plan.backend].format(driver=plan.driver)),
        ("directory", f"{plan.directory}, until the command has ended"),
        *((name, f"{k}={v}") for name, (k, v) in zip(names, sorted(plan.environment.items()), strict=False)),
        ("command", shlex.join(plan.argv)),
    ]
    return "\n".join(f"{name:10} {text}" for name, text in rows)


def report_text(report: RunReport, screen: Console) -> str:
    """One line about what a command did."""
    words = [f"GPU {report.gpu} {short_model(report.model)}"]
    of = f" of {report.core_limit}%" if report.core_limit else "%"
    words.append(f"core {report.core_percent:.1f}{of}")
    memory = gib(report.memory_peak_bytes)
    limit = f" of {gib(report.memory_limit_bytes)}" if report.memory_limit_bytes else ""
    words.append(f"memory {memory}{limit} at most")
    words.append(f"held back {report.held_back_percent:.0f}%")
    if report.refused:
        words.append(f"{report.refused} allocations refused")
    if report.escaped:
        words.append(f"{len(report.escaped)} outside the limits")
    mark = screen.glyph("warn" if report.refused or report.escaped else "good")
    return f"{mark} {'   '.join(words)}   {report.seconds:.1f}s"


# -- top -------------------------------------------------------------------------------------------------------------
def top_page(host: str, gpus: Sequence[GpuView], history: Mapping[str, Sequence[int]], screen: Console) -> str:
    """Format all GPUs with their shares; a GPU without shares is one line."""
    lines: list[str] = []
    rows = [share for gpu in gpus for share in gpu.shares]
    width = max([len("CONTAINER"), *(min(len(share.name), 40) for share in rows)])
    for gpu in gpus:
        lines += [_head(host, gpu, history.get(gpu.uuid, ()), screen), ""]
        if gpu.shares or gpu.outside:
            title = f" {'CONTAINER':{width}}   {'CORE':24}   {'MEMORY':26}  HELD BACK  REFUSED"
            lines.append(screen.paint(title, "dim"))
            lines += [_share(share, gpu, width, screen) for share in gpu.shares]
            lines += [_outside(process, width, screen) for process in gpu.outside]
            lines.append("")
    if not rows:
        lines.append("no GPU is shared here; try: gpuplane share run --core 30 --memory 5GiB -- CMD")
    return "\n".join(lines).rstrip("\n")


def _head(host: str, gpu: GpuView, history: Sequence[int], screen: Console) -> str:
    words = [f"{host}/{gpu.index}", short_model(gpu.model)]
    if gpu.lost:
        return "   ".join([*words, screen.paint(f"{screen.glyph('bad')} lost", "bad")])
    words.append(sparks(history, screen))
    if gpu.busy_percent is not None:
        words.append(f"busy {gpu.busy_percent:2}%")
    words.append(f"held {gpu.held_percent}%")
    total = gib(gpu.memory_total_bytes)
    words.append(f"{_amount(gpu.memory_used_bytes or 0, gpu.memory_total_bytes)} of {total}")
    if gpu.temperature_celsius is not None:
        words.append(f"{gpu.temperature_celsius} °C")
    if gpu.power_watts is not None:
        limit = f"/{gpu.power_limit_watts:.0f}" if gpu.power_limit_watts else ""
        words.append(f"{gpu.power_watts:.0f}{limit} W")
    return "   ".join(word for word in words if word)


def sparks(values: Sequence[int], screen: Console) -> str:
    """One character for each percentage, the last at the right, in a place of constant width."""
    levels = _LEVELS[1 if screen.ascii else 0]
    text = "".join(levels[min(len(levels) - 1, value * len(levels) // 101)] for value in values[-HISTORY:])
    return f"{text:>{HISTORY}}" if text else ""


def _share(share: ShareView, gpu: GpuView, width: int, screen: Console) -> str:
    used = share.core_percent
    core = screen.bar((used or 0.0) / (share.core_limit or 100), _BAR)
    numbers = "-" if used is None else f"{used:.1f}"
    core_text = f"{numbers} of {share.core_limit}%" if share.core_limit else f"{numbers}%"
    limit = share.memory_limit_bytes
    memory = screen.bar(share.memory_bytes / (limit or gpu.memory_total_bytes), _BAR)
    memory_text = f"{_amount(share.memory_bytes, limit)} of {gib(limit)}" if limit else gib(share.memory_bytes)
    held = "-" if share.held_back_percent is None else f"{share.held_back_percent:.0f}%"
    refused = f"{share.refused:7}"
    if share.refused:
        refused = screen.paint(refused, "warn")
    name = share.name if len(share.name) <= 40 else share.name[:39] + "…"
    return f" {name:{width}}   {core} {core_text:11}   {memory} {memory_text:13}  {held:>9}  {refused}"


def _outside(process: OutsideView, width: int, screen: Console) -> str:
    mark = screen.paint(screen.glyph("bad"), "bad")
    whose = process.name or "no pod"
    who = f"pid {process.pid} {process.command}".rstrip()
    return f" {mark} {f'{who}, {whose}':{width - 2}}   outside every limit   {gib(process.memory_bytes)}, seen by NVML"


def _amount(size: int, of: int) -> str:
    """Format a size in the unit of its limit, as `4.1` before `of 5 GiB`."""
    return f"{size / (1 << 30):.1f}" if of >= 1 << 30 else f"{size >> 20}"
