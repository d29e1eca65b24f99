"""Fixtures that tests of several folders use: embedded clusters, as `gpuplane up` makes them."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gpulab.clusters import down, up
from kubekit.errors import Terminal
from simgpu import DEVICE_VARIABLE
from tests.support.anycluster import choice
from tinykube.cluster import ClusterHandle, ClusterSpec
from tinykube.kubelet.containers import Isolation, find_mode

pytest_plugins = ("tests.support.deadlines", "tests.support.leftovers")

# The same examples in every run, so that a change is judged by what it changes; look for new ones with
# HYPOTHESIS_PROFILE=default.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# pytest-xdist tells its workers a width, by which commands would wrap what they print into a pipe.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")  # readline, which pytest imports, sets it without os.environ


@pytest.fixture(autouse=True)
def _simulated_devices() -> Iterator[None]:
    """Undo what `gpuplane share --simulate`, run in this process, sets for the libraries that it loads."""
    before = os.environ.get(DEVICE_VARIABLE)
    yield
    if before is None:
        os.environ.pop(DEVICE_VARIABLE, None)
    else:
        os.environ[DEVICE_VARIABLE] = before


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        default=choice.EMBEDDED,
        help="what conformance/ and clients/ run against: embedded (default), real, or a kubeconfig's path",
    )
    parser.addoption(
        "--clusters",
        choices=("only", "without"),
        help="run only the tests that start clusters or depend on time, or only the others",
    )
    parser.addoption(
        "--record", action="store_true", help="with --cluster real: keep what the scenarios see as what is expected"
    )


# Files whose tests start clusters or many processes, or measure time: a machine that is too busy may fail them, so
# `make test` runs them apart from the others and tries a failed one once more. Those that take long come first, so that
# in the end no worker has one of them while others have nothing left to do.
CLUSTERS = (
    "kubernetes/",  # make test-kubernetes
    "story/",
    "device_plugin/test_cluster",
    "discovery/test_cluster.py",
    "operator/test_upgrade_cluster.py",
    "admission/test_embedded.py",
    "cli/test_odd_files.py",
    "cli/test_share_",
    "cluster/",
    "cloud/test_cluster.py",
    "cloud/test_story.py",
    "cloud/test_node_repair.py",
    "cloud/test_leaving.py",
    "cloud/test_demo_cloud.py",
    "pages/",
    "limiter/",
    "limits/test_cluster.py",
    "clients/",
    "device_plugin/test_mps_cluster.py",
    "device_plugin/test_nri_cluster.py",
    "operator/test_leader.py",
    "kubelet/",
    "conformance/",
    "cli/test_up.py",
    "controllers/",
    "extender/test_process.py",
    "exporter/test_prometheus.py",
    "kube/test_embedded.py",
    "mps/",
    "nodes/",
    "native/test_mps.py",
    "support/",
    "toolkit/test_real_",
    "toolkit/test_restart.py",
)
# It takes away what the other tests of its folder need, so they would have to install it again.
LAST_OF_FOLDER = ("story/test_uninstall.py",)
# Of the others, those that take long.
LONG = (
    "autoscaler/aws/",
    "cloud/test_endpoint.py",
    "driver/test_life.py",
    "toolkit/test_kill.py",
    "toolkit/test_any_configuration.py",
    "extender/test_histories.py",
)


def place(path: Path) -> str:
    """Return a test file's path below the folder `tests` of its package, or of the repository."""
    return path.relative_to(Path(__file__).parent).as_posix().rpartition("tests/")[2]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.getoption("clusters")
    if not wanted or not collection_path.is_file():
        return None
    return True if place(collection_path).startswith(CLUSTERS) != (wanted == "only") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for garbage in what the tests make, not in modules and collected tests: a million objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = (*LONG, *CLUSTERS)

    def rank(item: pytest.Item) -> tuple[int, bool]:
        file = place(item.path)
        rank = next((rank for rank, prefix in enumerate(order) if file.startswith(prefix)), len(order))
        return rank, file in LAST_OF_FOLDER

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: tests of whole clusters wait about half of their time, the others a little."""
    cores = os.cpu_count() or 1
    return cores + 1 if config.getoption("clusters") == "without" else 2 * cores


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but files stay on one worker that have one cluster for all of them, or moto, whose import
    takes as long as their tests."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)
    by_file = scheduling._split_scope
    scheduling._split_scope = lambda test: (
        "story"
        if "packages/gpulab/tests/story/" in test and "_demo" not in test
        else "stories"
        if "kubernetes/test_story_" in test
        else "moto"
        if "autoscaler/aws/" in test or "gpulab/tests/cloud/test_endpoint.py" in test
        else by_file(test)
    )
    return scheduling


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[choice.Cluster]:
    """The cluster that `--cluster` names, reached as any client reaches it."""
    with choice.cluster(request.config.getoption("--cluster"), tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def mounts() -> bool:
    """Return whether containers have mounts of their own here. Without mounts, containers see paths of their node."""
    return find_mode().isolation is not Isolation.NONE


@pytest.fixture
async def embedded_cluster(tmp_path: Path) -> Any:
    """Starts embedded clusters: `handle = await embedded_cluster(nodes=(...), persist=True)`; ended after the test.

    Takes the fields of ClusterSpec. Each start costs about a second; `handle.kubeconfig` is for clients.
    """
    base = tmp_path / "gpuplane"
    names: set[str] = set()

    async def start(**fields: Any) -> ClusterHandle:
        spec = ClusterSpec(**{"name": "test", **fields})
        names.add(spec.name)
        return await up(spec, base=base)

    begin: Callable[..., Awaitable[ClusterHandle]] = start
    yield begin
    for name in names:
        with suppress(Terminal):  # the test may have ended it
            await down(name, base=base)
