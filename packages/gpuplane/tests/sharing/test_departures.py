"""The packing experiment on traces with times."""

from __future__ import annotations

from gpuplane.sharing import violations
from gpuplane.sharing.departures import DepartureExperiment, Stay
from gpuplane.sharing.packing import Job, PackingMachine, PolicyPlacer

ONE = [PackingMachine("n1", 64_000, 65_536, 1, "T4")]


def share(name: str, milli: int) -> Job:
    return Job(name, 1000, 1024, 1, milli)


def run(machines: list[PackingMachine], stays: list[Stay]) -> DepartureExperiment:
    placer = PolicyPlacer(machines, [stay.job for stay in stays], "tightest")
    experiment = DepartureExperiment(machines, stays, placer)
    for _ in experiment.steps():
        assert violations(placer.ledger) == []
    return experiment


def test_a_pod_waits_until_another_leaves_and_runs_for_as_long_as_before() -> None:
    experiment = run(
        ONE, [Stay(share("a", 600), 0, 100), Stay(share("b", 600), 10, 50), Stay(share("c", 100), 200, None)]
    )
    assert [(visit.stay.job.name, visit.started, visit.ends) for visit in experiment.visits] == [
        ("a", 0, 100),
        ("b", 100, 150),
        ("c", 200, None),
    ]
    found = experiment.outcome()
    assert (found.seconds, found.arrived, found.placed, found.waited, found.longest_wait) == (200, 3, 3, 1, 90)
    assert found.held == round(100 * (600 * 150) / (1000 * 200), 2)
    assert found.held_waiting == 60.0
    assert found.most == 60.0


def test_waiting_pods_are_tried_in_the_order_of_arrival_and_a_small_one_passes_a_large_one() -> None:
    stays = [
        Stay(share("first", 700), 0, 100),
        Stay(share("large", 1000), 1, 10),
        Stay(share("small", 400), 2, 10),
        Stay(share("small2", 300), 3, 10),
        Stay(share("last", 100), 300, None),
    ]
    started = {visit.stay.job.name: visit.started for visit in run(ONE, stays).visits}
    assert started == {"first": 0, "small2": 3, "large": 100, "small": 110, "last": 300}


def test_what_never_fits_counts_as_waiting_until_the_end() -> None:
    experiment = run(ONE, [Stay(Job("two", 1000, 1024, 2, 1000), 0, 5), Stay(share("a", 500), 40, None)])
    found = experiment.outcome()
    assert (found.placed, found.waited, found.longest_wait) == (1, 1, 40)
    assert found.gpu_hours_waited == round(2 * 40 / 3600, 1)


def test_no_pod_waits_in_a_cluster_with_room() -> None:
    found = run(ONE, [Stay(share("a", 500), 0, 10), Stay(share("b", 500), 20, 10)]).outcome()
    assert found.held_waiting is None
    assert found.waited == 0
