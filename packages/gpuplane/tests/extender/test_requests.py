"""Requests over the wire: every spelling that schedulers use, and every kind of invalid request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import __version__
from gpuplane.scheduler import wire
from gpuplane.sharing import request_of
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput
from tests.support.extender_world import Running, World, gpu_pod, http

POD = {**gpu_pod("a", (30, 4)), "metadata": {"name": "a", "namespace": "default", "uid": "u1"}}
GOOD = json.dumps({"Pod": POD, "NodeNames": ["n1"], "Nodes": None}).encode()


@pytest.mark.parametrize(
    "fields",
    [("Pod", "NodeNames"), ("pod", "nodenames"), ("POD", "NODENAMES"), ("pod", "nodeNames")],
)
def test_names_of_fields_in_any_case(fields: tuple[str, str]) -> None:
    args = wire.filter_args(json.dumps({fields[0]: POD, fields[1]: ["n1", "n2"]}).encode())
    assert args.pod.metadata.name == "a" and args.names == ["n1", "n2"] and args.nodes is None


@pytest.mark.parametrize("field", ["Items", "items"])
def test_whole_nodes_come_back_as_they_came(field: str) -> None:
    nodes = [{"metadata": {"name": name}, "status": {"x": [1.50, "é"]}} for name in ("n1", "n2")]
    args = wire.filter_args(json.dumps({"Pod": POD, "Nodes": {field: nodes}, "NodeNames": None}).encode())
    assert args.names == ["n1", "n2"]
    answer = json.loads(wire.filter_result(args, ["n2"], {"n1": "no"}, {}))
    assert answer["Nodes"]["items"] == [nodes[1]] and answer["NodeNames"] is None


def test_bind_and_preempt_in_any_case() -> None:
    args = wire.bind_args(b'{"podname": "a", "PODNAMESPACE": "b", "podUID": "c", "Node": "d", "more": 1}')
    assert args == wire.BindArgs("a", "b", "c", "d")
    text = {"pod": POD, "nodenametometavictims": {"n": {"pods": [{"uid": "x"}], "numpdbviolations": 2}, "m": {}}}
    preempt = wire.preempt_args(json.dumps(text).encode())
    assert preempt.victims == {"n": wire.Victims(("x",), 2), "m": wire.Victims(())}


mangled = st.one_of(
    st.binary(max_size=200),
    st.integers(0, len(GOOD) - 1).map(lambda end: GOOD[:end]),
    st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=3)).map(
        lambda change: GOOD[: change[0]] + change[1] + GOOD[change[0] + 1 :]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["Pod", "NodeNames", "Node", "a"]), inner),
    ).map(lambda data: json.dumps(data).encode()),
)


@given(mangled)
def test_nothing_else_than_a_refusal_comes_of_what_is_no_request(body: bytes) -> None:
    for read in (wire.filter_args, wire.bind_args, wire.preempt_args):
        try:
            read(body)
        except InvalidInput as error:
            assert "this is no Extender" in error.what


PATHS = ["/filter", "/scheduler/predicates", "/scheduler/filter", "/prioritize", "/scheduler/priorities", "/bind"]


@pytest.mark.parametrize("path", [*PATHS, "/preempt"])
async def test_malformed_and_truncated_bodies_are_answered_400(running: Running, path: str) -> None:
    for body in (b"", b"{", b"[]", b"null", b"{}", GOOD[: len(GOOD) // 2], b'{"Pod": 3}', b"\xff\xfe", b"[" * 100_000):
        answer = await http(running.port, "POST", path, body)
        assert answer.status == 400, body[:20]
        assert "this is no Extender" in answer.json["Error"]
    assert (await http(running.port, "GET", path)).status == 405


async def test_a_million_names_are_refused_and_many_unknown_ones_are_told(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    await running.until(lambda: running.leader.cluster.ledger.node("n1"))
    pod = {**gpu_pod("a", (30, 4)), "metadata": {"name": "a", "namespace": "default", "uid": "u1"}}
    body = json.dumps({"Pod": pod, "NodeNames": [f"nowhere-{index}" for index in range(1_000_000)]}).encode()
    for path in ("/filter", "/prioritize", "/scheduler/predicates"):
        answer = await http(running.port, "POST", path, body)
        assert (answer.status, answer.json["Error"]) == (400, "this is no ExtenderArgs: no cluster has 1000000 nodes")
    found = await running.filter(pod, [*(f"nowhere-{index}" for index in range(10_000)), "n1"])
    assert found["NodeNames"] == ["n1"]
    assert len(found["FailedAndUnresolvableNodes"]) == 10_000
    assert not running.leader.filtering.answers(request_of(msgspec.convert(pod, Pod))).known.keys() - {"n1"}


async def test_many_at_once_are_all_answered(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    await running.until(lambda: running.leader.cluster.ledger.node("n1"))
    pods = [
        {**gpu_pod(f"p{index}", (30, 4)), "metadata": {"name": "a", "namespace": "default", "uid": f"u{index}"}}
        for index in range(100)
    ]
    answers: list[Any] = await asyncio.gather(*(running.filter(pod, ["n1"]) for pod in pods))
    assert all(answer["NodeNames"] == ["n1"] for answer in answers), "claims refuse nobody"


async def test_paths_for_people(running: Running) -> None:
    version = await http(running.port, "GET", "/version")
    assert version.json == {"version": __version__}
    assert (await http(running.port, "GET", "/healthz")).body == b"ok\n"
    assert (await http(running.port, "GET", "/readyz")).status == 200
    assert (await http(running.port, "GET", "/elsewhere")).status == 404
    await http(running.port, "POST", "/filter", GOOD)
    text = (await http(running.port, "GET", "/metrics")).body.decode()
    assert 'gpuplane_scheduler_requests_total{verb="filter",code="200"} 1\n' in text
    assert 'gpuplane_scheduler_request_seconds_count{verb="filter"} 1\n' in text
    assert "gpuplane_scheduler_leader 1\n" in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
