"""The boards and alerts of an installation with monitoring: promtool's verdicts on series that fire and series that do
not, and the metrics in them are those that components expose.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.parser import parse
from gpuplane.operator.installation import installation

ROOT = Path(__file__).parents[4]
BOARDS = sorted((ROOT / "packages/gpuplane/src/gpuplane/operator/boards").glob("*.json"))
[ALERTS] = [one for one in installation(monitoring={}) if one["kind"] == "PrometheusRule"]
RULES = {rule["alert"]: rule for group in ALERTS["spec"]["groups"] for rule in group["rules"]}
# A test of docs/ holds this page to what the components expose.
EXPOSED = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
SUFFIXES = re.compile(r"_(bucket|sum|count)$")
promtool_installed = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool here (Debian: apt-get install prometheus)"
)
# Alert -> series that let it fire, and series that do not; in promtool's notation, a value each minute.
FIRES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "GPULost": (
        {'gpuplane_gpu_lost{gpu="1",Hostname="n"}': "1x2000"},
        {'gpuplane_gpu_lost{gpu="1",Hostname="n"}': "0x80 1x1 0x1900"},
    ),
    "GPUNodeNotReady": (
        {'gpuplane_nodes_by_stage{stage="driver"}': "1x2000", 'gpuplane_nodes_by_stage{stage="ready"}': "3x2000"},
        {'gpuplane_nodes_by_stage{stage="driver"}': "0x2000", 'gpuplane_nodes_by_stage{stage="ready"}': "4x2000"},
    ),
    "GPUDriverUpgradeFailed": (
        {"gpu_operator_nodes_upgrades_failed": "1x2000"},
        {"gpu_operator_nodes_upgrades_failed": "0x2000"},
    ),
    "GPUOperatorFails": (
        {"gpu_operator_reconciliation_status": "-2x2000"},
        {"gpu_operator_reconciliation_status": "0x2000"},
    ),
    "GPUOperatorPaused": ({"gpuplane_operator_paused": "1x2000"}, {"gpuplane_operator_paused": "0x1500 1x500"}),
    "GPUExtenderHasNoLeader": (
        {'gpuplane_scheduler_leader{pod="a"}': "0x2000", 'gpuplane_scheduler_leader{pod="b"}': "0x2000"},
        {'gpuplane_scheduler_leader{pod="a"}': "0x2000", 'gpuplane_scheduler_leader{pod="b"}': "1x2000"},
    ),
    "GPUPodsWaitWhileGPUsAreFree": (
        {'gpuplane_scheduler_waiting_pods{pod="a"}': "4x2000", 'gpuplane_scheduler_free_gpus{pod="a"}': "2x2000"},
        {'gpuplane_scheduler_waiting_pods{pod="a"}': "4x2000", 'gpuplane_scheduler_free_gpus{pod="a"}': "0.3x2000"},
    ),
    "GPUPodsBoundPastExtender": (
        {"gpuplane_scheduler_unassigned_pods": "2x2000"},
        {"gpuplane_scheduler_unassigned_pods": "0x2000"},
    ),
    "GPUBindsFail": (
        {"gpuplane_scheduler_bind_failures_total": "0+1x2000"},
        {"gpuplane_scheduler_bind_failures_total": "7x2000"},
    ),
    "GPUQuotasUnreadable": (
        {"gpuplane_scheduler_quota_broken": "1x2000"},
        {"gpuplane_scheduler_quota_broken": "0x2000"},
    ),
    # promtool's time begins at 0: 14 days, and 60 days, after the moment of the test.
    "GPUWebhookCertificateEnds": (
        {"gpuplane_admission_certificate_end_seconds": f"{14 * 86400}x2000"},
        {"gpuplane_admission_certificate_end_seconds": f"{60 * 86400}x2000"},
    ),
    "GPULimitsEscaped": (
        {'gpuplane_limits_escaped_processes{gpu="0"}': "1x2000"},
        {'gpuplane_limits_escaped_processes{gpu="0"}': "0x2000"},
    ),
    "GPUShareOutOfMemory": (
        {'gpuplane_share_refused_total{namespace="ml",pod="tune"}': "0+1x2000"},
        {'gpuplane_share_refused_total{namespace="ml",pod="tune"}': "9x2000"},
    ),
}


def board_queries(board: Path) -> Iterator[tuple[str, str]]:
    """Yield (panel, query) of a board, those of its variables included."""
    data = json.loads(board.read_text())
    for panel in data["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in data["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


def metric_names(query: str) -> set[str]:
    """Return the metrics of a query: gpuplane's, those of the GPU operator and of DCGM."""
    return {SUFFIXES.sub("", name) for name in re.findall(r"\b(?:gpuplane|gpu_operator|DCGM)_\w+", query)}


