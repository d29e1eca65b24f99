"""Each row of the table of failures: what a tool prints gives the row's reason, and the row's cure, carried out, cures.

Where a tool can be made to fail by the cause itself (a proxy, a certificate, a full repository), it is; elsewhere the
tool prints the real one's text for as long as the cause is on the machine (see `causes`).
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from gpuplane import names
from gpuplane.driver import DriverError, WantedDriver, install
from gpuplane.driver.failure_table import TABLE
from gpuplane.driver.failures import meaning
from gpuplane.driver.released import read_wanted
from gpuplane.host import Command, Completed
from packages.gpuplane.tests.driver import causes
from packages.gpuplane.tests.driver.machine import ALSO, SYSTEMS, TOOLS, VERSION, WANTED, Machine

Cure = Callable[[Machine, WantedDriver], WantedDriver | Awaitable[WantedDriver]]
PROXY = "http://user:secret@proxy.example:3128"
PLAIN = tuple(pattern for pattern in ALSO if "nvidia" not in pattern)


def stocked(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """A repository that has the packages: one more of the policy, or a module of SUSE."""
    machine.stock("*")
    return wanted


def with_proxy(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    return msgspec.structs.replace(wanted, proxies=read_wanted({"HTTPS_PROXY": PROXY, "HTTP_PROXY": PROXY}, {}).proxies)


def with_certificate(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    return msgspec.structs.replace(wanted, certificates=(("ours.crt", b"CERTIFICATE OF OURS\n"),))


def precompiled(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    machine.stock("*")
    return msgspec.structs.replace(wanted, precompiled=True, version="570")


def compiled(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    return msgspec.structs.replace(wanted, precompiled=False, version=VERSION)


def with_version(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    return msgspec.structs.replace(wanted, version=VERSION)


def with_repository(name: str, text: str) -> Cure:
    """A file of spec.driver.repoConfig."""
    return lambda machine, wanted: msgspec.structs.replace(wanted, repositories=((name, text.encode()),))


def booted(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The node's newer kernel."""
    machine.boot(machine.system.kernels[1])
    return wanted


