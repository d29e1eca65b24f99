"""Runs the vectorAdd on one GPU of this node, as a process of its own.

A process: a CUDA context costs 300 MB and keeps the GPU awake, and a hung GPU can only be left by killing. It gets the
driver's library as a file. The folder that it lies in has the host's glibc too, so it is in no search path.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

from kubekit.errors import KubekitError, Retryable, Terminal

TIMEOUT_SECONDS: Final = 120.0
PROGRAM: Final = "gpuplane.validator.vectoradd"
NO_LIBRARY: Final = 3  # see that program


class VectorAddProcess:
    """`gpuplane.operand.VectorAdd` by the driver of this node.

    Args:
        library: the file of libcuda, without links.
        at_once: how many run at the same time.
    """

    def __init__(self, library: Path, *, timeout: float = TIMEOUT_SECONDS, at_once: int = 4) -> None:
        self._library = str(library)
        self._timeout = timeout
        self._places = asyncio.Semaphore(at_once)

    async def __call__(self, uuid: str) -> str:
        """The program's output. Raises Terminal when the GPU fails, Retryable when there is no driver to ask."""
        async with self._places:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", PROGRAM, "--gpu", uuid, "--library", self._library),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(self._timeout):
                    output, errors = await process.communicate()
            except TimeoutError:
                raise Terminal(
                    f"the vectorAdd did not end within {self._timeout:g} s",
                    where=uuid,
                    cure="look for Xid lines in dmesg on the node; reset the GPU (nvidia-smi -r) or reboot",
                ) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode:
            raise failure(process.returncode, errors.decode(errors="replace"), uuid)
        return output.decode(errors="replace")


def failure(code: int, errors: str, uuid: str) -> KubekitError:
    """The error that the program's exit code (negative: a signal) and its `what`, `where`, `cure` lines describe."""
    said: dict[str, str] = {}
    for line in errors.splitlines():
        name, _, text = line.partition(" ")
        if name in ("what", "where", "cure") and text.strip():
            said[name] = text.strip()
    if "what" not in said:
        last = errors.strip().splitlines()[-1:] or ["it said nothing"]
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        said["what"] = f"the vectorAdd {ended}: {last[0]}"
    kind = Retryable if code == NO_LIBRARY else Terminal
    return kind(said["what"], where=said.get("where", uuid), cure=said.get("cure", ""))
