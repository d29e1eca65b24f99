"""`gpuplane simulate packing`: how full pods make a cluster, under a policy alone or through a whole scheduler."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane.cli import simulate_text
from gpuplane.cli.forms import as_document
from gpuplane.cli.output_files import require_output, write_output
from gpuplane.cli.packing_html import packing_page
from gpuplane.cli.simulate_files import in_order, read_jobs, read_machines, read_stays
from gpuplane.cli.simulate_ways import PackingRun, PackingWay, placements_csv
from gpuplane.cli.terminal import Console
from gpuplane.scheduler.simulation.placers import ExtenderPlacer, SchedulerPlacer
from gpuplane.sharing.departures import DepartureExperiment, Stay
from gpuplane.sharing.packing import (
    MILLI,
    Experiment,
    Job,
    PackingMachine,
    Placer,
    PolicyPlacer,
    arrivals,
    shuffled,
    up_to,
)
from kubekit.errors import UsageError

INFLATE: Final = 1.3
_SAY_EVERY: Final = 2.0  # seconds
_CLEAR: Final = "\r\x1b[K"
_NAME_A_FILE: Final = "name a file that can be written"


class _Input(msgspec.Struct, frozen=True):
    """Input of all ways: `machines` in order, the trace's `jobs`, and what arrives, with times or without."""

    machines: Sequence[PackingMachine]
    jobs: Sequence[Job]
    arriving: Sequence[Job] = ()
    stays: Sequence[Stay] | None = None


def packing(options: Namespace, screen: Console) -> int:
    ways = options.compare or [PackingWay(options.through or "policy", options.policy)]
    _require_sense(options)
    for option, path in (("--placements", options.placements), ("--html", options.html)):
        if path is not None:
            require_output(path, option=option, cure=_NAME_A_FILE)
    given = _read(options)
    runs = []
    for way in ways:
        if len(ways) > 1:
            screen.say(f"{way}")
        runs.append(_run(way, given, options, screen))
    if options.placements is not None:
        text = placements_csv(runs[0].placements)
        write_output(options.placements, text.encode(), option="--placements", cure=_NAME_A_FILE)
        screen.say(f"wrote {options.placements}")
    if options.html is not None:
        page = packing_page(runs, options.command_line, _facts(given, options))
        write_output(options.html, page.encode(), option="--html", cure=_NAME_A_FILE)
    if options.output != "text":
        kind, data = ("PackingComparison", {"runs": [_data(run) for run in runs]})
        if options.compare is None:
            kind, data = "Packing", _data(runs[0])
        screen.print(as_document(kind, data, options.output))
    elif options.compare is not None:
        simulate_text.show_comparison(runs, given.machines, screen)
    else:
        simulate_text.show(runs[0], given.machines, screen)
    if options.html is not None:
        screen.say(f"wrote {options.html}")
    return 0


def _require_sense(options: Namespace) -> None:
    """Raise UsageError for options that say nothing together."""
    if options.compare is not None:
        if options.through is not None:
            raise UsageError("--compare names the ways itself", cure="--compare policy extender scheduler")
        if options.placements is not None:
            raise UsageError("--placements is of one way", cure="leave --compare out, and name it with --through")
    elif options.learn and options.through in ("extender", "scheduler"):
        raise UsageError(f"--through {options.through} always learns the mix", cure="leave --learn out")
    if options.trace is not None and (options.arrival_order is not None or options.inflate is not None):
        raise UsageError("--trace has the times of arrival", cure="leave --arrival-order and --inflate out")


def _read(options: Namespace) -> _Input:
    machines = read_machines(options.nodes)
    order = options.node_order
    placed = shuffled(machines, options.seed) if order is None else in_order(machines, order, "node", again=False)
    if options.trace is not None:
        stays = read_stays(options.trace)
        return _Input(placed, [stay.job for stay in stays], stays=stays)
    jobs = read_jobs(options.pods)
    inflate = INFLATE if options.inflate is None else options.inflate
    if options.arrival_order is not None:
        arriving = up_to(in_order(jobs, options.arrival_order, "pod", again=True), machines, inflate)
    else:
        arriving = arrivals(jobs, machines, options.seed, inflate)
    return _Input(placed, jobs, arriving)


