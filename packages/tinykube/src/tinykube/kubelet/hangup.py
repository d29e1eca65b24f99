"""Detect and cause the end of a connection while one side does not read: neither waits for the unread bytes."""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket as sockets
import struct
import termios


async def hung_up(writer: asyncio.StreamWriter) -> None:
    """Return when the other side has closed its half of a connection, or the connection is lost.

    A StreamReader reports the end only after all bytes before the end are read.

    Source: EPOLLRDHUP in epoll_ctl(2).
    """
    socket = writer.get_extra_info("socket")
    number = -1 if socket is None else socket.fileno()
    if number < 0:
        return  # this side has closed it
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    with select.epoll(1) as watch:
        watch.register(number, select.EPOLLRDHUP)  # errors are reported in any case
        loop.add_reader(watch.fileno(), seen.set)
        try:
            await seen.wait()
        finally:
            loop.remove_reader(watch.fileno())


def end(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, and drop the bytes that the other side has not received.

    A side that does not read would never receive an end that is queued behind these bytes.
    """
    socket = writer.get_extra_info("socket")
    if socket is not None and socket.fileno() >= 0 and _is_waiting(writer, socket.fileno()):
        # NB: without this option, close() leaves the bytes and the end to the kernel, which waits for the reader.
        with sockets.fromfd(socket.fileno(), sockets.AF_INET, sockets.SOCK_STREAM) as same:
            same.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def _is_waiting(writer: asyncio.StreamWriter, number: int) -> bool:
    """Return whether bytes are on their way, here or in the kernel (SIOCOUTQ in tcp(7))."""
    if writer.transport.get_write_buffer_size():
        return True
    (size,) = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, b"\0" * 4))
    return bool(size)
