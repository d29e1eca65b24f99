"""Drivers of whole machines are replaced: jobs end by themselves, budgets hold, one node at a time, and a driver that
does not pass goes back.

The operator runs in the test's own process, with less patience for a failure, so that it need not last a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.upgrade import UpgradeState, upgrade_record, upgrade_state
from gpuplane.operator.explanations import ExplainProcess
from gpuplane.operator.operator import OperatorProcess
from gpuplane.operator.upgrade import decide
from kubekit.api.core import Deployment, Node, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import ApiEndpoint, Client, Informer, NotFound
from kubekit.kube.auth import StaticAuth
from kubekit.kube.config import load

POLICY, NAMESPACE = "cluster-policy", names.OPERATOR_NAMESPACE
OURS = ("sim-1", "sim-3")  # the driver of sim-2 is the machine's own
BUDGET = built_in("policy/v1", "PodDisruptionBudget")
REPLICASET = built_in("apps/v1", "ReplicaSet")
S = UpgradeState
WAY = [S.REQUIRED, S.CORDON, S.JOBS, S.PODS, S.RESTART, S.VALIDATION, S.UNCORDON, S.DONE]


async def change(story, **driver) -> None:
    await story.client.patch(ClusterPolicy, POLICY, {"spec": {"driver": driver}})


async def another(story, generation: str) -> None:
    """Request another driver: any change of the installer's environment is one."""
    await change(story, env=[{"name": "GENERATION", "value": generation}])


def worker(name: str, node: str, *command: str, labels: dict[str, str] | None = None) -> dict:
    container = {
        "name": "main",
        "image": "busybox",
        "command": list(command),
        "resources": {"limits": {names.GPU_RESOURCE: 1}},
    }
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container], "restartPolicy": "Never"}
    spec["terminationGracePeriodSeconds"] = 0
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def replicas(name: str, node: str) -> dict:
    """Return a ReplicaSet of one pod with a GPU, which is created again after an eviction."""
    pod = worker(name, node, "sleep", "3600", labels={"app": name})
    template = {"metadata": {"labels": {"app": name}}, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}


