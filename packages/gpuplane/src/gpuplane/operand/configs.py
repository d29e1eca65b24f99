"""Chooses a node's configuration: from the device plugin's ConfigMap, by a label of the Node.

The device plugin and GPU feature discovery choose alike, and switch when the label or the files change. `--config` is
a file, which is followed as it is, or a directory (a mounted ConfigMap) with one file for each configuration.

Source: NVIDIA device plugin, config-manager: label, default, then the fallback strategies in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.host import Host
from gpuplane.operand.context import OperandContext
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput
from kubekit.kube import Informer
from kubekit.kube.tasks import first_of

FALLBACKS: Final = ("named", "single", "empty")
NAMED: Final = "default"


class NodeConfiguration(msgspec.Struct, frozen=True):
    """The configuration of this node: its content, None for none at all, and where it is for messages."""

    text: bytes | None = None
    where: str = ""


def choose(present: Sequence[str], label: str, default: str, fallbacks: Sequence[str]) -> str:
    """The name of the configuration to follow, "" for an empty one.

    Args:
        present: the names there are.
        label: what the Node's label says, "" for no label.

    Raises:
        InvalidInput: a name that does not exist, or nothing that can be fallen back to.
    """
    there = ", ".join(present) or "none at all"
    for name, said in ((label, f"the node's label {names.PLUGIN_CONFIG_LABEL}"), (default, names.PLUGIN_DEFAULT_ENV)):
        if name and name not in present:
            cure = (
                f"name one of {there}" if present else "put it into a ConfigMap, named in spec.devicePlugin.config.name"
            )
            raise InvalidInput(f"{said} names the configuration {name!r}, which does not exist", cure=cure)
        if name:
            return name
    for fallback in fallbacks:
        if fallback == "named" and NAMED in present:
            return NAMED
        if fallback == "single" and len(present) == 1:
            return present[0]
        if fallback == "empty":
            return ""
        if fallback not in FALLBACKS:
            what = f"{names.PLUGIN_FALLBACKS_ENV} names {fallback!r}"
            raise InvalidInput(what, cure=f"choose of {', '.join(FALLBACKS)}")
    cure = f"label the node: kubectl label node NODE {names.PLUGIN_CONFIG_LABEL}=NAME, NAME one of {there}"
    raise InvalidInput("no configuration is chosen for this node", cure=cure)


class NodeConfig:
    """The configuration of one node while it is followed."""

    def __init__(self, context: OperandContext, environment: Mapping[str, str], labels: NodeLabels) -> None:
        self._path = context.config
        self._environment = environment
        self._labels = labels

    def read(self) -> NodeConfiguration:
        """Read the configuration to follow. Raises InvalidInput when it is unknown."""
        path = self._path
        if path is None:
            return NodeConfiguration()
        if not path.is_dir():
            text = Host(path.parent).read(path.name)
            if text is None:
                raise InvalidInput("there is no such file", where=str(path), cure="mount the ConfigMap")
            return NodeConfiguration(text, str(path))
        host = Host(path)
        # Names with two dots in front are how a kubelet changes all files of a ConfigMap at once.
        present = [name for name in host.list(".") if not name.startswith("..")]
        default = self._environment.get(names.PLUGIN_DEFAULT_ENV, "")
        fallbacks = self._environment.get(names.PLUGIN_FALLBACKS_ENV, "") or ",".join(FALLBACKS)
        label = self._labels.get(names.PLUGIN_CONFIG_LABEL)
        try:
            name = choose(present, label, default, [part.strip() for part in fallbacks.split(",") if part.strip()])
        except InvalidInput as error:
            raise InvalidInput(error.what, where=str(path), cure=error.cure, findings=(error.what,)) from error
        return NodeConfiguration(host.read(name) if name else b"", f"{path}/{name}" if name else str(path))

    def attempt(self) -> NodeConfiguration | InvalidInput:
        """As `read`, with the error as a value: two equal ones have the same text."""
        try:
            return self.read()
        except InvalidInput as error:
            return error

    async def changed(self, seen: NodeConfiguration | InvalidInput) -> None:
        """Returns when there is something else to be followed than what was seen."""
        while True:
            relabelled = self._labels.news()
            if not _same(self.attempt(), seen):
                return
            await first_of(relabelled.wait(), self._files(seen))

    async def _files(self, seen: NodeConfiguration | InvalidInput) -> bool:
        """Returns when the files say something else than what was seen; never without files."""
        path = self._path
        if path is not None:
            several = path.is_dir()
            host = Host(path if several else path.parent)
            watched = host.list(".") if several else (path.name,)
            # A mounted ConfigMap changes by its `..data` link being pointed elsewhere.
            async for _ in host.watch("..data", *(name for name in watched if not name.startswith(".."))):
                if not _same(self.attempt(), seen):
                    return True
        return await asyncio.Event().wait()


class NodeLabels:
    """The labels of this operand's own Node, kept by a watch."""

    def __init__(self, informer: Informer[Node], name: str) -> None:
        self._informer = informer
        self._name = name
        self._event = asyncio.Event()
        informer.add_handler(self._told)

    def get(self, label: str) -> str:
        """The label's value, "" for none."""
        node = self._informer.get(self._name)
        return node.metadata.labels.get(label, "") if node is not None else ""

    def news(self) -> asyncio.Event:
        """Set at the next change of labels."""
        return self._event

    def _told(self, old: Node | None, new: Node | None) -> None:
        if (old.metadata.labels if old is not None else None) != (new.metadata.labels if new is not None else None):
            self._event.set()
            self._event = asyncio.Event()


@contextlib.asynccontextmanager
async def own_labels(context: OperandContext) -> AsyncIterator[NodeLabels]:
    """The labels of the operand's Node while in the context; they are known when it begins."""
    informer = Informer(context.client, Node, fields=f"metadata.name={context.node_name}", keep=_only_labels)
    labels = NodeLabels(informer, context.node_name)
    informer.start()
    try:
        await informer.synced()
        yield labels
    finally:
        await informer.stop()


def _only_labels(node: Node) -> Node:
    meta = node.metadata
    kept = ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version, labels=meta.labels)
    return Node(metadata=kept)


def _same(one: NodeConfiguration | InvalidInput, other: NodeConfiguration | InvalidInput) -> bool:
    if isinstance(one, InvalidInput) or isinstance(other, InvalidInput):
        return str(one) == str(other) and type(one) is type(other)
    return one == other
