"""The Node object, and the runtime behind its socket."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import Any

from simgpu.machines import machine
from tinykube.kubelet.node import KubeletFacts, node_labels, node_status


def ready(api: Any) -> dict[str, str]:
    node = api.registry.get("nodes", None, "sim-1")
    return {c["type"]: c["status"] for c in (node or {}).get("status", {}).get("conditions", [])}


async def test_registration_tells_what_the_machine_is(api: Any, make_node: Any) -> None:
    await make_node("a10g-rhel9")
    node = api.registry.get("nodes", None, "sim-1")
    info = node["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"] == "cri-o://1.32.8"
    assert info["osImage"].startswith("Red Hat Enterprise Linux 9.6")
    assert node["status"]["capacity"]["cpu"] == "48"
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "g5.12xlarge"
    lease = await api.until(lambda: api.registry.get("leases", "kube-node-lease", "sim-1"))
    assert lease["spec"]["holderIdentity"] == "sim-1"


async def test_a_deleted_node_comes_again(api: Any, make_node: Any) -> None:
    await make_node()
    before = api.registry.get("nodes", None, "sim-1")["metadata"]["uid"]
    await api.registry.delete("nodes", None, "sim-1")
    await api.until(
        lambda: (api.registry.get("nodes", None, "sim-1") or {}).get("metadata", {}).get("uid", before) != before
    )


async def test_who_was_thought_dead_says_that_it_is_not(api: Any, make_node: Any) -> None:
    await make_node()
    conditions = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    await api.registry.patch(
        "nodes", None, "sim-1", {"status": {"conditions": conditions}}, "strategic", subresource="status"
    )
    await api.until(lambda: ready(api)["Ready"] == "True")


async def test_a_broken_runtime_configuration_makes_the_node_unready(api: Any, make_node: Any) -> None:
    node = await make_node()
    path = node.root / "etc/containerd/config.toml"
    good = path.read_text()
    path.write_text("version = [")
    node.kubelet.reload_runtime()
    await api.until(lambda: ready(api)["Ready"] == "False")
    path.write_text(good)
    node.kubelet.reload_runtime()
    await api.until(lambda: ready(api)["Ready"] == "True")


async def test_systemctl_reaches_the_runtime_by_its_socket(api: Any, make_node: Any) -> None:
    node = await make_node()
    received: list[int] = []
    old = signal.signal(signal.SIGHUP, lambda number, _: received.append(number))
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [node.root / "usr/bin/systemctl", "restart", "containerd"],
            env={"SIMHOST_ROOT": str(node.root)},
            check=False,
            capture_output=True,
            text=True,
        )
    finally:
        signal.signal(signal.SIGHUP, old)
    assert (done.returncode, done.stderr) == (0, "")
    assert received == [signal.SIGHUP]


def test_devices_in_the_status() -> None:
    facts = KubeletFacts(machine=machine("t4-ubuntu18"), name="n", host_ip="127.0.0.1", port=1, devices={"a/b": (2, 1)})
    status = node_status(facts, "now")
    assert (status["capacity"]["a/b"], status["allocatable"]["a/b"]) == ("2", "1")
    assert node_labels(facts)["kubernetes.io/hostname"] == "n"
