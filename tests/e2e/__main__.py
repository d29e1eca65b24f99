"""Run Kubernetes' own end-to-end suite against an embedded cluster: `python -m tests.e2e`, `python -m tests.e2e --all`.

Prints how many conformance specs pass, by area, and what the list of specs that do not pass says otherwise. Exit code
1 for a finding. `--all` takes the specs too that take long, and those that must run alone.

A measurement in a folder (`--reports`) that was broken off goes on with `--resume`: specs that were judged are not run
again.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpulab.kubernetes import binaries
from tests.e2e import judging, plan, rung, suite
from tests.e2e.forms import FORMS, as_form
from tests.e2e.ledger import Ledger
from tests.e2e.plan import Kind, Rules


def main(words: Sequence[str] | None = None) -> int:
    options = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster ends, too
    binaries.build(suite.SET, say)
    if what := rung.lacking():
        say(f"specs that need it will fail: {what}")
    listed = judging.not_passing()
    rules = Rules(processes=options.processes, again=not options.once)
    with tempfile.TemporaryDirectory(prefix="e2e-") as made:
        folder = Path(made)
        ledger = Ledger(options.reports or folder / "reports", resume=options.resume)
        with rung.cluster(folder, say) as kubeconfig:
            known = suite.list_specs(options.area or suite.AREAS, kubeconfig, ledger.file.with_name("list"))
            names = choose(known, everything=options.all, only=options.only)
            if not names:
                raise SystemExit("no conformance spec fits; --all takes the long ones too")
            seconds = 60 * options.minutes
            rung.measure(names, kubeconfig, ledger, listed, rules, seconds=seconds, say=say)
        specs = judging.judge(names, ledger.specs)
    print(as_form(options.output, specs))
    wrong = judging.findings(specs, listed)
    for line in wrong:
        say(line)
    return 1 if wrong else 0


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. Raises SystemExit for those that do not go together."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e", description=__doc__.partition("\n")[0] if __doc__ else ""
    )
    parser.add_argument(
        "--all", action="store_true", help="also the specs that take long, and those that must run alone"
    )
    parser.add_argument("--area", action="append", choices=suite.AREAS, help="only this area; may be given again")
    parser.add_argument(
        "--only", type=re.compile, metavar="PATTERN", help="only specs whose names match, the long ones too"
    )
    parser.add_argument("--processes", type=int, default=plan.PROCESSES, help="specs that run at a time")
    parser.add_argument("--once", action="store_true", help="no second attempt for specs that fail or are cut off")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="where attempts, reports and logs stay")
    parser.add_argument("--resume", action="store_true", help="go on with the attempts in --reports")
    parser.add_argument("--minutes", type=float, default=240.0, help="begin nothing later than that")
    parser.add_argument("-o", "--output", choices=FORMS, default="text", help="form of the table")
    options = parser.parse_args(words)
    if options.resume and options.reports is None:
        parser.error("--resume needs the folder of --reports")
    return options


def choose(names: Sequence[str], *, everything: bool, only: re.Pattern[str] | None = None) -> list[str]:
    """Return the specs that are measured: of everything the quick ones, without `everything` or a pattern."""
    if only is not None:
        return [name for name in names if only.search(name)]
    return [name for name in names if everything or plan.kind(name) is Kind.QUICK]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
