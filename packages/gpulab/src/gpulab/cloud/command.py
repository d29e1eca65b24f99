"""`gpuplane cloud`: the bill of a simulated cloud, and its faults."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpulab.cloud.bill import CloudBill
from gpulab.cloud.catalogue import SPOT_PART, cloud_types
from gpulab.cloud.client import ask
from gpulab.cloud.control import BootOrder, CapacityOrder, FaultOrder, InterruptOrder
from gpulab.cloud.instances import TERMINATED
from gpulab.cloud.settings import CloudAddress, require_address
from gpulab.clusters import load
from gpulab.distribution import GPUPLANE
from gpuplane.autoscaler.catalogue import SPOT
from gpuplane.cli.forms import as_document
from gpuplane.cli.terminal import Console
from tinykube.cluster.directory import ClusterDirectory

_LEAST_COLUMNS: Final = 6  # what fits 80


def ls(options: Namespace, screen: Console) -> int:
    """List the instances with what they cost."""
    found = ask(_address(options), "GET", "bill")
    if options.output in ("json", "yaml"):
        screen.print(as_document("CloudBill", found, options.output))
        return 0
    bill = msgspec.convert(found, CloudBill)
    if options.output == "name":
        for instance in bill.instances:
            screen.print(instance.id)
        return 0
    for line in bill_lines(bill, None if options.output == "wide" else screen.width):
        screen.print(line)
    return 0


def bill_lines(bill: CloudBill, width: int | None = None) -> list[str]:
    """Return the bill as lines of text. The last columns are left out as far as they exceed `width`. Pure."""
    if not bill.instances:
        return ["no instance was launched so far"]
    rows: list[tuple[str, ...]] = [("INSTANCE", "TYPE", "CAPACITY", "STATE", "AGE", "$", "$/H", "POOL", "NODE", "ZONE")]
    for one in bill.instances:
        hourly = "" if one.state == TERMINATED else f"{one.dollars_per_hour:.4f}"
        money = (f"{one.dollars:.4f}", hourly)
        rows.append(
            (one.id, one.machine, one.capacity_type, one.state, age(one.seconds), *money, one.pool, one.node, one.zone)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = len(widths)
    while width is not None and shown > _LEAST_COLUMNS and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    lines = [
        "  ".join(f"{cell:{size}}" for cell, size in zip(row[:shown], widths, strict=False)).rstrip() for row in rows
    ]
    lines.append(f"now {bill.dollars_per_hour:.4f} $/h, so far {bill.dollars:.4f} $")
    if any(one.capacity_type == SPOT for one in bill.instances):
        lines[-1] += f"; spot prices are invented: {SPOT_PART:.0%} of on-demand"
    return lines


def age(seconds: float) -> str:
    """Return a number of seconds as kubectl displays ages, in two units at most. Pure."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def interrupt(options: Namespace, screen: Console) -> int:
    """Take a spot instance back."""
    ask(_address(options), "POST", "interrupt", InterruptOrder(options.instance, options.notice))
    screen.say(f"{screen.glyph('good')} notice sent: {options.instance} is taken back in {age(options.notice)}")
    return 0


def capacity(options: Namespace, screen: Console) -> int:
    """Close the offerings of a type, or open them again."""
    order = CapacityOrder(
        machine=options.type,
        zone=options.zone,
        capacity_type=options.capacity_type,
        seconds=options.during or 0.0,
        open=options.open,
    )
    return _faults(ask(_address(options), "POST", "capacity", order), options, screen)


def fault(options: Namespace, screen: Console) -> int:
    """Let a fault happen a number of times."""
    return _faults(ask(_address(options), "POST", "fault", FaultOrder(options.fault, options.times)), options, screen)


def boot(options: Namespace, screen: Console) -> int:
    """Let instances take longer to boot."""
    return _faults(ask(_address(options), "POST", "boot", BootOrder(options.seconds)), options, screen)


def image(options: Namespace, screen: Console) -> int:
    """Publish a newer image, with a new version of each launch template."""
    found = ask(_address(options), "POST", "image", {})
    if options.output != "text":
        screen.print(as_document("CloudImage", found, options.output))
    else:
        screen.say(f"{screen.glyph('good')} {found['image']} is the newest image, and in each launch template")
    return 0


def _faults(found: dict[str, Any], options: Namespace, screen: Console) -> int:
    if options.output != "text":
        screen.print(as_document("CloudFaults", found, options.output))
        return 0
    for line in fault_lines(found):
        screen.print(line)
    return 0


def fault_lines(found: dict[str, Any]) -> list[str]:
    """Return the faults that are in force as lines of text. Pure."""
    lines = []
    for closed in found["closed"]:
        where = " ".join(filter(None, (closed["capacityType"], closed["zone"]))) or "any zone, spot and on-demand"
        left = closed["secondsLeft"]
        lines.append(f"no capacity   {closed['machine']}   {where}   {'until opened' if left is None else age(left)}")
    lines += [f"{name}   {times} more" for name, times in found["counted"].items()]
    if found["bootSeconds"]:
        lines.append(f"slow boots   {age(found['bootSeconds'])}")
    return lines or ["no fault is in force"]


def type_names(words: Sequence[str]) -> list[str]:
    """The instance types, for completion."""
    return list(cloud_types())


def _address(options: Namespace) -> CloudAddress:
    return require_address(ClusterDirectory(GPUPLANE, load(options.name or "").name))
