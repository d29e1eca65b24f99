"""Networks for the machines of clusters: two clusters of one computer may begin at the same moment."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import Terminal

NUMBERS: Final = range(1, 255)


def take(directory: Path, claims: Path | None = None) -> int:
    """Takes a network for the cluster in `directory`, which is made; it is free again when that directory is gone.

    Returns x of 10.99.x.0/24, no interface of this computer is in it. Raises Terminal when none is free.
    """
    claims = claims or Path(tempfile.gettempdir(), f"gpuplane-networks-{os.geteuid()}.json")
    directory.mkdir(parents=True, exist_ok=True)
    with claims.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {number: place for number, place in _read(claims).items() if place != str(directory)}
        in_use = set(known) | _of_interfaces()
        number = next((number for number in NUMBERS if number not in in_use), 0)
        if not number:
            raise Terminal(
                "every network 10.99.x.0/24 is taken",
                where=str(claims),
                cure="gpuplane ls lists clusters; gpuplane down NAME removes one",
            )
        new = claims.with_suffix(".new")
        new.write_bytes(msgspec.json.encode({**known, number: str(directory)}))
        new.replace(claims)
    return number


def _read(claims: Path) -> dict[int, str]:
    """The networks of clusters that still have a directory."""
    try:
        known = msgspec.json.decode(claims.read_bytes(), type=dict[int, str])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
    return {number: place for number, place in known.items() if Path(place).is_dir()}


def _of_interfaces() -> set[int]:
    """The networks of this computer's local addresses (proc(5): the local table of fib_trie)."""
    try:
        lines = Path("/proc/net/fib_trie").read_text().splitlines()
    except OSError:
        return set()
    return {int(line.partition("10.99.")[2].split(".")[0]) for line in lines if "|-- 10.99." in line}
