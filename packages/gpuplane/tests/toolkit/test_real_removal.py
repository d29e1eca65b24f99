"""The toolkit leaves a real containerd while pods of RuntimeClass nvidia run: they go on, and end as usual."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.toolkit import apply, observe, plan
from gpuplane.toolkit.applying import unconfigure
from packages.gpuplane.tests.toolkit.machine import GPUS, VERSION
from packages.gpuplane.tests.toolkit.real_machine import BUSYBOX, RELEASES, containerd_machine, started

pytestmark = [
    pytest.mark.deadline(600),  # a machine is made, and its runtime started, in the test itself
    pytest.mark.usefixtures("nvidias_programs"),
]

TOOLKIT = "usr/local/nvidia/toolkit"


@pytest.mark.parametrize("release", RELEASES)
async def test_running_pods_outlive_the_toolkit_and_end_as_usual(tmp_path: Path, release: str) -> None:
    machine = containerd_machine(tmp_path / "machine", release)
    machine.with_driver(VERSION)
    async with started(machine, tmp_path) as cri:
        runtime = f"containerd://{await cri.version()}"
        facts = observe(machine.host, gpus=GPUS, driver_version=VERSION, runtime=runtime)
        await apply(machine.host, plan(facts, set_as_default=False))
        running = []
        for name in ("one", "two"):
            pod = await cri.run_pod(name, "nvidia")
            env = {"NVIDIA_VISIBLE_DEVICES": "all"}
            running.append((pod, await cri.run_container(pod, BUSYBOX, ("/bin/busybox", "sleep", "1000"), env)))
        await unconfigure(machine.host)
        assert [path.name for path in (machine.root / TOOLKIT).iterdir()] == ["nvidia-container-runtime"]
        for pod, container in running:
            assert (machine.root / TOOLKIT).exists()
            if facts.version < (2, 0):  # since then, exec needs the runtime's table, which is gone
                assert (await cri.execute(container, "/bin/busybox", "ls", "/dev/nvidia1")).text == "/dev/nvidia1\n"
            await cri.remove_pod(pod)
        assert not (machine.root / "usr/local/nvidia").exists()
        listed = machine.run("ctr", "--namespace=k8s.io", "containers", "list", "--quiet")
        assert (listed.returncode, listed.stdout) == (0, "")
