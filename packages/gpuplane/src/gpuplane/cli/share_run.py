"""`gpuplane share run`: a command under limits on a GPU of this machine.

The command is our child, its limits a directory of this user (`gpuplane.limits.ShareStore`). While it runs we do once a
second what a node's agent does: compare with NVML, and say who got round the limits. Should we be killed, the limits go
on to hold; the next run clears up once the last process in them has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
import traceback
from argparse import Namespace
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.cli import share_child
from gpuplane.cli.forms import as_document
from gpuplane.cli.share_codes import FAILED
from gpuplane.cli.share_place import SharePlace, find_place, is_over, refuse_nested, user_base
from gpuplane.cli.share_text import plan_text, report_text
from gpuplane.cli.terminal import Console
from gpuplane.cli.verbs import find_simulator
from gpuplane.hardware import GPUFacts, GPUSource
from gpuplane.limits import (
    Agent,
    Arbiter,
    CoreMode,
    Escape,
    GpuLimit,
    LimitBackend,
    LimitRequest,
    Limits,
    Observer,
    Owner,
    Share,
    ShareStore,
    check,
    choose,
    command,
    limiter,
    link,
    message,
    mps_daemon,
    native,
    other_backend,
)
from gpuplane.limits.processes import facts_of, myself, users_of
from kubekit.errors import InvalidInput, KubekitError


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The plan of a run."""

    id: str
    argv: tuple[str, ...]
    gpu: int
    uuid: str
    model: str
    limit: GpuLimit
    backend: LimitBackend
    directory: str
    driver: str
    environment: dict[str, str]
    simulated: bool = False


class RunReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The measured use of a command under its limits. Percentages are of the time that it ran."""

    exit_code: int
    seconds: float
    gpu: int
    model: str
    core_limit: int
    core_percent: float
    held_back_percent: float
    memory_limit_bytes: int
    memory_peak_bytes: int
    refused: int
    escaped: tuple[str, ...] = ()


def run(options: Namespace, screen: Console) -> int:
    """The command's exit code; 125 when we could not run it, 126 and 127 when it cannot be run."""
    # The agent's messages are printed by this module.
    logging.getLogger("gpuplane").addHandler(logging.NullHandler())
    try:
        return _run(options, screen)
    except KubekitError as error:
        if options.verbose:
            traceback.print_exc()
        screen.error(error)
        return error.exit_code if isinstance(error, share_child.NoCommand) else FAILED


def _run(options: Namespace, screen: Console) -> int:
    argv = tuple(options.argv[1:] if options.argv[:1] == ["--"] else options.argv)
    if not argv:
        raise InvalidInput("no command", where="gpuplane share run", cure="gpuplane share run --core 30 -- CMD")
    wanted = LimitRequest(core=options.core, memory_bytes=options.memory, gpu=options.gpu)
    check(wanted)  # before a driver is looked for: these are wrong on any machine
    refuse_nested(os.environ)
    _check_backend(options)
    store = ShareStore(user_base(os.environ, os.geteuid()))
    simulator = find_simulator()
    try:
        with contextlib.ExitStack() as stack:
            with store.lock():
                store.sweep(is_over(store))
                place = find_place(store, options.simulate, os.environ, simulator)
                gpus = stack.enter_context(closing(place.open()))
                plan = _plan(argv, choose(wanted, gpus.inventory(), store.all()), options, place)
                if options.dry_run:
                    _show(plan, options, screen)
                    return 0
                stack.callback(_leave, store, plan)
                owner = _write(store, plan, options.name, place)
                group = None
                if plan.backend is LimitBackend.NATIVE:
                    native.sweep([share.id for share in store.all()])
                    group = native.hold(plan.id, plan.limit)
                    stack.callback(native.release, group, plan.uuid)
            arbiter = None
            if plan.backend is LimitBackend.INTERPOSED and plan.limit.core:
                arbiter = stack.enter_context(Arbiter(store))
            return _follow(plan, owner, store, gpus, options, screen, group, arbiter)
    finally:
        if simulator is not None:
            with store.lock():
                simulator.delete_unused(store)


MOST_SAVED_SECONDS: Final = 60.0


def _check_backend(options: Namespace) -> None:
    """Raises KubekitError when the backend is not there, or cannot do what is asked."""
    if options.backend == LimitBackend.INTERPOSED:
        limiter()
    elif options.mode != CoreMode.HARD:
        raise InvalidInput(
            f"the backend {options.backend} knows no mode {options.mode}", where="--mode", cure="--backend interposed"
        )
    if options.saved > MOST_SAVED_SECONDS:
        raise InvalidInput("a command saves a minute at most", where="--saved", cure="--saved 1m")
    held = options.backend == LimitBackend.INTERPOSED and options.mode != CoreMode.WEIGHTED and options.core
    if options.saved and not held:
        raise InvalidInput("only a limit of time saves time", where="--saved", cure="--core, with --mode hard or burst")
    if options.backend == LimitBackend.MPS:
        mps_daemon(os.environ)
    if options.backend == LimitBackend.NATIVE and (options.core or not options.memory):
        raise InvalidInput("the driver holds memory only", where="--backend native", cure="--memory, without --core")


