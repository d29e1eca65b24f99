"""All benchmarks, one after the other: what `make bench` runs.

    python benchmarks/run.py [NAME ...]

Each is a program of its own and prints its figures with goal and peer. A benchmark that fails is named at the end, and
the exit status is 1; a goal that is missed is marked with ! and is no failure.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HELPERS = {"run", "figures", "shared_gpu"}


def main(wanted: list[str]) -> int:
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted or known:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
