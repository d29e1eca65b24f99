"""A real cluster for the whole folder; where this machine cannot have one, each test says why and is skipped."""

from __future__ import annotations

import asyncio
import fcntl
import pickle
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries, images, node, watches
from gpulab.kubernetes.control_plane import MOST_MACHINES, ControlPlane
from gpulab.kubernetes.node import KubernetesNode, wait_ready
from gpulab.kubernetes.unavailable import Unavailable
from kubekit.kube import Client
from tests.support.realkube.life import Life, live
from tests.support.realkube.stories import StoryCluster, story_cluster

FOLDER = Path(__file__).parent
# The first test that wants a cluster starts it. Each single wait of a test has a lower limit of its own.
DEADLINE_SECONDS = 900
LONGEST = ("test_machine", "test_scale", "test_install", "test_extender")
# They have one cluster, and each begins where the one before it ends.
STORIES = ("test_story_gpu_operator", "test_story_gpu_manager", "test_story_kubernetes_alpha", "test_story_karpenter")
STORIES += ("test_story_chart_values",)


@pytest.fixture(scope="session", autouse=True)
def watches_for_all() -> None:
    """Carry out the cure for too few inotify instances: both workers' clusters are of one user."""
    if not node.lacking() and (why := watches.lacking(MOST_MACHINES)):
        subprocess.run(["sh", "-c", why.partition(": ")[0]], check=True)
        assert not watches.lacking(MOST_MACHINES)


@contextmanager
def _control_plane(directory: Path) -> Iterator[ControlPlane]:
    plane = ControlPlane(directory)
    try:
        plane.start(print)
    except Unavailable as problem:
        pytest.skip(f"no real cluster: {problem}")
    try:
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a real etcd, API server, controller manager and scheduler; no machine. A test removes its objects."""
    with _control_plane(tmp_path_factory.mktemp("k") / "plane") as plane:
        yield plane


@pytest.fixture
def own_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for a single test, which may leave it as it likes."""
    with _control_plane(tmp_path_factory.mktemp("o") / "plane") as plane:
        yield plane


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesNode]:
    """A cluster of its own with one machine: a real kubelet and containerd over simulated GPUs; nothing installed."""
    directory: Path = tmp_path_factory.mktemp("m")
    plane = ControlPlane(directory / "plane", fake_nodes=False)
    node = KubernetesNode(plane)
    try:
        plane.start(print)
        node.start(print)
        images.make(directory / "images", print)
        images.load(node, directory / "images")
        wait_ready(node)
        yield node
    except Unavailable as problem:
        pytest.skip(f"no machine with a kubelet: {problem}")
    finally:
        node.stop()
        plane.stop()


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoryCluster]:
    """A cluster for the manifests of other projects: a machine with eight GPUs, Services and a registry."""
    try:
        with story_cluster(tmp_path_factory.mktemp("y")) as cluster:
            yield cluster
    except Unavailable as problem:
        pytest.skip(f"no machine with a kubelet: {problem}")


@pytest.fixture
async def client(stories: StoryCluster) -> AsyncIterator[Client]:
    async with Client.connect(stories.plane.kubeconfig) as client:
        yield client


@pytest.fixture(scope="session")
def with_helm() -> None:
    """A helm, for modules that call it."""
    try:
        binaries.build("helm")
    except Unavailable as problem:
        pytest.skip(f"no helm: {problem}")


@pytest.fixture(scope="session")
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """An installation from its first object to its last; lived once, by the worker of pytest-xdist that comes first."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if hasattr(request.config, "workerinput") else base
    with (place / "life.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = place / "life"
        if not record.exists():
            record.write_bytes(pickle.dumps(asyncio.run(live(request.getfixturevalue("control_plane")))))
        found: Life = pickle.loads(record.read_bytes())
        return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its deadline. The longest tests begin first, so that two workers end together."""
    for item in items:
        if item.path.parent == FOLDER and item.get_closest_marker("deadline") is None:
            item.add_marker(pytest.mark.deadline(DEADLINE_SECONDS))
    order = (*STORIES, *LONGEST)
    items.sort(key=lambda item: order.index(item.path.stem) if item.path.stem in order else len(order))
