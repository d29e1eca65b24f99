"""Messages of DNS as bytes."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.dns import wire
from tinykube.dns.wire import Answer, Query, Record, RecordType, Result, Service, WireError

LABELS = st.text("abcdefghijklmnopqrstuvwxyzABC0123456789-_", min_size=1, max_size=20)
NAMES = st.lists(LABELS, min_size=1, max_size=6).map(tuple)


@given(st.integers(0, 65535), NAMES, st.integers(1, 65535))
def test_a_question_is_read_as_it_was_written(id: int, name: wire.Name, kind: int) -> None:
    assert wire.read_query(wire.write_query(id, name, kind)) == Query(id, name, kind)


@given(st.binary(max_size=200), st.booleans())
def test_every_input_is_read_or_refused(data: bytes, counted: bool) -> None:
    if counted:
        data = struct.pack("!6H", 7, 0, 1, 0, 0, 1) + data
    for read in (wire.read_query, wire.read_addresses):
        with contextlib.suppress(WireError):
            read(data)


@given(st.lists(st.tuples(NAMES, st.ip_addresses(v=4).map(str), NAMES), max_size=20))
def test_records_are_read_as_they_were_written(rows: list[tuple[wire.Name, str, wire.Name]]) -> None:
    records = [Record(name, RecordType.A, 30, address) for name, address, _ in rows]
    records += [Record(name, RecordType.CNAME, 5, target) for name, _, target in rows]
    found = wire.read_addresses(wire.write_answer(Query(7, ("a",), RecordType.A), Answer(records=tuple(records))))
    assert found[0] is Result.FINE
    assert [compared(one) for one in found[1]] == [compared(one) for one in records]


def compared(record: Record) -> tuple[wire.Name, object]:
    return wire.lower(record.name), wire.lower(record.data) if isinstance(record.data, tuple) else record.data


def test_an_answer_has_the_bytes_that_the_standard_gives() -> None:
    name = ("web", "default", "svc", "cluster", "local")
    record = Record(("_a", *name), RecordType.SRV, 30, Service(80, name))
    answer = wire.write_answer(Query(0x1234, ("_a", *name), RecordType.SRV), Answer(records=(record,)))
    question = b"\x02_a\x03web\x07default\x03svc\x07cluster\x05local\x00" + b"\x00\x21\x00\x01"
    target = b"\x03web\x07default\x03svc\x07cluster\x05local\x00"
    assert answer == (
        b"\x12\x34\x85\x80\x00\x01\x00\x01\x00\x00\x00\x00"
        + question
        + b"\xc0\x0c\x00\x21\x00\x01\x00\x00\x00\x1e"
        + struct.pack("!HHHH", 6 + len(target), 0, 100, 80)
        + target
    )


def test_an_answer_that_does_not_fit_has_what_fits_and_a_mark() -> None:
    name = ("many", "default", "svc", "cluster", "local")
    records = tuple(Record(name, RecordType.A, 30, f"127.64.1.{last}") for last in range(200))
    query = Query(1, name, RecordType.A)
    short = wire.write_answer(query, Answer(records=records), wire.PLAIN_SIZE)
    assert len(short) <= wire.PLAIN_SIZE
    assert struct.unpack_from("!H", short, 2)[0] & 0x0200
    assert [one.data for one in wire.read_addresses(short)[1]] == [one.data for one in records[:29]]
    whole = wire.write_answer(query, Answer(records=records))
    assert len(wire.read_addresses(whole)[1]) == 200
    assert not struct.unpack_from("!H", whole, 2)[0] & 0x0200


def test_a_client_of_edns_gets_answers_of_its_size() -> None:
    asked = wire.write_query(5, ("web",), RecordType.A)
    asked = asked[:10] + b"\0\1" + asked[12:] + b"\0" + struct.pack("!HHIH", 41, 900, 0, 0)
    query = wire.read_query(asked)
    assert (query.size, query.extended) == (900, True)
    answer = wire.write_answer(query, Answer())
    assert answer.endswith(b"\0" + struct.pack("!HHIH", 41, wire.LARGEST_UDP, 0, 0))
    assert struct.unpack_from("!H", answer, 10)[0] == 1


@pytest.mark.parametrize(
    ("name", "what"),
    [(b"\xc0\x0c", "points to itself"), (b"\x05ab", "too long"), (b"\x3f" + 63 * b"a", "ends within")],
)
def test_a_name_that_does_not_end_is_refused(name: bytes, what: str) -> None:
    with pytest.raises(WireError, match=what) as caught:
        wire.read_query(struct.pack("!6H", 9, 0, 1, 0, 0, 0) + name)
    assert caught.value.id == 9
