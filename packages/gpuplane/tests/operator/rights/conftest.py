"""The installation's policies on the embedded API server, with two nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.policy_world import PolicyWorld


@pytest.fixture
async def world() -> AsyncIterator[PolicyWorld]:
    made = PolicyWorld()
    await made.set_up()
    for name in ("mine", "other"):
        await made.node(name)
        await made.gpunode(name, stages={"driver": {"state": "running"}, "toolkit": {"state": "pending"}})
    yield made
    made.close()
