"""Measures the free part of a GPU, and a container's part of it, by core and memory together."""

from __future__ import annotations

from gpuplane.sharing.node import NodeState
from gpuplane.sharing.request import Ask


def memory_of(node: NodeState, ask: Ask, at: int) -> int:
    """Return the MiB of a GPU for the container: its request, else the part of its core; all of a whole GPU."""
    if ask.core >= node.scale:
        return node.gpus[at].memory_mib
    return ask.memory_mib or node.gpus[at].memory_mib * ask.core // node.scale


def room(node: NodeState) -> tuple[int, ...]:
    """Return the free part of each GPU when the scarcer of its core and its memory counts, in units of core."""
    if not any(node.memory):
        return tuple([0 if gpu.memory_mib else core for gpu, core in zip(node.gpus, node.core, strict=True)])
    return tuple(
        [
            _scarcer(core, memory, gpu.memory_mib, node.scale)
            for gpu, core, memory in zip(node.gpus, node.core, node.memory, strict=True)
        ]
    )


def room_after(node: NodeState, ask: Ask, at: int) -> int:
    """Return the room of a GPU after it has taken a share that fits."""
    core, total = node.core[at] - ask.core, node.gpus[at].memory_mib
    return _scarcer(core, node.memory[at] - memory_of(node, ask, at), total, node.scale) if total else core


def _scarcer(core: int, memory: int, total: int, scale: int) -> int:
    # Rounded up: what is left when the memory of a share was rounded down must not look like less.
    return min(core, -(-memory * scale // total)) if total else core
