"""The pod with which the validator proves that the device plugin works."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib import resources
from typing import Any

import msgspec
import pytest
import yaml

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.gpunode import StageName, StageState
from gpuplane.operator.operands import manifests
from gpuplane.validator.operand import NOT_RUN, Validator
from gpuplane.validator.workload import NoRoom, pod_name, run_pod
from kubekit.api.core import Pod
from kubekit.kube import EventType

PLUGIN = StageName.PLUGIN


async def plugin_stage(world: Any, grace: float = 10.0) -> Any:
    """Validate CUDA with the fake and the plugin as on a full node."""
    light = Validator(world.context(), lambda name: world.node, world.allocatable)
    await light.reconcile("sim-1")
    world.hold(StageName.DEVICE_PLUGIN)
    prove = partial(run_pod, grace=grace)
    full = Validator(world.context(vector_add=None), lambda name: world.node, world.allocatable, prove_plugin=prove)
    await full.reconcile("sim-1")
    return world.stage(PLUGIN)


async def test_a_pod_gets_a_gpu_and_stays_completed(world: Any) -> None:
    world.end_pods("Succeeded")
    assert (await plugin_stage(world)).state is StageState.DONE
    pod = world.client.objects["pods", pod_name("sim-1")]
    assert pod["metadata"]["name"].startswith("nvidia-cuda-validator-")
    assert pod["metadata"]["namespace"] == "gpu-operator"
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1, "memory": "2Gi"}
    assert container["resources"]["requests"] == {"cpu": "0", "memory": "0"}, "a full node is proved too"
    assert container["command"][1:] == ["-m", "gpuplane.validator.vectoradd"]
    assert "nodeName" not in pod["spec"], "the scheduler has to know"


async def test_the_pod_of_an_earlier_validation_is_replaced(world: Any) -> None:
    old = world.client.put(Pod, {"metadata": {"name": pod_name("sim-1"), "namespace": "gpu-operator"}})
    world.end_pods("Succeeded")
    assert (await plugin_stage(world)).state is StageState.DONE
    assert world.client.objects["pods", pod_name("sim-1")]["metadata"]["uid"] != old["metadata"]["uid"]


async def test_a_pod_that_fails_says_why(world: Any) -> None:
    world.client.log = b"[Vector addition of 50000 elements]\nTest FAILED\nwhat   cuInit: no device\ncure   x\n"
    world.end_pods(
        "Failed",
        containerStatuses=[{"name": "c", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}],
    )
    stage = await plugin_stage(world)
    assert (stage.reason, stage.where) == ("PluginWorkloadFailed", f"pod/{pod_name('sim-1')}")
    assert stage.message == "the validation pod failed: Error; it said: Test FAILED what   cuInit: no device"


async def test_a_pod_that_cannot_start_is_not_waited_for(world: Any) -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    world.end_pods("Pending", containerStatuses=[{"name": "c", "state": waiting}])
    stage = await plugin_stage(world)
    assert stage.reason == "PluginWorkloadNotStarted"
    assert "ErrImagePull no such image" in stage.message


NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


async def test_without_a_free_gpu_the_pod_is_taken_back(world: Any) -> None:
    world.end_pods("Pending", conditions=[NO_ROOM])
    stage = await plugin_stage(world, grace=0.01)
    assert (stage.state, stage.message) == (StageState.DONE, NOT_RUN)
    assert ("pods", pod_name("sim-1")) not in world.client.objects
    with pytest.raises(NoRoom):
        await run_pod(world.context(vector_add=None), grace=0.01)


async def test_a_scheduler_that_is_late_to_see_the_gpus_is_waited_for(world: Any) -> None:
    def on_create(pod: dict[str, Any]) -> None:
        world.client.put(Pod, {**pod, "status": {"phase": "Pending", "conditions": [NO_ROOM]}})
        loop = asyncio.get_running_loop()
        loop.call_later(0.02, lambda: world.client.put(Pod, {**pod, "status": {"phase": "Succeeded"}}))

    world.client.on_create = on_create
    assert await run_pod(world.context(vector_add=None)) is None


async def test_a_pod_that_the_kubelet_turns_away_is_tried_again(world: Any) -> None:
    """A kubelet that has just started does not know the plugin yet; that says nothing of the GPU."""
    tries: list[str] = []

    def on_create(pod: dict[str, Any]) -> None:
        tries.append(pod["metadata"]["uid"])
        refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
        world.client.put(Pod, {**pod, "status": refused if len(tries) < 3 else {"phase": "Succeeded"}})

    world.client.on_create = on_create
    assert await run_pod(world.context(vector_add=None)) is None
    assert len(set(tries)) == 3


async def test_a_pod_that_is_always_turned_away_says_so_in_the_end(world: Any) -> None:
    world.end_pods("Failed", reason="UnexpectedAdmissionError", message="no healthy devices present")
    problem = await run_pod(world.context(vector_add=None), patience=0.5)
    assert problem is not None
    assert (problem.reason, problem.message) == (
        "PluginWorkloadRejected",
        "the kubelet refused the validation pod: no healthy devices present",
    )


async def test_a_pod_that_hangs_is_given_up(world: Any) -> None:
    problem = await run_pod(world.context(vector_add=None), patience=0.01)
    assert problem is not None
    assert problem.reason == "PluginWorkloadTimedOut"


async def test_the_pod_has_the_validators_image_and_goes_with_its_daemonset(world: Any) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nvidia-operator-validator", "uid": "d1"}
    ours = {
        "metadata": {
            "name": "v-abc",
            "namespace": "gpu-operator",
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"containers": [{"name": "operator-validator", "image": "registry.local/gpuplane:1"}]},
    }
    world.client.put(Pod, ours)
    world.end_pods("Succeeded")
    assert await run_pod(world.context(vector_add=None, pod_name="v-abc")) is None
    made = world.client.objects["pods", pod_name("sim-1")]
    assert made["metadata"]["ownerReferences"] == [owner]
    assert made["spec"]["containers"][0]["image"] == "registry.local/gpuplane:1"


async def test_the_pod_is_the_one_of_the_yaml(world: Any) -> None:
    """An administrator who allows the pod in a policy of the cluster reads the file."""
    written = yaml.safe_load(resources.files("gpuplane.validator").joinpath("validation-pod.yaml").read_text())
    world.end_pods("Succeeded")
    assert await run_pod(world.context(vector_add=None)) is None
    pod = world.client.objects["pods", pod_name("sim-1")]
    (made,), (container,) = pod["spec"].pop("containers"), written["spec"].pop("containers")
    assert (made["name"], made["command"][1:]) == (container["name"], container["command"][1:])
    assert set(made) == set(container)
    terms = written["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] = ["sim-1"]
    assert pod["spec"] == written["spec"]
    assert pod["metadata"]["labels"] == written["metadata"]["labels"]
    assert pod["metadata"]["name"].startswith(written["metadata"]["name"] + "-")


@pytest.mark.parametrize(
    ("validator", "secrets", "policy"),
    [
        ({"imagePullSecrets": ["pull"], "imagePullPolicy": "Always"}, [{"name": "pull"}], "Always"),
        ({}, None, None),
    ],
)
async def test_the_pod_is_pulled_as_the_policy_wants_it_for_the_validator(
    world: Any, validator: dict[str, Any], secrets: Any, policy: Any
) -> None:
    """A private registry with the admission plugin AlwaysPullImages refuses a pod without the secrets."""
    spec = msgspec.convert({"validator": validator}, ClusterPolicySpec)
    made = manifests(spec, {}, image="registry.example.com/gpuplane:1", owner={"name": "p"})
    (daemonset,) = (one for one in made if one["metadata"]["name"] == "nvidia-operator-validator")
    world.client.put(
        Pod,
        {
            "metadata": {"name": "v-abc", "namespace": "gpu-operator"},
            "spec": daemonset["spec"]["template"]["spec"],
        },
    )
    world.end_pods("Succeeded")
    assert await run_pod(world.context(vector_add=None, pod_name="v-abc")) is None
    pod = world.client.objects["pods", pod_name("sim-1")]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.com/gpuplane:1"
    assert (pod.get("imagePullSecrets"), pod["containers"][0].get("imagePullPolicy")) == (secrets, policy)


async def test_a_deleted_pod_is_seen_by_its_uid(world: Any) -> None:
    """A pod of the same name that another client created is not taken for ours."""

    def replaced(pod: dict[str, Any]) -> None:
        world.client.put(Pod, pod, EventType.DELETED)
        world.client.put(
            Pod, {**pod, "metadata": {**pod["metadata"], "uid": "other"}, "status": {"phase": "Succeeded"}}
        )

    world.client.on_create = replaced
    problem = await run_pod(world.context(vector_add=None), patience=0.05)
    assert problem is not None
