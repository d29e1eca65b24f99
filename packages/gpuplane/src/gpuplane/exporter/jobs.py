"""Finds the jobs of a batch system on each GPU: files that its prolog scripts write on the node.

A file `3` is of GPU 3, `3.1` of GPU instance 1 in it; each line is a job. Source of the format: NVIDIA DCGM exporter,
"HPC job mapping".
"""

from __future__ import annotations

import logging
import re

from gpuplane.host import Host, HostError

log = logging.getLogger("gpuplane.exporter")


class Jobs:
    """The directory of the batch system on a host; no jobs without it."""

    def __init__(self, host: Host, directory: str) -> None:
        self._host = host
        self._directory = directory.strip("/")
        self._said = ""

    def read(self) -> dict[str, tuple[str, ...]]:
        """`3` or `3.1` -> jobs. Metrics never fail because of an unreadable file: the log names it once."""
        if not self._directory:
            return {}
        found = {}
        said = ""
        try:
            for name in self._host.list(self._directory):
                if re.fullmatch(r"\d+(\.\d+)?", name):
                    lines = (self._host.read_text(f"{self._directory}/{name}") or "").splitlines()
                    found[name] = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
        except HostError as error:
            said = f"no jobs on the metrics: {error}"
        if said != self._said:
            log.warning(said or "jobs are on the metrics again")
            self._said = said
        return found
