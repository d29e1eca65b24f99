"""An API server with the operator of an old release, and the new command, for tests of the user's view."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.cli.main import main
from kubekit.api.core import Deployment, Namespace, Node
from tests.support.extender_world import World, world


@contextlib.asynccontextmanager
async def installed(tmp_path: Path) -> AsyncIterator[World]:
    """An API server with the operator's Deployment, of version 0.0.7."""
    async with world(tmp_path) as made:
        (tmp_path / "config").write_text(made.kubeconfig())
        await made.client.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.OPERATOR_NAMESPACE}},
            resource=Namespace.RESOURCE,
        )
        labels = {"app": "gpu-operator"}
        container = {"name": "gpu-operator", "image": "registry:5000/gpuplane:0.0.7@sha256:" + 64 * "0"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        await made.client.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "gpu-operator", "namespace": names.OPERATOR_NAMESPACE},
                "spec": {"selector": {"matchLabels": labels}, "template": template},
            },
            resource=Deployment.RESOURCE,
        )
        yield made


async def report(cluster: World, name: str, *, ready: bool) -> None:
    """Bring the node's GPUNode to `ready`, or to a failed driver."""
    await cluster.client.patch(Node, name, {"metadata": {"labels": {names.GPU_PRESENT_LABEL: "true"}}})
    done = {stage.value: {"state": "done", "since": "2026-01-01T00:00:00.000000Z"} for stage in StageName}
    failed: dict[str, Any] = dict.fromkeys(list(done)[1:])
    failed["driver"] = {
        "state": "failed",
        "since": "2026-01-01T00:00:00.000000Z",
        "reason": "CompileFailed",
        "message": "the compiler of this node's kernel is missing, " * 4 + name,
        "cure": "install the compiler that made the kernel",
    }
    stages = done if ready else {**done, **failed}
    stage = "ready" if ready else "driver"
    await cluster.client.patch(GPUNode, name, {"status": {"stages": stages, "summary": {"stage": stage}}})


async def gpuplane(tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command whose output goes into no terminal.

    Its entry point is called here: a process for each of a hundred commands takes longer than what they do.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = await asyncio.to_thread(main, [*arguments, "--kubeconfig", str(tmp_path / "config")])
    printed, reported = (stream.buffer.getvalue().decode() for stream in (out, err))
    return code, printed, reported


@contextlib.asynccontextmanager
async def followed(*arguments: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A command that stays, with its stdout in a pipe; yields what returns the next line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    out = process.stdout

    async def line() -> str:
        async with asyncio.timeout(60):
            return (await out.readline()).decode().rstrip()

    try:
        yield line
    finally:
        process.terminate()
        await process.wait()
