"""The chart's generated files are what the code says, and they know the names that users of other charts know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart import generate
from gpuplane.operator.installation import installation

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/chart/gpuplane"


def is_written(name: str, text: str) -> bool:
    path = CHART / name
    return path.exists() and path.read_text() == text


def test_the_generated_files_are_up_to_date() -> None:
    old = [name for name, text in generate.files().items() if not is_written(name, text)]
    assert not old, "run: python -m deploy.chart.generate"


def test_no_crd_is_left_of_an_earlier_release() -> None:
    assert {f"crds/{path.name}" for path in (CHART / "crds").iterdir()} <= generate.files().keys()


def test_the_crds_are_the_installations() -> None:
    found = [yaml.safe_load(path.read_text()) for path in (CHART / "crds").iterdir()]
    wanted = [manifest for manifest in installation() if manifest["kind"] == "CustomResourceDefinition"]
    by_name = {crd["metadata"]["name"]: crd for crd in found}
    assert by_name == {crd["metadata"]["name"]: crd for crd in wanted}


def schema_at(path: str) -> dict[str, Any] | None:
    found: Any = json.loads((CHART / "values.schema.json").read_text())
    for name in path.split("."):
        if name not in found.get("properties", {}):
            return (
                found
                if found.get("additionalProperties", True) is not False and found.get("type") == "object"
                else None
            )
        found = found["properties"][name]
    return found


# Values that the charts of the GPU operator (26.x) and of the device plugin set.
KNOWN = (Path(__file__).parent / "known_values.txt").read_text().split()


def test_every_value_that_users_know_is_known() -> None:
    assert not [path for path in KNOWN if schema_at(path) is None]


# The values files of NVIDIA's charts, as JSON: the commit, the number of fields, the digest of all of them. No registry
# has the charts, so the copies were compared with the files of these commits.
COPIES = {
    "gpu-operator": ("NVIDIA/gpu-operator@a22dbf671", 294, "91b4cc1622ea5448"),
    "device-plugin": ("NVIDIA/k8s-device-plugin@1b826acc6", 51, "aa4447db7ddf27b2"),
}


@pytest.mark.parametrize("chart", COPIES)
def test_the_copies_of_the_other_charts_values_are_whole(chart: str) -> None:
    """The tests on clusters install the values that NVIDIA ships: a field that is retyped or left out fails here."""

    def leaves(value: Any) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) and value else 1

    values = json.loads((Path(__file__).parent / "charts" / f"{chart}.json").read_text())
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    assert (leaves(values), digest[:16]) == COPIES[chart][1:], f"compare it with {COPIES[chart][0]}"


@pytest.mark.parametrize("chart", COPIES)
def test_every_value_of_the_other_charts_own_values_files_is_known(chart: str) -> None:
    def paths(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield prefix + name
            found = schema_at(prefix + name)
            if isinstance(value, dict) and found is not None and "properties" in found:
                yield from paths(value, f"{prefix}{name}.")

    values = json.loads((Path(__file__).parent / "charts" / f"{chart}.json").read_text())
    assert not [path for path in paths(values) if schema_at(path) is None]


def test_an_unknown_value_is_not() -> None:
    assert schema_at("driver.enbled") is None
    assert schema_at("devicplugin") is None


def test_every_value_says_what_it_is_for() -> None:
    def silent(schema: dict[str, Any], path: str) -> list[str]:
        found = []
        for name, inner in schema.get("properties", {}).items():
            place = f"{path}.{name}".lstrip(".")
            if not inner.get("description"):
                found.append(place)
            if "items" not in inner:
                found += silent(inner, place)
        return found

    # Kubernetes' own structures are described by Kubernetes.
    kubernetes = ("resources.", "limits", "requests", "claims")
    left = [place for place in silent(generate.values_schema(), "") if not any(word in place for word in kubernetes)]
    assert left == []


def test_the_manifests_are_the_installations_but_for_the_places_with_values() -> None:
    install = ROOT / "packages/gpuplane/src/gpuplane/operator/install"
    for path in sorted(install.glob("*.yaml")):
        made = (CHART / "templates" / path.name).read_text()
        lines = [line for line in path.read_text().splitlines() if line not in made]
        replaced = "".join(old for old, _ in generate.REPLACED.get(path.name, ()))
        assert all(line in replaced for line in lines), path.name