def _leave(store: ShareStore, plan: PlannedRun) -> None:
    """Remove the share; one with a process that the command left behind is left to the next run."""
    with store.lock():
        if not users_of(names.LIMITS_ENV, plan.directory):
            store.remove(plan.id)


def _plan(argv: tuple[str, ...], gpu: GPUFacts, options: Namespace, place: SharePlace) -> PlannedRun:
    limit = GpuLimit(
        uuid=gpu.uuid,
        core=options.core,
        memory_bytes=options.memory,
        mode=CoreMode(options.mode),
        saved_ms=round(options.saved * 1000),
    )
    backend = LimitBackend(options.backend)
    word = re.sub(r"[^A-Za-z0-9_.]", "-", Path(argv[0]).name).strip(".-")[:40] or "command"
    share = f"{word}-{secrets.token_hex(4)}"
    directory = place.store.directory(share)
    limits = Limits((limit,))
    if backend is LimitBackend.INTERPOSED:
        environment = command(directory, limits, os.environ)
    else:
        environment = other_backend(backend, limits)
        if place.simulated:
            environment["LD_LIBRARY_PATH"] = str(place.real.cuda.parent)
    return PlannedRun(
        id=share,
        argv=argv,
        gpu=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        limit=limit,
        backend=backend,
        directory=str(directory),
        driver=str(place.real.cuda),
        environment={**environment, **place.environment},
        simulated=place.simulated,
    )


def _show(plan: PlannedRun, options: Namespace, screen: Console) -> None:
    if options.output != "text":
        screen.print(as_document("SharePlan", msgspec.to_builtins(plan), options.output))
    else:
        screen.print(plan_text(plan))


def _write(store: ShareStore, plan: PlannedRun, name: str, place: SharePlace) -> Owner:
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    owner = Owner(name=name or title(plan.argv), since=since, backend=plan.backend, holders=(myself(),))
    directory = store.write(plan.id, Limits((plan.limit,)), owner)
    if plan.backend is LimitBackend.INTERPOSED:
        link(directory, place.real)
    return owner


def title(argv: tuple[str, ...]) -> str:
    """Return a short name of a command: the script for `python train.py`, else the program."""
    script = next((word for word in argv[1:2] if Path(word).is_file()), argv[0])
    return Path(script).name


def _follow(
    plan: PlannedRun,
    owner: Owner,
    store: ShareStore,
    gpus: GPUSource,
    options: Namespace,
    screen: Console,
    group: Path | None,
    arbiter: Arbiter | None,
) -> int:
    """`group` is the cgroup that the driver holds to the limits, None with another backend."""
    escaped: list[str] = []

    def tell(escape: Escape, share: Share | None) -> None:
        if share is not None:  # others are not this command's
            escaped.append(message(escape, share))
            screen.say(f"{screen.paint(screen.glyph('bad'), 'bad', screen.err)} {escaped[-1]}")

    agent = Agent(store, gpus, observer=Observer(store, gpus, only=plan.id), arbiter=arbiter, on_escape=tell)
    peak = 0

    def tick() -> None:
        nonlocal peak
        with contextlib.suppress(KubekitError):  # a driver that is being replaced; the library holds on meanwhile
            agent.step()
            held = _memory(store.read(plan.id)) if group is None else native.used(group, plan.uuid)
            peak = max(peak, held)

    began = time.monotonic()
    with native.inside(group):
        child = share_child.start(plan.argv, {**os.environ, **plan.environment})
    command = facts_of(child.pid)
    if command is not None:
        holders = (*owner.holders, command.identity)
        store.write(plan.id, Limits((plan.limit,)), msgspec.structs.replace(owner, holders=holders))
    code = child.follow(tick)
    seconds = time.monotonic() - began
    _tell(_report(plan, store.read(plan.id), code, seconds, peak, tuple(escaped)), options, screen)
    return code


def _memory(share: Share) -> int:
    return sum(slot.gpus[0].memory_bytes for slot in share.slots)


def _report(
    plan: PlannedRun, share: Share, code: int, seconds: float, peak: int, escaped: tuple[str, ...]
) -> RunReport:
    totals = share.totals[0]
    passed = max(seconds, 1e-9) * 1e9
    return RunReport(
        exit_code=code,
        seconds=round(seconds, 3),
        gpu=plan.gpu,
        model=plan.model,
        core_limit=plan.limit.core,
        core_percent=round(100 * totals.gpu_ns / passed, 1),
        held_back_percent=round(min(100.0, 100 * totals.held_back_ns / passed), 1),
        memory_limit_bytes=plan.limit.memory_bytes,
        memory_peak_bytes=peak,
        refused=totals.refused,
        escaped=escaped,
    )


def _tell(report: RunReport, options: Namespace, screen: Console) -> None:
    """Print the report of the command on stderr: with -o json or yaml always, else only to a terminal. Stdout is the
    command's.
    """
    if options.output != "text":
        screen.err.write(as_document("ShareReport", msgspec.to_builtins(report), options.output) + "\n")
    elif screen.err.isatty():
        screen.say(report_text(report, screen))
