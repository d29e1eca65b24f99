"""The ClusterPolicy: its errors are reported at once, and its settings reach nodes and pods."""

from __future__ import annotations

import json

import yaml

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode, StageState
from kubekit.api.core import DaemonSet, Node, Pod

NAME = "cluster-policy"
TAINT = "nvidia.com/gpu-not-ready"


def policy(name: str, **spec) -> str:
    manifest = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump(manifest)


async def change(story, **spec) -> None:
    await story.client.patch(ClusterPolicy, NAME, {"spec": spec})


async def test_a_policy_with_errors_is_refused_with_every_error_and_its_path(story, kubectl):
    await story.ready()
    wrong = policy(
        "wrong",
        driver={"enabled": "yes", "version": 570},
        toolkit={"installDir": ["x"]},
        mig={"strategy": "double"},
        daemonsets={"updateStrategy": "Sometimes", "tolerations": "all"},
        sandboxWorkloads={"defaultWorkload": "jail"},
    )
    done = kubectl("create", "--validate=false", "-f", "-", stdin=wrong)
    assert done.returncode != 0
    for path in (
        "spec.driver.enabled",
        "spec.driver.version",
        "spec.toolkit.installDir",
        "spec.mig.strategy",
        "spec.daemonsets.updateStrategy",
        "spec.daemonsets.tolerations",
        "spec.sandboxWorkloads.defaultWorkload",
    ):
        assert path in done.stderr, done.stderr
    assert 'spec.mig.strategy: Unsupported value: "double": supported values: "", "none", "single"' in done.stderr
    unknown = kubectl("apply", "-f", "-", stdin=policy("wrong", driver={"enable": False}))
    assert unknown.returncode != 0
    assert "spec.driver.enable" in unknown.stderr or 'unknown field "enable"' in unknown.stderr
    assert [found.metadata.name for found in await story.client.list(ClusterPolicy)] == [NAME]


async def test_a_second_policy_is_reported_and_ignored(story, kubectl):
    await story.ready()
    before = await story.states()
    assert kubectl("apply", "-f", "-", stdin=policy("another", driver={"enabled": False})).returncode == 0
    try:
        ignored = await story.until(
            ClusterPolicy,
            lambda found: next((p for p in found if p.status.state == "ignored"), None),
        )
        assert ignored.metadata.name == "another"
        assert f"ClusterPolicy {NAME} is older and in force" in ignored.status.conditions[0].message
        listed = json.loads(kubectl("get", "clusterpolicies", "-o", "json").stdout)
        states = {item["metadata"]["name"]: item["status"]["state"] for item in listed["items"]}
        assert states == {NAME: "ready", "another": "ignored"}
        assert await story.states() == before
    finally:
        await story.client.delete(ClusterPolicy, "another")
    await story.until(ClusterPolicy, lambda found: len(found) == 1)


async def test_what_the_policy_says_of_pods_reaches_them_and_goes_again(story):
    await story.ready()
    toleration = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
    await change(
        story,
        daemonsets={"labels": {"team": "ml"}, "annotations": {"owner": "ops"}, "tolerations": [toleration]},
        dcgmExporter={
            "env": [{"name": "DCGM_EXPORTER_INTERVAL", "value": "5000"}],
            "resources": {"limits": {"memory": "200Mi"}},
        },
    )
    name = "nvidia-dcgm-exporter"

    def renewed(pods):
        found = [p for p in pods if p.metadata.name.startswith(name) and not p.metadata.deletion_timestamp]
        fresh = [p for p in found if p.metadata.labels.get("team") == "ml" and p.status.phase == "Running"]
        return fresh if len(fresh) == len(found) == 3 else None

    pods = await story.until(Pod, renewed, namespace="gpu-operator")
    for pod in pods:
        assert pod.metadata.annotations["owner"] == "ops"
        assert any(t.key == "team" and t.value == "ml" for t in pod.spec.tolerations)
        container = pod.spec.containers[0]
        assert {entry.name: entry.value for entry in container.env}["DCGM_EXPORTER_INTERVAL"] == "5000"
    # A rollout of the operands takes no stage back.
    assert all(node.status.summary.stage == "ready" for node in await story.client.list(GPUNode))
    # Of one operand, since to replace the pods of all takes long.
    await change(story, dcgmExporter={"env": None, "resources": None})

    def as_before(pods):
        fresh = renewed(pods) or []
        containers = [pod.spec.containers[0] for pod in fresh]
        asked = any("DCGM_EXPORTER_INTERVAL" in {entry.name for entry in c.env} for c in containers)
        return fresh and not asked and not any(c.resources.limits["memory"] == "200Mi" for c in containers)

    await story.until(Pod, as_before, namespace="gpu-operator")
    await story.ready()


