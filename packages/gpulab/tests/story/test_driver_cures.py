"""The cures that a failed driver stage prints, carried out: each brings its node a step on, the last makes it ready."""

from __future__ import annotations

import pytest

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import StageState

POLICY, NODE = "cluster-policy", "sim-3"
DEFAULTS = {"enabled": None, "version": None, "usePrecompiled": None, "kernelModuleType": None}


async def change(story, **driver) -> None:
    await story.client.patch(ClusterPolicy, POLICY, {"spec": {"driver": driver}})


@pytest.mark.parametrize(
    ("wrong", "cures"),
    [
        ({"enabled": False}, [("DriverDisabled", "spec.driver.enabled to true", {"enabled": True})]),
        (
            {"usePrecompiled": True, "kernelModuleType": "open", "version": "570"},
            [
                ("NoPrecompiled", "spec.driver.usePrecompiled: false", {"usePrecompiled": False}),
                ("VersionUnknown", "570.133.20", {"version": "570.133.20"}),
            ],
        ),
        ({"version": "579.1.1"}, [("VersionUnknown", "spec.driver.version", {"version": "580.82.07"})]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
async def test_a_printed_cure_cures(story, cleanup, wrong, cures) -> None:
    async def back() -> None:
        await change(story, **DEFAULTS)
        await story.opt_in("sim-1", NODE)
        await story.ready()

    await story.ready()
    cleanup(back())
    await story.opt_out("sim-1", NODE)
    await change(story, **wrong)
    await story.opt_in(NODE)
    for reason, cure, settings in cures:
        node = await story.node(
            NODE, lambda node, reason=reason: (stage := node.status.stages.get("driver")) and stage.reason == reason
        )
        stage = node.status.stages["driver"]
        assert stage.state is StageState.FAILED
        assert cure in stage.cure
        assert cure in " ".join(story.world.gpuplane("status").split())
        await change(story, **settings)
    await story.node(NODE, lambda node: node.status.summary.stage == "ready")
