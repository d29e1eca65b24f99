"""Requests that any process of a container can send to the arbiter, true or false."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import NamedTuple, Self

VERSION = 2
HELLO, WANT, MORE, BUSY, DONE, OWES = range(1, 7)
WELCOME, REFUSED, GRANT, OVER, LOST, HERE = range(16, 22)
PATIENCE_SECONDS = 20.0
WORD = struct.Struct("=IIQQII16x")


class Word(NamedTuple):
    kind: int
    version: int
    turn: int
    time_ns: int
    gpu: int
    soon: int


class Client:
    """A connection to the socket of a share's directory, as soon as the arbiter listens there."""

    def __init__(self, share: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_SECONDS)
        folder = os.open(share, os.O_PATH)
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while True:
                try:
                    self.socket.connect(f"/proc/self/fd/{folder}/turns")
                    return
                except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):  # the last: many connect
                    assert time.monotonic() < deadline, "no arbiter"
                    time.sleep(0.01)
        finally:
            os.close(folder)

    def say(self, kind: int, *, turn: int = 0, time_ns: int = 0, version: int = VERSION, gpu: int = 0) -> None:
        self.socket.send(WORD.pack(kind, version, turn, time_ns, gpu, 0))

    def hear(self) -> Word:
        """The next word that is not HERE. Raises ConnectionError when the arbiter has hung up."""
        while True:
            data = self.socket.recv(WORD.size)
            if not data:
                raise ConnectionResetError
            word = Word._make(WORD.unpack(data))
            if word.kind != HERE:
                return word

    def greeted(self, gpu: int = 0) -> Self:
        self.say(HELLO, gpu=gpu)
        assert self.hear().kind == WELCOME
        return self

    def wanted(self) -> Word:
        """The turn that it gets."""
        self.say(WANT)
        word = self.hear()
        assert word.kind == GRANT, word
        return word

    def close(self) -> None:
        self.socket.close()
