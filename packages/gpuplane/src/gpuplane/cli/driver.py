"""`gpuplane driver plan`: what installing a driver would do to this machine, or to a mounted root."""

from __future__ import annotations

from argparse import Namespace

import msgspec

from gpuplane.cli.forms import as_document
from gpuplane.cli.host_root import require_root
from gpuplane.cli.terminal import Console
from gpuplane.driver import Action, WantedDriver
from gpuplane.driver.by_hand import plan as plan_of
from gpuplane.host import Host


def plan(options: Namespace, screen: Console) -> int:
    """0 when a driver would work in the end, 1 when not, with what stands against it."""
    wanted = WantedDriver(version=options.driver_version, kind=options.kernel_modules, precompiled=options.precompiled)
    planned = plan_of(Host(require_root(options.host_root)), wanted)
    fails = planned.end.action is Action.FAIL
    if options.output != "text":
        screen.print(as_document("DriverPlan", msgspec.to_builtins(planned), options.output))
        return int(fails)
    for action in planned.actions:
        screen.print(action.action.value)
        for command in action.commands:
            screen.print(f"    {command}")
    if fails:
        screen.print(f"{screen.paint(screen.glyph('bad'), 'bad')} {planned.end.reason}: {planned.end.what}")
        screen.print(f"    where  {planned.end.where}")
        screen.print(f"    cure   {planned.end.cure}")
    elif not planned.actions:
        screen.say(
            "nothing to do: " + ("the host has a driver" if planned.end.action is Action.PRESENT else "as wanted")
        )
    return int(fails)
