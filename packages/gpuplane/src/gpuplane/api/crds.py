"""The CustomResourceDefinitions of gpuplane's kinds, made from the Structs.

    python -m gpuplane.api.crds | kubectl apply -f -

The columns of GPUNode are a page that people watch: each is one JSONPath, so what they show is stored
(`status.summary`).
"""

from __future__ import annotations

import copy
import sys
from functools import cache
from typing import Any, Final

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.explanation import PodExplanation
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.api.nodefeature import NodeFeature, NodeFeatureRule
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.schema import PrinterColumn, ServedKind, definition

SERVED: Final = (
    ServedKind(
        kind=GPUNode,
        singular="gpunode",
        short_names=("gpn",),
        defaults=False,  # it has no spec; a field that an operand left out must not look as if it had been written
        columns=(
            PrinterColumn("Stage", ".status.summary.stage"),
            PrinterColumn("Waits-For", ".status.summary.waitsFor"),
            PrinterColumn("Since", ".status.summary.since", type="date"),
            PrinterColumn("GPUs", ".status.summary.gpus"),
            PrinterColumn("Free", ".status.summary.free"),
            PrinterColumn("Driver", ".status.machine.driver"),
            PrinterColumn("Runtime", ".status.machine.runtime"),
            PrinterColumn("Model", ".status.summary.model", wide=True),
            PrinterColumn("OS", ".status.machine.os", wide=True),
            PrinterColumn("Kernel", ".status.machine.kernel", wide=True),
            PrinterColumn("Reason", ".status.summary.reason", wide=True),
            PrinterColumn("Message", ".status.summary.message", wide=True),
        ),
    ),
    ServedKind(
        kind=ClusterPolicy,
        singular="clusterpolicy",
        status_subresource=True,
        columns=(
            PrinterColumn("Status", ".status.state"),
            PrinterColumn("Age", ".metadata.creationTimestamp", type="date"),
        ),
    ),
    ServedKind(
        kind=NVIDIADriver,
        singular="nvidiadriver",
        status_subresource=True,
        short_names=("nvd", "nvdriver", "nvdrivers"),
        columns=(
            PrinterColumn("Status", ".status.state"),
            PrinterColumn("Age", ".metadata.creationTimestamp", type="date"),
        ),
    ),
    ServedKind(
        kind=PodExplanation,
        singular="podexplanation",
        status_subresource=True,
        defaults=False,
        columns=(
            PrinterColumn("Pods", ".spec.pods"),
            PrinterColumn("Answered", ".status.answered", type="date"),
            PrinterColumn("Error", ".status.error"),
        ),
    ),
    ServedKind(
        kind=GPUQueue,
        singular="gpuqueue",
        status_subresource=True,
        short_names=("gpq",),
        columns=(
            PrinterColumn("Parent", ".spec.parent"),
            PrinterColumn("Weight", ".spec.weight", type="integer"),
            PrinterColumn("Guaranteed", ".spec.guaranteed.gpus"),
            PrinterColumn("GPUs", ".status.held.gpus"),
            PrinterColumn("Borrowed", ".status.borrowed.gpus"),
            PrinterColumn("Share", ".status.share"),
            PrinterColumn("Waiting", ".status.waiting", type="integer"),
            PrinterColumn("Message", ".status.message", wide=True),
        ),
    ),
    ServedKind(kind=NodeFeature, singular="nodefeature", defaults=False),
    ServedKind(kind=NodeFeatureRule, singular="nodefeaturerule", short_names=("nfr",), defaults=False),
)


def crds() -> list[dict[str, Any]]:
    """The definitions, ready to be applied; fresh dicts on every call."""
    return copy.deepcopy(_definitions())


@cache
def _definitions() -> list[dict[str, Any]]:
    """The definitions, made once: it takes 80 ms to make them from the Structs, and 4 ms to copy them."""
    return [definition(served) for served in SERVED]


def main() -> None:
    import yaml

    yaml.safe_dump_all(crds(), sys.stdout, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    main()
