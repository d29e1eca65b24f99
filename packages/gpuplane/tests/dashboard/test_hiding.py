"""An overview without what a viewer may not list, and how long the answers of the API server about viewers are used."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpuplane.cli.status_views import Overview, Pause
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.board import Board
from gpuplane.dashboard.costs import of_spaces
from gpuplane.dashboard.hiding import NamelessNodes, use_without_hidden, without_hidden
from gpuplane.dashboard.sessions import MOST_OF_USER, MOST_SESSIONS, SESSION_SECONDS, Sessions
from gpuplane.dashboard.snapshot import snapshot
from gpuplane.dashboard.today import HeldToday
from gpuplane.dashboard.viewer_answers import ViewerAnswers
from gpuplane.dashboard.viewer_boards import MOST_BOARDS, UNREAD_SECONDS, ViewerBoards
from gpuplane.dashboard.viewer_rights import ALL, ViewerRights
from gpuplane.dashboard.viewers import AHEAD, FRESH_SECONDS, STALE_SECONDS, Remembered
from gpuplane.metering.cost import MeteredUse
from gpuplane.metering.use import GPUUse, PodUse
from kubekit.api.core import Pod
from kubekit.errors import NoAnswer, Terminal
from kubekit.kube.reviews import ReviewedUser
from packages.gpuplane.tests.cli.status_objects import gpunode, overview, pod

SPACES = ("red", "green", "blue")


def cluster(holders: dict[str, list[str]]) -> Overview:
    """Nodes with the pods of namespaces, each with a GPU that is lost; of each namespace one pod waits."""
    nodes = [gpunode(name) for name in holders]
    pods = [
        placed(f"pod-of-{space}-{at}", name, space)
        for name, spaces in holders.items()
        for at, space in enumerate(spaces)
    ]
    waiting = [placed(f"late-of-{space}", "", space) for space in SPACES]
    return overview(nodes, [*pods, *waiting], dict.fromkeys(holders, 4))


def placed(name: str, node: str, space: str) -> Pod:
    found = pod(name, node, 1)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, namespace=space))


@given(
    some.dictionaries(some.sampled_from(["n1", "n2", "n3"]), some.lists(some.sampled_from(SPACES), max_size=3)),
    some.frozensets(some.sampled_from(SPACES)),
    some.booleans(),
)
def test_no_name_of_another_namespace_is_left(holders: dict[str, list[str]], own: frozenset[str], nodes: bool) -> None:
    seen, rights = cluster(holders), ViewerRights(nodes=nodes, namespaces=own)
    hidden = without_hidden(seen, rights)
    assert hidden == without_hidden(seen, rights, NamelessNodes(seen))
    for text in (msgspec.json.encode(hidden).decode(), msgspec.json.encode(snapshot(hidden, "prod")).decode()):
        for space in SPACES:
            assert (f"-of-{space}" in text) is (space in own), space
    for before, after in zip(seen.nodes, hidden.nodes, strict=True):
        assert (before.held, before.total) == (after.held, after.total)
        assert after.name == before.name or (not nodes and not own & set(holders[before.name]))
    assert (hidden.held, hidden.waiting, hidden.running) == (seen.held, seen.waiting, seen.running)


def test_a_viewer_of_everything_has_the_overview_as_it_is() -> None:
    seen = msgspec.structs.replace(cluster({"n1": ["red"]}), paused=Pause("policy"))
    assert without_hidden(seen, ALL) == seen
    assert without_hidden(seen, ViewerRights(pods=True, nodes=True)).paused is None


def test_what_is_measured_of_pods_is_for_those_who_may_list_them() -> None:
    pods = {"red/a": PodUse(core=1.0), "blue/b": PodUse(core=2.0)}
    use = MeasuredUse({"GPU-1": GPUUse(node="n1", index=0, busy_percent=3.0, pods=pods)}, "", "Prometheus m/p", ("x",))
    found = use_without_hidden(use, ViewerRights(namespaces=frozenset(["red"])))
    assert found.gpus["GPU-1"].pods == {"red/a": pods["red/a"]} and found.gpus["GPU-1"].busy_percent == 3.0
    assert (found.source, found.silent, found.why) == ("", (), "")
    failed = use_without_hidden(MeasuredUse(why="Prometheus m/p has no metrics of GPUs"), ViewerRights())
    assert failed.why == "nothing measures them now"


def test_costs_of_some_namespaces_have_no_others() -> None:
    uses = [
        MeteredUse(names=("red", "team-a"), held_seconds=1.0),
        MeteredUse(names=("red", ""), held_seconds=2.0),
        MeteredUse(names=("blue", "team-b"), held_seconds=4.0),
        MeteredUse(names=(), held_seconds=8.0),
    ]
    found = of_spaces(uses, {"red"}, "team")
    assert [(use.names, use.held_seconds) for use in found] == [(("team-a",), 1.0), (("without team",), 2.0)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_an_answer_is_asked_for_again_and_an_old_one_serves_for_a_while() -> None:
    clock, asked = Clock(), list[str]()
    remembered: Remembered[str, int] = Remembered(2, clock)
    away = False

    async def ask() -> int:
        asked.append("")
        await asyncio.sleep(0)
        if away:
            raise NoAnswer("the API server does not answer")
        return len(asked)

    assert await asyncio.gather(*(remembered.get("a", ask) for _ in range(5))) == [1] * 5
    clock.now = FRESH_SECONDS * AHEAD[0] - 1
    assert await remembered.get("a", ask) == 1
    clock.now = FRESH_SECONDS
    assert await remembered.get("a", ask) == 2
    away = True
    clock.now += FRESH_SECONDS + STALE_SECONDS - 1
    assert await remembered.get("a", ask) == 2
    clock.now += 1
    with pytest.raises(NoAnswer):
        await remembered.get("a", ask)
    with pytest.raises(NoAnswer):
        await remembered.get("stranger", ask)
    away = False
    for key in ("b", "c"):
        await remembered.get(key, ask)
    number = len(asked)
    await remembered.get("a", ask)
    assert len(asked) == number + 1, "the oldest one is forgotten"


async def test_an_answer_in_use_is_asked_for_again_before_its_time_ends_and_nobody_waits() -> None:
    clock, asked, answer = Clock(), list[float](), asyncio.Event()
    remembered: Remembered[str, int] = Remembered(2, clock)

    async def ask() -> int:
        asked.append(clock.now)
        await answer.wait()
        return len(asked)

    answer.set()
    assert await remembered.get("a", ask) == 1
    answer.clear()
    clock.now = FRESH_SECONDS * AHEAD[1]
    assert [await remembered.get("a", ask) for _ in range(3)] == [1, 1, 1]
    await asyncio.sleep(0)
    assert asked == [0.0, clock.now], "three callers, one question"
    clock.now = FRESH_SECONDS
    waiting = asyncio.ensure_future(remembered.get("a", ask))
    await asyncio.sleep(0)
    assert not waiting.done(), "an answer whose time has ended is good for nobody"
    answer.set()
    assert await waiting == 2
    # The answer is as old as its question.
    clock.now = FRESH_SECONDS * (AHEAD[1] + 1) - 1
    assert await remembered.get("a", ask) == 2


async def test_a_question_in_the_background_that_fails_takes_no_answer_away() -> None:
    clock, failed = Clock(), list[float]()
    remembered: Remembered[str, int] = Remembered(2, clock)

    async def ask() -> int:
        if clock.now:
            failed.append(clock.now)
            raise NoAnswer("the API server does not answer")
        return 1

    assert await remembered.get("a", ask) == 1
    for clock.now in (FRESH_SECONDS * AHEAD[1], FRESH_SECONDS * AHEAD[1] + 1):
        assert await remembered.get("a", ask) == 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert failed == [FRESH_SECONDS * AHEAD[1], FRESH_SECONDS * AHEAD[1] + 1]


async def test_refusals_are_used_for_longer() -> None:
    clock, answers = Clock(), [False, True, False]
    remembered: Remembered[str, bool] = Remembered(2, clock, lambda allowed: 10.0 if allowed else 60.0)

    async def ask() -> bool:
        return answers.pop(0)

    found = []
    for clock.now in (0.0, 59.0, 60.0, 69.0, 70.0):
        found.append(await remembered.get("a", ask))
    assert found == [False, False, True, True, False]


def test_sessions_end_and_are_never_too_many() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    first = sessions.open("token", "ml-user")
    assert sessions.token(first) == "token" and sessions.token("guess") == ""
    clock.now = SESSION_SECONDS
    assert sessions.token(first) == ""
    opened = [sessions.open(f"t{number}", f"u{number}") for number in range(MOST_SESSIONS + 1)]
    assert len(set(opened)) == len(opened)
    assert (sessions.token(opened[0]), sessions.token(opened[1])) == ("", "t1")
    sessions.close(opened[1])
    assert sessions.token(opened[1]) == ""


def test_a_user_who_logs_in_very_often_ends_no_session_of_others() -> None:
    sessions = Sessions(Clock())
    other = sessions.open("other", "payroll-user")
    own = [sessions.open(f"t{number}", "ml-user") for number in range(MOST_SESSIONS + 1)]
    assert sessions.token(other) == "other"
    assert [sessions.token(one) for one in own[-MOST_OF_USER - 1 :]] == [
        "",
        *(f"t{number}" for number in range(MOST_SESSIONS + 1 - MOST_OF_USER, MOST_SESSIONS + 1)),
    ]


class Still:
    """A cluster in which nothing happens."""

    hindrance = ""

    def seen(self) -> Overview:
        return cluster({"n1": ["red", "blue"], "n2": ["blue"]})

    async def changed(self) -> None:
        await asyncio.Event().wait()


def document_of(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(gzip.decompress(board.packed()))["data"]
    return found


class FailingCosts:
    """Facts of a cluster whose Prometheus does not answer."""

    async def cost(self, by: str, since: str, spaces: Collection[str] | None = None) -> dict[str, Any]:
        raise Terminal("GET /api/v1/namespaces/blue/services/p/proxy fails", where="Prometheus blue/p", cure="see blue")


async def test_an_error_names_no_service_of_others() -> None:
    boards = ViewerBoards(Still(), "prod", first=1, measured=lambda: (MeasuredUse(), HeldToday()))
    facts: Any = SimpleNamespace(boards=boards, all_facts=FailingCosts())
    with pytest.raises(Terminal, match="blue"):
        await ViewerAnswers(facts, ReviewedUser("admin"), ALL).cost("pod", "1d")
    with pytest.raises(NoAnswer) as caught:
        await ViewerAnswers(facts, ReviewedUser("red"), ViewerRights(namespaces=frozenset(["red"]))).cost("pod", "1d")
    assert "blue" not in str(caught.value)


async def test_viewers_with_the_same_rights_share_a_board() -> None:
    clock = Clock()
    boards = ViewerBoards(
        Still(), "prod", first=1, measured=lambda: (MeasuredUse(), HeldToday(dollars=7.0)), monotonic=clock
    )
    red = ViewerRights(nodes=True, namespaces=frozenset(["red"]))
    assert boards.of(red) is boards.of(ViewerRights(nodes=True, namespaces=frozenset(["red"])))
    assert document_of(boards.of(red))["today"] == {"why": "only with the right to list the pods of all namespaces"}
    assert document_of(boards.of(ALL))["today"]["dollars"] == 7.0
    assert document_of(boards.of(red))["nodes"]["n1"]["spaces"] == ["red"]


async def test_any_number_of_sets_of_rights_has_a_board_and_streams_keep_theirs() -> None:
    clock = Clock()
    boards = ViewerBoards(Still(), "prod", first=1, measured=lambda: (MeasuredUse(), HeldToday()), monotonic=clock)
    red = ViewerRights(nodes=True, namespaces=frozenset(["red"]))
    board = boards.of(red)
    stream = boards.changes(red, msgspec.json.decode(gzip.decompress(board.packed()))["version"])
    assert (await anext(stream)).startswith(b"event: state")
    for number in range(2 * MOST_BOARDS):
        clock.now += 1
        found = boards.of(ViewerRights(namespaces=frozenset([f"s{number}"])))
        assert document_of(found)["hidden"] == ["pods", "nodes"]
    assert boards.of(red) is board
    other = ViewerRights(namespaces=frozenset([f"s{2 * MOST_BOARDS - 1}"]))
    read, gone = boards.of(other), boards.of(ViewerRights(namespaces=frozenset(["s1"])))
    await stream.aclose()
    assert boards.of(other) is read
    clock.now += UNREAD_SECONDS
    boards.of(other)
    unread = gone.changes(msgspec.json.decode(gzip.decompress(gone.packed()))["version"])
    following = asyncio.create_task(boards.run())
    try:
        boards.changed()
        async with asyncio.timeout(30):
            assert all([b"event: state" in event async for event in unread]), "it ends once its board is closed"
        assert boards.of(other) is read and boards.of(red) is not board
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
