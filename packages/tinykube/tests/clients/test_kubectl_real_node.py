"""kubectl and a container that is a real process on a simulated machine, as `gpuplane up` makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.until import until

PATIENCE_S = 90.0
WAIT = f"--timeout={PATIENCE_S:g}s"


def gpuplane(home: Path, *args: str) -> str:
    environment = {**os.environ, "GPUPLANE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "gpuplane", *args],
        env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kubeconfig():
    # Short: sockets of a node's runtime lie below, and a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="gp-") as home:
        up = ("up", "--detach", "-o", "json", "--name", "real", "--node", "sim-1=t4-ubuntu18")
        answer = json.loads(gpuplane(Path(home), *up))
        try:
            yield Path(answer["kubeconfig"])
        finally:
            gpuplane(Path(home), "down", "real")


async def test_logs_and_exec_reach_a_real_process(kubectl, kubeconfig):
    def real(*args: str, **more):
        return kubectl("--namespace=default", *args, kubeconfig=kubeconfig, **more)

    def logs() -> set[str]:
        return set(real("logs", "shell").splitlines())

    real("delete", "pod", "shell", "brief", "--ignore-not-found", "--grace-period=1", WAIT)  # of a first try
    real("run", "shell", "--image=busybox", "--restart=Never", "--", "sh", "-c", "echo one; echo two >&2; sleep 300")
    real("wait", "--for=condition=Ready", "pod/shell", WAIT)
    await until(lambda: logs() == {"one", "two"}, seconds=PATIENCE_S, seen=logs)
    assert real("exec", "shell", "--", "sh", "-c", "echo $HOSTNAME").strip() == "shell"
    assert real("exec", "-i", "shell", "--", "cat", stdin="through\n") == "through\n"
    done = kubectl.run("--namespace=default", "exec", "shell", "--", "sh", "-c", "exit 7", kubeconfig=kubeconfig)
    assert done.returncode == 7
    assert "Started container" in real("get", "events")
    real("delete", "pod", "shell", "--grace-period=1", WAIT)
    kubectl.needs(23, "wait for a value")
    real("run", "brief", "--image=busybox", "--restart=Never", "--", "sh", "-c", "for i in 1 2 3; do echo $i; done")
    real("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/brief", WAIT)
    assert real("logs", "-f", "brief") == "1\n2\n3\n"
    real("delete", "pod", "brief", WAIT)
