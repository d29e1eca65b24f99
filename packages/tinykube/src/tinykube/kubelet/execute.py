"""`kubectl exec`: a command inside a running container, its streams over the channels of v5.channel.k8s.io.

Channel byte first: 0 stdin, 1 stdout, 2 stderr, 3 the final Status as JSON, 4 terminal size, 255 closes a channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from typing import Any, Final

import msgspec

from kubekit.documents import DocumentError, decode_json
from kubekit.kube.tasks import first_of
from tinykube.kubelet.websocket import Closed, WebSocket

PROTOCOL: Final = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


class Size(msgspec.Struct):
    width: int = msgspec.field(name="Width", default=80)
    height: int = msgspec.field(name="Height", default=24)


def exit_status(code: int) -> dict[str, Any]:
    """The Status object that says how a command ended; clients take their own exit code from it."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def serve_exec(socket: WebSocket, command: list[str], *, stdin: bool, stderr: bool, tty: bool) -> None:
    """Runs `command` (of `Launcher.exec_command`) and carries its streams until it ends or the client goes."""
    terminal: int | None = None
    if tty:
        terminal, slave = os.openpty()
        os.set_blocking(terminal, False)  # a write to a program that does not read would block the whole kubelet
        streams: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
    else:
        streams = {
            "stdin": asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            "stdout": asyncio.subprocess.PIPE,
            "stderr": asyncio.subprocess.PIPE if stderr else asyncio.subprocess.DEVNULL,
        }
    process = await asyncio.create_subprocess_exec(*command, **streams)
    if tty:
        os.close(slave)
    incoming = asyncio.create_task(_incoming(socket, process, terminal))
    try:
        # NB: while the command does not read, `incoming` cannot detect that the client disconnects.
        await first_of(_run(socket, process, terminal), socket.hung_up())
    except Closed:
        pass  # the client went away: so does its command
    finally:
        incoming.cancel()
        await asyncio.gather(incoming, return_exceptions=True)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if terminal is not None:
            os.close(terminal)


async def _run(socket: WebSocket, process: asyncio.subprocess.Process, terminal: int | None) -> None:
    """Send the output of a command, and how it ended. Raises Closed."""
    if terminal is not None:
        await _from_terminal(socket, terminal)
    else:
        await asyncio.gather(_outgoing(socket, process.stdout, STDOUT), _outgoing(socket, process.stderr, STDERR))
    code = await process.wait()
    await socket.send(bytes([ERROR]) + msgspec.json.encode(exit_status(code)))
    await socket.close()


async def _outgoing(socket: WebSocket, reader: asyncio.StreamReader | None, channel: int) -> None:
    while reader is not None and (data := await reader.read(32768)):
        await socket.send(bytes([channel]) + data)


async def _from_terminal(socket: WebSocket, terminal: int) -> None:
    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()
        loop.add_reader(terminal, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(terminal)
        try:
            data = os.read(terminal, 32768)
        except BlockingIOError:
            continue
        except OSError:  # the last process of the terminal has ended
            return
        if not data:
            return
        await socket.send(bytes([STDOUT]) + data)


async def _to_terminal(terminal: int, data: bytes) -> None:
    """Write all of the data. Raises OSError when the last process of the terminal has ended."""
    loop, rest = asyncio.get_running_loop(), memoryview(data)
    while rest:
        try:
            rest = rest[os.write(terminal, rest) :]
        except BlockingIOError:
            ready = asyncio.Event()
            loop.add_writer(terminal, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_writer(terminal)


async def _incoming(socket: WebSocket, process: asyncio.subprocess.Process, terminal: int | None) -> None:
    try:
        while True:
            message = await socket.receive()
            channel, data = message[0] if message else CLOSE, message[1:]
            if channel == RESIZE and terminal is not None:
                size = decode_json(data, Size)
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))
            elif channel == STDIN and terminal is not None:
                await _to_terminal(terminal, data)
            elif channel == STDIN and process.stdin is not None:
                process.stdin.write(data)
                await process.stdin.drain()
            elif channel == CLOSE and data[:1] == bytes([STDIN]) and process.stdin is not None:
                process.stdin.close()
    except (OSError, DocumentError, struct.error):
        return  # the command has closed its input, or the client speaks nonsense: output goes on
    except Closed:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
