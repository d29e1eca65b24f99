"""nvidia-smi of gpuplane's image: which program of the node it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.driver import nvidia_smi
from gpuplane.host import DriverReady

IN_CONTAINER = DriverReady(host_driver=False, root="/run/nvidia/driver", dev_root="/run/nvidia/driver")


class Became(Exception):
    """The process would be this program by now."""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def become(program: str, argv: tuple[str, ...], environment: dict[str, str]) -> None:
        raise Became(*argv[1:])

    monkeypatch.setattr(nvidia_smi.os, "execvpe", become)
    return tmp_path


def install(root: Path) -> None:
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/nvidia-smi").touch()


def test_it_is_the_program_of_the_driver_on_the_node(host: Path) -> None:
    install(host)
    with pytest.raises(Became) as became:
        nvidia_smi.main([f"--host-root={host}", "-L"])
    assert became.value.args == (str(host), "nvidia-smi", "-L")


def test_it_is_the_program_of_a_driver_in_a_container(host: Path) -> None:
    install(host)
    install(host / "run/nvidia/driver")
    ready = host / "run/nvidia/validations/driver-ready"
    ready.parent.mkdir()
    ready.write_bytes(IN_CONTAINER.encode())
    with pytest.raises(Became) as became:
        nvidia_smi.main([f"--host-root={host}"])
    assert "run/nvidia/driver" in " ".join(became.value.args)
    assert became.value.args[-1] == "nvidia-smi"


def test_without_a_driver_it_says_what_to_do(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nvidia_smi.main([f"--host-root={host}"]) == 12
    assert "has no driver yet; gpuplane status" in capsys.readouterr().err
