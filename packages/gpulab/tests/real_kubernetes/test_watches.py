"""Too few inotify instances for the machines of a cluster are found before it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpulab.kubernetes import watches
from gpulab.kubernetes.unavailable import Unavailable
from gpulab.up import with_kubelets
from gpuplane.cli.terminal import Console
from tinykube.cluster import ClusterSpec, MachineSpec


def test_each_machine_takes_some_and_with_cgroup_v2_each_container():
    assert watches.needed(4, unified=True) > watches.needed(4, unified=False) > watches.needed(3, unified=False)
    assert watches.needed(4, unified=False) <= 128  # the demo fits into the kernel's default


def test_free_instances_are_counted_and_given_back():
    before = set(Path("/proc/self/fd").iterdir())
    assert watches.free(3) == 3
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_what_the_kernel_refuses_is_not_free(monkeypatch: pytest.MonkeyPatch):
    handles = iter((os.dup(0), os.dup(0), -1))
    monkeypatch.setattr(watches, "_libc", SimpleNamespace(inotify_init1=lambda flags: next(handles)))
    assert watches.free(9) == 2


def test_too_few_instances_have_a_cure_and_kubelets_are_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("gpulab.kubernetes.node.lacking", lambda: "")
    monkeypatch.setattr("gpulab.kubernetes.images.lacking", lambda: "")
    monkeypatch.setattr(watches, "free", lambda most: 128)
    screen = Console(sys.stdout, sys.stderr)
    spec = ClusterSpec(nodes=(MachineSpec(name="a", machine="t4-ubuntu22"),) * 4)
    assert with_kubelets(spec, "auto", screen).containerd
    monkeypatch.setattr(watches, "free", lambda most: 3)
    assert not with_kubelets(spec, "auto", screen).containerd
    said = " ".join(capsys.readouterr().err.split())
    assert f"for real ones with containerd: {watches.CURE}: 3 inotify instances are free, 4 machines need" in said
    with pytest.raises(Unavailable) as problem:
        with_kubelets(spec, "real", screen)
    assert str(problem.value.cure).startswith(f"{watches.CURE}: 3 inotify")
    assert not with_kubelets(spec, "simulated", screen).containerd
