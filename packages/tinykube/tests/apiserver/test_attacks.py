"""Bodies made to end, hang or fill the API server: each is refused in words, and the server goes on."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator

import pytest

MAPS = "/api/v1/namespaces/default/configmaps"
OWN = f"{MAPS}/own"
YAML, JSON, APPLY = "application/yaml", "application/json", "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
DEEP_JSON = b'{"apiVersion":"v1","kind":"ConfigMap","data":' + b"[" * 5000 + b"]" * 5000 + b"}"


@pytest.fixture(autouse=True)
def no_stack_trace(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An internal error is logged with its trace."""
    with caplog.at_level(logging.WARNING):
        yield
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("media", "body", "why"),
    [
        (YAML, b"[" * 100_000, "is nested more than 100 deep"),
        (YAML, b"{a: " * 100_000, "is nested more than 100 deep"),
        (YAML, b"- " * 100_000 + b"x", "is nested more than 100 deep"),
        (YAML, b"a: \xff", "is no UTF-8 text"),
        (YAML, b"a: !!int x", "this is no int"),
        (YAML, b"[" + b"x," * 500_000 + b"]", "has more than 196,608 values"),
        (YAML, BOMB.encode(), "has aliases that stand for more than 1 MiB"),
        (YAML, DEEP_JSON, "is nested more than 100 deep"),
        (JSON, DEEP_JSON, "is nested more than 100 deep"),
        (JSON, b"[" * 100_000, "is nested more than 100 deep"),
        (JSON, b'{"metadata":{"name":"\xff"}}', "is no UTF-8 text"),
        (JSON, b"1" * 5000, "Integer value out of range"),
    ],
)
async def test_bodies_that_attack_a_reader(api, media, body, why):
    answer = await api("POST", MAPS, body, headers={"content-type": media})
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest"), answer.data
    assert why in answer.message
    answer = await api("PATCH", OWN, body, headers={"content-type": APPLY})
    assert answer.status == 400


async def test_a_body_is_limited_also_in_one_piece(api):
    assert (await api("POST", MAPS, b" " * (3 * 1024 * 1024 + 1))).status == 413


async def test_copies_of_a_json_patch_into_itself_are_limited(api):
    await api.create(MAPS, {"metadata": {"name": "own"}, "data": {"a": "b"}})
    doubling = [{"op": "copy", "from": "/metadata", "path": f"/metadata/x{n}"} for n in range(60)]
    answer = await api.patch(OWN, doubling, "json")
    assert answer.status == 400
    assert answer.message.startswith("the patched object is ")
    answer = await api.patch(OWN, [{"op": "test", "path": "", "value": 1}] * 10_001, "json")
    assert (answer.status, answer.message) == (
        413,
        "The allowed maximum operations in a JSON patch is 10000, got 10001",
    )
    nested = json.loads('{"a":' * 90 + "1" + "}" * 90)
    deeper = [{"op": "add", "path": "/data" + "/a" * (90 * n), "value": nested} for n in range(30)]
    answer = await api.patch(OWN, deeper, "json")
    assert answer.status == 400
    assert answer.message.startswith("the patched object is nested ")


def varint(value: int) -> bytes:
    done = b""
    while value > 0x7F:
        done, value = done + bytes((value & 0x7F | 0x80,)), value >> 7
    return done + bytes((value,))


def field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(data)) + data


@pytest.mark.parametrize(
    "envelope",
    [
        b"\x08\x01",
        field(1, field(1, b"v1") + field(2, b"ConfigMap")) + b"\x10\x05",
        field(1, b"\x08\x01"),
        field(1, field(1, b"v1") + field(2, b"Pod")) + field(2, field(1, field(8, b"\x08" + b"\xff" * 8 + b"\x7f"))),
    ],
    ids=["number for types", "number for the object", "number for a name", "a time beyond all calendars"],
)
async def test_protobuf_of_other_types_is_refused(api, envelope):
    answer = await api("POST", MAPS, b"k8s\x00" + envelope, headers={"content-type": PROTOBUF})
    assert answer.status == 400, answer.data


async def test_a_page_token_that_attacks_its_reader_is_refused(api):
    for text in (b'{"x":' * 5000, b"\xff", b"[" * 5000):
        answer = await api("GET", MAPS, limit=1, **{"continue": base64.urlsafe_b64encode(text).decode()})
        assert answer.status == 400, answer.data


async def test_a_deep_object_of_any_kind_passes_every_verb(api):
    nested = json.loads('{"a":' * 95 + "1" + "}" * 95)
    answer = await api("POST", MAPS, {"metadata": {"name": "own"}, "data": {}, "x": nested})
    assert answer.status in (201, 400), answer.data
    answer = await api.patch(OWN, {"metadata": {"annotations": {}}, "x": nested}, "merge")
    assert answer.status in (200, 400, 404), answer.data
    answer = await api.patch(
        OWN, {"apiVersion": "v1", "kind": "ConfigMap", "x": nested}, "apply", fieldManager="m", force="true"
    )
    assert answer.message.startswith("failed to create typed patch object"), answer.data
