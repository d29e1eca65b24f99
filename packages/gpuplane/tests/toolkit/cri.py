"""The few calls of CRI that run a pod on a real containerd; messages are built by field number.

Source: k8s.io/cri-api, runtime/v1/api.proto.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kubekit import rpc

Fields = dict[int, list[Any]]
_NODE: Final = 2  # NamespaceMode: the pod shares the machine's network, so that no CNI is needed
SECONDS: Final = 120.0


class Executed(msgspec.Struct, frozen=True):
    code: int
    text: str


class CRI:
    """A client of the runtime that serves `socket`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def version(self) -> str:
        """Return the release of the runtime, such as `1.7.24~ds1`. Raises RpcError while CRI is not served."""
        return str((await self._call("Version", b""))[3][0].decode())

    async def runtimes(self) -> dict[str, Any]:
        """Return the runtimes that containerd has, by name, and under "" the name of the default one."""
        answer = await self._call("Status", field(1, 1))
        info = {key.decode(): value for key, value in (_pair(entry) for entry in answer[2])}
        section = json.loads(info["config"])["containerd"]
        return {**section["runtimes"], "": section["defaultRuntimeName"]}

    async def has_image(self, name: str) -> bool:
        """Return whether CRI knows an image of this name."""
        asked = field(1, field(1, name))
        return bool((await self._call("ImageStatus", asked, "ImageService")).get(1))

    async def run_pod(self, name: str, handler: str = "") -> tuple[str, bytes]:
        """Start a pod's sandbox with a runtime; its id and its configuration."""
        security = field(1, field(1, _NODE))
        config = field(1, field(1, name) + field(2, name) + field(3, "default"))
        config += field(8, field(1, "/gpuplane-toolkit") + field(2, security))
        answer = await self._call("RunPodSandbox", field(1, config) + field(2, handler))
        return answer[1][0].decode(), config

    async def run_container(
        self,
        pod: tuple[str, bytes],
        image: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cdi: Sequence[str] = (),
        user: int | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        """Create and start a container in a pod; its id."""
        sandbox, sandbox_config = pod
        config = field(1, field(1, "main")) + field(2, field(1, image))
        config += b"".join(field(3, word) for word in command)
        config += b"".join(field(6, field(1, key) + field(2, value)) for key, value in (env or {}).items())
        config += b"".join(field(10, field(1, key) + field(2, value)) for key, value in (annotations or {}).items())
        config += field(15, field(2, b"" if user is None else field(5, field(1, user)))) + b"".join(
            field(17, field(1, name)) for name in cdi
        )
        asked = field(1, sandbox) + field(2, config) + field(3, sandbox_config)
        container: str = (await self._call("CreateContainer", asked))[1][0].decode()
        await self._call("StartContainer", field(1, container))
        return container

    async def execute(self, container: str, *command: str) -> Executed:
        """Run a command in a container."""
        asked = field(1, container) + b"".join(field(2, word) for word in command) + field(3, 20)
        answer = await self._call("ExecSync", asked)
        text = b"".join(answer.get(1, []) + answer.get(2, []))
        return Executed(answer.get(3, [0])[0], text.decode())

    async def remove_pod(self, pod: tuple[str, bytes]) -> None:
        """Stop a pod and remove it with its containers."""
        await self._call("StopPodSandbox", field(1, pod[0]))
        await self._call("RemovePodSandbox", field(1, pod[0]))

    async def _call(self, method: str, request: bytes, service: str = "RuntimeService") -> Fields:
        return parse(await rpc.call(self.socket, f"/runtime.v1.{service}/{method}", request, timeout=SECONDS))


def field(number: int, value: str | bytes | int) -> bytes:
    """A field of a message: a string, a message's bytes, or a number."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def parse(data: bytes) -> Fields:
    """The fields of a message that has only numbers, strings and messages."""
    found: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        value: int | bytes
        value, at = _number(data, at)
        if tag & 7 == 2:
            at, value = at + value, data[at : at + value]
        found.setdefault(tag >> 3, []).append(value)
    return found


def _pair(entry: bytes) -> tuple[bytes, bytes]:
    fields = parse(entry)
    return fields[1][0], fields[2][0]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
