"""A live cluster's policies follow what its pods ask."""

from __future__ import annotations

import pytest
from sharing_examples import container, gpus, node, pod

from gpuplane.errors import Usage
from gpuplane.sharing import Request, request_of
from gpuplane.sharing.placement import Placement, place
from gpuplane.sharing.placement.learner import Learner


def asked(core: int) -> Request:
    return request_of(pod(container("a", core=core, cpu="1")))


def index_of(learner: Learner, name: str, free: tuple[int, ...], request: Request) -> int:
    placed = place(node(*free), request, learner.policy(name))
    assert isinstance(placed, Placement)
    return placed.assignment.containers["a"][0].index


def taught(learner: Learner) -> int:
    return sum(1 for _ in learner.lesson())


@pytest.mark.parametrize("name", ["opportunity", "fragmentation"])
def test_a_gap_is_kept_for_those_who_have_come_before(name: str) -> None:
    learner = Learner(lambda: [gpus(8)])
    learner.policy(name)
    for _ in range(20):
        learner.seen(asked(70))
        learner.seen(asked(30))
    assert learner.due
    taught(learner)
    assert not learner.due
    # Beside 70 free, which the next 70 needs whole, and 30 free, which are just right.
    assert index_of(learner, name, (100, 70, 30), asked(30)) == 2


def test_lessons_become_rare() -> None:
    learner = Learner(lambda: [gpus(8)])
    learner.policy("opportunity")
    lessons = 0
    for _ in range(20_000):
        learner.seen(asked(50))
        if learner.due:
            taught(learner)
            lessons += 1
    assert 8 < lessons < 20


def test_policies_change_at_the_end_of_a_lesson_and_stay_until_then() -> None:
    learner = Learner(lambda: [gpus(8)])
    before, same = learner.policy("opportunity"), learner.policy("tightest")
    for core in (70, 30, 20, 45):
        learner.seen(asked(core))
    lesson = learner.lesson()
    next(lesson)
    assert learner.policy("opportunity") is before
    for _ in lesson:
        pass
    assert learner.policy("opportunity") is not before
    assert learner.policy("tightest") is same


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(Usage):
        Learner(lambda: []).policy("best")
