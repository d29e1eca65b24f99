"""JSON of the API server into Structs and back, with one decoder a kind.

Invariant: one object that does not fit its Struct never hides the others of its list.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec

from kubekit.kube.errors import ServerError

BadItem = Callable[[bytes, str], None]
"""Told of an item that does not fit its Struct: its JSON, and what is wrong."""

encode: Final = msgspec.json.Encoder().encode
decode_any: Final = msgspec.json.Decoder().decode


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list: its items, the list's resource version, and the token of the next page ("" at the end)."""

    items: list[Any]
    resource_version: str
    more: str


class _ListMeta(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


_decode_raw_list: Final = msgspec.json.Decoder(_RawList).decode


@cache
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The one decoder of a kind; building one costs far more than using it."""
    return msgspec.json.Decoder(kind)


@cache
def _list_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    items: Any = list[kind]
    shape = msgspec.defstruct(
        f"{kind.__name__}List", [("metadata", _ListMeta, _ListMeta()), ("items", items | None, None)]
    )
    return msgspec.json.Decoder(shape)


def decode_object(kind: Any, body: bytes, name: str) -> Any:
    """One object. Raises ServerError when the answer is none of its kind."""
    try:
        return decoder(kind).decode(body)
    except msgspec.DecodeError as error:
        raise ServerError(
            f"the server's answer is no {kind.RESOURCE.kind}: {error}", where=name, reason="Undecodable"
        ) from error


def decode_list(kind: Any, body: bytes, bad: BadItem | None) -> ListPage:
    """One page. An item that does not fit goes to `bad`, or raises ServerError when that is None."""
    where = kind.RESOURCE.path()
    try:
        found = _list_decoder(kind).decode(body)
        return ListPage(found.items or [], found.metadata.resource_version, found.metadata.continue_)
    except msgspec.ValidationError as error:
        if bad is None:
            raise ServerError(
                f"an item is no {kind.RESOURCE.kind}: {error}", where=where, reason="Undecodable"
            ) from error
    except msgspec.DecodeError as error:
        raise ServerError(f"the list is no JSON: {error}", where=where, reason="Undecodable") from error
    raw = _decode_raw_list(body)
    items: list[Any] = []
    for item in raw.items or []:
        try:
            items.append(decoder(kind).decode(item))
        except msgspec.ValidationError as error:
            bad(bytes(item), str(error))
    return ListPage(items, raw.metadata.resource_version, raw.metadata.continue_)
