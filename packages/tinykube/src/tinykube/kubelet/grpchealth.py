"""One question of the gRPC health protocol, for probes.

Source: grpc.health.v1; a request has the service in field 1, a response has the status in field 1.
"""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

_METHOD: Final = "/grpc.health.v1.Health/Check"
_STATES: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


def request_bytes(service: str) -> bytes:
    """Return a HealthCheckRequest."""
    name = service.encode()
    length, size = bytearray(), len(name)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return b"\x0a" + bytes(length) + name if name else b""


def state_of(response: bytes) -> str:
    """Return the name of the status in a HealthCheckResponse."""
    number = response[1] if response[:1] == b"\x08" and len(response) > 1 else 0
    return _STATES[number] if number < len(_STATES) else str(number)


async def grpc_problem(host: str, port: int, service: str, timeout_seconds: float) -> str:
    """Ask once; return what is wrong with the answer, "" for SERVING."""
    target = f"{host}:{port}"
    async with grpc.aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary(_METHOD, request_serializer=request_bytes, response_deserializer=state_of)
        try:
            state = await ask(service, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return f'timeout: failed to connect service "{target}" within {timeout_seconds:g}s: {error.details()}'
            return f"error: health rpc probe failed: {error.details()}"
    return "" if state == "SERVING" else f'service unhealthy (responded with "{state}")'
