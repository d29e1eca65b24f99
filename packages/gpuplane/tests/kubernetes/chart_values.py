"""Objects that helm renders from the chart with the values of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuplane.operator.manifest import parse
from tests.support.realkube.chart import CHART, helm


def rendered(*arguments: str, values: str = "") -> list[dict[str, Any]]:
    text = helm("template", "gpuplane", str(CHART), "--include-crds", *arguments, values=values)
    return parse(text)


def place(manifest: dict[str, Any]) -> tuple[str, str, str]:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]


def is_hook(manifest: dict[str, Any]) -> bool:
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def policy(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (manifest["spec"] for manifest in manifests if manifest["kind"] == "ClusterPolicy")
    return found


def operator(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (m["spec"] for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Deployment", "gpu-operator"))
    return found


THEIRS = Path(__file__).parents[4] / "tests/chart/charts"


def nvidia_drivers(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == "NVIDIADriver"]
