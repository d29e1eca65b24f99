"""Whole clusters through upgrades, in virtual time, with all that can happen to them."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.components import Drain, PodDeletion
from gpuplane.api.upgrade import ACTIVE, UpgradeRecord, UpgradeState
from gpuplane.operator.upgrade.budget import census, turns
from gpuplane.operator.upgrade.decide import Now, plan
from gpuplane.operator.upgrade.facts import DriverPod, PodFact, UpgradeFacts, UpgradeRules, UpgradeStep, scaled
from gpuplane.operator.upgrade.states import EDGES

S = UpgradeState
START = 1_800_000_000.0
OLD, NEW = "old", "new"


class Machine:
    """One node as the world has it: what the API server stores, and what its operands and pods do."""

    def __init__(self, name: str, rng: random.Random, *, cordoned: bool, pods: int) -> None:
        self.name = name
        self.rng = rng
        self.state, self.record, self.since = S.UNKNOWN, UpgradeRecord(), None
        self.cordoned = self.was_cordoned = cordoned
        self.initial = self.requested = False
        self.ready = True
        self.pin = ""
        self.uids = 0
        self.driver: DriverPod | None = DriverPod(f"driver-{name}", "0", OLD)
        self.pods = [PodFact(f"ml/{name}-{i}", f"{name}{i}", gpu=i % 2 == 0) for i in range(pods)]
        self.budget = rng.choice((0, 1, 99))  # evictions granted before the budget refuses
        self.stages = self.followers = True
        self.busy = 0.0
        self.troubled = 0.0

    def seen(self, wanted: str, bad: frozenset[tuple[str, str]]) -> UpgradeFacts:
        works = self.driver is not None and (self.name, self.driver.digest) not in bad
        up = self.stages and self.ready
        return UpgradeFacts(
            self.name,
            ready=self.ready,
            cordoned=self.cordoned,
            state=self.state,
            record=self.record,
            since=self.since,
            initial=self.initial,
            requested=self.requested,
            pin=self.pin,
            wanted=wanted,
            driver=self.driver,
            kept=True,
            followers=("plugin",) if self.followers else (),
            loaded=up and works,
            settled=not self.stages and not self.followers,
            validated=up and works and self.followers,
            trouble="" if works or self.driver is None else "does not work",
            troubled=self.troubled,
            pods=tuple(self.pods),
        )

    def apply(self, step: UpgradeStep, now: float) -> None:
        if step.state is not None:
            assert step.state in EDGES[self.state]
            self.state, self.since = step.state, now
        if step.record is not None:
            self.record = step.record
        self.cordoned = self.cordoned if step.cordon is None else step.cordon
        self.initial = self.initial if step.initial is None else step.initial
        self.requested = self.requested if step.requested is None else step.requested
        for pod in step.evict:
            if self.budget and pod in self.pods:
                self.budget -= 1
                self.pods.remove(pod)
        if step.pin is not None:
            self.pin, self.driver = step.pin, None
        if step.restart is not None and self.driver is not None and step.restart.uid == self.driver.uid:
            self.driver = None

    def turn(self, wanted: str, bad: frozenset[tuple[str, str]], seconds: float) -> None:
        """Do the work of kubelet, DaemonSets and operands for some seconds."""
        self.budget = max(self.budget, self.rng.choice((0, 0, 1)))
        if not self.ready:
            return
        fresh = self.driver is None
        if self.driver is None:
            self.uids += 1
            self.driver = DriverPod(f"driver-{self.name}", str(self.uids), self.pin or wanted)
        works = (self.name, self.driver.digest) not in bad
        self.troubled = 0.0 if works or fresh else self.troubled + seconds
        if self.state is S.RESTART:
            stale = self.driver.digest != self.record.target or self.driver.uid == self.record.pod
            self.followers = False
            self.stages = not stale and not fresh
        else:
            self.stages = self.followers = True


def away(machines: dict[str, Machine]) -> int:
    return sum(m.cordoned or not m.ready or m.state in ACTIVE for m in machines.values())


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 9),
    parallel=st.integers(0, 4),
    unavailable=st.integers(1, 5),
    drain=st.booleans(),
    timeout=st.sampled_from((60, 300)),
    bad=st.sampled_from((0.0, 0.2, 1.0)),
    trouble=st.booleans(),
)
def test_no_cluster_goes_beyond_its_limits_and_no_node_is_stuck(
    seed: int, count: int, parallel: int, unavailable: int, drain: bool, timeout: int, bad: float, trouble: bool
) -> None:
    rng = random.Random(seed)
    rules = UpgradeRules(
        enabled=True,
        parallel=parallel,
        unavailable=unavailable,
        deletion=PodDeletion(timeout_seconds=timeout),
        drain=Drain(enable=drain, timeout_seconds=timeout),
    )
    machines = {
        f"n{i}": Machine(f"n{i}", rng, cordoned=rng.random() < 0.2, pods=rng.randrange(4)) for i in range(count)
    }
    broken = frozenset((name, NEW) for name in machines if rng.random() < bad)
    limit = max(unavailable, away(machines))
    wanted, now = OLD, START
    for tick in range(400):
        now += rng.choice((1.0, 20.0, 70.0))
        if tick == 3:
            wanted = NEW
        if trouble and tick < 120:
            name = rng.choice([*machines, ""])
            if name and rng.random() < 0.03:
                del machines[name]  # with all that it carried; it may come back as another one
            elif name and rng.random() < 0.05:
                machines[name].ready = not machines[name].ready
                limit = max(limit, away(machines))
            elif rng.random() < 0.03:
                wanted = rng.choice((OLD, NEW, "newer"))
        elif tick == 120:
            for machine in machines.values():
                machine.ready = True
        if not machines:
            return
        seen = [machine.seen(wanted, broken) for machine in machines.values()]
        steps = plan(seen, rules, Now(now, f"T{now}"))
        begun = [step.node for step in steps if step.state is S.CORDON]
        for step in steps:
            if trouble and rng.random() < 0.2:
                continue  # the operator died before this one
            machines[step.node].apply(step, now)
            if rng.random() < 0.2 and step.state is None:
                machines[step.node].apply(step, now)  # or receives the same step twice
        under_way = sum(machine.state in ACTIVE for machine in machines.values())
        if begun:
            assert not parallel or under_way <= parallel
            assert away(machines) <= limit
        for machine in machines.values():
            machine.turn(wanted, broken, 20.0)
    final = [machine.seen(wanted, broken) for machine in machines.values()]
    for machine, node in zip(machines.values(), final, strict=True):
        assert machine.state in (S.DONE, S.FAILED, S.REQUIRED), (machine.name, machine.state, machine.record)
        if machine.state is S.REQUIRED:
            counted = census(final, rules)
            assert not turns(final, rules)
            assert (parallel and counted.stopped >= parallel) or counted.away >= unavailable
        if machine.state is S.DONE:
            assert not node.outdated
        works = (machine.name, machine.driver.digest if machine.driver else "") not in broken
        assert machine.cordoned == machine.was_cordoned or not works, node
        assert not machine.initial or machine.state is S.FAILED


def test_two_hundred_nodes_go_through_in_virtual_time() -> None:
    """A quarter may be away; the pods of each take their time, and one driver in fifty does not come up."""
    rng = random.Random(7)
    rules = UpgradeRules(enabled=True, parallel=0, unavailable=scaled("25%", 200))
    machines = {f"n{i}": Machine(f"n{i}", rng, cordoned=False, pods=rng.randrange(4)) for i in range(200)}
    broken = frozenset((name, NEW) for name in machines if rng.random() < 0.02)
    most, now = 0, START
    for _ in range(400):
        now += 20.0
        for step in plan([machine.seen(NEW, broken) for machine in machines.values()], rules, Now(now, f"T{now}")):
            machines[step.node].apply(step, now)
        most = max(most, away(machines))
        for machine in machines.values():
            machine.turn(NEW, broken, 20.0)
    assert most == 50
    bad = {name for name, _ in broken}
    assert {name for name, machine in machines.items() if machine.state is S.FAILED} == bad
    assert all(machine.state is S.DONE for name, machine in machines.items() if name not in bad)
    assert not any(machine.cordoned for machine in machines.values())