def filled(query: str) -> str:
    """Return a query with values for Grafana's variables."""
    return re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "1m"))


@pytest.mark.parametrize("board", BOARDS, ids=[board.stem for board in BOARDS])
def test_every_metric_of_a_board_is_exposed(board: Path) -> None:
    found = list(board_queries(board))
    assert len(found) > 10
    for panel, query in found:
        assert metric_names(query) and metric_names(query) <= EXPOSED, panel


def test_every_metric_of_an_alert_is_exposed() -> None:
    for name, rule in RULES.items():
        assert metric_names(rule["expr"]) and metric_names(rule["expr"]) <= EXPOSED, name


@pytest.mark.parametrize("board", BOARDS, ids=[board.stem for board in BOARDS])
def test_panels_of_a_board_lie_beside_each_other(board: Path) -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads(board.read_text())["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({json.loads(one.read_text())["uid"] for one in BOARDS}) == len(BOARDS)


def test_cures_of_alerts_that_are_commands_of_gpuplane_exist() -> None:
    for name, rule in RULES.items():
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("critical", "warning", "info"), name
        words = rule["annotations"]["cure"].partition(" on the node")[0].split()
        if words[0] == "gpuplane":
            assert parse(words[1:]).command, name


def check_with_promtool(directory: Path, *command: str, **documents: Any) -> str:
    """Run promtool on files with these contents; return what it wrote if it failed."""
    for name, document in documents.items():
        (directory / f"{name}.yml").write_text(json.dumps(document))  # JSON is YAML
    done = subprocess.run(["promtool", *command], cwd=directory, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@promtool_installed
@pytest.mark.parametrize("board", BOARDS, ids=[board.stem for board in BOARDS])
def test_every_query_of_a_board_parses(board: Path, tmp_path: Path) -> None:
    queries = [query for _, query in board_queries(board) if not query.startswith("label_values")]
    rules = [{"record": f"panel:{number}", "expr": filled(query)} for number, query in enumerate(queries)]
    groups = {"groups": [{"name": "panels", "rules": rules}]}
    assert check_with_promtool(tmp_path, "check", "rules", "rules.yml", rules=groups) == ""


def test_every_alert_has_series_that_fire_and_series_that_do_not() -> None:
    assert FIRES.keys() == RULES.keys()


@promtool_installed
@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_when_it_should_and_not_otherwise(alert: str, tmp_path: Path) -> None:
    """promtool evaluates all rules once a minute; no other alert may fire on the series of this one."""
    firing, quiet = FIRES[alert]
    minutes = 1900 if RULES[alert].get("for") == "1d" else 90

    def case(series: dict[str, str], expected: bool) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": "count by (alertname) (ALERTS{alertstate='firing'})",
                    "eval_time": f"{minutes}m",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if expected else [],
                }
            ],
        }

    tests = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [case(firing, True), case(quiet, False)],
    }
    assert check_with_promtool(tmp_path, "test", "rules", "tests.yml", alerts=ALERTS["spec"], tests=tests) == ""
