"""`gpuplane demo --kubernetes`: the whole story on a real control plane."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpulab.kubernetes import binaries, node
from gpulab.kubernetes.control_plane import SETS

COMMAND_S: Final = 800.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user without clusters, whose demo is ended."""
    if not all(map(binaries.built, SETS)):
        pytest.skip("Kubernetes is not built: make test-kubernetes builds it")
    environment = os.environ | {"GPUPLANE_HOME": str(tmp_path)}
    yield environment
    subprocess.run([sys.executable, "-m", "gpuplane", "down", "demo", "-q"], env=environment, check=True)


@pytest.mark.parametrize("kubelet", ["simulated", "real"])
def test_every_promise_of_the_demo_is_kept_there(home: dict[str, str], kubelet: str) -> None:
    if kubelet == "real" and (why := node.lacking() or node.unseen(Path(sys.prefix))):
        pytest.skip(f"no machine with a kubelet: {why}")
    words = ("demo", "--kubernetes", "1.36", "--kubelet", kubelet, "-o", "json", "--progress", "plain")
    words += ("--timeout", "240s")
    done = subprocess.run(
        [sys.executable, "-m", "gpuplane", *words],
        env=home,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["cluster"]["kubernetes"], found["cluster"]["kubelets"]) == ("1.36", kubelet)
    assert [promise["name"] for promise in found["promises"] if not promise["kept"]] == []
    assert found["vectorAdd"]["verdict"] == "Test PASSED"
    assert {pod["name"]: pod["refused"] for pod in found["shared"]["pods"]} == {"tune": 0, "serve": 0, "nb": 0, "ci": 1}
    assert found["waiting"]["cures"]
