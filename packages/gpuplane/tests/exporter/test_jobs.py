"""The batch system's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.exporter.jobs import Jobs
from gpuplane.host import Host


def test_jobs_by_gpu_and_instance(tmp_path: Path) -> None:
    directory = tmp_path / "var/jobs"
    directory.mkdir(parents=True)
    (directory / "0").write_text("17\n18\n\n17\n")
    (directory / "1.9").write_text("19")
    (directory / "2").write_text("")
    (directory / "README").write_text("no job")
    jobs = Jobs(Host(tmp_path), "/var/jobs")
    assert jobs.read() == {"0": ("17", "18"), "1.9": ("19",), "2": ()}
    (directory / "0").unlink()
    assert "0" not in jobs.read()


def test_no_directory_is_no_jobs(tmp_path: Path) -> None:
    assert Jobs(Host(tmp_path), "/var/jobs").read() == {}
    assert Jobs(Host(tmp_path), "").read() == {}


def test_what_cannot_be_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/3").mkdir()
    jobs = Jobs(Host(tmp_path), "jobs")
    assert jobs.read() == jobs.read() == {}
    assert caplog.text.count("no jobs on the metrics") == 1
