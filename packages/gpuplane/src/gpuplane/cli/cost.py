"""`gpuplane cost`: GPU hours held, used and idle, energy and dollars, by namespace, owner, label, pod or GPU."""

from __future__ import annotations

import asyncio
import csv
import io
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpuplane.cli.cost_prices import first_of, price_file, read_prices
from gpuplane.cli.cost_source import (
    Sums,
    SumsKind,
    as_json,
    from_prometheus,
    grouping,
    moment,
    read_sums,
    url_reader,
)
from gpuplane.cli.cost_store import stored_in_cluster
from gpuplane.cli.terminal import Console, count
from gpuplane.metering.cost import CostRow, Price, cost_rows, total_row
from kubekit.kube import Client

_COLUMNS: Final = ("HELD h", "USED h", "IDLE h", "kWh", "DOLLARS")
_SOURCES: Final = 5  # of prices that are listed
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")


def cost(options: Namespace, screen: Console) -> int:
    """Print the answer; 0 also when nothing was held."""
    labels = grouping(options.by)
    price = price_file(options.prices) if options.prices else None
    sums, price = asyncio.run(_read(options, labels, price))
    rows, total = cost_rows(sums.uses, price), total_row(sums.uses, price)
    if options.output == "json":
        screen.json("Cost", document(options, sums, rows, total))
    elif options.output == "csv":
        screen.print(as_csv(rows).rstrip("\n"))
    else:
        screen.print("\n".join(page(options, sums, rows, total, screen)))
    return 0


async def _read(options: Namespace, labels: Sequence[str], price: Price | None) -> tuple[Sums, Price]:
    seconds, namespace = options.since, options.namespace
    if options.prometheus:
        sums = await from_prometheus(url_reader(options.prometheus), options.prometheus, labels, namespace, seconds)
        if price is not None:
            return sums, price
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-cost") as client:
        if not options.prometheus:
            sums = await read_sums(client, labels, namespace, seconds, stored_in_cluster(client))
        of_cluster = await read_prices(client)
    return sums, of_cluster if price is None else first_of(price, of_cluster)


def document(options: Namespace, sums: Sums, rows: Sequence[CostRow], total: CostRow) -> dict[str, Any]:
    """Return the answer for programs."""
    seconds = options.since if sums.complete else None
    return {
        **as_json(sums),
        "by": options.by,
        "sinceSeconds": seconds,
        "rows": msgspec.to_builtins(rows),
        "total": msgspec.to_builtins(total),
    }


def as_csv(rows: Sequence[CostRow]) -> str:
    """Return the rows with a head; a name that a spreadsheet would carry out as a formula begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CostRow.__struct_encode_fields__)
    for row in rows:
        name, *numbers, sources = msgspec.structs.astuple(row)
        given = ["" if one is None else f"{one:.6f}" for one in numbers]
        writer.writerow([_harmless(name), *given, _harmless("; ".join(sources))])
    return text.getvalue()


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULAS) else text


def page(options: Namespace, sums: Sums, rows: Sequence[CostRow], total: CostRow, screen: Console) -> list[str]:
    """Return the lines of the table, of 80 columns where a person reads."""
    numbers = [[_number(one) for one in msgspec.structs.astuple(row)[1:6]] for row in (*rows, total)]
    widths = [max(len(row[at]) for row in [list(_COLUMNS), *numbers]) for at in range(len(_COLUMNS))]
    room = max(12, (screen.limit or 80) - sum(widths) - 2 * len(widths) - 1)
    names = [screen.elided(row.name, room) for row in (*rows, total)]
    head = options.by.upper()
    width = max(len(one) for one in [*names, head])
    lines = [_head(options, sums), ""]
    for name, cells in zip([head, *names], [list(_COLUMNS), *numbers], strict=True):
        lines.append(f" {name:{width}}" + "".join(f"  {cell:>{at}}" for cell, at in zip(cells, widths, strict=True)))
    if not rows:
        lines += ["", " No container held a GPU in this time."]
    if total.unpriced_hours > 0.005:
        hours = f"{total.unpriced_hours:,.2f} GPU hours have no price"
        lines += ["", f" {screen.glyph('warn')} {hours}: give --prices FILE"]
    if total.prices_from:
        lines += ["", *(f" {screen.elided(line, (screen.limit or 80) - 1)}" for line in _price_lines(total))]
    if sums.note:
        lines += ["", *(f" {line}" for line in screen.wrapped(f"{screen.glyph('warn')} {sums.note}", 1))]
    if sums.silent:
        lines += ["", f" {screen.glyph('warn')} {count(len(sums.silent), 'exporter')} did not answer: {sums.silent[0]}"]
    return lines


def _price_lines(total: CostRow) -> list[str]:
    """Return the sources of the prices, one a line."""
    more = len(total.prices_from) - _SOURCES
    listed = [f"prices  {total.prices_from[0]}", *(f"        {one}" for one in total.prices_from[1:_SOURCES])]
    return [*listed, f"        and {more} more: -o json"] if more > 0 else listed


def _head(options: Namespace, sums: Sums) -> str:
    """Return the lines that say from where and since when the sums are."""
    if sums.complete:
        return f" the last {_time(options.since)}   from {sums.place}"
    since = "" if sums.since is None else f" since {moment(sums.since)}"
    if sums.kind is SumsKind.STORE:
        return f"{since}, not the last {_time(options.since)}: {sums.place} began then"
    return (
        f" since the exporters started, not the last {_time(options.since)}: there is no Prometheus and no store\n"
        f" from {sums.place}{since}; pods that ended more than ten minutes ago are missing"
    )


def _time(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} seconds"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
