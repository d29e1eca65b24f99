"""Tables: kubectl's own columns and cells, printer columns of CRDs, ages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubekit.api.durations import human_duration
from tinykube.apiserver import tables
from tinykube.apiserver.builtin import RESOURCES
from tinykube.apiserver.jsonpath import JSONPath

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)


def stamp(**ago: float) -> str:
    return (NOW - timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def row(group: str, plural: str, obj: dict[str, Any]) -> dict[str, Any]:
    obj.setdefault("metadata", {"name": "x", "creationTimestamp": stamp(minutes=5)})
    table = tables.to_table(tables.printer_for(group, plural), [obj], now=NOW)
    names = [column["name"] for column in table["columnDefinitions"]]
    assert len(names) == len(table["rows"][0]["cells"])
    return dict(zip(names, table["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (125, "2m5s"), (600, "10m"), (3 * 3600, "3h"), (12000, "3h20m"), (30 * 3600, "30h"),
     (50 * 3600, "2d2h"), (30 * 86400, "30d"), (800 * 86400, "2y70d"), (9 * 365 * 86400, "9y"), (-5, "<invalid>")],
)  # fmt: skip
def test_ages_are_written_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


def pod(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "image": "i"}], **spec}, "status": status}


def container(state: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "c", "restartCount": 0, "state": state, **more}]


@pytest.mark.parametrize(
    ("made", "status", "ready"),
    [
        (pod({"phase": "Pending"}), "Pending", "0/1"),
        (pod({"phase": "Running", "containerStatuses": container({"running": {}}, ready=True)}), "Running", "1/1"),
        (
            pod({"phase": "Running", "containerStatuses": container({"waiting": {"reason": "CrashLoopBackOff"}})}),
            "CrashLoopBackOff",
            "0/1",
        ),
        (
            pod({"phase": "Failed", "containerStatuses": container({"terminated": {"exitCode": 3}})}),
            "ExitCode:3",
            "0/1",
        ),
        (
            pod(
                {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]},
                initContainers=[{"name": "i"}],
            ),
            "Init:0/1",
            "0/1",
        ),
        (pod({"phase": "Failed", "reason": "Evicted"}), "Evicted", "0/1"),
    ],
)
def test_the_status_of_a_pod(made: dict[str, Any], status: str, ready: str) -> None:
    cells = row("", "pods", made)
    assert (cells["Status"], cells["Ready"]) == (status, ready)


def test_a_pod_that_goes_is_terminating_and_restarts_have_their_time() -> None:
    going = pod({"phase": "Running"})
    going["metadata"] = {"name": "x", "creationTimestamp": stamp(hours=1), "deletionTimestamp": stamp()}
    assert row("", "pods", going)["Status"] == "Terminating"
    last = {"terminated": {"finishedAt": stamp(minutes=3)}}
    again = pod({"phase": "Running", "containerStatuses": container({"running": {}}, restartCount=2, lastState=last)})
    assert row("", "pods", again)["Restarts"] == "2 (3m ago)"


def test_the_columns_of_nodes_and_workloads() -> None:
    node = {
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.33.0"}},
    }
    cells = row("", "nodes", node)
    assert (cells["Status"], cells["Roles"], cells["Age"]) == ("Ready,SchedulingDisabled", "control-plane", "<unknown>")
    deployment = {"spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}}, "status": {"readyReplicas": 1}}
    assert row("apps", "deployments", deployment)["Ready"] == "1/3"
    assert row("batch", "jobs", {"spec": {"completions": 2}, "status": {"succeeded": 1}})["Completions"] == "1/2"
    service = {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000}]}}
    assert row("", "services", service)["Port(s)"] == "80:30000/TCP"


def test_every_builtin_kind_can_be_printed_empty() -> None:
    for info in RESOURCES:
        if "list" in info.verbs:
            cells = row(info.group, info.plural, {})
            assert all(cell is None or isinstance(cell, (str, int)) for cell in cells.values()), (info.plural, cells)


def test_columns_of_a_custom_resource() -> None:
    printer = tables.crd_printer(
        [
            {"name": "Stage", "type": "string", "jsonPath": ".status.summary.stage"},
            {"name": "Since", "type": "date", "jsonPath": ".status.summary.since"},
            {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
            {"name": "Count", "type": "integer", "jsonPath": ".spec.count", "priority": 1},
        ]
    )
    obj = {
        "metadata": {"name": "n"},
        "spec": {"count": 4},
        "status": {
            "summary": {"stage": "driver", "since": stamp(hours=2)},
            "conditions": [{"type": "X", "status": "?"}, {"type": "Ready", "status": "False"}],
        },
    }
    table = tables.to_table(printer, [obj, {"metadata": {"name": "empty"}}], now=NOW, include_object="None")
    assert [r["cells"] for r in table["rows"]] == [
        ["n", "driver", "120m", "False", 4],
        ["empty", None, None, None, None],
    ]
    assert table["columnDefinitions"][4]["priority"] == 1


def test_what_a_row_carries_is_asked_for() -> None:
    obj = {"metadata": {"name": "n"}, "data": {"a": "b"}}
    printer = tables.printer_for("", "configmaps")
    whole = tables.to_table(printer, [obj], now=NOW, include_object="Object")["rows"][0]["object"]
    partial = tables.to_table(printer, [obj], now=NOW, version="v1beta1")["rows"][0]["object"]
    assert whole == obj
    assert partial == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1beta1",
        "metadata": obj["metadata"],
    }


def test_the_accept_header_decides() -> None:
    assert tables.table_version(TABLE) == "v1"
    assert tables.table_version("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json") == "v1beta1"
    assert tables.table_version("application/json") is None
    assert tables.table_version("*/*") is None


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        (".list[0].x", [1]),
        (".list[*].x", [1, 2]),
        (".list[-1:].x", [2]),
        (".list[?(@.x>1)].y", ["two"]),
        (".list[?(@.y)].y", ["two"]),
        (".meta.labels.nvidia\\.com/gpu", ["yes"]),
        (".meta.labels['nvidia.com/gpu']", ["yes"]),
        ("..x", [1, 2]),
        (".none.at.all", []),
    ],
)
def test_json_paths(path: str, found: list[object]) -> None:
    data = {"a": {"b": 1}, "list": [{"x": 1}, {"x": 2, "y": "two"}], "meta": {"labels": {"nvidia.com/gpu": "yes"}}}
    assert JSONPath(path).find(data) == found


@pytest.mark.parametrize("path", [".a[", ".a[x]", ".a..[", ".a[?(@.b ~ 1)]"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="JSONPath"):
        JSONPath(path)
