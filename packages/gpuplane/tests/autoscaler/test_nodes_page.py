"""The page that `gpuplane simulate nodes --html FILE` draws, read as a browser reads it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.main import main
from packages.gpuplane.tests.autoscaler.test_simulate_nodes import DEPLOYMENT, NODE_POOL, PROVISIONER, VALUES

_VOID = ("meta", "br")


class Page(HTMLParser):
    """Checks that elements nest, and collects rows of cells, lines, tables, text and everything that a browser would
    fetch.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[tuple[float, str]]] = []
        self.lines: list[list[str]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.fetched: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        self.fetched += [given[name] for name in ("src", "href", "action") if name in given]
        self.fetched += [tag] if tag in ("script", "link", "iframe", "object") else []
        if given.get("class") == "slots":
            self.rows.append([])
        if tag == "polyline":
            self.lines.append(given["points"].split())
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "i":
            width = given["style"].removeprefix("width:").partition("%")[0]
            self.rows[-1].append((float(width), given["title"]))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


SHARES = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: part, namespace: ml}
spec:
  replicas: 3
  template:
    spec:
      containers:
      - name: main
        resources: {limits: {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 10}}
"""


def drawn(folder: Path, pools: str, pods: str, *more: str) -> Page:
    folder.mkdir(exist_ok=True)
    for name, text in (("pools.yaml", pools), ("values.yaml", VALUES), ("pods.yaml", pods)):
        (folder / name).write_text(text)
    page = folder / "nodes.html"
    files = ["--pools", str(folder / "pools.yaml"), str(folder / "values.yaml"), "--pods", str(folder / "pods.yaml")]
    assert main(["simulate", "nodes", *files, "--html", str(page), *more]) == 0
    text = page.read_text()
    assert "url(" not in text and "@import" not in text
    return Page(text)


def test_ten_replicas_fill_one_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = drawn(tmp_path, PROVISIONER, DEPLOYMENT)
    assert page.fetched == []
    assert page.rows[0] == [(10.0, "ml/test: 1 GPU, 10%")] * 10
    assert all(sum(width for width, _ in row) <= 100.1 for row in page.rows)
    assert "1 node to buy for 10 pods: 0.53 $/h" in page.text
    assert "0.53 $/h, 1 node" in page.text and "11.74 $/h, 3 nodes" in page.text
    printed = capsys.readouterr()
    assert "1 × g4dn.xlarge" in printed.out and printed.err.endswith(f"wrote {tmp_path}/nodes.html\n")


def test_the_bills_of_fewer_pods_are_curves(tmp_path: Path) -> None:
    page = drawn(tmp_path, PROVISIONER, DEPLOYMENT)
    assert len(page.lines) == 2
    growth, nodes = page.tables
    assert growth[0][1:] == ["gpuplane", "Karpenter: one GPU for each share or replica"]
    # One GPU has ten replicas: ours costs the same from the first pod, Karpenter's grows with each.
    assert [row[0] for row in growth[1:]] == ["2", "3", "4", "5", "7", "8", "9", "10"]
    assert {row[1] for row in growth[1:]} == {"0.53 $"} and growth[-1][2] == "11.74 $"
    assert nodes[1] == ["g4dn.xlarge", "gpu-shared, on-demand", "1", "0.526", "10 × ml/test: 1 GPU"]
    assert "prices" not in page.text and "Node pools" in page.text and "simulate nodes --pools" in page.text


def test_every_workload_grows_at_the_same_rate(tmp_path: Path) -> None:
    many, few = SHARES.replace("replicas: 3", "replicas: 16"), SHARES.replace("name: part", "name: other")
    page = drawn(tmp_path, NODE_POOL, f"{many}---\n{few.replace('replicas: 3', 'replicas: 1')}")
    assert [row[0] for row in page.tables[0][1:]] == ["3", "5", "7", "9", "11", "13", "15", "17"]


def test_a_single_pod_has_no_curve(tmp_path: Path) -> None:
    page = drawn(tmp_path, NODE_POOL, SHARES.replace("replicas: 3", "replicas: 1"))
    assert page.lines == [] and "1 node to buy for 1 pod" in page.text


def test_shares_are_as_wide_as_their_core_and_equal_nodes_are_one_drawing(tmp_path: Path) -> None:
    page = drawn(tmp_path, NODE_POOL, SHARES)
    share = (30.0, "ml/part: 30% core + 2.5 GiB of one GPU, 30%")
    assert page.rows[0] == [share, share, share, (10.0, "free, 10%")]
    many = drawn(tmp_path, NODE_POOL, SHARES.replace("replicas: 3", "replicas: 30"))
    # Seven pods a node: four nodes of the same three shares and more are drawn once.
    assert len(many.rows) < 10 * len(page.rows) and " × " in many.text


def test_names_of_manifests_do_not_become_markup(tmp_path: Path) -> None:
    page = drawn(tmp_path, PROVISIONER, DEPLOYMENT.replace("name: test,", 'name: "<script>\\"&\\e[31m",'))
    assert page.fetched == [] and 'ml/<script>"&^[[31m' in page.text


def test_pods_without_a_node_are_listed_with_the_reasons(tmp_path: Path) -> None:
    page = drawn(tmp_path, PROVISIONER, DEPLOYMENT.replace("operator: Exists", "operator: Exists, effect: NoExecute"))
    assert "10 pods without a node" in page.text and "does not tolerate the taint nvidia.com/gpu-shared" in page.text
    assert page.rows == []


def test_json_and_the_page_are_written_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn(tmp_path, PROVISIONER, DEPLOYMENT, "-o", "json", "-q")
    printed = capsys.readouterr()
    assert printed.out.startswith("{") and "wrote" not in printed.err


def test_a_page_that_cannot_be_written_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn(tmp_path, PROVISIONER, DEPLOYMENT)
    capsys.readouterr()
    files = ["--pools", str(tmp_path / "pools.yaml"), "--pods", str(tmp_path / "pods.yaml")]
    assert main(["simulate", "nodes", *files, "--html", str(tmp_path / "none" / "a.html")]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and f"cannot write the file: there is no folder {tmp_path}/none" in printed.err
    assert f"--html {tmp_path}/none/a.html" in printed.err
