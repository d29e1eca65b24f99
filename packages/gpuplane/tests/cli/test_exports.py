"""The commands that `up` and `demo` print run as they are printed, also in a shell that does not know gpuplane yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpulab.exports import exports
from gpulab.up import next_commands
from tinykube.cluster import ClusterHandle, ClusterSpec

PROGRAMS = Path(sys.executable).parent


def shell(path: str, *lines: str) -> subprocess.CompletedProcess[str]:
    """A shell of a user whose PATH is `path`, which gets the lines as they were printed."""
    environment = {"PATH": path, "HOME": str(Path.home())}
    return subprocess.run(
        ["/bin/sh", "-ec", "\n".join(lines)], capture_output=True, text=True, check=False, env=environment
    )


def test_the_printed_lines_find_gpuplane_where_path_lacks_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    kubeconfig = tmp_path / "a b.kubeconfig"
    done = shell("/usr/bin:/bin", *exports(kubeconfig), 'echo "$KUBECONFIG"', "gpuplane --version", "command -v sh")
    assert done.stdout.splitlines()[:2] == [str(kubeconfig), "gpuplane 0.1.0"], done.stderr
    assert shell("/usr/bin:/bin", exports(kubeconfig)[0], "gpuplane --version").returncode == 127


def test_a_path_that_has_it_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin:{PROGRAMS}")
    handle = ClusterHandle("c", tmp_path, tmp_path / "c.kubeconfig", "", ClusterSpec())
    assert [line.split("=")[0] for line in next_commands(handle)] == [
        "export KUBECONFIG",
        "kubectl get nodes",
        "gpuplane install --wait",
        "gpuplane down c",
    ]
