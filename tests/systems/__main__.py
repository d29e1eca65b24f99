"""The README's two commands as its readers run them: from fresh clones, in minimal systems, by several users.

    python3 tests/systems [--all] [--system NAME] [--who NAME] [--what NAME] [--logs DIRECTORY]

Makes each system with debootstrap, runs `make demo` and `make test` of HEAD, and prints a table. Exit codes: 0 if every
cell passed, or cannot be had here, which the table says; 1 if one failed.

`make demo` runs in all systems as all users. `make test` takes minutes, so it runs in Debian 12 as an ordinary user
with namespaces; with --all it runs there as a user without namespaces too.

It needs root, and only Python's standard library. Its files are in memory and its processes in namespaces that end with
this program, also when it is killed. Only the logs remain.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from cell import ALL_CELLS, CELLS, COMMANDS, NAMESPACES, Cell, Result, Verdict
from system import SYSTEMS, System, Unavailable, make, packages

REPOSITORY: Final = Path(__file__).resolve().parents[2]
INSIDE: Final = "--inside"
MEMORY_GIB: Final = 8


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/systems", description="make demo and make test in minimal systems")
    parser.add_argument("--all", action="store_true", help="also make test as a user to whom namespaces are refused")
    parser.add_argument("--system", action="append", choices=[s.codename for s in SYSTEMS], help="only this one")
    parser.add_argument("--who", action="append", choices=sorted({c.who.name for c in CELLS}), help="only this one")
    parser.add_argument("--what", action="append", choices=[c.name for c in COMMANDS], help="only this one")
    parser.add_argument("--logs", type=Path, default=REPOSITORY / "build/systems", help="where logs go (%(default)s)")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        return begin(sys.argv[1:])
    cells = [
        cell
        for cell in (ALL_CELLS if options.all else CELLS)
        if (not options.system or cell.system.codename in options.system)
        and (not options.who or cell.who.name in options.who)
        and (not options.what or cell.what.name in options.what)
    ]
    systems = [system for system in SYSTEMS if any(cell.system is system for cell in cells)]
    options.logs.mkdir(parents=True, exist_ok=True)
    return judge(run(systems, cells, options.logs))


def begin(arguments: list[str]) -> int:
    """Run this program again in namespaces that end with it; where they are not available, print why and return 0."""
    try:
        if os.geteuid() != 0:
            raise Unavailable("making systems needs root")
        memory = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
        available_gib = int(memory["MemAvailable:"]) >> 20
        if available_gib < MEMORY_GIB:
            raise Unavailable(f"{MEMORY_GIB} GiB of memory are needed, {available_gib} GiB are available")
        if shutil.which("setpriv") is None or subprocess.run([*NAMESPACES, "true"], check=False).returncode != 0:
            raise Unavailable("mount and process namespaces cannot be made")
        packages()
    except Unavailable as problem:
        print(f"minimal systems are skipped: {problem}")
        return 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    again = [sys.executable, str(Path(__file__).parent), INSIDE, *arguments]
    child = subprocess.Popen([*NAMESPACES, "--mount-proc", *again])
    try:
        return child.wait()
    finally:
        # NB: unshare ignores SIGTERM and SIGINT while it waits. SIGKILL ends it and process 1 there. Then the
        # kernel ends the other processes and removes the mounts, with the memory that holds the files.
        child.kill()
        child.wait()


def stop(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def run(systems: list[System], cells: list[Cell], logs: Path) -> list[Result]:
    """Make the systems, then run one cell after the other, because the demo measures speed."""
    place = Path("/mnt")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=90%", "systems", str(place)], check=True)
    commit = place / "commit.bundle"
    subprocess.run(["git", "-C", str(REPOSITORY), "bundle", "create", "--quiet", str(commit), "HEAD"], check=True)
    started = time.monotonic()
    made = make(systems, place, logs)
    print(f"made {len(systems)} systems in {time.monotonic() - started:.0f} s", flush=True)
    results = []
    downloads = place / "downloads"
    downloads.mkdir()
    for cell in cells:
        root = made[cell.system]
        if isinstance(root, Unavailable):
            results.append(Result(cell, Verdict.SKIPPED, 0.0, str(root)))
            continue
        log = logs / f"{cell.name}.log"
        results.append(cell.run(root, commit, downloads, log))
        print(results[-1], flush=True)
        if results[-1].verdict is Verdict.FAILED:
            print(f"--- the last lines of {log.name}:", *log.read_text(errors="replace").splitlines()[-80:], sep="\n")
        if cell is [c for c in cells if c.system == cell.system][-1]:
            shutil.rmtree(root)
    return results


def judge(results: list[Result]) -> int:
    """Print the table and the counts, and return the exit code."""
    print(f"\n{'SYSTEM':14} {'WHO':44} {'WHAT':10} {'VERDICT':8} {'SECONDS':>7}")
    for result in results:
        print(result)
    count = {verdict: sum(r.verdict is verdict for r in results) for verdict in Verdict}
    print(", ".join(f"{number} {verdict.value}" for verdict, number in count.items()))
    return 1 if count[Verdict.FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
