"""A second installation keeps what administrators may change of the first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane import names
from kubekit.api.core import Deployment
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from tests.support.extender_world import World, world

OPERATOR = "gpu-operator"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        (tmp_path / "config").write_text(made.kubeconfig())
        yield made


async def install(home: Path) -> None:
    code, _, err = await gpuplane(home, "install")
    assert code == 0, err


async def replicas(cluster: World, name: str) -> int:
    return (await cluster.client.get(Deployment, name, names.OPERATOR_NAMESPACE)).spec.replicas


@pytest.mark.parametrize(
    ("scaled", "after"),
    [(3, 3), pytest.param(0, 1, id="switched off"), pytest.param(None, 1, id="never scaled")],
)
async def test_the_number_of_replicas_is_kept_where_somebody_has_set_it(
    cluster: World, tmp_path: Path, scaled: int | None, after: int
) -> None:
    await install(tmp_path)
    if scaled is not None:
        change = {"spec": {"replicas": scaled}}
        await cluster.client.patch(
            Deployment, OPERATOR, change, names.OPERATOR_NAMESPACE, subresource="scale", type="merge"
        )
    for _ in range(2):
        await install(tmp_path)
        assert await replicas(cluster, OPERATOR) == after
        assert await replicas(cluster, names.EXTENDER_NAME) == 2
