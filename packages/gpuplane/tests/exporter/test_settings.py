"""The environment that people know from the DCGM exporter."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.exporter.settings import Settings, read
from kubekit.errors import InvalidInput


def test_nothing_said() -> None:
    assert read({"PATH": "/bin"}) == Settings()


def test_all_that_acts() -> None:
    got = read(
        {
            "DCGM_EXPORTER_COLLECTORS": "/etc/fields.csv",
            "DCGM_EXPORTER_LISTEN": "[::1]:9500",
            "DCGM_EXPORTER_KUBERNETES": "false",
            "DCGM_EXPORTER_NO_HOSTNAME": "1",
            "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME": "True",
            "NVIDIA_RESOURCE_NAMES": "example.com/a100, example.com/t4",
            "DCGM_HPC_JOB_MAPPING_DIR": "/var/jobs",
            "DCGM_EXPORTER_INTERVAL": "30000",
        }
    )
    assert got == Settings(
        collectors=Path("/etc/fields.csv"),
        address="::1",
        port=9500,
        pods=False,
        hostname=False,
        dashes=True,
        resources=("example.com/a100", "example.com/t4"),
        jobs_dir="/var/jobs",
        idle=("DCGM_EXPORTER_INTERVAL",),
    )


def test_the_command_line_goes_before() -> None:
    assert read({"DCGM_EXPORTER_COLLECTORS": "/a"}, Path("/b")).collectors == Path("/b")


@pytest.mark.parametrize("name", ["default-counters.csv", "dcp-metrics-included.csv"])
def test_the_lists_of_nvidias_image_are_the_default_one(name: str) -> None:
    assert read({"DCGM_EXPORTER_COLLECTORS": f"/etc/dcgm-exporter/{name}"}).collectors is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DCGM_EXPORTER_LISTEN", "9400"),
        ("DCGM_EXPORTER_LISTEN", ":http"),
        ("DCGM_EXPORTER_LISTEN", ":99999"),
        ("DCGM_EXPORTER_LISTEN", "::1:9400"),
        ("DCGM_EXPORTER_KUBERNETES", "maybe"),
        ("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "maybe"),
        ("DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "^app$,(team"),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(name: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read({name: value})
    assert caught.value.where == name
    assert caught.value.cure.startswith("write ")


@pytest.mark.parametrize(("value", "port"), [(":9400", 9400), ("0.0.0.0:0", 0), ("", None)])
def test_addresses(value: str, port: int | None) -> None:
    assert read({"DCGM_EXPORTER_LISTEN": value}).port == port
