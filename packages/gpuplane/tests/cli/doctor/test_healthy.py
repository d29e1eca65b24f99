"""`gpuplane doctor` on a healthy installation."""

from __future__ import annotations

import json
from pathlib import Path

from gpuplane.cli.doctor.checks.registry import CHECKS
from packages.gpuplane.tests.cli.doctor.healthy_cluster import healthy_cluster
from packages.gpuplane.tests.cli.status_clusters import gpuplane


async def test_a_healthy_cluster_has_no_finding(tmp_path: Path) -> None:
    async with healthy_cluster(tmp_path):
        code, out, err = await gpuplane(tmp_path, "doctor")
        assert (code, err) == (0, ""), out
        assert f"{len(CHECKS)} checks, no finding" in out and "placed 1 pod" in out
        code, out, _ = await gpuplane(tmp_path, "doctor", "-o", "json")
        found = json.loads(out)
        assert (code, found["kind"], found["cluster"]) == (0, "Doctor", "prod")
        assert {one["state"] for one in found["checks"]} == {"healthy"}
