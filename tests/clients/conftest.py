"""An embedded API server with its controllers, its scheduler and one played node, over HTTPS, once for all tests."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.simulator.apiserver.hooks import User
from gpuplane.simulator.apiserver.identity import ADMIN
from gpuplane.simulator.apiserver.server import ApiServer
from gpuplane.simulator.controllers import Controllers
from gpuplane.simulator.scheduler import Scheduler, SchedulerConfig

HERE = Path(__file__).parent


def _beside(name: str) -> Any:
    """A module of this folder; tests are no package."""
    spec = importlib.util.spec_from_file_location(f"clients_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


actor = _beside("actor")
find_kubectl = _beside("find_kubectl")


class Cluster:
    """`url`, `authority` and `kubeconfig` of the running server; `call` runs a coroutine function beside it."""

    def __init__(self, server: ApiServer, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
        self.server = server
        self.url = server.url
        self.authority = server.authority
        self.kubeconfig = self.config_for("admin-token", directory / "admin.kubeconfig")
        self.jane = self.config_for("jane-token", directory / "jane.kubeconfig")
        self._loop = loop

    def config_for(self, token: str, path: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": self.url, "certificate-authority": str(self.authority)}}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
            "current-context": "it",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop).result(20)


async def _serve(directory: Path, started: Future[Cluster], stop: asyncio.Event) -> None:
    server = await ApiServer.start(directory / "pki")
    server.extensions.identity.add("admin-token", ADMIN)
    server.extensions.identity.add("jane-token", User("jane", ("system:authenticated",)))
    server.extensions.streams.token = actor.TOKEN
    parts = (
        Controllers(server.registry, ca=server.authority.read_text()).run(),
        Scheduler(server.registry, SchedulerConfig()).run(),
        actor.Actor(server.registry, directory / "container.log").run(),
        stop.wait(),
    )
    tasks = [asyncio.create_task(part) for part in parts]
    started.set_result(Cluster(server, asyncio.get_running_loop(), directory))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("clients")
    started: Future[Cluster] = Future()
    stop = asyncio.Event()

    def main() -> None:
        try:
            asyncio.run(_serve(directory, started, stop))
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)

    thread = threading.Thread(target=main, name="embedded-cluster")
    thread.start()
    running = started.result(30)
    yield running
    running._loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    assert not thread.is_alive()


class Kubectl:
    """Runs kubectl against the cluster; `namespace` is the test's own."""

    def __init__(self, binary: Path, cluster: Cluster, namespace: str, home: Path) -> None:
        self._binary = binary
        self._cluster = cluster
        self._home = home
        self.namespace = namespace
        known = json.loads(self("version", "--client", "-o", "json"))["clientVersion"]
        self.minor = int(re.match(r"\d+", known["minor"])[0])

    def needs(self, minor: int, what: str) -> None:
        """Skips a test of something that this kubectl does not have yet."""
        if self.minor < minor:
            pytest.skip(f"kubectl 1.{self.minor} has no {what}")

    def run(
        self, *args: str, stdin: str | None = None, kubeconfig: Path | None = None, timeout: float = 30
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "HOME": str(self._home),
            "KUBECONFIG": str(kubeconfig or self._cluster.kubeconfig),
            "KUBECTL_EXTERNAL_DIFF": "diff -u -N",
        }
        return subprocess.run(
            [str(self._binary), f"--namespace={self.namespace}", *args],
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def __call__(self, *args: str, stdin: str | None = None, **more: Any) -> str:
        """The output of a command that must succeed."""
        done = self.run(*args, stdin=stdin, **more)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *args: str, stdin: str | None = None, **more: Any) -> str:
        """The error of a command that must fail."""
        done = self.run(*args, stdin=stdin, **more)
        assert done.returncode != 0, f"kubectl {' '.join(args)} succeeded: {done.stdout}"
        return done.stderr

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "-o", "json"))

    def popen(self, *args: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "HOME": str(self._home), "KUBECONFIG": str(self._cluster.kubeconfig)}
        return subprocess.Popen(
            [str(self._binary), f"--namespace={self.namespace}", *args],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="session")
def kubectl_binary() -> Path:
    try:
        return Path(find_kubectl.find())
    except find_kubectl.NoKubectl as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.module.__name__.rpartition(".")[2].replace("_", "-").removeprefix("test-")
    obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.call(cluster.server.registry.create, "namespaces", None, obj)
    return name


@pytest.fixture(scope="module")
def kubectl(
    kubectl_binary: Path, cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Kubectl:
    # One home for all: kubectl caches discovery there, as it does for people.
    home = tmp_path_factory.getbasetemp() / "kubectl-home"
    home.mkdir(exist_ok=True)
    return Kubectl(kubectl_binary, cluster, namespace, home)