def _facts(given: _Input, options: Namespace) -> dict[str, str]:
    """Return what a run is made of, in words."""
    gpus = sum(machine.gpus for machine in given.machines)
    nodes = f"{options.nodes}: {len(given.machines):,} nodes, {gpus:,} GPUs"
    if options.trace is not None:
        return {
            "Nodes": nodes,
            "Trace": f"{options.trace}: {len(given.jobs):,} pods, which leave",
            "Order of nodes": _order(options.node_order, options),
        }
    requested = sum(job.load for job in given.arriving) / MILLI / gpus
    return {
        "Nodes": nodes,
        "Pods": f"{options.pods}: {len(given.jobs):,} pods",
        "Arrivals": f"{len(given.arriving):,} pods, which request {requested:.2f} times the GPUs",
        "Order of arrival": _order(options.arrival_order, options),
        "Order of nodes": _order(options.node_order, options),
    }


def _order(path: Path | None, options: Namespace) -> str:
    return f"random, seed {options.seed}" if path is None else f"of {path}"


def _placer(way: PackingWay, given: _Input, options: Namespace) -> Placer:
    if way.through == "scheduler":
        return SchedulerPlacer(given.machines, way.policy, options.seed)
    if way.through == "extender":
        return ExtenderPlacer(given.machines, way.policy, options.seed)
    return PolicyPlacer(given.machines, given.jobs, way.policy, known=not options.learn)


def _run(way: PackingWay, given: _Input, options: Namespace, screen: Console) -> PackingRun:
    placer = _placer(way, given, options)
    if given.stays is not None:
        timed = DepartureExperiment(given.machines, given.stays, placer)
        speed = _drive(timed.steps(), len(given.stays), screen)
        rows = [
            (visit.stay.job, visit.placed, (visit.stay.arrives, visit.started, visit.ends)) for visit in timed.visits
        ]
        held, waiting = timed.curves()
        return PackingRun(way, speed, rows, occupation=timed.outcome(), held=held, waiting=waiting)
    experiment = Experiment(given.machines, given.jobs, given.arriving, placer)
    speed = _drive(experiment.steps(), len(given.arriving), screen)
    placed = [(job, at, None) for job, at in experiment.placements]
    return PackingRun(way, speed, placed, outcome=experiment.outcome(), held=experiment.curve())


def _drive(steps: Iterator[None], arriving: int, screen: Console) -> float:
    """Run the experiment; return the arrivals decided for a second on the processor, without other programs' time."""
    began, said = time.process_time(), time.monotonic()
    for number, _ in enumerate(steps):
        if time.monotonic() - said >= _SAY_EVERY:
            said = time.monotonic()
            line = f"{number + 1:,} of {arriving:,} pods arrived"
            if screen.live:
                screen.err.write(f"{_CLEAR}{line}")
                screen.err.flush()
            else:
                screen.say(line)
    if screen.live:
        screen.err.write(_CLEAR)
    return arriving / max(time.process_time() - began, 1e-9)


def _data(run: PackingRun) -> dict[str, Any]:
    data: dict[str, Any] = {
        "policy": run.way.policy,
        "through": run.way.through,
        "decisions_per_second": round(run.speed),
    }
    if run.outcome is not None:
        rows = {str(row): percent for row, percent in run.outcome.allocated.items()}
        data |= {"allocated_percent": rows, "fragmentation_percent": run.outcome.fragments}
        data["model_watts_by_percent_held"] = {str(row): watts for row, watts in run.outcome.watts.items()}
        data |= {"pods": run.outcome.arrived, "placed": run.outcome.placed}
    if (found := run.occupation) is not None:
        data |= {
            "seconds": found.seconds,
            "held_percent": found.held,
            "held_percent_most": found.most,
            "held_percent_while_pods_wait": found.held_waiting,
            "pods": found.arrived,
            "placed": found.placed,
            "waited": found.waited,
            "wait_seconds_99": found.waited_99,
            "wait_seconds_longest": found.longest_wait,
            "gpu_hours_waited": found.gpu_hours_waited,
            "model_watts": found.watts,
        }
    return data