def allowed(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """Carry out the command of the cure, as it is printed."""
    machine.write("etc/modprobe.d/10-unsupported-modules.conf", "allow_unsupported_modules 1\n")
    return wanted


def made_again(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """Carry out the two commands of the cure, as they are printed."""
    machine.unmount_driver()
    shutil.rmtree(machine.root / names.DRIVER_STORE)
    return wanted


def downloaded(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    """The file on the node, from another machine; the network stays as it is.

    The host has the directory only now: nothing of the failed download may hide it.
    """
    file = f"NVIDIA-Linux-{platform.machine()}-{VERSION}.run"
    text = (TOOLS / "driver.run").read_text().replace("@VERSION@", VERSION)
    assert not (machine.driver_root / names.DRIVER_DOWNLOADS).exists()
    machine.write(f"{names.DRIVER_DOWNLOADS}/{file}", text)
    return wanted


class FailureCase(msgspec.Struct, frozen=True, kw_only=True):
    """A failure made on a machine: `before` brings the cause about. With a `tool` it prints `text`, until `cured` holds
    in its shell. `at` is a part of the place that the error names.
    """

    system: str
    reason: str
    cure: str
    by: Cure
    tool: str = ""
    code: int = 1
    text: str = ""
    argument: str = ""
    cured: str = ""
    at: str = ""
    before: Cure = lambda machine, wanted: wanted
    switches: int = 0

    @property
    def name(self) -> str:
        return f"{self.reason}-{self.system}-{self.tool or 'cause'}"


def behind_proxy(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    (machine.state / "proxy").write_text(PROXY + "\n")
    return wanted


def own_certificate(machine: Machine, wanted: WantedDriver) -> WantedDriver:
    (machine.state / "ca").write_text("CERTIFICATE OF OURS\n")
    name = "update-ca-trust" if "dnf" in machine.system.programs else "update-ca-certificates"
    shutil.copy(TOOLS / "update-ca-certificates", machine.root / "usr/bin" / name)
    return wanted


def only(*patterns: str) -> Cure:
    def before(machine: Machine, wanted: WantedDriver) -> WantedDriver:
        machine.stock(*patterns)
        return wanted

    return before


def wanting(**changes: object) -> Cure:
    return lambda machine, wanted: msgspec.structs.replace(wanted, **changes)


SPACE, PROXIES = "free space below /var/lib/gpuplane", "spec.driver.env HTTPS_PROXY"
NOT_HEADERS = tuple(pattern for pattern in PLAIN if "headers" not in pattern)
CASES = [
    FailureCase(system="ubuntu", tool="apt-get", code=100, argument="libc6-dev", reason="DiskFull", cure=SPACE,
        before=causes.full, text="E: You don't have enough free space in /var/cache/apt/archives/.", by=causes.freed,
        cured=causes.SPACE_FREED),
    FailureCase(system="rocky", tool="dnf", argument="install", reason="DiskFull", cure=SPACE, by=causes.freed,
        before=causes.full, cured=causes.SPACE_FREED,
        text="Error Summary\nDisk Requirements:\n   At least 230MB more space needed on the / filesystem."),
    FailureCase(system="debian", tool="make", argument="modules", code=2, reason="DiskFull", cure=SPACE,
        before=causes.full, by=causes.freed, cured=causes.SPACE_FREED,
        text="fatal error: error writing to /tmp/ccX.s: No space left on device"),
    FailureCase(system="sles", tool="zypper", argument="install", code=8, reason="HostFileSystem",
        before=causes.read_only, by=causes.remounted, cured=causes.WRITABLE,
        text="Could not write: Read-only file system", cure="read-write"),
    FailureCase(system="ubuntu", tool="apt-get", code=100, argument="libc6-dev", reason="PackageManagerBusy",
        text="E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)",
        cure="the installer tries again", before=causes.locked, by=causes.waited, cured=causes.UNLOCKED),
    FailureCase(system="sles", tool="zypper", argument="refresh", code=7, reason="PackageManagerBusy",
        text="System management is locked by the application with pid 812 (zypper).", cure="fuser -v",
        before=causes.locked, by=causes.stuck_ended, cured=causes.ENDED),
    *(FailureCase(system=system, before=own_certificate, reason="CertificateUnknown", cure="spec.driver.certConfig",
        by=with_certificate) for system in SYSTEMS),
    FailureCase(system="debian", tool="curl", code=56, reason="ProxyRefused", cure="http://USER:PASSWORD@HOST:PORT",
        text="curl: (56) Received HTTP code 407 from proxy after CONNECT", by=with_proxy,
        cured=f'[ "${{https_proxy:-}}" = "{PROXY}" ]'),
    FailureCase(system="ubuntu", tool="apt-get", code=100, argument="update", reason="SignatureUnknown",
        by=with_repository("ours.sources", "URIs: https://m\nSigned-By: /etc/apt/keyrings/ours.gpg\n"),
        cured='grep -qs "^Signed-By: /" "$SIMHOST_ROOT"/etc/apt/sources.list.d/*.sources',
        text="W: GPG error: https://m InRelease: The following signatures couldn't be verified: NO_PUBKEY 3BF863CC\n"
        "E: The repository 'https://m InRelease' is not signed.", cure="Signed-By: (.sources), gpgkey= (.repo)"),
    FailureCase(system="rocky", tool="dnf", argument="install", reason="SignatureUnknown", cure="gpgkey=",
        by=with_repository("ours.repo", "[ours]\nbaseurl=https://m\ngpgkey=https://m/key\n"),
        cured='grep -qs "^gpgkey=" "$SIMHOST_ROOT"/etc/yum.repos.d/ours.repo',
        text="Public key for gcc-11.rpm is not installed\nError: GPG check FAILED"),
    FailureCase(system="sles", before=only(*NOT_HEADERS), reason="KernelHeadersMissing", by=stocked,
        cure="SUSEConnect -p sle-module-development-tools/15.6/"),
    FailureCase(system="sles", before=only("make", "kmod", "curl", "ca-certificates", "kernel-default-devel", "*elf*"),
        reason="CompilerMissing", cure="SUSEConnect -p sle-module-development-tools/15.6/", by=stocked),
    FailureCase(system="ubuntu", before=only(*NOT_HEADERS), reason="KernelHeadersMissing", by=stocked,
        cure="spec.driver.repoConfig"),
    FailureCase(system="rocky", before=only(*NOT_HEADERS, "kernel-devel-5.14.0-503*"), reason="KernelHeadersMissing",
        by=booted, cure="boot a kernel that they have headers for"),
    FailureCase(system="ubuntu", before=only(*PLAIN, "linux-headers-*"), switches=4, reason="SwitchProgramsMissing",
        cure="CUDA_REPOSITORY_URL", by=stocked),
    FailureCase(system="rocky", before=only(*PLAIN, "kernel-devel-*"), switches=4, reason="SwitchProgramsMissing",
        cure="spec.driver.repoConfig", by=stocked),
    FailureCase(system="ubuntu", before=wanting(precompiled=True, version="570"), reason="NoPrecompiled",
        cure="usePrecompiled: false", by=compiled),
    FailureCase(system="ubuntu", before=only(*(p for p in PLAIN if p != "gcc"), "linux-headers-*"),
        reason="CompilerMissing", cure='usePrecompiled: true and version: "570"', by=precompiled),
    FailureCase(system="ubuntu", tool="apt-get", code=100, argument="libc6-dev", reason="PackageGone", by=booted,
        cured='[ "$kernel" = 5.15.0-101-generic ]',
        text="E: Failed to fetch http://m/libc6-dev.deb  404  Not Found [IP: 1.2.3.4 80]", cure="boot a newer kernel"),
    *(FailureCase(system=system, before=behind_proxy, reason="RepositoryUnreachable", cure=PROXIES, by=with_proxy)
        for system in SYSTEMS),
    FailureCase(system="ubuntu", before=only(*PLAIN, "linux-headers-*"), switches=4, tool="curl", code=22,
        argument="cuda-keyring", text="curl: (22) The requested URL returned error: 404",
        reason="RepositoryUnreachable", cure="CUDA_REPOSITORY_URL", by=stocked),
    FailureCase(system="ubuntu", before=wanting(version="570.999.99"), reason="VersionUnknown", by=with_version,
        cure="spec.driver.version: one of https://us.download.nvidia.com/tesla"),
    FailureCase(system="rocky", tool="curl", code=28, text="curl: (28) Connection timed out after 300000 ms",
        reason="DownloadFailed", cure=f"put it into /{names.DRIVER_DOWNLOADS}",
        by=downloaded),
    FailureCase(system="ubuntu", before=causes.rejected, reason="SecureBoot", cure="mokutil --import", at="modprobe",
        by=causes.enrolled),
    FailureCase(system="debian", before=causes.rejected, reason="SecureBoot", cure="switch Secure Boot off",
        at="modprobe", by=causes.switched_off),
    FailureCase(system="sles", tool="modprobe", argument="nvidia", reason="ModuleUnsupported", by=allowed,
        cured='grep -qs "^allow_unsupported_modules 1" "$MACHINE"/etc/modprobe.d/*.conf',
        text="modprobe: ERROR: module 'nvidia' is unsupported", cure="allow_unsupported_modules 1"),
    FailureCase(system="debian", before=causes.passed_through, reason="GPUNotDriven", cure="unbind vfio-pci",
        by=causes.unbound),
    FailureCase(system="ubuntu", before=causes.of_another_kernel, reason="KernelMismatch", by=made_again,
        cure="umount -R -l /run/nvidia/driver; rm -rf /var/lib/gpuplane/driver/root"),
    FailureCase(system="ubuntu", before=causes.opened_meanwhile, reason="ModuleInUse",
        cure="end the processes that use the GPUs", at="rmmod nvidia", by=causes.users_stopped),
    FailureCase(system="ubuntu", before=causes.number_taken, reason="ModprobeFailed", cure="dmesg",
        by=causes.number_returned),
    FailureCase(system="ubuntu", tool="make", code=2, argument="modules", reason="CompilerMismatch", by=precompiled,
        text="gcc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
        cure='usePrecompiled: true and version: "570"'),
    FailureCase(system="rocky", tool="make", code=2, argument="modules", reason="CompileFailed", by=precompiled,
        text="nv-linux.h:1: error: implicit declaration of function 'f'", cure="usePrecompiled: true"),
    FailureCase(system="debian", tool="make", code=2, argument="modules", reason="CompileFailed", by=booted,
        cured='[ "$kernel" = 6.1.0-20-amd64 ]',
        text="nv-linux.h:1: error: implicit declaration of function 'f'", cure="or boot another kernel"),
    FailureCase(system="rocky", before=causes.directory_for_node, reason="NvidiaPersistencedFailed",
        cure="run it by hand", by=causes.directory_removed),
]  # fmt: skip


async def done(step: WantedDriver | Awaitable[WantedDriver]) -> WantedDriver:
    return step if isinstance(step, WantedDriver) else await step


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_failure_has_its_reason_and_its_cure_cures(tmp_path: Path, case: FailureCase) -> None:
    machine = Machine(tmp_path, case.system, switches=case.switches)
    wanted = await done(case.before(machine, WANTED))
    if case.tool:
        machine.trouble(case.tool, case.code, case.text, case.argument, case.cured)
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=wanted)
    assert caught.value.reason == case.reason
    assert case.cure in caught.value.cure
    assert caught.value.where
    assert case.at in caught.value.where
    assert "secret" not in str(caught.value)
    await install(machine.host, wanted=await done(case.by(machine, wanted)))
    assert machine.loaded


def test_every_row_has_a_case() -> None:
    """A row is one of a case's text; the machine's own tools print those of the other cases."""
    printed = [
        meaning(Completed(Command((case.tool, case.argument)), case.code, "", case.text), case.system)
        for case in CASES
        if case.tool
    ]
    reasons = [case.reason for case in CASES if case.tool]
    assert [
        row.reason.format(Tool=reason.removesuffix("Failed")) for row, reason in zip(printed, reasons, strict=True)
    ] == reasons
    named = {row.reason for row in TABLE}
    caused = {
        (case.reason if case.reason in named else "{Tool}Failed", case.system == "sles")
        for case in CASES
        if not case.tool
    }
    rest = [row for row in TABLE if row not in printed]
    assert {(row.reason, bool(row.systems)) for row in rest} <= caused


def test_proxies_are_known_in_both_spellings_and_change_no_driver() -> None:
    read = read_wanted({"HTTPS_PROXY": "http://p", "no_proxy": ".svc"}, {})
    assert dict(read.proxies) == {
        **dict.fromkeys(("HTTPS_PROXY", "https_proxy"), "http://p"),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), ".svc"),
    }
