"""`gpuplane toolkit configure | unconfigure | cdi`: the toolkit by hand, on this machine or on a mounted root."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import Final

import msgspec

from gpuplane.cli.forms import as_document
from gpuplane.cli.host_root import require_root
from gpuplane.cli.terminal import Console
from gpuplane.host import Host
from gpuplane.toolkit import by_hand
from gpuplane.toolkit.cdi_spec import CdiOptions

_RUNTIMES: Final = {"crio": "cri-o"}


def configure(options: Namespace, screen: Console) -> int:
    """0; with --dry-run 1 when something would change, and the diff on stdout."""
    report = asyncio.run(
        by_hand.configure(
            _host(options),
            runtime=_RUNTIMES.get(options.runtime, options.runtime or ""),
            config=options.config,
            socket=options.socket,
            set_as_default=True if options.set_as_default else None,
            restart=not options.no_restart,
            dry_run=options.dry_run,
        )
    )
    if report.runtime is not None:
        screen.say(f"found {report.place} in {options.host_root}: {report.config}")
    if report.no_cdi:
        screen.say(f"no CDI specification: {report.no_cdi}; with a driver that runs, configure again")
    _tell(report, options, screen)
    if report.diff or report.changed:
        where = "" if options.host_root == Path("/") else f" --host-root {options.host_root}"
        screen.say(f"undo: gpuplane toolkit unconfigure{where}")
    return 1 if report.diff else 0


def unconfigure(options: Namespace, screen: Console) -> int:
    """0; with --dry-run 1 when something would change, and the diff on stdout."""
    restart = not options.no_restart
    report = asyncio.run(by_hand.unconfigure(_host(options), restart=restart, dry_run=options.dry_run))
    _tell(report, options, screen)
    return 1 if report.diff else 0


def cdi(options: Namespace, screen: Console) -> int:
    """0; the specification on stdout, or in the file of --output."""
    path: Path | None = options.output
    kind = options.format or ("json" if path is not None and path.suffix == ".json" else "yaml")
    text = by_hand.cdi(
        _host(options),
        management=options.mode == "management",
        choice=CdiOptions(
            vendor=options.vendor,
            of_class=options.of_class,
            strategies=tuple(dict.fromkeys(options.device_name_strategy or ("index", "uuid"))),
            ids=tuple(name for names in options.device_id for name in names.split(",") if name != "all"),
            every=not options.no_all_device,
            without=frozenset(options.disable_hook),
        ),
        hook=options.nvidia_cdi_hook_path,
        yaml=kind == "yaml",
    )
    if path is None:
        screen.out.write(text)
        return 0
    place = path.absolute()
    changed = Host(Path("/")).write_atomic(str(place), text.encode())
    screen.say(f" {screen.glyph('good')} {place}" if changed else "nothing to change")
    return 0


def _host(options: Namespace) -> Host:
    return Host(require_root(options.host_root))


def _tell(report: by_hand.ToolkitReport, options: Namespace, screen: Console) -> None:
    if options.output != "text":
        screen.print(as_document("Toolkit", msgspec.to_builtins(report), options.output))
        return
    screen.out.write(report.diff)
    for path in report.changed:
        screen.say(f" {screen.glyph('good')} {path}")
    if not report.changed and not report.diff:
        screen.say("nothing to change")
    if report.restart:
        screen.say(f"then: {report.restart}")
