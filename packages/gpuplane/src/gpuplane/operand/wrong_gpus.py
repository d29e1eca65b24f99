"""The GPUs that computed wrongly on a node that was ready: the validator finds them, the device plugin takes them out.

The two meet in a file on the node, so that a wrong GPU is not offered even while the API server is away. The file is
gone after a boot; then the validator proves every GPU again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.host import Host

COMPUTES_WRONG: Final = "fails the vectorAdd: "
"""Begins the health of such a GPU."""


def read_wrong_gpus(host: Host) -> dict[str, str]:
    """Return UUID -> fault; empty without a file, or with one that is not ours."""
    text = host.read(names.WRONG_GPUS)
    try:
        return msgspec.json.decode(text, type=dict[str, str]) if text else {}
    except msgspec.DecodeError:
        return {}


def write_wrong_gpus(host: Host, faults: Mapping[str, str]) -> None:
    """Write the file, or remove it when no GPU is wrong. Raises HostError."""
    if faults:
        host.write_atomic(names.WRONG_GPUS, msgspec.json.encode(faults, order="sorted"), durable=False)
    else:
        host.remove(names.WRONG_GPUS, durable=False)
