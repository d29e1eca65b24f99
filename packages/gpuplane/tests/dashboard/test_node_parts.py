"""Cached parts of nodes equal newly made parts, and a node that stays costs nothing."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as some

from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.cli.overview import node_view, overview
from gpuplane.cli.remembered_views import RememberedViews
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.board import Board
from gpuplane.dashboard.hiding import without_hidden
from gpuplane.dashboard.node_parts import NodeParts
from gpuplane.dashboard.snapshot import node_part, snapshot
from gpuplane.dashboard.today import HeldToday
from gpuplane.dashboard.viewer_boards import NOT_YOURS, ViewerBoards
from gpuplane.dashboard.viewer_rights import ALL, ViewerRights
from gpuplane.metering.use import GPUUse
from kubekit.api.core import Pod
from packages.gpuplane.tests.cli.status_objects import gpunode, share

SPACES = ("red", "green", "blue")
RIGHTS = (
    ALL,
    ViewerRights(pods=True),
    ViewerRights(nodes=True),
    ViewerRights(),
    *(ViewerRights(nodes=nodes, namespaces=frozenset(own)) for nodes in (False, True) for own in (["red"], SPACES[1:])),
)
nodes = some.tuples(some.integers(0, 1), some.sets(some.integers(0, 3), max_size=1), some.lists(some.integers(0, 5)))
moments = some.lists(
    some.tuples(some.dictionaries(some.sampled_from(["n1", "n2", "n3"]), nodes, max_size=3), some.integers(0, 2)),
    min_size=1,
    max_size=5,
)


def node(name: str, stage: int, sick: set[int]) -> GPUNode:
    made = gpunode(name, gpus=4, failed=(None, StageName.DRIVER)[stage])
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{name}-{gpu.index}") for gpu in made.status.gpus)
    health = {f"GPU-{name}-{at}": "Xid 79: fallen off the bus" for at in sick}
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, gpus=gpus, health=health))


def placed(name: str, on: str, number: int) -> Pod:
    made = share(name, on, 30, 1, number % 4)
    meta = msgspec.structs.replace(made.metadata, namespace=SPACES[number % 3])
    return msgspec.structs.replace(made, metadata=meta)


class Cluster:
    """A cluster that a test moves on; objects that are the same stay the same objects, as informers hold them."""

    hindrance = ""

    def __init__(self) -> None:
        self._objects: dict[Any, Any] = {}
        self._views = RememberedViews()
        self.now: Overview = overview([], [], {})
        self.plain = self.now

    def move(self, described: dict[str, Any]) -> None:
        def same(make: Any, *key: Any) -> Any:
            found = self._objects.get(str(key))
            if found is None:
                found = self._objects[str(key)] = make(*key)
            return found

        there = [same(node, name, stage, sick) for name, (stage, sick, _) in described.items()]
        pods = [
            same(placed, f"pod-{at}", name, number)
            for name, (_, _, numbers) in described.items()
            for at, number in enumerate(numbers)
        ]
        self._views.begin()
        given = (there, pods, {name: {} for name in described})
        self.now, self.plain = overview(*given, view_of=self._views), overview(*given)

    def seen(self) -> Overview:
        return self.now

    async def changed(self) -> None:
        await asyncio.Event().wait()


def use_of(number: int) -> MeasuredUse:
    """Uses of all GPUs; of some numbers idle ones, of 0 none."""
    gpus = {
        f"GPU-{name}-{at}": GPUUse(node=name, index=at, busy_percent=10.0 * at, idle_seconds=400.0 * (at == number))
        for name in ("n1", "n2", "n3")
        for at in range(4)
    }
    return MeasuredUse(gpus if number else {}, "" if number else "nothing measures them")


def document(board: Board) -> Any:
    return msgspec.json.decode(gzip.decompress(board.packed()))["data"]


@given(moments)
@settings(max_examples=40)
def test_boards_have_what_would_be_made_of_each_moment(history: list[tuple[dict[str, Any], int]]) -> None:
    cluster, use = Cluster(), [use_of(0)]
    uses = [use_of(number) for number in range(3)]
    cluster.move(history[0][0])
    boards = ViewerBoards(cluster, "prod", first=1, measured=lambda: (use[0], HeldToday(dollars=2.0)))
    for rights in RIGHTS:
        boards.of(rights)
    for described, number in history:
        use[0] = uses[number]
        cluster.move(described)
        assert cluster.now == cluster.plain
        boards.take(cluster.seen())
        for rights in RIGHTS:
            board = boards.of(rights)
            board.update()
            today = HeldToday(dollars=2.0) if rights.pods else NOT_YOURS
            expected = snapshot(without_hidden(cluster.plain, rights), "prod", use[0], today)
            found = document(board)
            found.pop("hidden", None)
            assert found == msgspec.json.decode(msgspec.json.encode(expected)), rights


def test_a_node_that_stays_is_the_same_object_for_all_and_one_that_changed_is_made_again() -> None:
    cluster = Cluster()
    cluster.move({"n1": (0, set(), [0]), "n2": (0, set(), [1])})
    parts, use = NodeParts(), use_of(1)
    before = [parts(one, use) for one in cluster.now.nodes]
    cluster.move({"n1": (0, set(), [0]), "n2": (0, {1}, [1])})
    parts.begin()
    after = [parts(one, use) for one in cluster.now.nodes]
    assert after[0] is before[0] and after[1] is not before[1]
    assert after == [node_part(one, use) for one in cluster.plain.nodes]
    # With another reading of the use a document that is equal stays the object that boards have.
    parts.begin()
    again = [parts(one, use_of(1)) for one in cluster.now.nodes]
    assert [one.document for one in again] == [one.document for one in after]
    assert all(one.document is other.document for one, other in zip(again, after, strict=True))


def test_a_view_is_made_again_for_each_thing_that_it_is_made_of() -> None:
    views = RememberedViews()
    one, other = node("n1", 0, set()), node("n1", 1, set())
    units: tuple[Any, ...] = ()

    def view(*given: Any) -> NodeView:
        views.begin()
        found = views(*given)
        assert found == node_view(*given)
        return found

    first = view(one, units, [], "", None)
    assert view(one, units, [], "", None) is first
    assert view(other, units, [], "", None) is not first
    assert view(one, units, [], "not Ready", None).away == "not Ready"
    assert view(one, units, [], "", None).away == ""
