"""The doctor finds each fault that it names, with a cure that is true: it is carried out, and the finding is gone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.cli.doctor.checks.registry import CHECKS
from packages.gpuplane.tests.cli.doctor.cured import carry_out
from packages.gpuplane.tests.cli.doctor.faults import FAULTS
from packages.gpuplane.tests.cli.doctor.healthy_cluster import healthy_cluster
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from tests.support import find_kubectl
from tinykube.apiserver import discovery

NAMED = [(check.name, fault) for check in CHECKS for fault in check.faults]
# A fault and the findings that follow from it: each is another sign of the same fault.
FOLLOWS = {"crd-missing": {"node-without-report"}}


SECONDS = re.compile(r"\b\d+ s\b")


def timeless(finding: dict[str, str]) -> dict[str, str]:
    """Return a finding without its numbers of seconds: the next look is later."""
    return {name: SECONDS.sub("N s", text) for name, text in finding.items()}


@pytest.fixture
def kubectl() -> str:
    """The path of a kubectl, which many cures call."""
    try:
        return str(find_kubectl.find())
    except find_kubectl.NoKubectl as problem:
        pytest.skip(str(problem))


@pytest.fixture(autouse=True)
def version() -> Iterator[None]:
    """The API server's version as it was."""
    before = dict(discovery.VERSION)
    yield
    discovery.VERSION.clear()
    discovery.VERSION.update(before)


def test_every_fault_has_an_injection_and_a_name_of_its_own() -> None:
    faults = [fault for _, fault in NAMED]
    assert sorted(faults) == sorted(FAULTS)


async def findings(tmp_path: Path, *arguments: str) -> list[tuple[str, dict[str, str]]]:
    """Return (check, finding) of a look."""
    code, out, err = await gpuplane(tmp_path, "doctor", "-o", "json", *arguments)
    found = [(check["name"], one) for check in json.loads(out)["checks"] for one in check.get("findings", ())]
    assert (code, err) == (1 if found else 0, "")
    return found


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize(("check", "fault"), NAMED, ids=[fault for _, fault in NAMED])
async def test_an_injected_fault_is_found_and_its_cure_is_true(
    check: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with healthy_cluster(tmp_path) as cluster:
        await FAULTS[fault](cluster)
        found = await findings(tmp_path)
        own = [one for name, one in found if name == check and one["fault"] == fault]
        assert own, found
        assert {one["fault"] for _, one in found} - {fault} <= FOLLOWS.get(fault, set())
        again = await findings(tmp_path, "--check", check)
        assert [timeless(one) for _, one in again] == [timeless(one) for name, one in found if name == check]
        page = SECONDS.sub("N s", (await gpuplane(tmp_path, "doctor"))[1])
        for one in own:
            assert timeless(one)["what"] in page and one["where"] in page and one["cure"] in page
        for cure in dict.fromkeys(one["cure"] for one in own):
            await carry_out(cluster, cure, monkeypatch)
        assert [one for _, one in await findings(tmp_path) if one["fault"] == fault] == []
