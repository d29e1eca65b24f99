"""`gpuplane demo --cloud`: each figure is compared with its promise; and the story itself, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulab.demo.cloud_verdict import CloudMeasured, judge_cloud

GOOD = CloudMeasured(
    bought={"whole": ["g4dn.xlarge"], "tenths": ["g4dn.xlarge"]},
    advertised={"whole": ["1"], "tenths": ["10"]},
    running_seconds=21.5,
    holders={"whole": ["ip-1"], "tenths": ["ip-2"] * 10},
    dollars_per_hour=0.4208,
    dollars_per_pod=0.2104,
    instances=2,
    left=[],
    gone_seconds=8.0,
    dollars=0.007,
)


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, set()),
        ({"running_seconds": None}, {"bought"}),
        ({"bought": {"whole": ["g4dn.xlarge"]}}, {"bought"}),
        ({"bought": {"whole": ["g4dn.xlarge"], "tenths": ["g4dn.xlarge"] * 2}}, {"bought"}),
        ({"advertised": {"whole": ["1"], "tenths": ["1"]}}, {"unlike"}),
        ({"advertised": {}}, {"unlike"}),
        ({"holders": {"tenths": ["ip-2"] * 9 + ["ip-3"]}}, {"shared"}),
        ({"holders": {"tenths": ["ip-2"] * 9}}, {"shared"}),
        ({"instances": 3}, {"shared"}),
        ({"dollars_per_hour": 2.4}, {"saved"}),
        ({"left": ["i-1"]}, {"gone"}),
        ({"left": None}, {"gone"}),
        ({"dollars": 0.0}, {"gone"}),
    ],
)
def test_a_promise_is_kept_only_by_its_figure(change: dict[str, Any], broken: set[str]) -> None:
    promises = judge_cloud(msgspec.structs.replace(GOOD, **change))
    assert {promise.name for promise in promises if not promise.kept} == broken


def test_nothing_measured_keeps_no_promise() -> None:
    assert not any(promise.kept for promise in judge_cloud(CloudMeasured()))


@pytest.mark.deadline(400)
def test_the_story_of_the_cloud_is_told_and_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    home: Path = tmp_path_factory.mktemp("d")  # unix sockets lie below it, whose paths are short
    environment = {
        **os.environ,
        "HOME": str(home),
        "GPUPLANE_HOME": str(home),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    words = (sys.executable, "-m", "gpuplane", "demo", "--cloud", "--down", "--progress", "plain", "-o", "json")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert [promise["name"] for promise in told["promises"]] == ["bought", "unlike", "shared", "saved", "gone"]
    assert all(promise["kept"] for promise in told["promises"]), told["promises"]
    assert told["advertised"] == {"tenths": ["10"], "whole": ["1"]}
    assert not list((home / "clusters").iterdir())
