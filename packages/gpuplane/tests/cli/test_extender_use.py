"""`status` and `install` say that kube-scheduler does not ask the extender: from events, pods and arguments."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.cli.extender_use import bound_without, not_asked, reason, unconfigured
from gpuplane.cli.overview import overview
from gpuplane.cli.status_changes import changes
from gpuplane.cli.status_reading import observe
from gpuplane.cli.status_text import nodes_page
from gpuplane.cli.status_views import ExtenderBypass, Overview, of_namespace
from gpuplane.cli.terminal import Console
from gpuplane.operator.installation import resource_of
from gpuplane.scheduler.drift import NOT_ASKED
from kubekit.api.core import Container, Event, ObjectMeta, ObjectReference, Pod, PodSpec, PodStatus, Resources
from kubekit.kube import Client
from packages.gpuplane.tests.cli.test_status_pages import NOW
from tests.support.extender_world import World, gpu_pod, world
from tinykube.apiserver.identity import AUTHENTICATED, User

CURE = "gpuplane run scheduler --print-config kube"


def share(name: str, *, created: int = 0, assigned: bool = False, node: str = "n1", core: int = 60, **more: Any) -> Pod:
    limits = {names.VCUDA_CORE: str(core), names.VCUDA_MEMORY: "4"}
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ml",
            uid=f"u-{name}",
            creation_timestamp=f"2026-11-20T10:00:{created:02}Z",
            annotations={names.ASSIGNMENT_ANNOTATION: "{}"} if assigned else {},
        ),
        spec=PodSpec(node_name=node, containers=(Container(name="c", resources=Resources(limits=limits)),), **more),
        status=PodStatus(phase="Running"),
    )


def event(pod: Pod, why: str = names.EXTENDER_NOT_ASKED) -> Event:
    about = ObjectReference(kind="Pod", namespace="ml", name=pod.metadata.name, uid=pod.metadata.uid)
    return Event(involved_object=about, reason=why)


def test_a_share_that_was_bound_without_the_extender_gives_the_scheduler_away() -> None:
    pods = [share("b"), share("a"), share("unreported"), share("waits", node="")]
    events = [event(pod) for pod in (*pods[:2], pods[3])]
    assert not_asked(events, pods) == ("ml/a", "ml/b")
    assert not_asked([event(pods[0], "AssignmentDiffers")], pods) == ()


@pytest.mark.parametrize(
    "pods",
    [
        [share("a", assigned=True)],
        [share("a", core=100)],
        [share("a"), share("later", created=9, assigned=True)],
        [],
    ],
    ids=["placed again by the extender", "a whole GPU", "asked since", "the pod is gone"],
)
def test_an_event_of_the_past_says_nothing(pods: list[Pod]) -> None:
    assert not_asked([event(share("a"))], pods) == ()


@pytest.mark.parametrize(
    "later", [{"created": 0}, {"created": 9, "scheduler_name": "gpuplane"}, {"created": 9, "node": ""}]
)
def test_an_older_assignment_and_that_of_another_scheduler_prove_nothing(later: dict[str, Any]) -> None:
    pods = [share("a", created=5), share("other", assigned=True, **later)]
    assert not_asked([event(pods[0])], pods) == ("ml/a",)


def test_events_need_not_be_read_where_every_share_has_its_assignment() -> None:
    """Their list is the longest of a large cluster."""
    ended = msgspec.structs.replace(share("ended"), status=PodStatus(phase="Succeeded"))
    pods = [share("placed", assigned=True), share("whole", core=200), share("waits", node=""), ended]
    assert bound_without(pods) == []
    assert bound_without([*pods, share("bypassed")]) == [share("bypassed")]


def scheduler(*command: str, namespace: str = "kube-system") -> Pod:
    """The static pod of kubeadm."""
    return Pod(
        metadata=ObjectMeta(name="kube-scheduler-cp1", namespace=namespace, labels={"component": "kube-scheduler"}),
        spec=PodSpec(containers=(Container(name="kube-scheduler", command=("kube-scheduler", *command)),)),
    )


def server(app: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=app, namespace="gpu-operator", labels={"app.kubernetes.io/name": app}))


def test_a_scheduler_without_a_configuration_cannot_ask() -> None:
    extender, second = server(names.EXTENDER_NAME), server(names.SECOND_SCHEDULER_NAME)
    bare = scheduler("--leader-elect=true", "--kubeconfig=/etc/kubernetes/scheduler.conf")
    assert unconfigured([bare, extender]) == ("kube-system/kube-scheduler-cp1",)
    assert unconfigured([bare], installed=True) == ("kube-system/kube-scheduler-cp1",)
    assert unconfigured([bare]) == (), "without the extender there is nothing to ask"
    assert unconfigured([bare, extender, second]) == (), "pods name the second scheduler"
    assert unconfigured([scheduler(namespace="ml"), extender]) == (), "a pod of a user's own"
    for flag in ("--config=/etc/kubernetes/scheduler.yaml", "--policy-config-file=/p.json"):
        assert unconfigured([scheduler(flag), extender]) == ()


def screen() -> Console:
    return Console(io.StringIO(), io.StringIO(), colour="never")


def test_the_page_and_its_changes_have_an_entry_with_the_cure() -> None:
    fine = overview([], [], {})
    bypass = ExtenderBypass(shares=tuple(f"ml/p{number}" for number in range(7)))
    seen = msgspec.structs.replace(fine, bypass=bypass)
    page = nodes_page("prod", seen, screen(), NOW)
    assert " ! kube-scheduler does not ask the extender" in page
    assert "ml/p4 and 2 more were bound without it, perhaps to GPUs without room" in page
    assert CURE in page
    assert "extender" not in nodes_page("prod", fine, screen(), NOW)
    assert told(fine, seen) == [f"kube-scheduler does not ask the extender: {reason(bypass, 5)}"]
    assert told(seen, fine) == ["kube-scheduler asks the extender again"]
    assert told(seen, seen) == []
    assert of_namespace(seen, "ml").bypass == bypass
    assert of_namespace(seen, "other").bypass is None
    bare = ExtenderBypass(schedulers=("kube-system/kube-scheduler-cp1",))
    assert reason(bare, 5) == "kube-system/kube-scheduler-cp1 starts without --config"
    assert of_namespace(msgspec.structs.replace(fine, bypass=bare), "other").bypass == bare


def told(before: Overview, after: Overview) -> list[str]:
    return list(changes(before, after, screen(), NOW, gpus=False))


USER = "viewer"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.node("n1", 1, labels={names.GPU_PRESENT_LABEL: "true"})
        yield made


async def bypass(cluster: World) -> None:
    """kube-scheduler binds a share, and the extender reports it."""
    pod = await cluster.pod(gpu_pod("share", (60, 20), nodeName="n1"))
    about = {
        "kind": "Pod",
        "apiVersion": "v1",
        **{name: pod["metadata"][name] for name in ("name", "namespace", "uid")},
    }
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "share.1", "namespace": "default"},
        "involvedObject": about,
        "reason": names.EXTENDER_NOT_ASKED,
        "message": NOT_ASKED,
        "type": "Warning",
    }
    await cluster.client.create(body, resource=Event.RESOURCE)


async def run(cluster: World, directory: Path, *words: str) -> tuple[str, str]:
    (directory / "config").write_text(cluster.kubeconfig())
    command = [sys.executable, "-m", "gpuplane", *words, "--kubeconfig", str(directory / "config")]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode(), errors.decode()


async def test_status_says_it_once_there_is_a_share_and_install_at_its_end(cluster: World, tmp_path: Path) -> None:
    before, _ = await run(cluster, tmp_path, "status")
    assert "extender" not in before
    await bypass(cluster)
    page, _ = await run(cluster, tmp_path, "status")
    assert "kube-scheduler does not ask the extender" in page
    assert "default/share was bound without it" in page
    assert CURE in page
    _, errors = await run(cluster, tmp_path, "install")
    lines = errors.splitlines()
    assert lines[-1] == "Next: gpuplane status --wait"
    assert lines[-4] == " ! kube-scheduler does not ask the extender"
    assert "default/share was bound without it" in lines[-3]
    assert CURE in lines[-2]
    _, errors = await run(cluster, tmp_path, "install", "--no-scheduler")
    assert "does not ask" not in errors


async def test_an_installation_that_switches_the_pod_scheduler_off_says_so(cluster: World, tmp_path: Path) -> None:
    off = "this switches the pod scheduler off"
    (tmp_path / "config").write_text(cluster.kubeconfig())
    for flags, warned in (((), False), (("--pod-scheduler",), False), (("--pod-scheduler",), False), ((), True)):
        _, errors = await run(cluster, tmp_path, "install", *flags)
        assert (off in errors) is warned, flags
    assert "to leave it on, add --pod-scheduler" in errors


async def test_a_user_who_may_not_read_events_gets_the_page_without_it(cluster: World, tmp_path: Path) -> None:
    cluster.server.extensions.identity.add(USER, User(USER, ("readers", AUTHENTICATED)))
    readable = ["pods", "nodes", "gpunodes", "clusterpolicies"]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "most"}}
    rules = [{"apiGroups": ["*"], "resources": readable, "verbs": ["get", "list"]}]
    binding = {
        **role,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "most"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    for manifest in (role | {"rules": rules}, binding):
        await cluster.client.apply(manifest, "test", resource=resource_of(manifest))
    await bypass(cluster)
    (tmp_path / "config").write_text(cluster.kubeconfig(token=USER))
    async with Client.connect(tmp_path / "config", None, user_agent="test") as client:
        seen = await observe(client)
    assert (seen.bypass, len(seen.nodes)) == (None, 1)
