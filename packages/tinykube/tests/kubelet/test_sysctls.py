"""Sysctls of pods: safe ones are set where the container has a namespace for them, others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.pod import KubeletPod
from tinykube.kubelet.sysctls import forbidden_sysctl, set_sysctls

SYSCTL = Path("/proc/sys/kernel/shm_rmid_forced")
SHOW = f"cat {SYSCTL}; readlink /proc/self/ns/ipc"


def pod(*sysctls: tuple[str, str], **spec: Any) -> KubeletPod:
    context = {"sysctls": [{"name": name, "value": value} for name, value in sysctls]}
    return msgspec.convert({"spec": {"securityContext": context, **spec}}, KubeletPod)


@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("kernel.shm_rmid_forced", {}, ""),
        ("kernel/shm_rmid_forced", {}, ""),
        ("net.ipv4.tcp_syncookies", {}, ""),
        ("kernel.msgmax", {}, '"kernel.msgmax" not allowlisted'),
        ("net/ipv4/conf/eth0.1/forwarding", {}, '"net.ipv4.conf.eth0/1.forwarding" not allowlisted'),
        ("kernel.shm_rmid_forced", {"hostIPC": True}, '"kernel.shm_rmid_forced" not allowed with host ipc enabled'),
        ("net.ipv4.tcp_rmem", {"hostNetwork": True}, '"net.ipv4.tcp_rmem" not allowed with host net enabled'),
    ],
)
def test_only_safe_sysctls_of_own_namespaces_are_permitted(name: str, spec: Any, problem: str) -> None:
    assert forbidden_sysctl(pod((name, "1"), **spec)) == (f"forbidden sysctl: {problem}" if problem else "")


def test_the_names_that_are_set_have_dots() -> None:
    assert set_sysctls(pod(("kernel/shm_rmid_forced", "1"))) == (("kernel.shm_rmid_forced", "1"),)


async def test_containers_of_a_pod_share_an_ipc_namespace_with_its_sysctls(api: Any, make_node: Any) -> None:
    node = await make_node()
    if node.kubelet.machine.launcher.mode.isolation is not Isolation.ROOT:
        pytest.skip("only root sets sysctls")
    before = SYSCTL.read_text()
    context = {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}
    containers = [
        {"name": name, "image": "busybox", "command": ["sh", "-c", f"{SHOW}; exec sleep 1000"]} for name in ("a", "b")
    ]
    await api.create_pod(containers=containers, securityContext=context)
    await api.phase("Running")
    machine = node.kubelet.machine
    shown = [await machine.run_inside(record, ("sh", "-c", SHOW)) for record in machine.launcher.records.all()]
    assert shown[0][1].startswith("1\n") and len(set(shown)) == 1
    own = f"{before}{Path('/proc/self/ns/ipc').readlink()}\n"
    assert shown[0][1] != own and SYSCTL.read_text() == before


async def test_an_unsafe_sysctl_is_refused(api: Any, make_node: Any) -> None:
    await make_node()
    context = {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}
    await api.create_pod(containers=[{"name": "c", "image": "busybox"}], securityContext=context)
    status = await api.phase("Failed")
    text = 'Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted'
    assert (status["reason"], status["message"]) == ("SysctlForbidden", text)
    await api.until(lambda: "SysctlForbidden" in api.reasons(), "the event")


async def test_a_sysctl_that_cannot_be_set_is_named_in_an_event(api: Any, make_node: Any) -> None:
    await make_node()
    context = {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}
    await api.create_pod(containers=[{"name": "c", "image": "busybox"}], securityContext=context)
    await api.phase("Running")

    def said() -> Any:
        events = api.registry.list("events", "default")
        return next((e["message"] for e in events if e["reason"] == "LessIsolated"), None)

    assert "sysctls net.ipv4.tcp_syncookies" in await api.until(said, "the event")
