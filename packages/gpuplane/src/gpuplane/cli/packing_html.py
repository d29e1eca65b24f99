"""The page of `gpuplane simulate packing --html FILE`: how full each way makes the cluster, as curves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpuplane.cli.html_page import html_page, html_table, run_section
from gpuplane.cli.line_chart import Axis, ChartPoint, Curve, line_chart
from gpuplane.cli.simulate_text import lasting
from gpuplane.cli.simulate_ways import PackingRun

_UNITS: Final[tuple[tuple[int, str, str], ...]] = (
    (86_400, " d", "days"),
    (3_600, " h", "hours"),
    (60, " min", "minutes"),
    (1, " s", "seconds"),
)
_NEAR: Final = 0.05  # percent of all GPUs by which a way may be behind what arrived, and count as one that held it all
_HELD: Final = "Held, percent of all GPUs"


def packing_page(runs: Sequence[PackingRun], words: Sequence[str], facts: Mapping[str, str]) -> str:
    """Return the page of one run or several of one experiment.

    Args:
        words: the command line without the program.
        facts: what was run, in words, by name: the nodes, the pods, the seed.
    """
    timed = runs[0].occupation is not None
    ways = str(runs[0].way) if len(runs) == 1 else f"{len(runs)} ways compared"
    body = (
        *_results(runs, timed),
        *(_over_time(runs) if timed else _by_arrivals(runs)),
        *run_section(words, facts),
    )
    return html_page(f"How full the GPUs are: {ways}", "simulate packing", body)


# -- the results of each way -------------------------------------------------------------------------------------------


def _results(runs: Sequence[PackingRun], timed: bool) -> Iterator[str]:
    yield "<section>\n<h2>Results</h2>"
    heads, rows = (_timed_rows if timed else _packed_rows)(runs)
    yield from html_table("Results by way", heads, rows)
    note = (
        "Fragments: percent of all GPUs that are free at the end and of no use to the next pod."
        if not timed
        else "While pods wait: the mean over the time in which a pod with GPUs waited."
    )
    yield f'<p class="soft">{note}</p>\n</section>'


def _packed_rows(runs: Sequence[PackingRun]) -> tuple[list[str], list[list[str]]]:
    outcomes = [(run, run.outcome) for run in runs if run.outcome is not None]
    heads = ["Way", *(f"At {row}%" for row in outcomes[0][1].allocated), "Fragments", "Placed", "Decisions/s"]
    rows = []
    for run, found in outcomes:
        held = ["-" if percent is None else f"{percent:.2f}%" for percent in found.allocated.values()]
        placed = f"{found.placed:,} of {found.arrived:,}"
        rows.append([str(run.way), *held, f"{found.fragments:.2f}%", placed, f"{run.speed:,.0f}"])
    return heads, rows


def _timed_rows(runs: Sequence[PackingRun]) -> tuple[list[str], list[list[str]]]:
    heads = [
        "Way",
        "Held",
        "Most",
        "While pods wait",
        "Waited",
        "Longest",
        "GPU hours waited",
        "Model of power",
        "Decisions/s",
    ]
    rows = []
    for run in runs:
        if (found := run.occupation) is not None:
            waiting = "-" if found.held_waiting is None else f"{found.held_waiting:.2f}%"
            waited = [f"{found.waited:,} of {found.arrived:,}", lasting(found.longest_wait)]
            held = [f"{found.held:.2f}%", f"{found.most:.2f}%", waiting]
            more = [f"{found.gpu_hours_waited:,.1f}", f"{found.watts / 1000:,.1f} kW", f"{run.speed:,.0f}"]
            rows.append([str(run.way), *held, *waited, *more])
    return heads, rows


# -- the curves --------------------------------------------------------------------------------------------------------


def _by_arrivals(runs: Sequence[PackingRun]) -> Iterator[str]:
    most = max((at for run in runs for at, _ in run.held), default=0.0)
    if most <= 0:
        yield _nothing("no pod requested a GPU")
        return
    x = Axis("Arrived, percent of all GPUs", "%", 0.0, most)
    whole = Curve("all that arrived", [(0.0, 0.0), (min(most, 100.0), min(most, 100.0))], ideal=True)
    curves = [*(Curve(str(run.way), [(0.0, 0.0), *_above_zero(run.held)]) for run in runs), whole]
    yield from line_chart("Held by arrived", x, Axis(_HELD, "%", 0.0, 100.0), curves, "pods arrive, none leaves")
    yield from _behind(runs, x)
    yield from _power(runs)


def _behind(runs: Sequence[PackingRun], x: Axis) -> Iterator[str]:
    """Yield how much less than a perfect packing each way holds; nothing where all hold all that arrived."""
    missed = [[(at, min(at, 100.0) - held) for at, held in _above_zero(run.held)] for run in runs]
    most_missed = max(value for points in missed for _, value in points)
    if most_missed > _NEAR:
        y = Axis("Percent of all GPUs", "%", 0.0, most_missed * 1.05)
        lines = [Curve(str(run.way), points) for run, points in zip(runs, missed, strict=True)]
        about = "what a perfect packing would hold besides, of what arrived"
        yield from line_chart("Behind a perfect packing", x, y, lines, about)


def _power(runs: Sequence[PackingRun]) -> Iterator[str]:
    curves = [
        Curve(
            str(run.way),
            [(float(held), watts / 1000) for held, watts in run.outcome.watts.items() if watts is not None],
        )
        for run in runs
        if run.outcome is not None
    ]
    most = max((kilowatts for curve in curves for _, kilowatts in curve.points), default=0.0)
    if most > 0:
        x, y = Axis(_HELD, "%", 0.0, 100.0), Axis("Power of all GPUs, kW", "", 0.0, most * 1.05)
        yield from line_chart("Power by a model of the GPUs", x, y, curves, "not measured")


def _over_time(runs: Sequence[PackingRun]) -> Iterator[str]:
    seconds = max((run.occupation.seconds for run in runs if run.occupation is not None), default=0)
    if not seconds:
        yield _nothing("all pods arrived in the same second")
        return
    size, unit, name = next(found for found in _UNITS if seconds >= 2 * found[0] or found[0] == 1)
    x = Axis(f"Time since the first arrival, {name}", unit, 0.0, seconds / size)
    held = [Curve(str(run.way), _in_units(run.held, size)) for run in runs]
    about = f"means over {lasting(max(1, seconds // max(1, len(runs[0].held))))} each"
    yield from line_chart("Held over time", x, Axis(_HELD, "%", 0.0, 100.0), held, about)
    most = max((gpus for run in runs for _, gpus in run.waiting), default=0.0)
    if not most:
        yield _nothing("no pod with GPUs waited")
        return
    waiting = [Curve(str(run.way), _in_units(run.waiting, size)) for run in runs]
    y = Axis("GPUs that waiting pods request", "", 0.0, most * 1.05)
    yield from line_chart("Waiting over time", x, y, waiting, about)


def _in_units(points: Sequence[ChartPoint], size: int) -> list[ChartPoint]:
    return [(at / size, value) for at, value in points]


def _above_zero(points: Sequence[ChartPoint]) -> list[ChartPoint]:
    return [(at, value) for at, value in points if at > 0]


def _nothing(why: str) -> str:
    return f'<p class="notice">No curve: {why}.</p>'
