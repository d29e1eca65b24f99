"""Real containerds of four releases, started, with gpuplane's configuration: pods run before, with and after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.toolkit import by_hand
from packages.gpuplane.tests.toolkit.cri import CRI
from packages.gpuplane.tests.toolkit.real_machine import (
    BUSYBOX,
    CONFIG,
    RELEASES,
    RealMachine,
    containerd_machine,
    lacking,
    started,
)

pytestmark = pytest.mark.deadline(600)  # a machine is made, and its runtime started, in the test itself

STAND_IN = '#!/bin/busybox sh\necho "$@" >> /var/log/nvidia\nexec runc "$@"\n'


@pytest.fixture(autouse=True)
def _here(request: pytest.FixtureRequest) -> None:
    why = lacking() if request.config.getoption("--cluster") == "real" else "runs with --cluster real"
    if why:
        pytest.skip(why)


async def runs(cri: CRI, name: str, handler: str = "") -> None:
    pod = await cri.run_pod(name, handler)
    container = await cri.run_container(pod, BUSYBOX, ("/bin/busybox", "sleep", "1000"))
    assert (await cri.execute(container, "/bin/busybox", "echo", "here")).text == "here\n"
    await cri.remove_pod(pod)


def created_by_nvidia(machine: RealMachine) -> int:
    """Containers that NVIDIA's runtime was asked to create; containerd 2 also asks each runtime for its features."""
    log = machine.root / "var/log/nvidia"
    return log.read_text().count(" create ") if log.exists() else 0


@pytest.mark.parametrize("release", RELEASES)
async def test_pods_run_with_debians_configuration_that_has_no_table_of_runtimes(tmp_path: Path, release: str) -> None:
    machine = containerd_machine(tmp_path / "machine", release)
    text = (machine.root / CONFIG).read_text()
    assert "runtimes" not in text
    machine.write("usr/bin/nvidia-container-runtime", STAND_IN, 0o755)
    async with started(machine, tmp_path) as cri:
        await runs(cri, "before")
        await by_hand.configure(machine.host, set_as_default=False)
        assert {"runc", "nvidia"} <= (await cri.runtimes()).keys()
        await runs(cri, "plain")
        assert created_by_nvidia(machine) == 0
        await runs(cri, "with-class", "nvidia")
        assert created_by_nvidia(machine) == 2  # the sandbox and its container
        await by_hand.unconfigure(machine.host)
        assert (machine.root / CONFIG).read_text() == text
        assert set(await cri.runtimes()) == {"runc", ""}
        await runs(cri, "after")


@pytest.mark.parametrize("release", RELEASES)
async def test_pods_run_on_a_containerd_without_a_configuration(tmp_path: Path, release: str) -> None:
    machine = containerd_machine(tmp_path / "machine", release)
    machine.without_configuration()
    machine.write("usr/bin/nvidia-container-runtime", STAND_IN, 0o755)
    async with started(machine, tmp_path) as cri:
        before = await cri.runtimes()
        await runs(cri, "before")
        await by_hand.configure(machine.host, set_as_default=False)
        after = await cri.runtimes()
        assert after.keys() - before.keys() == {"nvidia"}
        assert (after[""], before[""]) == ("runc", "runc")
        await runs(cri, "plain")
        assert created_by_nvidia(machine) == 0
        await runs(cri, "with-class", "nvidia")
        assert created_by_nvidia(machine) == 2
        await by_hand.unconfigure(machine.host)
        assert await cri.runtimes() == before
        assert not (machine.root / CONFIG).exists()
        await runs(cri, "after")
