"""The command `gpuplane doctor` as its users meet it: choice of checks, lists, forms, harmless output."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gpuplane.cli.completion import candidates
from gpuplane.cli.doctor.checks.registry import CHECKS
from packages.gpuplane.tests.cli.doctor.healthy_cluster import NODE, healthy_cluster
from packages.gpuplane.tests.cli.status_clusters import gpuplane

PAGE = Path(__file__).parents[5] / "docs/tasks/doctor.md"


async def test_the_list_has_every_check_without_asking_a_cluster(tmp_path: Path) -> None:
    code, out, _ = await gpuplane(tmp_path, "doctor", "--list")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, [check.name for check in CHECKS])
    _, out, _ = await gpuplane(tmp_path, "doctor", "--list", "-o", "json")
    assert {one["name"]: one["faults"] for one in json.loads(out)["checks"]} == {c.name: c.faults for c in CHECKS}


async def test_an_unknown_check_is_wrong_usage(tmp_path: Path) -> None:
    code, out, err = await gpuplane(tmp_path, "doctor", "--check", "webhook")
    assert (code, out) == (2, "")
    assert "did you mean webhooks?" in err and "gpuplane doctor --list" in err


async def test_a_cluster_that_does_not_answer_is_no_finding(tmp_path: Path) -> None:
    config = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
              "contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    code, out, _ = await gpuplane(tmp_path, "doctor")
    assert (code, out) == (3, "")


async def test_names_of_users_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    async with healthy_cluster(tmp_path) as cluster:
        await cluster.gpus(NODE, {f"GPU-{NODE}-1": "lost \x1b]0;owned\x07<b>"})
        code, out, _ = await gpuplane(tmp_path, "doctor")
        assert code == 1 and "\x1b" not in out and "^[]0;owned^G<b>" in out


def test_checks_are_completed() -> None:
    assert candidates(["doctor", "--check", "web"]) == ["webhooks"]


def test_the_page_of_the_documentation_has_every_check_and_fault() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(check.name, fault, text) for check in CHECKS for fault, text in check.faults.items()]
