"""A pod whose host port another pod of the node has."""

from __future__ import annotations

from typing import Any

import pytest

WAITS = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def web(name: str = "c", **port: Any) -> dict[str, Any]:
    ports = [{"containerPort": 80, "hostPort": 21017, **port}]
    return {"name": name, "image": "busybox:1.36", "command": ["sh", "-c", WAITS], "ports": ports}


async def test_it_is_refused_until_the_other_has_ended(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(containers=[web()])
    await api.phase("Running")
    await api.create_pod("two", containers=[web()])
    status = await api.phase("Failed", "two")
    why = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    assert (status["reason"], status["message"]) == ("NodePorts", f"Pod was rejected: {why}")
    await api.until(lambda: "NodePorts" in api.reasons("two"), "the event")
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None, "its end")
    await api.create_pod("three", containers=[web()])
    await api.phase("Running", "three")


@pytest.mark.parametrize(
    ("port", "phase"),
    [
        ({"protocol": "UDP"}, "Running"),
        ({"hostPort": 21018}, "Running"),
        ({"hostIP": "127.0.0.9"}, "Running"),
        ({"hostIP": "127.0.0.8"}, "Failed"),
        ({"hostIP": "0.0.0.0"}, "Failed"),
    ],
)
async def test_ports_of_protocols_and_addresses(api: Any, make_node: Any, port: dict[str, Any], phase: str) -> None:
    await make_node()
    await api.create_pod(initContainers=[web("side", hostIP="127.0.0.8") | {"restartPolicy": "Always"}],
                         containers=[web(hostPort=1)])  # fmt: skip
    await api.phase("Running")
    await api.create_pod("two", containers=[web(**port)])
    await api.phase(phase, "two")


async def test_a_pod_that_was_there_before_the_kubelet_has_its_port(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(containers=[web()])
    await api.phase("Running")
    await node.stop(leave_containers=True)
    await api.create_pod("two", containers=[web()])
    await node.start()
    await api.phase("Failed", "two")


async def test_a_pod_that_is_forced_to_go_leaves_its_port(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(containers=[web()])
    await api.phase("Running")
    await api.registry.delete("pods", "default", "one", grace=0)
    await api.create_pod("two", containers=[web()])
    await api.phase("Running", "two")
