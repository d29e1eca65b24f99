"""`gpuplane doctor`: whether the installation is healthy, and a file for support.

Exit codes: 0 healthy; 1 findings; 3 a check could not look and no other found anything.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpuplane.cli.doctor.checks.registry import CHECKS
from gpuplane.cli.doctor.finding import CheckReport, CheckState, DoctorCheck, examine
from gpuplane.cli.doctor.page import doctor_page
from gpuplane.cli.doctor.reading import observe
from gpuplane.cli.options import did_you_mean
from gpuplane.cli.status_reading import cluster_name
from gpuplane.cli.terminal import Console
from kubekit.errors import UsageError
from kubekit.kube import Client

FOUND, BLIND = 1, 3


def doctor(options: Namespace, screen: Console) -> int:
    """Run the command."""
    checks = chosen_checks(options.check)
    if options.list:
        return _list(checks, options, screen)
    return asyncio.run(_doctor(checks, options, screen))


def chosen_checks(wanted: Sequence[str]) -> list[DoctorCheck]:
    """Return the checks of these names, all without one. Raises UsageError for an unknown name."""
    known = [one.name for one in CHECKS]
    for name in wanted:
        if name not in known:
            meant = did_you_mean(name, known)
            raise UsageError(f"unknown check {name}{meant}", where="--check", cure="gpuplane doctor --list")
    return [one for one in CHECKS if not wanted or one.name in wanted]


def _list(checks: Sequence[DoctorCheck], options: Namespace, screen: Console) -> int:
    if options.output == "json":
        data = [{"name": one.name, "about": one.about, "faults": dict(one.faults)} for one in checks]
        screen.json("DoctorChecks", {"checks": data})
        return 0
    for one in checks:
        screen.print(f"{one.name:12} {one.about}")
    return 0


async def _doctor(checks: Sequence[DoctorCheck], options: Namespace, screen: Console) -> int:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-doctor") as client:
        facts, unread = await observe(client, {source for one in checks for source in one.sources})
        reports = [examine(one, facts, unread) for one in checks]
        name = cluster_name(client)
        document = as_json(name, reports)
        if options.output == "json":
            screen.json("Doctor", document)
        else:
            screen.print(doctor_page(name, reports, screen))
        if options.bundle is not None:
            from gpuplane.cli.doctor.bundle import write_bundle  # late: a look writes no file

            said = await write_bundle(client, options.bundle, document, datetime.now(UTC))
            screen.say(said)
    return exit_code(reports)


def as_json(cluster: str, reports: Sequence[CheckReport]) -> dict[str, Any]:
    """Return the content of the JSON document."""
    return {"cluster": cluster, "checks": msgspec.to_builtins(list(reports))}


def exit_code(reports: Sequence[CheckReport]) -> int:
    """Return the exit code: a finding counts more than a check that could not look."""
    states = {one.state for one in reports}
    if CheckState.FINDINGS in states:
        return FOUND
    return BLIND if CheckState.NOT_LOOKED in states else 0
