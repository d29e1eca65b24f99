"""The env file that other projects' containers begin with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuplane import names
from gpuplane.host import DriverReady, Host, mark_ready, read_driver_ready

ROOT = "/" + names.DRIVER_ROOT


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (DriverReady(host_driver=True), "true / /host / /host"),
        (DriverReady(host_driver=False), "false / /host / /host"),
        (DriverReady(host_driver=False, root=ROOT), f"false {ROOT} /driver-root / /host"),
        (DriverReady(host_driver=False, root=ROOT, dev_root=ROOT), f"false {ROOT} /driver-root {ROOT} /driver-root"),
    ],
)
def test_what_a_shell_gets_by_sourcing_it_and_what_we_read(tmp_path: Path, ready: DriverReady, expected: str) -> None:
    host = Host(tmp_path)
    mark_ready(host, names.DRIVER_READY, ready.encode())
    variables = "IS_HOST_DRIVER NVIDIA_DRIVER_ROOT DRIVER_ROOT_CTR_PATH NVIDIA_DEV_ROOT DEV_ROOT_CTR_PATH"
    script = f". {tmp_path / names.DRIVER_READY}; echo " + " ".join(f"${name}" for name in variables.split())
    said = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == expected
    assert read_driver_ready(host) == ready


def test_older_releases_files_are_read(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert read_driver_ready(host) is None
    mark_ready(host, names.HOST_DRIVER_READY)
    assert read_driver_ready(host) == DriverReady(host_driver=True)
    mark_ready(host, names.DRIVER_READY, b"IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n")
    assert read_driver_ready(host) == DriverReady(host_driver=False, root=ROOT)
