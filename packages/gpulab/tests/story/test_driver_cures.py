"""The cures that a failed driver stage prints, carried out: each brings its node a step on, the last makes it ready."""

from __future__ import annotations

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import StageState

POLICY, NODE = "cluster-policy", "sim-3"
DEFAULTS = {"enabled": None, "version": None, "usePrecompiled": None, "kernelModuleType": None}


async def change(story, **driver) -> None:
    await story.client.patch(ClusterPolicy, POLICY, {"spec": {"driver": driver}})


# The first error, and each printed cure with the setting of the user: it leads to the next error.
WRONG = {"enabled": False, "version": "579.1.1"}
CURES = [
    ("DriverDisabled", "spec.driver.enabled to true", {"enabled": True}),
    ("VersionUnknown", "spec.driver.version", {"version": "570", "usePrecompiled": True, "kernelModuleType": "open"}),
    ("NoPrecompiled", "spec.driver.usePrecompiled: false", {"usePrecompiled": False}),
    ("VersionUnknown", "570.133.20", {"version": "570.133.20"}),
]


async def test_printed_cures_cure(story, cleanup) -> None:
    async def back() -> None:
        await change(story, **DEFAULTS)
        await story.opt_in("sim-1", NODE)
        await story.ready()

    await story.ready()
    cleanup(back())
    await story.opt_out("sim-1", NODE)
    await change(story, **WRONG)
    await story.opt_in(NODE)
    for reason, cure, settings in CURES:
        node = await story.node(
            NODE, lambda node, reason=reason: (stage := node.status.stages.get("driver")) and stage.reason == reason
        )
        stage = node.status.stages["driver"]
        assert stage.state is StageState.FAILED
        assert cure in stage.cure
        assert cure in " ".join(story.world.gpuplane("status").split())
        await change(story, **settings)
    await story.node(NODE, lambda node: node.status.summary.stage == "ready")
