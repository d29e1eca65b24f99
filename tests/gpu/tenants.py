"""Starts tenants' programs as a user does: `gpuplane share run`, with a share or with nothing that holds them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("tenant.py")
ALONE = 0  # core of a program that nothing limits
END_SECONDS = 120.0


class Broken(Exception):
    """A tenant's program failed, in its own words."""


class Lacking(Exception):
    """The machine has not what a part needs: the part is skipped."""


class Tenant:
    """A program that runs, at first only up to where it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._pid = 0  # of the program itself

    def await_ready(self) -> None:
        """Raises Broken when it ends before."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            raise Broken(self._end(line))
        self._pid = int(line.split()[1])

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the output of the program after its end. Raises Broken."""
        out, error = self._process.communicate(timeout=END_SECONDS)
        try:
            found: dict[str, Any] = json.loads(out.splitlines()[-1])
        except (ValueError, IndexError):
            raise Broken(f"exit code {self._process.returncode}: {(out + error)[-300:]}") from None
        if "failed" in found:
            raise Broken(found["failed"])
        return found

    def kill(self) -> None:
        """SIGKILL, and wait until its share is gone."""
        os.kill(self._pid, signal.SIGKILL)
        self._process.communicate(timeout=END_SECONDS)

    def _end(self, line: str) -> str:
        out, error = self._process.communicate()
        return f"exit code {self._process.returncode}: {(line + out + error)[-300:]}"


class Tenants:
    """The tenants of one GPU, real, or simulated where `simulate` is a model."""

    def __init__(self, gpu: str = "0", simulate: str = "") -> None:
        self.simulated = bool(simulate)
        self._where = ["--simulate", simulate] if simulate else ["--gpu", gpu]

    def on(self, gpu: str) -> Tenants:
        """The tenants of another GPU of this machine."""
        return Tenants(gpu)

    def command(self, words: Sequence[str], core: int, memory_mib: int = 0, *, held: bool = True) -> list[str]:
        """The command line of a program in a share of `core` percent and `memory_mib`; of all at will for ALONE.

        A share that is not `held` takes its room from others, and no limit holds.
        """
        limits = ["--core", str(core or 100)]
        limits += ["--backend", "none"] if not core or not held else []
        limits += ["--memory", f"{memory_mib}MiB"] if memory_mib else []
        return [sys.executable, "-m", "gpuplane", "share", "run", "-q", *self._where, *limits, "--", *words]

    def start(
        self,
        *words: object,
        core: int = ALONE,
        memory_mib: int = 0,
        program: Path | str = PROGRAM,
        held: bool = True,
    ) -> Tenant:
        """A tenant's program with these words; it is ready when this returns. Raises Broken."""
        command = self.command([sys.executable, str(program), *map(str, words)], core, memory_mib, held=held)
        pipe = subprocess.PIPE
        tenant = Tenant(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        tenant.await_ready()
        return tenant

    def run(
        self, *words: object, core: int = ALONE, memory_mib: int = 0, program: Path | str = PROGRAM
    ) -> dict[str, Any]:
        """The answer of one program that runs by itself. Raises Broken."""
        tenant = self.start(*words, core=core, memory_mib=memory_mib, program=program)
        tenant.go()
        return tenant.answer()

    def together(self, *programs: tuple[Sequence[object], int]) -> list[dict[str, Any]]:
        """The answers of programs that begin together, each with its core in percent."""
        running = [self.start(*words, core=core) for words, core in programs]
        for tenant in running:
            tenant.go()
        return [tenant.answer() for tenant in running]
