"""gpu-manager's pod: it answers with what the device plugin of its node says."""

from __future__ import annotations

from http import HTTPStatus

from gpuplane.device_plugin.gpu_manager_pod import GpuManagerPod, fetch
from kubekit.api.core import Pod, PodStatus
from kubekit.api.meta import ObjectMeta
from kubekit.http_server import HttpAnswer, serving


def plugin(address: str) -> Pod:
    return Pod(metadata=ObjectMeta(name="nvidia-device-plugin-daemonset-a"), status=PodStatus(pod_ip=address))


async def test_metrics_are_those_of_the_device_plugin_on_the_node() -> None:
    asked = []

    async def get(address: str, port: int, path: str) -> HttpAnswer:
        asked.append((address, port, path))
        return HttpAnswer(b"container_gpu_utilization 1")

    answer = await GpuManagerPod(lambda: [plugin(""), plugin("10.0.0.7")], get).handler("/metric")()
    assert answer.body == b"container_gpu_utilization 1"
    assert asked == [("10.0.0.7", 5678, "/metric")]


async def test_a_node_without_device_plugin_says_where_to_look() -> None:
    answer = await GpuManagerPod(list, fetch).handler("/metric")()
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE and b"gpuplane status" in answer.body


async def test_what_the_device_plugin_answers_is_passed_on_with_its_status() -> None:
    async def metric() -> HttpAnswer:
        return HttpAnswer(b"a 1", content_type="text/plain; version=0.0.4")

    async def broken() -> HttpAnswer:
        return HttpAnswer(b"no driver", HTTPStatus.BAD_GATEWAY)

    async with serving({"/metric": metric, "/broken": broken}, "127.0.0.1", 0) as port:
        found = await fetch("127.0.0.1", port, "/metric")
        assert (found.body, found.content_type) == (b"a 1", "text/plain; version=0.0.4")
        found = await fetch("127.0.0.1", port, "/broken")
        assert (found.body, found.status) == (b"no driver", HTTPStatus.BAD_GATEWAY)
    found = await fetch("127.0.0.1", port, "/metric")
    assert found.status is HTTPStatus.SERVICE_UNAVAILABLE
