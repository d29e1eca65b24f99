"""The validator's token makes and deletes the validation pod of its node, and no pod of another shape."""

from __future__ import annotations

import pytest

from gpuplane import names
from gpuplane.validator.workload import pod_name
from tests.support.policy_world import NAMESPACE, PolicyWorld, token
from tests.support.stolen_tokens import REFUSED_PODS, container_with, pod_with, validation_pod

VALIDATOR = token("nvidia-operator-validator", "mine")


async def test_the_pod_of_the_yaml_passes_with_what_the_api_server_adds(world: PolicyWorld) -> None:
    assert await world.refused_create(VALIDATOR, "pods", NAMESPACE, validation_pod()) == ""
    made = world.registry.get("pods", NAMESPACE, pod_name("mine"))
    assert made is not None
    assert made["spec"]["priority"] == 0, "admission fills in defaults before it asks the policy"
    assert await world.refused_delete(VALIDATOR, "pods", NAMESPACE, pod_name("mine")) == ""


@pytest.mark.parametrize("what", sorted(REFUSED_PODS))
async def test_no_other_pod_passes(world: PolicyWorld, what: str) -> None:
    await world.registry.create("serviceaccounts", NAMESPACE, {"metadata": {"name": "gpu-operator"}})
    await world.registry.create("runtimeclasses", None, {"metadata": {"name": "nvidia-legacy"}, "handler": "nvidia"})
    said = await world.refused_create(VALIDATOR, "pods", NAMESPACE, REFUSED_PODS[what])
    assert "gpuplane-validation-pods" in said


async def test_what_openshift_adds_passes(world: PolicyWorld) -> None:
    pod = pod_with(securityContext={"seLinuxOptions": {"level": "s0:c1"}, "seccompProfile": {"type": "RuntimeDefault"}})
    pod["metadata"]["annotations"] = {"openshift.io/scc": "restricted-v2"}
    assert await world.refused_create(VALIDATOR, "pods", NAMESPACE, pod) == ""


async def test_a_token_without_a_node_and_one_of_another_node_make_no_pod(world: PolicyWorld) -> None:
    for user in (token("nvidia-operator-validator"), token("nvidia-operator-validator", "other")):
        assert "gpuplane-validation-pods" in await world.refused_create(user, "pods", NAMESPACE, validation_pod())


async def test_pods_of_others_stay(world: PolicyWorld) -> None:
    theirs = {"metadata": {"name": "gpu-operator-1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await world.registry.create("pods", NAMESPACE, theirs)
    await world.registry.create("pods", NAMESPACE, validation_pod("other"))
    for name in ("gpu-operator-1", pod_name("other")):
        assert "gpuplane-validation-pods" in await world.refused_delete(VALIDATOR, "pods", NAMESPACE, name)


async def test_a_pod_that_is_there_is_not_changed(world: PolicyWorld) -> None:
    await world.registry.create("pods", NAMESPACE, validation_pod())
    image = {"spec": {"containers": [{"name": "nvidia-cuda-validator", "image": "evil"}]}}
    said = await world.refused_patch(VALIDATOR, "pods", pod_name("mine"), image, namespace=NAMESPACE)
    assert said


@pytest.mark.parametrize(
    ("installed", "runs", "passes"),
    [
        ("registry.example.com:5000/a/gpuplane:1", "registry.example.com:5000/a/gpuplane:2", True),
        ("registry.example.com:5000/a/gpuplane:1", "registry.example.com:5000/a/gpuplane@sha256:" + "a" * 64, True),
        ("registry.example.com/gpuplane@sha256:" + "a" * 64, "registry.example.com/gpuplane:1", True),
        ("registry.example.com:5000/a/gpuplane:1", names.IMAGE, False),
        ("registry.example.com:5000/gpuplane", "registry.example.com:6000/gpuplane", False),
    ],
)
async def test_the_image_is_that_of_the_installation(installed: str, runs: str, passes: bool) -> None:
    world = PolicyWorld()
    await world.set_up(image=installed)
    pod = container_with(image=runs)
    assert (await world.refused_create(VALIDATOR, "pods", NAMESPACE, pod) == "") is passes
    world.close()


def test_the_pod_is_named_by_its_node() -> None:
    """The policy holds a validator to the name, so no validator stands in the way of another one's pod."""
    assert pod_name("ip-10-0-0-1.ec2.internal") == "nvidia-cuda-validator-ip-10-0-0-1.ec2.internal"
