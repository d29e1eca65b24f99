"""Reading an API server's audit log: who asked for what, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

WRITES: Final = ("create", "update", "patch", "delete", "deletecollection")


class User(msgspec.Struct, frozen=True):
    username: str = ""


class Reference(msgspec.Struct, frozen=True, rename="camel"):
    """The object of a request; `api_group` is empty for the core group."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""
    subresource: str = ""


class Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """One answered request: an Event of audit.k8s.io/v1, as far as it is read here."""

    verb: str
    user: User
    user_agent: str = ""
    request_uri: str = msgspec.field(default="", name="requestURI")
    object_ref: Reference = Reference()
    response_status: Status = Status()


def requests(log: Path) -> Iterator[Request]:
    """Every request so far, in the order of the answers; a last line that is still being written is left out."""
    decoder = msgspec.json.Decoder(Request)
    with log.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield decoder.decode(line)
