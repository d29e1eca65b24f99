"""JSON of the API server into Structs and back, with one decoder a kind.

Invariant: one object that does not fit its Struct, or is nested too deep, never hides the others of its list.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from kubekit.documents import cut_json
from kubekit.kube.errors import ServerError

T = TypeVar("T")
BadItem = Callable[[bytes, str], None]
"""Told of an item that does not fit its Struct: its JSON, and what is wrong."""

encode: Final = msgspec.json.Encoder().encode
_decode_any: Final = msgspec.json.Decoder().decode


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


def decode_deep(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return what `decode` makes of an answer, with `null` for what is nested too deep (see `cut_json`)."""
    try:
        return decode(body)
    except RecursionError:
        return decode(cut_json(body))


def decode_any(body: bytes) -> Any:
    """One object as plain data. Raises ServerError when the answer is no JSON."""
    try:
        return decode_deep(_decode_any, body)
    except ValueError as error:
        raise ServerError(f"the server's answer is no JSON: {error}", reason="Undecodable") from error


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
    """One object. Raises ServerError when the answer is of another kind."""
    try:
        return decoder(kind).decode(body)
    except RecursionError:
        return decode_object(kind, cut_json(body), name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError(
            f"the server's answer is no {kind.RESOURCE.kind}: {error}", where=name, reason="Undecodable"
        ) from error


def decode_list(kind: Any, body: bytes, bad: BadItem | None) -> ListPage:
    """One page. An item that does not fit goes to `bad`, or raises ServerError when that is None."""
    where = kind.RESOURCE.path()
    try:
        return _decode_page(kind, body, bad)
    except msgspec.ValidationError as error:
        raise ServerError(f"an item is no {kind.RESOURCE.kind}: {error}", where=where, reason="Undecodable") from error
    except RecursionError:
        return decode_list(kind, cut_json(body), bad)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError(f"the list is no JSON: {error}", where=where, reason="Undecodable") from error


def _decode_page(kind: Any, body: bytes, bad: BadItem | None) -> ListPage:
    try:
        found = _list_decoder(kind).decode(body)
        return ListPage(found.items or [], found.metadata.resource_version, found.metadata.continue_)
    except msgspec.ValidationError:
        if bad is None:
            raise
    raw = _decode_raw_list(body)
    items: list[Any] = []
    wrong: list[tuple[bytes, str]] = []
    for item in raw.items or []:
        try:
            items.append(decoder(kind).decode(item))
        except msgspec.ValidationError as error:
            wrong.append((bytes(item), str(error)))
    # NB: at the end, since a later item may be nested too deep, and then all are decoded again.
    for text, problem in wrong:
        bad(text, problem)
    return ListPage(items, raw.metadata.resource_version, raw.metadata.continue_)
