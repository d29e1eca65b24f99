"""NVML lists the processes of a GPU as they are called where it is asked, whichever PID namespace they are in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

LISTED = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
answer([one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
"""
HOLD = "context(); answer([os.getpid()]); sys.stdin.readline()"
WORDS = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc")


def has_namespaces() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*WORDS, "true"], capture_output=True).returncode == 0


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_of_the_same_namespace(node: Any) -> None:
    client = node.start(HOLD)
    assert client.stdout.readline() == f"[{client.pid}]\n"
    assert node.run(LISTED) == [client.pid]


@pytest.mark.skipif(not has_namespaces(), reason="the kernel refuses PID namespaces here")
def test_a_process_of_a_namespace_below(node: Any) -> None:
    clients = [node.start(HOLD, within=WORDS) for _ in range(2)]
    for client in clients:
        assert client.stdout.readline() == "[1]\n"
    assert sorted(node.run(LISTED)) == sorted(children(client.pid)[0] for client in clients)
