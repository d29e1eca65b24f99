"""Additional objects of the exporter: created where they are possible, deleted when they are not wanted."""

from __future__ import annotations

from typing import Any

from gpuplane.operator.cluster import MONITOR_CHECK_SECONDS, ClusterWriter
from kubekit.kube import NotFound
from tests.support.virtual_time import VirtualClock

SERVICE = "/api/v1/namespaces/gpu-operator/services/nvidia-dcgm-exporter"
MONITOR = "/apis/monitoring.coreos.com/v1/namespaces/gpu-operator/servicemonitors/nvidia-dcgm-exporter"

SHARES = "/api/v1/namespaces/gpu-operator/services/nvidia-device-plugin-shares"
SHARES_MONITOR = "/apis/monitoring.coreos.com/v1/namespaces/gpu-operator/servicemonitors/nvidia-device-plugin-shares"


class FakeClient:
    """An API server that knows the paths in `there`."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.asked: list[tuple[str, str]] = []

    async def request(self, method: str, path: str) -> bytes:
        self.asked.append((method, path))
        if path not in self.there:
            raise NotFound(f"no {path}")
        if method == "DELETE":
            self.there.remove(path)
        return b"{}"


def writer(client: FakeClient, clock: VirtualClock | None = None) -> Any:
    return ClusterWriter(client, "image", clock or VirtualClock())  # type: ignore[arg-type]


def made(kind: str, name: str = "nvidia-dcgm-exporter") -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}}


async def test_what_is_not_wanted_is_deleted_once() -> None:
    client = FakeClient(SERVICE, MONITOR, SHARES)
    keeper = writer(client)
    wanted = [made("Service"), made("Service", "nvidia-device-plugin-shares")]
    await keeper._remove_beside(wanted)
    assert client.there == {SERVICE, SHARES}
    assert client.asked == [("DELETE", MONITOR), ("DELETE", SHARES_MONITOR)]
    await keeper._remove_beside(wanted)
    assert len(client.asked) == 2
    await keeper._remove_beside(wanted[:1])
    assert client.there == {SERVICE}, "no node offers shares any more"
    await keeper._remove_beside([])
    assert client.there == set()
    await keeper._remove_beside([made("Service"), made("ServiceMonitor")])
    await keeper._remove_beside([])
    assert len(client.asked) == 6, "what was made again is deleted again"


async def test_a_monitor_is_looked_for_once_a_minute_until_it_is_served() -> None:
    client, clock = FakeClient(), VirtualClock()
    keeper = writer(client, clock)
    assert [await keeper._serves_monitors() for _ in range(3)] == [False] * 3
    assert len(client.asked) == 1
    client.there.add("/apis/monitoring.coreos.com/v1")
    clock.jump(MONITOR_CHECK_SECONDS)
    assert [await keeper._serves_monitors() for _ in range(3)] == [True] * 3
    assert len(client.asked) == 2
