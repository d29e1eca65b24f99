"""The CustomResourceDefinitions of gpuplane's kinds, made from the Structs.

    python -m gpuplane.api.crds | kubectl apply -f -

The columns of GPUNode are a page that people watch: each is one JSONPath, so what they show is stored
(`status.summary`).
"""

from __future__ import annotations

import sys
from typing import Any, Final

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nodefeature import NodeFeature, NodeFeatureRule
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.schema import Column, Served, definition

SERVED: Final = (
    Served(
        kind=GPUNode,
        singular="gpunode",
        short_names=("gpn",),
        defaults=False,  # it has no spec; what an operand left out must not look as if it had been said
        columns=(
            Column("Stage", ".status.summary.stage"),
            Column("Waits-For", ".status.summary.waitsFor"),
            Column("Since", ".status.summary.since", type="date"),
            Column("GPUs", ".status.summary.gpus"),
            Column("Free", ".status.summary.free"),
            Column("Driver", ".status.machine.driver"),
            Column("Runtime", ".status.machine.runtime"),
            Column("Model", ".status.summary.model", wide=True),
            Column("OS", ".status.machine.os", wide=True),
            Column("Kernel", ".status.machine.kernel", wide=True),
            Column("Reason", ".status.summary.reason", wide=True),
            Column("Message", ".status.summary.message", wide=True),
        ),
    ),
    Served(
        kind=ClusterPolicy,
        singular="clusterpolicy",
        status_subresource=True,
        columns=(
            Column("Status", ".status.state"),
            Column("Age", ".metadata.creationTimestamp", type="date"),
        ),
    ),
    Served(
        kind=NVIDIADriver,
        singular="nvidiadriver",
        status_subresource=True,
        short_names=("nvd", "nvdriver", "nvdrivers"),
        columns=(
            Column("Status", ".status.state"),
            Column("Age", ".metadata.creationTimestamp", type="date"),
        ),
    ),
    Served(kind=NodeFeature, singular="nodefeature", defaults=False),
    Served(kind=NodeFeatureRule, singular="nodefeaturerule", short_names=("nfr",), defaults=False),
)


def crds() -> list[dict[str, Any]]:
    """The definitions, ready to be applied; fresh dicts on every call."""
    return [definition(served) for served in SERVED]


def main() -> None:
    import yaml

    yaml.safe_dump_all(crds(), sys.stdout, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    main()
