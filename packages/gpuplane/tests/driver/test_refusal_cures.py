"""Each refusal that is decided before a tool runs, and what a tool's absence or end leads to: the printed cure cures.

Failures by what a tool prints are in test_failure_table; systems that are images and Secure Boot have files of their
own. The last test holds the three together: no reason of the driver's page is without a cure that was carried out.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from gpuplane.driver import DriverError, WantedDriver, install
from packages.gpuplane.tests.driver import refusals
from packages.gpuplane.tests.driver.machine import NEWER, VERSION, WANTED, Machine
from packages.gpuplane.tests.driver.test_failure_table import CASES as PRINTED_BY_TOOLS

Step = Callable[[Machine, WantedDriver], WantedDriver | Awaitable[WantedDriver]]
H100, A100, V100, K80, B200 = "0x2330", "0x20b0", "0x1db5", "0x102d", "0x2901"
PAGE = Path(__file__).parents[4] / "docs/components/driver.md"
ELSEWHERE = {
    "OperatingSystemImageBased": "test_image_based",
    "GPUsDoNotAnswer": "test_operand",
    "DriverUnusable": "test_operand",
    "InstallerBusy": "test_installer: the next try is the cure",
    "NoProgress": "a defect of gpuplane; no machine leads there",
}


class RefusalCase(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that `before` makes, what is refused there, a part of the cure, and how `by` carries that part out."""

    reason: str
    cure: str
    by: Step
    before: Step = lambda machine, wanted: wanted
    system: str = "ubuntu"
    device: str = H100
    may_install: bool = True
    done: str = ""

    @property
    def name(self) -> str:
        return f"{self.reason}-{re.sub(r'[^a-z0-9]+', '-', self.cure.lower()).strip('-')[:40]}"


def wants(**changes: object) -> Step:
    return lambda machine, wanted: msgspec.structs.replace(wanted, **changes)


CASES = [
    RefusalCase(reason="NoGPU", before=refusals.without_gpus, cure="check `lspci -d 10de:`", by=refusals.seated),
    RefusalCase(reason="DriverDisabled", may_install=False, cure="pre-install the driver on the node",
        by=refusals.preinstalled, done=f"{NEWER} own"),
    RefusalCase(reason="OperatingSystemUnknown", before=refusals.of_no_family, cure="pre-install the driver",
        by=refusals.preinstalled, done=f"{NEWER} own"),
    RefusalCase(reason="NouveauLoaded", before=refusals.console_on_nouveau,
        cure="echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf, rebuild the initramfs, reboot",
        by=refusals.blacklisted),
    RefusalCase(reason="ModuleInUse", before=refusals.in_use, cure="end the processes that use the GPUs",
        by=refusals.stopped, done=f"{NEWER} open"),
    RefusalCase(reason="ModuleInUse", before=refusals.in_use, cure="or reboot the node", by=refusals.rebooted,
        done=f"{NEWER} open"),
    RefusalCase(reason="DaemonStays", before=refusals.deaf_daemon, cure="kill it", by=refusals.killed,
        done=f"{NEWER} open"),
    RefusalCase(reason="DaemonStays", before=refusals.deaf_daemon, cure="or reboot the node", by=refusals.rebooted,
        done=f"{NEWER} open"),
    RefusalCase(reason="NoPrecompiled", system="debian", before=wants(version="570", precompiled=True),
        cure="spec.driver.usePrecompiled: false", by=wants(version=VERSION, precompiled=False)),
    RefusalCase(reason="VersionUnknown", before=wants(version="latest"), cure=VERSION, by=wants(version=VERSION)),
    RefusalCase(reason="VersionUnknown", before=refusals.latest_precompiled, cure="570",
        by=wants(version="570"), done="570.158.01 open"),
    RefusalCase(reason="ModulesDoNotFit", device=V100, before=wants(kind="open"), cure="auto", by=wants(kind="auto"),
        done=f"{VERSION} proprietary"),
    RefusalCase(reason="ModulesDoNotFit", device=V100, before=wants(kind="open"), cure="or proprietary",
        by=wants(kind="proprietary"), done=f"{VERSION} proprietary"),
    RefusalCase(reason="ModulesDoNotFit", device=A100, before=refusals.wants_old_open, cure="auto",
        by=wants(kind="auto"), done="510.108.03 proprietary"),
    RefusalCase(reason="ModulesDoNotFit", device=B200, before=wants(kind="proprietary"), cure="auto",
        by=wants(kind="auto")),
    RefusalCase(reason="GPUTooOld", device=K80, before=refusals.offers("470.256.02"),
        cure="a version 470.x for these nodes", by=wants(version="470.256.02"), done="470.256.02 proprietary"),
    RefusalCase(reason="GPUTooOld", device=V100, before=wants(version="590.44.01"),
        cure="a version 580.x for these nodes", by=wants(version=NEWER), done=f"{NEWER} proprietary"),
    RefusalCase(reason="GPUsDoNotGoTogether", device=V100, before=refusals.two_generations,
        cure="use GPUs of one generation in one machine", by=refusals.one_generation, done=f"{VERSION} proprietary"),
    RefusalCase(reason="AptGetMissing", before=refusals.lacking("apt-get"), cure="install the package apt on",
        by=refusals.packaged("apt-get")),
    RefusalCase(reason="ModprobeMissing", before=refusals.lacking("modprobe"), cure="install the package kmod",
        by=refusals.packaged("modprobe")),
    RefusalCase(reason="UpdateCaCertificatesMissing", before=wants(certificates=(("ours.crt", b"OURS"),)),
        cure="install the package ca-certificates", by=refusals.packaged("update-ca-certificates")),
    RefusalCase(reason="AptGetKilled", before=refusals.short_of_memory, cure="see `dmesg` on the node",
        by=refusals.with_memory),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _daemons_are_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuplane.driver.installer._LOOK_SECONDS", 0.0)


async def done(step: WantedDriver | Awaitable[WantedDriver]) -> WantedDriver:
    return step if isinstance(step, WantedDriver) else await step


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_refusal_has_its_cure_and_the_cure_cures(tmp_path: Path, case: RefusalCase) -> None:
    machine = Machine(tmp_path, case.system, device=case.device)
    wanted = await done(case.before(machine, WANTED))
    for _ in range(2):  # a second try without the cure ends the same way
        with pytest.raises(DriverError) as caught:
            await install(machine.host, wanted=wanted, may_install=case.may_install)
        assert caught.value.reason == case.reason
        assert case.cure in caught.value.cure
        assert caught.value.where
    wanted = await done(case.by(machine, wanted))
    await install(machine.host, wanted=wanted, may_install=case.may_install)
    assert machine.loaded == (case.done or f"{VERSION} open")


async def test_a_reboot_alone_brings_nouveau_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    wanted = refusals.console_on_nouveau(machine, WANTED)
    refusals.boot_with_nouveau(machine)
    with pytest.raises(DriverError, match="nouveau"):
        await install(machine.host, wanted=wanted)


def test_every_reason_of_the_page_has_a_cure_that_was_carried_out() -> None:
    table = PAGE.read_text().partition("| reason | means |\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", table))
    carried_out = {case.reason for case in (*CASES, *PRINTED_BY_TOOLS)} | set(ELSEWHERE)
    assert named - carried_out == set()
