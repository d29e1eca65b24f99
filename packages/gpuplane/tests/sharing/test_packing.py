"""The packing experiment on small made-up traces, and on the published one where it is at hand."""

from __future__ import annotations

import pytest

from gpuplane.sharing import POLICIES, violations
from gpuplane.sharing.packing import Experiment, Job, PackingMachine, PolicyPlacer, arrivals, shuffled

MACHINES = [PackingMachine(f"m{at}", 16_000, 65_536, 4, "T4" if at % 2 else "A100") for at in range(6)]
JOBS = [
    *(Job(f"whole{at}", 3000, 4096, 1, 1000) for at in range(8)),
    *(Job(f"most{at}", 1000, 4096, 1, 810) for at in range(6)),
    *(Job(f"half{at}", 2000, 4096, 1, 470) for at in range(8)),
    *(Job(f"little{at}", 1000, 1024, 1, 190) for at in range(4)),
    *(Job(f"named{at}", 1000, 1024, 1, 500, ("A100",)) for at in range(2)),
    Job("two", 4000, 8192, 2, 1000),
    *(Job(f"none{at}", 2000, 1024, 0, 0) for at in range(4)),
]


def test_jobs_arrive_until_so_much_was_asked_for() -> None:
    found = arrivals(JOBS, MACHINES, 7, 1.3)
    assert sorted(job.name for job in found[: len(JOBS)]) == sorted(job.name for job in JOBS)
    assert 1.25 * 24_000 < sum(job.load for job in found) <= 1.3 * 24_000
    assert found == arrivals(JOBS, MACHINES, 7, 1.3)
    assert found != arrivals(JOBS, MACHINES, 8, 1.3)
    assert shuffled(MACHINES, 7) == shuffled(reversed(MACHINES), 7)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_pod_that_fits_is_placed_and_nothing_is_held_twice(policy: str) -> None:
    placer = PolicyPlacer(MACHINES, JOBS, policy)
    experiment = Experiment(MACHINES, JOBS, arrivals(JOBS, MACHINES, 7, 1.3), placer)
    for _ in experiment.steps():
        pass
    assert violations(placer.ledger) == []
    outcome = experiment.outcome()
    held = 24_000 - sum(sum(node.core) for node in placer.ledger.nodes())
    reached = [some for some in outcome.allocated.values() if some is not None]
    assert reached
    assert reached == sorted(reached)
    assert 70 < reached[-1] <= held / 240 + 0.01
    assert 0 <= outcome.fragments <= 100 - held / 240 + 0.01


def test_what_never_arrives_is_not_made_up() -> None:
    experiment = Experiment(MACHINES, JOBS, JOBS, PolicyPlacer(MACHINES, JOBS, "opportunity"))
    for _ in experiment.steps():
        pass
    assert experiment.outcome().allocated[130] is None


def test_a_policy_may_have_to_learn_the_mix_as_it_comes() -> None:
    placer = PolicyPlacer(MACHINES, JOBS, "opportunity", known=False)
    experiment = Experiment(MACHINES, JOBS, arrivals(JOBS, MACHINES, 7, 1.3), placer)
    for _ in experiment.steps():
        pass
    assert violations(placer.ledger) == []
    assert any(value is not None and value > 70 for value in experiment.outcome().allocated.values())
