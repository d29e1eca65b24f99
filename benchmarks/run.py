"""Benchmarks, one after the other, and a table for each area: what `make bench` runs.

    python benchmarks/run.py [AREA|NAME ...]      make bench ONLY=scheduler

Each is a program of its own and prints its figures with goal and peer. The table of an area has them again, in
Markdown. A benchmark that fails is named at the end, and the exit status is 1; a goal that is missed is marked and is
no failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import FILE, table

HERE = Path(__file__).parent
AREAS: dict[str, tuple[str, ...]] = {
    "scheduler": (
        *("packing", "packing_bound", "trace", "burst", "scheduler_start", "pod_decisions", "placement", "gangs"),
        *("moves", "take_over", "extender"),
    ),
    "autoscaler": ("nodes", "mixed_pods", "large_cluster", "autoscaler_memory", "cloud"),
    "shares": ("limits", "limits_gaps", "limiter_overhead", "limiter_kills"),
    "nodes": (
        *("discovery", "toolkit", "device_plugin", "nri", "node_operands", "operand_memory", "scale", "decide"),
        "upgrade",
    ),
    "observability": ("exporter", "meter", "cost", "cost_store", "top", "dashboard", "dashboard_tenants"),
    "people": ("startup", "answers"),
    "cluster": ("apiserver", "control_plane", "client_writes", "informer"),
}


def chosen(wanted: list[str]) -> dict[str, list[str]] | None:
    """Return the benchmarks of each area; None for a name that is neither. A name alone is of its area."""
    if not wanted:
        return {area: list(programs) for area, programs in AREAS.items()}
    found: dict[str, list[str]] = {}
    for name in wanted:
        areas = [area for area, programs in AREAS.items() if name in (area, *programs)]
        if not areas:
            known = [f"{area} ({', '.join(programs)})" for area, programs in AREAS.items()]
            print(f"no area and no benchmark {name}; there are {'; '.join(known)}", file=sys.stderr)
            return None
        found.setdefault(areas[0], []).extend(AREAS.get(name, (name,)))
    return found


def main(wanted: list[str]) -> int:
    areas = chosen(wanted)
    if areas is None:
        return 2
    failed, tables = [], []
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as scratch:
        for area, programs in areas.items():
            record = Path(scratch, area)
            record.touch()
            for name in programs:
                print(f"\n== {name}", flush=True)
                command = [sys.executable, str(HERE / f"{name}.py")]
                if subprocess.run(command, check=False, env={**os.environ, FILE: str(record)}).returncode:
                    failed.append(name)
            lines = record.read_text(encoding="utf-8").splitlines()
            tables.append(f"\n## {area}\n\n{table([json.loads(line) for line in lines])}")
    print("\n".join(tables))
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
