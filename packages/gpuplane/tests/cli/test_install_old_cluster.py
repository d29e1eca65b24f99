"""`gpuplane install` on an API server of before Kubernetes 1.30."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.cli.main import main
from kubekit.http_server import HttpAnswer, serving


@contextlib.asynccontextmanager
async def old_cluster(folder: Path) -> AsyncIterator[Path]:
    """The kubeconfig of an API server that serves version and webhooks, and no admission policies: 404, as it says."""

    async def version() -> HttpAnswer:
        return HttpAnswer(json.dumps({"major": "1", "minor": "27"}).encode(), content_type="application/json")

    async with serving({"/version": version}, "127.0.0.1", 0) as port:
        config = folder / "kubeconfig"
        config.write_text(
            json.dumps(
                {
                    "current-context": "old",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                    "contexts": [{"name": "old", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        yield config


async def test_it_is_refused_with_the_version_that_is_needed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with old_cluster(tmp_path) as config:
        # The server answers a write with 405: the first one would end in another error.
        assert await asyncio.to_thread(main, ["install", "--kubeconfig", str(config)]) != 0
    said = capsys.readouterr().err
    assert "the cluster serves no ValidatingAdmissionPolicy" in said and "Kubernetes 1.30 or newer" in said
