"""Run Kubernetes' own end-to-end suite against an embedded cluster: `python -m tests.e2e`, `python -m tests.e2e --all`.

Prints how many specs pass, by area, and what the list of specs that do not pass says otherwise. Exit code 1 for a
finding. `--all` takes the specs too that take long, and those that must run alone. `--area network` and
`--area storage` are measured where they are asked for; the list does not have their specs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpulab.kubernetes import binaries
from tests.e2e import judging, rung
from tests.e2e.suite import ALL_AREAS, AREAS, SET


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e", description=__doc__.partition("\n")[0] if __doc__ else ""
    )
    parser.add_argument(
        "--all", action="store_true", help="also the specs that take long, and those that must run alone"
    )
    parser.add_argument("--area", action="append", choices=ALL_AREAS, help="only this area; may be given again")
    parser.add_argument("--processes", type=int, default=rung.PROCESSES, help="specs that run at a time")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="where the suite's reports and logs stay")
    parser.add_argument("--minutes", type=float, default=60.0, help="the longest time of each part")
    options = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster ends, too
    binaries.build(SET, say)
    if ports := rung.taken():
        say(f"another program holds {ports} of all addresses: specs with servers at these ports will fail")
    listed = judging.not_passing()
    areas = tuple(options.area or AREAS)
    with tempfile.TemporaryDirectory(prefix="e2e-") as made:
        folder = Path(made)
        with rung.cluster(folder) as kubeconfig:
            specs = rung.measure(
                options.reports or folder / "reports",
                kubeconfig,
                listed,
                everything=options.all,
                areas=areas,
                processes=options.processes,
                seconds=60 * options.minutes,
                say=say,
            )
    for row in judging.table(specs):
        print(f"{row.area:16} {row.passed:4} of {row.of}")
    wrong = judging.findings(specs, listed)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
