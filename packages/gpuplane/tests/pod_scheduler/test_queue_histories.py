"""Random histories of two queues that share six GPUs, with faults at every call and crashes at every step.

No limit is exceeded, no pod is taken from a queue that needs it for its guarantee, nothing is allocated twice, and in
the end no pod waits that fits and may run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane import names
from packages.gpuplane.tests.extender.test_histories import DAY, ENDED, PODS, live, random_step, step
from packages.gpuplane.tests.pod_scheduler.test_histories import SchedulerHistory
from tests.support.fake_api import FakeClient, Fault
from tests.support.virtual_time import settle

GUARANTEED = {"team": 2, "free": 3}
LIMIT = {"team": 3, "free": 5}
ORG_LIMIT = 5


class QueueClient(FakeClient):
    """Looks at each pod that is marked as a victim."""

    def __init__(self, history: QueueHistory) -> None:
        super().__init__(history.api)
        self._history = history

    async def patch(self, kind: Any, name: str, patch: dict[str, Any], *rest: Any) -> Any:
        for condition in patch.get("status", {}).get("conditions") or ():
            if condition["type"] == "DisruptionTarget" and "takes back" in condition["message"]:
                self._history.reclaimed(f"{rest[0]}/{name}")
        return await super().patch(kind, name, patch, *rest)


class QueueHistory(SchedulerHistory):
    """A cluster whose pods are in two queues."""

    def __init__(self) -> None:
        super().__init__()
        self.victims = 0
        for name, gpus in GUARANTEED.items():
            spec = {"guaranteed": {"gpus": gpus}, "limit": {"gpus": LIMIT[name]}, "namespaces": [name]}
            self.api.put("gpuqueues", {"metadata": {"name": name}, "spec": spec})
        self.api.deliver()

    def client(self) -> Any:
        return QueueClient(self)

    def created(self, pod: dict[str, Any]) -> dict[str, Any]:
        pod["spec"] |= {"schedulerName": "gpuplane", "priority": self.count % 3 * 10}
        return pod

    def reclaimed(self, key: str) -> None:
        """The scheduler is about to evict a pod for another queue: what it knows has to allow that."""
        self.victims += 1
        assert self.leader.pods is not None
        placed = self.leader.pods.model.cache.pods
        space = key.partition("/")[0]
        others = [info for info in placed.values() if info.namespace == space and info.key != key]
        held = sum(info.requests.get(names.VCUDA_CORE, 0) for info in others if not info.terminating)
        assert held >= GUARANTEED[space] * 100, "its queue needs the pod for its guarantee"

    def may_run(self, pod: dict[str, Any]) -> bool:
        space = pod["metadata"]["namespace"]
        return self.held(space) + int(_core(pod)) <= LIMIT[space] * 100

    def held(self, space: str) -> int:
        """The percent of a GPU that the bound pods of a namespace hold."""
        return sum(
            _core(pod)
            for pod in self.api.objects["pods"].values()
            if pod["metadata"]["namespace"] == space
            and pod["spec"].get("nodeName")
            and (pod.get("status") or {}).get("phase") not in ENDED
        )

    def check(self) -> None:
        super().check()
        for space, limit in LIMIT.items():
            assert self.held(space) <= limit * 100, f"the limit of queue {space}"


class TreeHistory(QueueHistory):
    """The same two queues below one that may hold less than the cluster has."""

    def __init__(self) -> None:
        super().__init__()
        for name in GUARANTEED:
            queue = self.api.objects["gpuqueues"][name]
            self.api.put("gpuqueues", {**queue, "spec": {**queue["spec"], "parent": "org"}})
        self.api.put("gpuqueues", {"metadata": {"name": "org"}, "spec": {"limit": {"gpus": ORG_LIMIT}}})
        self.api.deliver()

    def may_run(self, pod: dict[str, Any]) -> bool:
        return super().may_run(pod) and self.all_held() + _core(pod) <= ORG_LIMIT * 100

    def all_held(self) -> int:
        return sum(self.held(space) for space in LIMIT)

    def check(self) -> None:
        super().check()
        assert self.all_held() <= ORG_LIMIT * 100, "the limit of queue org"


def _core(pod: dict[str, Any]) -> int:
    return sum(int(one["resources"]["limits"][names.VCUDA_CORE]) for one in pod["spec"]["containers"])


HISTORIES = pytest.mark.parametrize("history", [QueueHistory, TreeHistory])


@HISTORIES
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=60))
def test_short_histories(history: type[QueueHistory], steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(live(history(), steps))


@pytest.mark.parametrize("fault", list(Fault))
def test_a_crash_at_every_step(fault: Fault) -> None:
    async def crashing() -> None:
        for at in range(3, len(DAY) + 1):
            for blind in (False, True):
                bad: Iterable[tuple[Any, ...]] = [("fault", fault), ("blind", blind)]
                await live(QueueHistory(), [*DAY[:3], *bad, *DAY[3:at], ("crash",), *DAY[at:]])

    asyncio.run(crashing())


@HISTORIES
@pytest.mark.parametrize("seed", range(2))
def test_long_histories(history: type[QueueHistory], seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
    dice = random.Random(seed)
    lived = history()
    asyncio.run(live(lived, (random_step(dice) for _ in iter(lambda: lived.count < PODS, False))))
    assert lived.victims, "nothing was taken back"
    assert not [record for record in caplog.records if record.name.startswith("gpuplane")]


@pytest.mark.parametrize(("kind", "victims", "left"), [(QueueHistory, 1, 400), (TreeHistory, 2, 300)])
async def test_what_is_guaranteed_is_taken_back_and_stays(kind: type[QueueHistory], victims: int, left: int) -> None:
    history = kind()
    borrowed: list[tuple[Any, ...]] = [("create", 100, 0, False)] * 5 + [("deliver", 5)] + [("wait", 1.0)]
    claimed: list[tuple[Any, ...]] = [("create", 100, 0, True)] * 4 + [("deliver", 4)] + [("wait", 1.0)]
    await live(history, [*borrowed, *claimed, *[("deliver", 6), ("wait", 12.0)] * 3])
    await settle()
    assert history.victims == victims, "one GPU was free, and may be used if no queue above says otherwise"
    assert (history.held("team"), history.held("free")) == (200, left)
