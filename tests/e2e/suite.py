"""Run Kubernetes' own end-to-end suite on a cluster, several specs at a time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gpulab.kubernetes import binaries
from tests.e2e import reports
from tests.e2e.plan import Batch
from tests.e2e.reports import Outcome, Spec

SET: Final = "e2e"
AREAS: Final = (
    "api-machinery",
    "apps",
    "architecture",
    "auth",
    "cli",
    "instrumentation",
    "network",
    "node",
    "scheduling",
    "storage",
)
# How long each node of a spec has to end when the time is over: on a busy machine it deletes a namespace in that time.
GRACE_S: Final = 20
# The end of a spec has several nodes, each with its grace.
_REST_SECONDS: Final = 180.0
_LIST_SECONDS: Final = 180.0


def exactly(name: str) -> str:
    """Return the pattern of one spec: others have names that begin alike."""
    return f"{re.escape(name)}$"


def list_specs(areas: Iterable[str], kubeconfig: Path, folder: Path) -> list[str]:
    """Return the names of the conformance specs of the areas. No spec is run."""
    focus = rf"\[sig-({'|'.join(areas)})\]"
    options = ["--dry-run", "--label-filter=Conformance", f"--focus={focus}"]
    return [spec.name for spec in _ginkgo(options, kubeconfig, folder, _LIST_SECONDS)]


def arguments(batch: Batch) -> list[str]:
    """Return the options of ginkgo for a batch."""
    return [
        f"--procs={batch.processes}",
        f"--timeout={batch.seconds:.0f}s",
        f"--grace-period={GRACE_S}s",
        "--keep-going",
        f"--focus={'|'.join(map(exactly, batch.names))}",
    ]


def run(batch: Batch, kubeconfig: Path, folder: Path) -> list[Spec]:
    """Run specs and return how each of them ended. `folder` gets the report and the suite's log.

    Raises ValueError where the suite began no spec.
    """
    try:
        found = {spec.name: spec for spec in _ginkgo(arguments(batch), kubeconfig, folder, batch.seconds)}
    except subprocess.TimeoutExpired:
        return [Spec(name, Outcome.CUT_OFF, message="the suite did not end, and was killed") for name in batch.names]
    if not found:
        raise ValueError(f"the suite began no spec: see {folder / 'log'}")
    return [found.get(name, Spec(name, Outcome.NOT_BEGUN)) for name in batch.names]


def _ginkgo(options: Sequence[str], kubeconfig: Path, folder: Path, seconds: float) -> list[Spec]:
    """Run ginkgo and return its report. Raises OSError, ValueError for none, TimeoutExpired where it does not end."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    programs = binaries.directory(SET)
    command = [str(programs / "ginkgo"), "--no-color", "--succinct", "--silence-skips"]
    command += [f"--output-dir={folder}", f"--json-report={report.name}", *options]
    command += [str(programs / "e2e.test"), "--", f"--kubeconfig={kubeconfig}", "--provider=skeleton"]
    # A spec that fails would wait two minutes for metrics of kubelets, which the simulated ones do not have.
    command.append("--max-nodes-to-gather-from=0")
    with (folder / "log").open("w") as log:
        # A session of its own: its end is that of ginkgo's workers, and of the programs that specs started.
        suite = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            suite.wait(seconds + _REST_SECONDS)
        finally:
            _end(suite)
    if not report.exists():
        raise ValueError(f"the suite wrote no report: see {folder / 'log'}")
    return reports.read(report)


def _end(suite: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(suite.pid, signal.SIGKILL)
    suite.wait()
