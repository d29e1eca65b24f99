"""Requests that no kubelet sends: empty, of odd ids, and no messages at all. Each is answered or refused in words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.device_plugin.grpc_kubelet import methods
from gpuplane.device_plugin.kubelet_api import ResourcePlugin
from gpuplane.device_plugin.plugin import UnitPlugin
from gpuplane.device_plugin.shares import SharePlugin
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.units import resources
from kubekit.errors import KubekitError
from kubekit.protocol import deviceplugin_pb2 as pb

GPUS = tuple(
    GPUFacts(index=i, minor=i, uuid=f"GPU-{i}", model="T4", memory_bytes=4 << 30, pci="", compute=(7, 5))
    for i in range(2)
)
[(RESOURCE, UNITS)] = resources(GPUS, PluginConfig()).items()
PLUGINS: Sequence[ResourcePlugin] = (
    UnitPlugin(RESOURCE, UNITS, GPUS, PluginConfig()),
    SharePlugin(names.VCUDA_CORE, GPUS, PluginConfig(), None, None),
    SharePlugin(names.VCUDA_MEMORY, GPUS, PluginConfig(), None, None),
)
UNARY = ("GetPreferredAllocation", "Allocate", "PreStartContainer")
KNOWN = [f"GPU-{gpu}{end}" for gpu in range(2) for end in ("", *(f"::{n}" for n in range(4)))]
IDS = st.lists(st.sampled_from([*KNOWN, "", "::", "GPU-0::", "GPU-0::x", "GPU-0::²", "GPU-9", "\0"]), max_size=8)


def ask(plugin: ResourcePlugin, method: str, request: bytes) -> None:
    async def asked() -> None:
        try:
            async for _ in methods(plugin)[f"/v1beta1.DevicePlugin/{method}"](request):
                pass
        except (KubekitError, DecodeError) as error:
            assert str(error)

    asyncio.run(asked())


@pytest.mark.parametrize("plugin", PLUGINS, ids=("whole", "core", "memory"))
@pytest.mark.parametrize("method", UNARY)
def test_an_empty_request_is_answered(plugin: ResourcePlugin, method: str) -> None:
    ask(plugin, method, b"")
    ask(plugin, method, b"\x0a\x00")  # one container that asks for nothing


@given(st.sampled_from(PLUGINS), IDS, IDS, st.integers(-(2**31), 2**31 - 1) | st.integers(0, 5))
def test_odd_ids_are_refused_in_words(plugin: ResourcePlugin, some: list[str], must: list[str], size: int) -> None:
    wanted = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=some, must_include_deviceIDs=must, allocation_size=size
    )
    requests = (
        pb.PreferredAllocationRequest(container_requests=[wanted]),
        pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=some)]),
        pb.PreStartContainerRequest(devices_ids=some),
    )
    for method, request in zip(UNARY, requests, strict=True):
        ask(plugin, method, request.SerializeToString())


@given(st.sampled_from(PLUGINS), st.sampled_from(UNARY), st.binary(max_size=30))
def test_other_bytes_are_refused_in_words(plugin: ResourcePlugin, method: str, request: bytes) -> None:
    ask(plugin, method, request)