class Journey:
    """The states that nodes went through, what was wrong with their new driver, and how many nodes were unschedulable
    at once, at most. `back` is called with the name of a node that goes back to the driver before.
    """

    def __init__(self) -> None:
        self.states: dict[str, list[UpgradeState]] = {}
        self.failures: dict[str, str] = {}
        self.back = lambda name: None
        self.most = 0
        self._cordoned: set[str] = set()

    def saw(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            return
        name, state = new.metadata.name, upgrade_state(new)
        (self._cordoned.add if new.spec.unschedulable else self._cordoned.discard)(name)
        self.most = max(self.most, len(self._cordoned))
        if (failure := upgrade_record(new).failure) and name not in self.failures:
            self.failures[name] = failure
            self.back(name)
        been = self.states.setdefault(name, [])
        if not been or been[-1] is not state:
            been.append(state)


async def as_operator(story) -> ApiEndpoint:
    """The API server, with the rights that an operator has."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gpu-operator/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = json.loads(await story.client.request("POST", path, None, body))
    return msgspec.structs.replace(load(story.world.kubeconfig), auth=StaticAuth(token=answer["status"]["token"]))


@pytest.fixture
async def operating(story, monkeypatch, cleanup):
    """Our own operator in the place of the cluster's; afterwards policy and operator are as before."""
    await story.ready()
    monkeypatch.setattr(decide, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(decide, "EVICT_SECONDS", 0.2)
    image = (await story.client.get(Deployment, "gpu-operator", NAMESPACE)).spec.template.spec.containers[0].image

    async def scale(number: int) -> None:
        await story.client.patch(Deployment, "gpu-operator", {"spec": {"replicas": number}}, namespace=NAMESPACE)
        await story.until(
            Pod,
            lambda found: sum(pod.metadata.name.startswith("gpu-operator-") for pod in found) == number,
            namespace=NAMESPACE,
        )

    await scale(0)
    async with Client(await as_operator(story)) as client:
        operator = OperatorProcess(client, ExplainProcess(), image=image, identity="test")
        task = asyncio.create_task(operator.run())
        yield
        await change(story, upgradePolicy={"autoUpgrade": False}, env=None)
        await story.until(Node, lambda found: not any(map(upgrade_state, found)) and found)
        await story.ready()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await scale(1)


@pytest.fixture
async def journey(story):
    found = Journey()
    nodes = Informer(story.client, Node)
    nodes.add_handler(found.saw)
    nodes.start()
    yield found
    await nodes.stop()


async def in_state(story, state: UpgradeState, *nodes: str):
    """The nodes, once all of them are in that state."""
    return await story.until(
        Node,
        lambda found: (
            (there := [n for n in found if n.metadata.name in nodes])
            and all(upgrade_state(n) is state for n in there)
            and there
        ),
    )


async def gone(story, kind, name: str) -> None:
    with contextlib.suppress(NotFound):
        await story.client.request("DELETE", kind.path("default", name))


async def test_jobs_end_budgets_hold_and_one_machine_at_a_time(story, operating, journey, cleanup):
    for kind, name in ((REPLICASET, "free"), (REPLICASET, "guarded"), (BUDGET, "guarded")):
        cleanup(gone(story, kind, name))
    policy = {
        "autoUpgrade": True,
        "maxParallelUpgrades": 1,
        "maxUnavailable": "50%",
        "waitForCompletion": {"podSelector": "kind=job", "timeoutSeconds": 0},
        "podDeletion": {"timeoutSeconds": 300},
    }
    await change(story, upgradePolicy=policy)
    await in_state(story, S.DONE, *OURS)
    job = worker("job", "sim-1", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done", labels={"kind": "job"})
    await story.client.create(job, namespace="default")
    cleanup(gone(story, Pod.RESOURCE, "job"))
    for name in ("free", "guarded"):
        await story.client.create(replicas(name, "sim-1"), resource=REPLICASET, namespace="default")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    guard = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guarded"}, "spec": budget}
    await story.client.create(guard, resource=BUDGET, namespace="default")

    def by_app(pods: list[Pod]) -> dict[str, Pod]:
        return {pod.metadata.labels.get("app", pod.metadata.name): pod for pod in pods}

    running = await story.until(
        Pod,
        lambda found: len(by_app(found)) == 3 and all(pod.status.phase == "Running" for pod in found) and found,
        namespace="default",
    )
    before = {name: pod.metadata.uid for name, pod in by_app(running).items()}
    drivers = {pod.metadata.uid for pod in await story.operand_pods() if pod.metadata.name.startswith("nvidia-driver")}
    await another(story, "2")
    # The job is left alone for as long as it runs, and so are all other pods on its machine.
    await story.until(
        Node,
        lambda found: any(
            upgrade_state(n) is S.JOBS and upgrade_record(n).reason.startswith("waits for default/job") for n in found
        ),
    )
    now = {name: pod.metadata.uid for name, pod in by_app(await story.client.list(Pod, "default")).items()}
    assert now == before
    page = story.world.gpuplane("status")
    assert "wait-for-jobs-required" in page and "waits for default/job" in page
    await gone(story, Pod.RESOURCE, "job")
    # The pod without a budget goes; the guarded one stays, and is named, until its budget lets it.
    [node] = await story.until(
        Node,
        lambda found: [n for n in found if n.metadata.name == "sim-1" and "allows no" in upgrade_record(n).reason],
    )
    assert upgrade_state(node) is S.PODS and node.spec.unschedulable
    assert upgrade_record(node).reason.startswith("waits for default/guarded")
    await story.until(
        Pod,
        lambda found: (free := by_app(found).get("free")) and free.metadata.uid != before["free"],
        namespace="default",
    )
    assert by_app(await story.client.list(Pod, "default"))["guarded"].metadata.uid == before["guarded"]
    assert "waits for default/guarded" in story.world.gpuplane("status")
    await gone(story, BUDGET, "guarded")
    await in_state(story, S.DONE, *OURS)
    assert journey.most == 1, "never both"
    assert [state for state in journey.states["sim-1"] if state] == [S.DONE, *WAY]
    assert [state for state in journey.states["sim-3"] if state] == [S.DONE, *WAY]
    assert set(journey.states["sim-2"]) == {S.UNKNOWN}, "the machine's own driver is nobody's to replace"
    after = {pod.metadata.uid for pod in await story.operand_pods() if pod.metadata.name.startswith("nvidia-driver")}
    assert len(after) == len(drivers) == 2 and not after & drivers
    # Their pods come again where they were.
    await story.until(
        Pod, lambda found: len(found) == 2 and all(p.status.phase == "Running" for p in found), namespace="default"
    )


async def test_a_driver_that_does_not_pass_validation_goes_back_and_stops_there(story, operating, journey, cleanup):
    await change(story, upgradePolicy={"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": 1})
    await in_state(story, S.DONE, *OURS)
    journey.states.clear()  # it began with a driver that was wanted before
    with contextlib.ExitStack() as stack:
        faults = {name: stack.enter_context(story.world.faults(name)) for name in OURS}
        for one in faults.values():
            one.wrong_results(0)
            stack.callback(one.clear, 0)
        # With the driver before, the GPU computes right again.
        journey.back = lambda name: faults[name].clear(0)
        await another(story, "3")
        node = await story.until(Node, lambda found: next((n for n in found if upgrade_state(n) is S.FAILED), None))
        name = node.metadata.name
        assert "fails the vectorAdd" in journey.failures.get(name, ""), upgrade_record(node)
        assert names.ROLLBACK_LABEL in node.metadata.labels and not node.spec.unschedulable
        assert "back on the driver before" in upgrade_record(node).reason
        assert "fails the vectorAdd" in upgrade_record(node).reason
        await story.node(name, lambda node: node.status.summary.stage == "ready")
        # The bad driver stops here: the other machine was never touched.
        [other] = set(OURS) - {name}
        policy = await story.until(
            ClusterPolicy,
            lambda found: next(
                (p for p in found for c in p.status.conditions if c.type == "Upgrading" and c.reason == "DriverFails"),
                None,
            ),
        )
        assert policy.metadata.name == POLICY
        assert journey.states[other][-1] is S.REQUIRED and S.CORDON not in journey.states[other]
        page = story.world.gpuplane("status")
        assert f"✗ {name}   upgrade-failed" in page and "back on the driver before" in page
        seen = json.loads(story.world.gpuplane("status", "-o", "json"))
        assert {n["name"]: n["upgrade"] and n["upgrade"]["state"] for n in seen["nodes"]}[name] == "upgrade-failed"
    assert journey.most == 1
    assert journey.states[name][-5:] == [S.VALIDATION, S.RESTART, S.VALIDATION, S.UNCORDON, S.FAILED]
    # A driver that works ends it.
    await another(story, "4")
    await in_state(story, S.DONE, *OURS)
    nodes = await story.client.list(Node)
    assert not any(names.ROLLBACK_LABEL in node.metadata.labels or node.spec.unschedulable for node in nodes)
