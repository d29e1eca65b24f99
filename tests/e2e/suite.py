"""Run Kubernetes' own end-to-end suite on a cluster, several specs at a time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpulab.kubernetes import binaries
from tests.e2e import reports
from tests.e2e.reports import Spec

SET: Final = "e2e"
# Areas of the conformance specs that need no volumes but those of the API, and no network of pods.
AREAS: Final = (
    "api-machinery",
    "apps",
    "architecture",
    "auth",
    "cli",
    "instrumentation",
    "node",
    "scheduling",
)
# All areas: those of the network and of storage are measured where they are asked for, and are not in the list.
ALL_AREAS: Final = (*AREAS, "network", "storage")
TOGETHER: Final = "Conformance && !Serial && !Disruptive"
ANY: Final = "Conformance"
ALONE: Final = "Conformance && (Serial || Disruptive)"
# Specs that take more than half a minute where they pass: they wait for the clock.
LONG: Final = (
    r"\[Slow\]",
    r"CronJob should (replace jobs|schedule multiple jobs)",
    r"CustomResourceDefinition Watch",
    r"CustomResourceFieldSelectors",
    r"Probing container should (\*not\*|have monotonically increasing)",
    r"issue 500 podspec updates",
)
_REST_SECONDS: Final = 90.0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Specs of the areas whose labels fit and whose names match a pattern of `only` and none of `without`.

    Without `only` all names match. `processes` is how many run at a time. `seconds` bounds the whole run; a spec that
    is cut off has not passed.
    """

    labels: str = TOGETHER
    areas: Sequence[str] = AREAS
    only: Sequence[str] = ()
    without: Sequence[str] = ()
    processes: int = 1
    seconds: float = 3600.0


def exactly(name: str) -> str:
    """Return the pattern of one spec: others have names that begin alike."""
    return f"{re.escape(name)}$"


def arguments(choice: Choice, kubeconfig: Path, report: Path) -> list[str]:
    """Return the arguments of ginkgo, which runs the suite."""
    area = rf"\[sig-({'|'.join(choice.areas)})\]"
    focus = [text if text.startswith(r"\[sig") else f"{area}.*{text}" for text in choice.only] or [area]
    return [
        f"--procs={choice.processes}",
        f"--timeout={choice.seconds:.0f}s",
        "--grace-period=5s",
        "--keep-going",
        "--no-color",
        "--succinct",
        "--silence-skips",
        f"--output-dir={report.parent}",
        f"--json-report={report.name}",
        f"--label-filter={choice.labels}",
        f"--focus={'|'.join(focus)}",
        *([f"--skip={'|'.join(choice.without)}"] if choice.without else ()),
        str(binaries.directory(SET) / "e2e.test"),
        "--",
        f"--kubeconfig={kubeconfig}",
        "--provider=skeleton",
    ]


def run(choice: Choice, kubeconfig: Path, folder: Path) -> list[Spec]:
    """Run specs and return how they ended. `folder` gets the report and the suite's log.

    Raises OSError where the suite wrote no report, TimeoutExpired where it does not end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [str(binaries.directory(SET) / "ginkgo"), *arguments(choice, kubeconfig, report)]
    with (folder / "log").open("w") as log:
        # A session of its own: its end is that of ginkgo's workers, and of the programs that specs started.
        suite = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            suite.wait(choice.seconds + _REST_SECONDS)
        finally:
            _end(suite)
    return reports.read(report)


def _end(suite: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(suite.pid, signal.SIGKILL)
    suite.wait()
