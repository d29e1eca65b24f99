"""Answers of the kubelet's pod-resources socket, also when it is busy or broken."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from kubekit.pod_resources import PodResourcesClient
from kubekit.protocol import podresources_pb2 as pb
from kubekit.protocol.sockets import POD_RESOURCES_SOCKET, address
from kubekit.rpc import RpcError, Status


@contextlib.asynccontextmanager
async def kubelet(directory: Path, answer: bytes, *, busy: int = 0) -> AsyncIterator[None]:
    """A kubelet that turns the first `busy` calls away."""
    calls = 0

    async def listed(request: bytes, context: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls <= busy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return answer

    socket = directory / POD_RESOURCES_SOCKET
    socket.parent.mkdir(parents=True)
    server = grpc.aio.server()
    handlers = {"List": grpc.unary_unary_rpc_method_handler(listed)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
    with address(socket) as target:
        server.add_insecure_port(target)
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


class Pauses:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_a_busy_kubelet_is_called_again_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    pauses, answer = Pauses(), pb.ListPodResourcesResponse()
    answer.pod_resources.add(name="train", namespace="ml")
    async with kubelet(tmp_path, answer.SerializeToString(), busy=5):
        assert await PodResourcesClient(tmp_path, pauses.sleep).list() == answer
    assert len(pauses.seconds) == 5 and pauses.seconds == sorted(set(pauses.seconds))


async def test_a_kubelet_that_stays_busy_is_given_up(tmp_path: Path) -> None:
    async with kubelet(tmp_path, b"", busy=99):
        with pytest.raises(RpcError) as refused:
            await PodResourcesClient(tmp_path, Pauses().sleep).list()
    assert refused.value.status is Status.RESOURCE_EXHAUSTED


async def test_an_answer_that_cannot_be_read_is_an_error_of_the_call(tmp_path: Path) -> None:
    async with kubelet(tmp_path, b"\xff\xff"):
        with pytest.raises(RpcError) as refused:
            await PodResourcesClient(tmp_path, Pauses().sleep).list()
    assert refused.value.status is Status.INTERNAL