async def test_a_component_that_is_switched_off_is_a_stage_skipped(story):
    await story.ready()
    await change(story, dcgmExporter={"enabled": False})
    nodes = await story.until(
        GPUNode,
        lambda found: (
            all(
                n.status.stages.get("exporter") and n.status.stages["exporter"].state is StageState.SKIPPED
                for n in found
            )
            and found
        ),
    )
    assert all(node.status.stages["exporter"].reason == "Disabled" for node in nodes)
    await story.until(DaemonSet, lambda found: "nvidia-dcgm-exporter" not in {d.metadata.name for d in found})
    await story.until(
        Pod,
        lambda found: not any(p.metadata.name.startswith("nvidia-dcgm-exporter") for p in found),
        namespace="gpu-operator",
    )
    nodes = await story.ready()
    for node in await story.client.list(Node):
        assert "nvidia.com/gpu.deploy.dcgm-exporter" not in node.metadata.labels
    await change(story, dcgmExporter={"enabled": True})
    await story.until(
        GPUNode,
        lambda found: all(
            n.status.stages.get("exporter") and n.status.stages["exporter"].state is StageState.DONE for n in found
        ),
    )
    await story.ready()


async def test_gpu_pods_are_kept_off_a_node_that_is_not_ready(story):
    await story.ready()
    await change(story, operator={"notReadyTaint": True})
    with story.world.faults("sim-2") as faults:
        faults.wrong_results(0)
        try:
            (story.world.root("sim-2") / "run/nvidia/validations/cuda-ready").unlink()  # as after a boot
            await story.validate_again("sim-2")
            node = await story.until(
                Node, lambda found: found and found[0].spec.taints and found[0], fields="metadata.name=sim-2"
            )
            assert [(taint.key, taint.effect) for taint in node.spec.taints] == [(TAINT, "NoSchedule")]
            assert (await story.client.get(Node, "sim-1")).spec.taints == ()
        finally:
            faults.clear(0)
    await story.validate_again("sim-2")
    await story.until(Node, lambda found: found and not found[0].spec.taints, fields="metadata.name=sim-2")
    await story.ready()
    await change(story, operator={"notReadyTaint": False})


async def test_a_pause_is_shown_and_nothing_is_changed_until_it_ends(story, kubectl):
    await story.ready()

    async def says(paused: bool) -> None:
        def told(found):
            conditions = next(policy for policy in found if policy.metadata.name == NAME).status.conditions
            return any(condition.type == "Paused" for condition in conditions) is paused

        await story.until(ClusterPolicy, told)

    assert kubectl("annotate", "clusterpolicy", NAME, f"{names.PAUSED_ANNOTATION}=true").returncode == 0
    try:
        await says(paused=True)
        page = story.world.gpuplane("status")
        assert "all ready" in page and "! operator paused" in page
        assert f"cure   kubectl annotate clusterpolicy {NAME} {names.PAUSED_ANNOTATION}-" in page
        seen = json.loads(story.world.gpuplane("status", "-o", "json"))
        assert seen["paused"]["policy"] == NAME and seen["paused"]["since"]
        sets = {one.metadata.name: one.metadata.generation for one in await story.client.list(DaemonSet)}
        await change(story, dcgmExporter={"enabled": False})
        await story.until(ClusterPolicy, lambda found: not found[0].spec.dcgm_exporter.enabled)
        assert {one.metadata.name: one.metadata.generation for one in await story.client.list(DaemonSet)} == sets
        await change(story, dcgmExporter={"enabled": None})
    finally:
        kubectl("annotate", "clusterpolicy", NAME, f"{names.PAUSED_ANNOTATION}-")
    await says(paused=False)
    assert json.loads(story.world.gpuplane("status", "-o", "json"))["paused"] is None
    await story.ready()
