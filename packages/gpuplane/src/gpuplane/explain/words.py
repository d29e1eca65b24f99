"""Requests of pods in words."""

from __future__ import annotations

from collections.abc import Mapping

from gpuplane.explain.proving import gib
from gpuplane.sharing import Request
from gpuplane.sharing.request import Ask


def request_text(request: Request, devices: Mapping[str, int]) -> str:
    """`40% core + 12 GiB of one GPU`, `2 GPUs`; of several containers each with its name. `devices` are those that only
    their name contains: `1 nvidia.com/mig-1g.10gb`.
    """
    named = [f"{number} {name}" for name, number in devices.items()]
    if len(request.asks) == 1:
        return ", ".join([_ask(request.asks[0]), *named])
    return ", ".join([*(f"{ask.container} {_ask(ask)}" for ask in request.asks), *named])


def _ask(ask: Ask) -> str:
    if ask.gpus:
        return f"{ask.gpus} GPU" if ask.gpus == 1 else f"{ask.gpus} GPUs"
    memory = f" + {gib(ask.memory_mib)}" if ask.memory_mib else ""
    return f"{ask.core}% core{memory} of one GPU"
