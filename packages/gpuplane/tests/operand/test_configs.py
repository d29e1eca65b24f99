"""The configuration that a node follows, and its change to another configuration at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplane.operand.configs import NodeConfig, NodeConfiguration, choose, own_labels
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput
from kubekit.kube import EventType, ListPage, WatchEvent

LABEL = "nvidia.com/device-plugin.config"


@pytest.mark.parametrize(
    ("present", "label", "default", "fallbacks", "chosen"),
    [
        (["a", "b"], "b", "a", [], "b"),
        (["a", "b"], "", "a", [], "a"),
        (["a", "default"], "", "", ["named", "single"], "default"),
        (["a"], "", "", ["named", "single"], "a"),
        (["a", "b"], "", "", ["named", "single", "empty"], ""),
        ([], "", "", ["empty"], ""),
    ],
)
def test_choice(present: list[str], label: str, default: str, fallbacks: list[str], chosen: str) -> None:
    assert choose(present, label, default, fallbacks) == chosen


@pytest.mark.parametrize(
    ("present", "label", "default", "fallbacks", "why"),
    [
        (["a", "b"], "c", "a", ["empty"], "label nvidia.com/device-plugin.config names the configuration 'c'"),
        (["a", "b"], "", "c", ["empty"], "DEFAULT_CONFIG names the configuration 'c'"),
        (["a", "b"], "", "", ["named", "single"], "no configuration is chosen"),
        (["a"], "", "", ["first"], "FALLBACK_STRATEGIES names 'first'"),
    ],
)
def test_no_choice(present: list[str], label: str, default: str, fallbacks: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        choose(present, label, default, fallbacks)


class OneNode:
    """A client that knows one Node, whose labels may change."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.version = 1
        self.changed = asyncio.Event()

    def choose(self, config: str) -> None:
        self.labels = {LABEL: config}
        self.version += 1
        self.changed.set()

    def node(self) -> Node:
        return Node(metadata=ObjectMeta(name="sim-1", uid="u", resource_version=str(self.version), labels=self.labels))

    async def pages(self, kind: type, *where: Any, bad: object) -> AsyncIterator[ListPage]:
        yield ListPage([self.node()], "1", "")

    async def watch(self, kind: type, *where: Any, bad: object) -> AsyncIterator[WatchEvent[Node]]:
        while True:
            await self.changed.wait()
            self.changed.clear()
            yield WatchEvent(EventType.MODIFIED, self.node(), str(self.version))


def context(client: OneNode, config: Path | None) -> Any:
    return SimpleNamespace(client=client, node_name="sim-1", config=config)


async def test_a_label_that_changes_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").write_text("B")
    client = OneNode()
    world = context(client, tmp_path)
    async with own_labels(world) as labels:
        config = NodeConfig(world, {"DEFAULT_CONFIG": "a"}, labels)
        seen = config.read()
        assert seen == NodeConfiguration(b"A", f"{tmp_path}/a")
        changed = asyncio.create_task(config.changed(seen))
        await asyncio.sleep(0)
        client.choose("b")
        await asyncio.wait_for(changed, 10)
        assert config.read().text == b"B"
        client.choose("gone")
        await asyncio.wait_for(config.changed(config.attempt()), 10)
        wrong = config.attempt()
        assert isinstance(wrong, InvalidInput)
        client.choose("a")
        await asyncio.wait_for(config.changed(wrong), 10)
        assert config.attempt() == seen


async def test_a_file_that_changes_is_followed_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").write_text("B")
    world = context(OneNode(), tmp_path)
    async with own_labels(world) as labels:
        config = NodeConfig(world, {"DEFAULT_CONFIG": "a"}, labels)
        changed = asyncio.create_task(config.changed(config.read()))
        (tmp_path / "b").write_text("C")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(changed), 0.1)
        (tmp_path / "a").write_text("D")
        await asyncio.wait_for(changed, 10)
        assert config.read().text == b"D"


async def test_one_file_and_none(tmp_path: Path) -> None:
    async with own_labels(context(OneNode(), None)) as labels:
        assert NodeConfig(context(OneNode(), None), {}, labels).read() == NodeConfiguration()
        one = NodeConfig(context(OneNode(), tmp_path / "config.yaml"), {}, labels)
        with pytest.raises(InvalidInput, match=r"config\.yaml: there is no such file"):
            one.read()
        changed = asyncio.create_task(one.changed(one.attempt()))
        await asyncio.sleep(0)
        (tmp_path / "config.yaml").write_text("A")
        await asyncio.wait_for(changed, 10)
        assert one.read().text == b"A"
