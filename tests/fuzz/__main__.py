"""Fuzzes all targets in turn for some minutes: `python -m tests.fuzz --minutes 5 [TARGET ...]`, or `make fuzz`.

A finding is written to the corpus, where `tests/fuzz/test_corpus.py` reads it ever after, and ends the run with 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.fuzz.harness import Finding, fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the public parsers.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default: %(default)s)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    options = parser.parse_args()
    unknown = set(options.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there is no such target")
    ends, rounds = time.monotonic() + 60 * options.minutes, 0
    chosen = options.targets or list(TARGETS)
    while time.monotonic() < ends:
        rounds += 1
        for name in chosen:
            try:
                fuzz(name, TARGETS[name])
            except Finding as finding:
                traceback.print_exception(finding.__cause__)
                print(f"\n{name}: finding written to {finding.path}")
                return 1
        print(f"round {rounds}: {len(chosen)} targets, no finding", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
