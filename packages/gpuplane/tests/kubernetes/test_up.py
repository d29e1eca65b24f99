"""`gpuplane up --kubernetes`: a real control plane with simulated machines, whatever is killed, and its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpulab.kubernetes import binaries
from gpulab.kubernetes.control_plane import PARTS, SETS
from tests.support.until import until
from tests.support.user_home import NAME, UserHome, kill
from tinykube.cluster import processes
from tinykube.cluster.directory import RunningProcess
from tinykube.cluster.supervisor import CONTROL_PLANE, SUPERVISOR

PATIENCE_S: Final = 240.0
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "one"},
    "spec": {
        "nodeSelector": {"kubernetes.io/hostname": "sim-1"},
        "containers": [{"name": "c", "image": "busybox", "command": ["sh", "-c", "echo up; sleep 100000"]}],
    },
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserHome]:
    """A cluster with one simulated machine and two light nodes, whose only pod runs."""
    if not all(map(binaries.built, SETS)):
        pytest.skip("Kubernetes is not built: make test-kubernetes builds it")
    made = UserHome(tmp_path_factory.mktemp("u"))
    words = (
        "--kubernetes",
        "1.36",
        "--name",
        NAME,
        "--node",
        "t4-ubuntu22",
        "--light-nodes",
        "2",
        "--detach",
        "--kubelet",
        "simulated",
    )
    try:
        assert f"cluster {NAME} of Kubernetes 1.36 answers on " in made.up(*words)
        made.kubectl("create", "-f", "-", sent=json.dumps(POD))
        made.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=240s")
        yield made
    finally:
        made.gpuplane("down", NAME, "-q")


async def test_machines_and_light_nodes_work_with_the_real_control_plane(home: UserHome) -> None:
    await until(lambda: home.ready() == {"sim-1", "light-0", "light-1"}, seconds=PATIENCE_S)
    assert binaries.version("kubernetes") in home.kubectl("version")
    assert home.kubectl("logs", "one") == "up\n"
    assert home.kubectl("exec", "one", "--", "echo", "inside") == "inside\n"
    (listed,) = json.loads(home.gpuplane("ls", "-o", "json"))["clusters"]
    assert (listed["name"], listed["kubernetes"], listed["running"]) == (NAME, "1.36", True)


@pytest.mark.parametrize("name", [*PARTS, CONTROL_PLANE, SUPERVISOR])
async def test_a_killed_process_is_started_again_and_the_pod_goes_on(home: UserHome, name: str) -> None:
    def running() -> RunningProcess:
        return home.parts()[name] if name in PARTS else home.process(name)

    before, others = running(), {part: one for part, one in home.parts().items() if part != name}
    kill(before)
    await until(lambda: running() != before and processes.alive(running()), seconds=PATIENCE_S)
    await until(lambda: "sim-1" in home.ready(), seconds=PATIENCE_S)
    assert home.kubectl("get", "pod", "one", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") == "0"
    if name in (CONTROL_PLANE, SUPERVISOR):
        assert home.parts() == others, "it was not followed, but started again"


async def test_down_ends_what_a_killed_half_has_left(tmp_path: Path, home: UserHome) -> None:
    """In another user's directory, so that the cluster above stays."""
    other = UserHome(tmp_path)
    other.gpuplane(
        "up",
        "--kubernetes",
        "1.36",
        "--name",
        NAME,
        "--node",
        "t4-ubuntu22",
        "--kubelet",
        "simulated",
        "--detach",
        "-q",
    )
    try:
        await until(lambda: other.ready() == {"sim-1"}, seconds=PATIENCE_S)
        kill(other.process(SUPERVISOR), other.process(CONTROL_PLANE), other.parts()["kube-apiserver"])
    finally:
        assert f"cluster {NAME} is down" in other.gpuplane("down", NAME)
    assert not other.left() and [*tmp_path.rglob("*")] == [tmp_path / "clusters"]
    assert f"there is no cluster {NAME}" in other.gpuplane("down", NAME, code=1)
    assert "sim-1" in home.ready()


def test_a_cluster_is_started_once(home: UserHome) -> None:
    said = home.gpuplane("up", "--kubernetes", "1.36", "--name", NAME, "--detach", code=1)
    assert f"cluster {NAME} runs already" in said
