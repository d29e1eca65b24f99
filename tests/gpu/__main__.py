"""python -m tests.gpu [--report DIR] [--only PART,...] [--quick] [--simulate MODEL] [--list]

Exit code: 0 all figures hold, 1 one does not or a part failed, 2 wrong usage, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpuplane.hardware import open_gpus
from kubekit.errors import KubekitError
from tests.gpu import collectives, compute, frameworks, memory
from tests.gpu.compute import Pace
from tests.gpu.findings import Finding, Report, Trouble
from tests.gpu.tenants import ALONE, Broken, Lacking, Tenants

NO_GPU: Final = 3
Part = Callable[[], Iterator[Finding]]


def parts_of_gpuplane(tenants: Tenants, troubles: list[Trouble]) -> Iterator[Finding]:
    """Run parts.py as a program of its own; yield its findings."""
    command = tenants.command([sys.executable, "-m", "tests.gpu.parts"], ALONE)
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        found = json.loads(line)
        if isinstance(found, dict):
            troubles.append(Trouble(found["part"], found["what"], skipped=False))
        else:
            yield Finding(*found)
    if done.returncode:
        raise Broken(done.stderr[-400:].strip())


def no_gpu() -> str:
    """Return why no GPU answers; empty where one does."""
    try:
        gpus = open_gpus()
    except KubekitError as error:
        return error.what
    found = gpus.inventory()
    gpus.close()
    return "" if found else "NVML knows none"


def gpus(tenants: Tenants) -> int:
    """Return how many GPUs the tenants may have; a simulated machine has one."""
    if tenants.simulated:
        return 1
    found = open_gpus()
    try:
        return len(found.inventory())
    finally:
        found.close()


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="gpuplane on this machine's GPU")
    parser.add_argument("--report", type=Path, default=Path("build/gpu-report"), metavar="DIR", help="gets two files")
    parser.add_argument("--only", default="", metavar="PART,...", help="these parts; see --list")
    parser.add_argument("--gpu", default="0", metavar="GPU", help="index or UUID")
    parser.add_argument("--quick", action="store_true", help="one length of kernels, short runs")
    parser.add_argument("--simulate", default="", metavar="MODEL", help="on a simulated GPU: tests the harness only")
    parser.add_argument("--list", action="store_true", help="the parts")
    return parser.parse_args(words)


def plan(tenants: Tenants, quick: bool, troubles: list[Trouble]) -> dict[str, Part]:
    """The parts by name, in their order."""
    known: list[Pace] = []

    def paced(part: Callable[[Pace], Iterator[Finding]]) -> Part:
        def run() -> Iterator[Finding]:
            if not known:
                known.append(Pace(tenants, quick))
            return part(known[0])

        return run

    return {
        "parts": lambda: parts_of_gpuplane(tenants, troubles),
        "memory": lambda: memory.paths(tenants),
        "one-tenant": paced(compute.one_tenant),
        "two-tenants": paced(compute.two_tenants),
        "shapes": paced(compute.shapes),
        "neighbours": paced(compute.neighbours),
        "kills": paced(compute.kills),
        "pytorch": lambda: frameworks.measured(tenants, quick),
        "nccl": lambda: collectives.measured(tenants, gpus(tenants), quick),
    }


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    troubles: list[Trouble] = []
    parts = plan(Tenants(options.gpu, options.simulate), options.quick, troubles)
    if options.list:
        sys.stdout.write("\n".join(parts) + "\n")
        return 0
    wanted = options.only.split(",") if options.only else list(parts)
    if unknown := [name for name in wanted if name not in parts]:
        sys.stderr.write(f"no part {unknown[0]}; there are {', '.join(parts)}\n")
        return 2
    if not options.simulate and (why := no_gpu()):
        sys.stderr.write(f"error: no GPU: {why}\n")
        sys.stderr.write("  cure: run it on a machine with a GPU and its driver; --simulate t4 tests the harness\n")
        return NO_GPU
    findings: list[Finding] = []
    for name in wanted:
        began = time.monotonic()
        sys.stdout.write(f"{name}\n")
        if name == "pytorch" and not frameworks.there():
            troubles.append(Trouble(name, "PyTorch is not installed", skipped=True))
            continue
        try:
            for finding in parts[name]():
                findings.append(finding)
                sys.stdout.write(finding.line() + "\n")
                sys.stdout.flush()
        except Lacking as error:
            troubles.append(Trouble(name, str(error), skipped=True))
            sys.stdout.write(f" - skipped: {error}\n")
        except Exception as error:  # what the other parts found is reported all the same
            why = str(error) if isinstance(error, Broken) else repr(error)
            troubles.append(Trouble(name, why, skipped=False))
            sys.stdout.write(f" ✗ {why}\n")
        findings.append(Finding(name, "time taken", time.monotonic() - began, "s"))
    machine = {one.name: f"{one.value} {one.unit}".strip() for one in findings if one.part == "machine"}
    machine |= {"kernel": platform.release(), "simulated": options.simulate or "no"}
    report = Report(machine, [one for one in findings if one.part != "machine"], troubles)
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "report.json").write_text(report.as_json())
    (options.report / "report.md").write_text(report.as_markdown())
    missed = sum(not one.holds for one in report.findings)
    failed = sum(not one.skipped for one in troubles)
    sys.stdout.write(f"{len(report.findings)} figures, {missed} missed, {failed} parts failed: {options.report}\n")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
