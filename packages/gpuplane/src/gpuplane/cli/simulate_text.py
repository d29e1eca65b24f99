"""The answers of `gpuplane simulate packing` for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuplane.cli.simulate_ways import PackingRun
from gpuplane.cli.terminal import Console
from gpuplane.sharing.departures import Occupation
from gpuplane.sharing.packing import POWER_ROWS, Outcome, PackingMachine

_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60
_BAR: Final = 24
_HELD: Final = POWER_ROWS[::2]
_POWER: Final = "MODEL OF POWER, kW"


def show(run: PackingRun, machines: Sequence[PackingMachine], screen: Console) -> None:
    """Print one run."""
    result = run.outcome or run.occupation
    assert result is not None
    facts = (*_size(machines), f"{result.arrived:,} pods", f"{result.placed:,} placed")
    screen.print(f"packing    {run.way}    {'   '.join(facts)}")
    screen.print()
    if run.outcome is not None:
        _rows(run.outcome, screen)
        screen.print()
        kilowatts = "  ".join(_kilowatts(run.outcome.watts[row]) for row in _HELD)
        held = ", ".join(f"{row}%" for row in _HELD)
        screen.print(f"  power       {kilowatts} kW of all GPUs, by a model,")
        screen.print(f"              when {held} of them are held")
        screen.print(f"  fragments   {run.outcome.fragments:.2f}% of all GPUs are free and of no use to the next pod")
    elif run.occupation is not None:
        _occupation(run.occupation, screen)
    screen.print(f"  decisions   {run.speed:,.0f} a second on one core")


def show_comparison(runs: Sequence[PackingRun], machines: Sequence[PackingMachine], screen: Console) -> None:
    """Print a line for each run."""
    screen.print(f"packing    {'   '.join(_size(machines))}")
    screen.print()
    width = max(len(_POWER), *(len(str(run.way)) for run in runs))
    if runs[0].outcome is not None:
        screen.print(
            f"  {'WAY':{width}}   HELD AT"
            + "".join(f"{f'{row}%':>8}" for row in runs[0].outcome.allocated)
            + "   FRAGMENTS   DECISIONS/S"
        )
    else:
        screen.print(f"  {'WAY':{width}}     HELD     MOST   WHILE PODS WAIT   WAITED   LONGEST   DECISIONS/S")
    for run in runs:
        start = f"  {run.way!s:{width}}"
        if (out := run.outcome) is not None:
            cells = "".join(f"{'-':>8}" if some is None else f"{some:8.2f}" for some in out.allocated.values())
            screen.print(f"{start}          {cells}   {out.fragments:8.2f}%   {run.speed:11,.0f}")
        elif (found := run.occupation) is not None:
            waiting = "-" if found.held_waiting is None else f"{found.held_waiting:.2f}%"
            parts = f"{found.held:7.2f}%  {found.most:6.2f}%   {waiting:>15}   {found.waited:6,}"
            screen.print(f"{start}  {parts}   {lasting(found.longest_wait):>7}   {run.speed:11,.0f}")
    screen.print()
    _power(runs, width, screen)


def _power(runs: Sequence[PackingRun], width: int, screen: Console) -> None:
    """Print what all GPUs take under each run, in the model."""
    if runs[0].outcome is not None:
        cells = "".join(f"{f'{row}%':>8}" for row in _HELD)
        screen.print(f"  {_POWER:{width}}      HELD{cells}")
    else:
        screen.print(f"  {_POWER:{width}}     MEAN")
    for run in runs:
        start = f"  {run.way!s:{width}}"
        if (out := run.outcome) is not None:
            screen.print(f"{start}          " + "".join(f"{_kilowatts(out.watts[row]):>8}" for row in _HELD))
        elif (found := run.occupation) is not None:
            screen.print(f"{start}  {_kilowatts(found.watts):>7}")


def _kilowatts(watts: int | None) -> str:
    return "-" if watts is None else f"{watts / 1000:,.1f}"


def lasting(seconds: int) -> str:
    """Format seconds for people: `3d`, `5h`, `12m`, `40s`."""
    for size, sign in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{sign}"
    return f"{seconds}s"


def _size(machines: Sequence[PackingMachine]) -> tuple[str, str]:
    return f"{len(machines):,} nodes", f"{sum(machine.gpus for machine in machines):,} GPUs"


def _rows(outcome: Outcome, screen: Console) -> None:
    screen.print("  ARRIVED   HELD OF ALL GPUS                        FREE")
    for row, percent in outcome.allocated.items():
        if percent is None:
            screen.print(f"     {row:3}%   not reached")
        else:
            screen.print(f"     {row:3}%   {screen.bar(percent / 100, _BAR)}  {percent:6.2f}%   {100 - percent:6.2f}%")


def _occupation(found: Occupation, screen: Console) -> None:
    screen.print(f"  HELD OF ALL GPUS, OVER {lasting(found.seconds)}")
    shares = (("on average", found.held), ("while pods with GPUs waited", found.held_waiting), ("at most", found.most))
    for name, percent in shares:
        if percent is None:
            screen.print(f"     {name:28} no pod waited")
        else:
            screen.print(f"     {name:28} {screen.bar(percent / 100, _BAR)}  {percent:6.2f}%")
    screen.print()
    late = f"{found.waited:,} of {found.arrived:,} pods, longest {lasting(found.longest_wait)}"
    screen.print(f"  waited      {late}; 99 of 100 pods less than {lasting(found.waited_99 + 1)}")
    screen.print(f"              {found.gpu_hours_waited:,.1f} hours of a GPU were waited for")
    screen.print(f"  power       {found.watts / 1000:,.1f} kW on average, by a model of the GPUs")
