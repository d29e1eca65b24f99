"""Whether a runtime serves CRI: one call of RuntimeService/Version over its socket.

gRPC is HTTP/2: the answer to a call that succeeds has a DATA frame, the answer to one that does not (an unknown service
above all) has headers only. That much needs no library, which would be a third of the operand's memory.

Formats: RFC 9113 (frames), RFC 7541 (literal header fields), grpc.io "gRPC over HTTP2".
"""

from __future__ import annotations

import socket
import struct

from gpuplane.host import Host

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GO_AWAY = 0x0, 0x1, 0x3, 0x4, 0x7
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_METHOD = "/runtime.v1.RuntimeService/Version"
_FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", _METHOD),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
_EMPTY_MESSAGE = bytes(5)  # not compressed, no bytes


def answers(host: Host, path: str, *, timeout: float = 2.0) -> bool:
    """Whether the service behind the socket answers CRI's Version. False for anything else, also for silence."""
    client = host.connect(path, timeout=timeout)
    if client is None:
        return False
    with client:
        try:
            # each field is a literal with a new name that is not indexed: a zero, the name, the value
            fields = b"".join(b"\0" + _string(name) + _string(value) for name, value in _FIELDS)
            client.sendall(
                _PREFACE
                + _frame(_SETTINGS, 0, 0)
                + _frame(_HEADERS, _END_HEADERS, 1, fields)
                + _frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE)
            )
            return _has_data(client)
        except (OSError, EOFError):
            return False


def _has_data(client: socket.socket) -> bool:
    while True:
        head = _read(client, 9)
        length, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], head[5:]
        payload = _read(client, length)
        ours = int.from_bytes(stream, "big") == 1
        if kind == _SETTINGS and not flags & _ACK:
            client.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _GO_AWAY or (kind == _RESET and ours):
            return False
        elif kind == _DATA and ours and payload:
            return True
        elif kind in (_DATA, _HEADERS) and ours and flags & _END_STREAM:
            return False


def _read(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _string(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 0x7F, "one byte is enough for the length"
    return bytes([len(data)]) + data
