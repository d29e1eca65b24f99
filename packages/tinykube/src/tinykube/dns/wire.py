"""Messages of DNS as bytes: queries that come in, and answers that go out. Pure.

Sources: RFC 1035 (messages, compression), RFC 2782 (SRV), RFC 6891 (EDNS: the size of answers by UDP). Names are tuples
of labels, without the root's; they are compared in lower case. Reading never fails but with `WireError`, and ends for
every input: a compressed name must point backwards.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import msgspec

Name = tuple[str, ...]

_HEADER: Final = struct.Struct("!6H")
_FIXED: Final = struct.Struct("!HHIH")  # type, class, time to live, length of the data
INTERNET: Final = 1
_OPT: Final = 41
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _WANTED, _AVAILABLE = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
_POINTER: Final = 0xC0
_LONGEST_LABEL: Final = 63
_LONGEST_NAME: Final = 255
_POINTED: Final = 0x3FFF  # offsets above cannot be pointed to
PLAIN_SIZE: Final = 512  # bytes of an answer by UDP, for clients that name no other size
LARGEST_UDP: Final = 1232  # bytes that pass every network in one piece
LARGEST: Final = 65535


class WireError(ValueError):
    """The bytes are no message of DNS. `id` is that of the message, if it has one."""

    def __init__(self, what: str, id: int | None = None) -> None:
        super().__init__(what)
        self.id = id


class RecordType(IntEnum):
    """Types of records that are served."""

    A = 1
    CNAME = 5
    SOA = 6
    PTR = 12
    TXT = 16
    AAAA = 28
    SRV = 33


class Result(IntEnum):
    """Response codes."""

    FINE = 0
    MALFORMED = 1
    FAILED = 2
    NO_NAME = 3
    NOT_IMPLEMENTED = 4


class Service(msgspec.Struct, frozen=True):
    """The data of an SRV record."""

    port: int
    target: Name


class Authority(msgspec.Struct, frozen=True):
    """The data of an SOA record; `minimum` is for how many seconds a missing name may be remembered."""

    server: Name
    mailbox: Name
    minimum: int


class Record(msgspec.Struct, frozen=True):
    """A record. The data of A and AAAA is an address, of CNAME and PTR a name, of TXT a text."""

    name: Name
    kind: RecordType
    seconds: int
    data: str | Name | Service | Authority


class Query(msgspec.Struct, frozen=True):
    """A question. `kind` may be a type that is not served; `size` is the longest answer by UDP in bytes."""

    id: int
    name: Name
    kind: int
    space: int = INTERNET  # the class
    recursive: bool = True
    size: int = PLAIN_SIZE
    extended: bool = False
    operation: int = 0


class Answer(msgspec.Struct, frozen=True):
    result: Result = Result.FINE
    records: tuple[Record, ...] = ()
    authority: tuple[Record, ...] = ()


def read_query(data: bytes) -> Query:
    """Return the question of a message. Raises WireError."""
    if len(data) < _HEADER.size:
        raise WireError("shorter than a header")
    id, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
    if flags & _RESPONSE:
        raise WireError("an answer, not a question")
    if questions != 1 or answers or authorities:
        raise WireError(f"{questions} questions, {answers + authorities} records", id)
    try:
        name, at = _read_name(data, _HEADER.size)
        kind, of = struct.unpack_from("!HH", data, at)
        size, extended = _offered(data, at + 4, additional)
    except (struct.error, IndexError) as error:
        raise WireError("ends within a record", id) from error
    except WireError as error:
        raise WireError(str(error), id) from error
    return Query(id, name, kind, of, bool(flags & _WANTED), size, extended, flags >> 11 & 15)


def _offered(data: bytes, at: int, records: int) -> tuple[int, bool]:
    """Return how many bytes the client takes by UDP, and whether it speaks EDNS."""
    for _ in range(records):
        _, at = _read_name(data, at)
        kind, size, _, length = _FIXED.unpack_from(data, at)
        if kind == _OPT:
            return min(max(size, PLAIN_SIZE), LARGEST_UDP), True
        at += _FIXED.size + length
    return PLAIN_SIZE, False


def read_addresses(data: bytes) -> tuple[Result | None, list[Record]]:
    """Return the result and the A, AAAA and CNAME records of an answer; None for a result that has no name here.

    Raises WireError.
    """
    try:
        _, flags, questions, answers, *_ = _HEADER.unpack_from(data)
        at = _HEADER.size
        for _ in range(questions):
            at = _read_name(data, at)[1] + 4
        found = []
        for _ in range(answers):
            name, at = _read_name(data, at)
            kind, of, seconds, length = _FIXED.unpack_from(data, at)
            at += _FIXED.size
            body = data[at : at + length]
            if of == INTERNET and kind == RecordType.A:
                found.append(Record(name, RecordType.A, seconds, str(IPv4Address(body))))
            elif of == INTERNET and kind == RecordType.AAAA:
                found.append(Record(name, RecordType.AAAA, seconds, str(IPv6Address(body))))
            elif of == INTERNET and kind == RecordType.CNAME:
                found.append(Record(name, RecordType.CNAME, seconds, _read_name(data, at)[0]))
            at += length
    except (struct.error, IndexError, ValueError) as error:
        raise WireError("the answer ends within a record") from error
    code = flags & 15
    return (Result(code) if code in set(Result) else None), found


def _read_name(data: bytes, at: int) -> tuple[Name, int]:
    """Return the name at an offset, and the offset behind it. Raises WireError, IndexError."""
    labels: list[str] = []
    behind, lowest, length = 0, at, 1
    while count := data[at]:
        if count & _POINTER == _POINTER:
            behind = behind or at + 2
            at = (count & ~_POINTER) << 8 | data[at + 1]
            if at >= lowest:
                raise WireError("a name points to itself")
            lowest = at
            continue
        label = data[at + 1 : at + 1 + count]
        length += count + 1
        if count & _POINTER or len(label) < count or length > _LONGEST_NAME:
            raise WireError("a name is too long")
        labels.append(label.decode("latin-1"))
        at += count + 1
    return tuple(labels), behind or at + 1


def lower(name: Name) -> Name:
    """Return a name as names are compared."""
    return tuple(label.lower() for label in name)


def parse_name(text: str) -> Name:
    """Return the name that a text writes with dots."""
    return tuple(label for label in text.split(".") if label)


def write_query(id: int, name: Name, kind: int) -> bytes:
    """Return a question for a server that asks others itself."""
    writer = _Writer(LARGEST)
    writer.data += _HEADER.pack(id, _WANTED, 1, 0, 0, 0)
    writer.question(name, kind, INTERNET)
    return bytes(writer.data)


def write_answer(query: Query, answer: Answer, limit: int = LARGEST) -> bytes:
    """Return the message of at most `limit` bytes. Records that do not fit are left out, and the message says so."""
    writer = _Writer(limit - (len(_extension()) if query.extended else 0))
    writer.data += bytes(_HEADER.size)
    writer.question(query.name, query.kind, query.space)
    records = writer.records(answer.records)
    authority = writer.records(answer.authority)
    truncated = records < len(answer.records)
    flags = _RESPONSE | _AUTHORITATIVE | _AVAILABLE | query.operation << 11 | answer.result
    flags |= (_WANTED if query.recursive else 0) | (_TRUNCATED if truncated else 0)
    _HEADER.pack_into(writer.data, 0, query.id, flags, 1, records, authority, int(query.extended))
    return bytes(writer.data + (_extension() if query.extended else b""))


def write_refusal(id: int, result: Result) -> bytes:
    """Return the answer to a message whose question cannot be read."""
    return _HEADER.pack(id, _RESPONSE | _AVAILABLE | result, 0, 0, 0, 0)


def _extension() -> bytes:
    return b"\0" + _FIXED.pack(_OPT, LARGEST_UDP, 0, 0)


class _Writer:
    """Writes names compressed: the end of a name that was written before is a pointer to it."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self._limit = limit
        self._seen: dict[Name, int] = {}

    def question(self, name: Name, kind: int, space: int) -> None:
        self._name(name)
        self.data += struct.pack("!HH", kind, space)

    def records(self, records: tuple[Record, ...]) -> int:
        """Write the records that fit; how many."""
        for number, record in enumerate(records):
            before = len(self.data)
            self._record(record)
            if len(self.data) > self._limit:
                del self.data[before:]
                self._seen = {name: at for name, at in self._seen.items() if at < before}
                return number
        return len(records)

    def _record(self, record: Record) -> None:
        self._name(record.name)
        start = len(self.data)
        self.data += _FIXED.pack(record.kind, INTERNET, record.seconds, 0)
        self._body(record)
        length = len(self.data) - start - _FIXED.size
        _FIXED.pack_into(self.data, start, record.kind, INTERNET, record.seconds, length)

    def _body(self, record: Record) -> None:
        match record.data:
            case Service(port, target):
                self.data += struct.pack("!HHH", 0, 100, port)
                self._name(target, compressed=False)
            case Authority(server, mailbox, minimum):
                self._name(server)
                self._name(mailbox)
                self.data += struct.pack("!5I", 1, 7200, 1800, 86400, minimum)
            case str(text) if record.kind == RecordType.A:
                self.data += IPv4Address(text).packed
            case str(text) if record.kind == RecordType.AAAA:
                self.data += IPv6Address(text).packed
            case str(text):
                body = text.encode()[:255]
                self.data += bytes((len(body),)) + body
            case name:
                self._name(name)

    def _name(self, name: Name, *, compressed: bool = True) -> None:
        for start in range(len(name)):
            rest = lower(name[start:])
            if compressed and rest in self._seen:
                self.data += struct.pack("!H", _POINTER << 8 | self._seen[rest])
                return
            if len(self.data) <= _POINTED:
                self._seen.setdefault(rest, len(self.data))
            label = name[start].encode("latin-1")[:_LONGEST_LABEL]
            self.data += bytes((len(label),)) + label
        self.data += b"\0"
