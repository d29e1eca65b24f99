"""kubectl and the clients of Python, unmodified, against the cluster that `--cluster` names, with one played node."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import find_kubectl
from tests.support.anycluster.api import Api
from tests.support.anycluster.choice import Cluster
from tests.support.anycluster.player import PLAYED, playing

HERE = Path(__file__).parent
OF_FILES = frozenset({"pod", "web", "shell"})
"""Fixtures with objects in the namespace of the file."""


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    """An administrator's connection, for what a test prepares."""
    made = Api(cluster.kubeconfig)
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def node(cluster: Cluster, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a played node; gone after each file, since other folders' scenarios count nodes."""
    name = "node-1" if cluster.kind != "foreign" else f"node-{cluster.run}"
    log = tmp_path_factory.mktemp("kubelet") / "container.log" if cluster.kubelet else None
    with playing(cluster.kubeconfig, "clients", log):
        labels = {"kubernetes.io/hostname": name, PLAYED: "clients"}
        made = api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        assert made.status == 201, made.body
        ready = {"type": "Ready", "status": "True"}
        api.until(
            f"/api/v1/nodes/{name}",
            lambda found: (
                any(ready.items() <= c.items() for c in found.get("status", {}).get("conditions") or ())
                and not found.get("spec", {}).get("taints")
            ),
        )
        yield name
        api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def kubelet(cluster: Cluster) -> None:
    """For tests of what only a kubelet answers: logs, exec."""
    if not cluster.kubelet:
        pytest.skip("a played node has no kubelet that a real API server would talk to")


class Kubectl:
    """Runs kubectl against the cluster; `namespace` is the test's own."""

    def __init__(self, binary: Path, cluster: Cluster, namespace: str, home: Path) -> None:
        self._binary = binary
        self._cluster = cluster
        self._home = home
        self.namespace = namespace
        known = json.loads(self("version", "--client", "-o", "json"))["clientVersion"]
        self.minor = int(re.match(r"\d+", known["minor"])[0])

    def in_namespace(self, name: str) -> Kubectl:
        other = copy.copy(self)
        other.namespace = name
        return other

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


@contextlib.contextmanager
def new_namespace(api: Api, name: str) -> Iterator[str]:
    made = api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    assert made.status == 201, made.body
    api.until(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda found: found)
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.module.__name__.rpartition(".")[2].replace("_", "-").removeprefix("test-")
    with new_namespace(api, f"{name}-{cluster.run}" if cluster.kind == "foreign" else name) as made:
        yield made


@pytest.fixture(scope="module")
def kubectl_of_file(
    kubectl_binary: Path, cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Kubectl:
    # One home for all: kubectl caches discovery there, as it does for people.
    home = tmp_path_factory.getbasetemp() / "kubectl-home"
    home.mkdir(exist_ok=True)
    return Kubectl(kubectl_binary, cluster, namespace, home)


@pytest.fixture
def kubectl(kubectl_of_file: Kubectl, api: Api, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """In the namespace of the file. A second try has one of its own: the first may have left objects."""
    tries = getattr(request.node, "execution_count", 1)
    if tries == 1 or not OF_FILES.isdisjoint(request.fixturenames):
        yield kubectl_of_file
        return
    with new_namespace(api, f"again-{tries}-{hash(request.node.nodeid) & 0xFFFF:x}") as name:
        yield kubectl_of_file.in_namespace(name)
