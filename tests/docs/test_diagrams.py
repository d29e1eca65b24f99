"""The diagrams of the pages say what the code says: packages, floors, gates."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from gpuplane.operator.stages import OPERANDS

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
NODE = re.compile(r"(\w+)(?:\(?\[\"([^\"]+)\"\]\)?)?")


def diagrams(page: str) -> list[str]:
    return re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.S)


def edges(diagram: str) -> set[tuple[str, str]]:
    """The edges of a flow chart between the ids of its nodes."""
    found = set()
    for line in diagram.splitlines()[1:]:
        ids = [match[1] for text in line.split(" --> ") if (match := NODE.fullmatch(text.strip()))]
        found |= set(pairwise(ids))
    return found


def test_the_packages_are_drawn_as_the_imports_that_are_allowed() -> None:
    everything = set(CONTRACTS["root_packages"])
    allowed = {
        (source, target)
        for contract in CONTRACTS["contracts"]
        if contract["type"] == "forbidden"
        for source in contract["source_modules"]
        for target in everything - set(contract["forbidden_modules"]) - {source}
    }
    drawn = edges(diagrams("architecture.md")[0])
    # gpulab may import all of them; its way to kubekit is that of the others.
    assert {edge for edge in drawn if edge[0] != "gpulab"} == allowed
    assert {target for source, target in drawn if source == "gpulab"} == everything - {"gpulab", "kubekit"}


def test_the_floors_are_drawn_in_their_order() -> None:
    [contract] = [one for one in CONTRACTS["contracts"] if one["type"] == "layers"]
    floors = [[part.strip().removeprefix("gpuplane.") for part in layer.split("|")] for layer in contract["layers"]]
    chart = diagrams("architecture.md")[1]
    labels = dict(re.findall(r'(f\d)\["([^"]+)"\]', chart))
    assert [labels[f"f{number}"].split(" · ") for number in range(1, len(labels) + 1)] == floors
    assert edges(chart) == {(f"f{number}", f"f{number + 1}") for number in range(1, len(floors))}


def test_the_gates_are_drawn_as_the_operator_has_them() -> None:
    expected = set()
    for operand in OPERANDS:
        gate = f"g_{operand.gate}"
        expected |= {(stage.value, gate) for stage in operand.needs} | {(gate, stage.value) for stage in operand.makes}
    [chart] = diagrams("components/operator.md")
    assert edges(chart) == {(a.replace("-", "_"), b.replace("-", "_")) for a, b in expected}


@pytest.mark.parametrize("page", ["architecture.md", "components/operator.md", "tasks/move.md", "tasks/notebooks.md"])
def test_a_page_is_drawn(page: str) -> None:
    assert all(diagram.startswith(("flowchart ", "sequenceDiagram\n")) for diagram in diagrams(page))
    assert diagrams(page)
