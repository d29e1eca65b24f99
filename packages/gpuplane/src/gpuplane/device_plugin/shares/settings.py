"""Settings of a node's administrator for shares, by variables of the device plugin's container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpuplane import names
from kubekit.errors import InvalidInput

MOST_SAVED_MS: Final = 60_000
_POLICIES: Final = {"": False, "report": False, "stop": True}


class ShareSettings(NamedTuple):
    """`saved_ms`: GPU time that an idle container saves, in milliseconds. `stops_escapes`: processes of shares that go
    round their limits are killed, not only reported.
    """

    saved_ms: int = 0
    stops_escapes: bool = False


NO_SETTINGS: Final = ShareSettings()


def read_settings(variables: Mapping[str, str]) -> ShareSettings:
    """Raises InvalidInput for an invalid value."""
    saved = variables.get(names.SAVED_ENV, "").strip() or "0"
    if not (saved.isascii() and saved.isdecimal() and len(saved) < 10 and int(saved) <= MOST_SAVED_MS):
        raise InvalidInput(
            f"{saved[:40]!r} is no time that containers can save",
            where=names.SAVED_ENV,
            cure=f"milliseconds from 0 to {MOST_SAVED_MS}, as in devicePlugin.env of the ClusterPolicy: 2000",
        )
    policy = variables.get(names.ON_ESCAPE_ENV, "").strip()
    if policy not in _POLICIES:
        raise InvalidInput(f"{policy[:40]!r} is unknown", where=names.ON_ESCAPE_ENV, cure="report or stop")
    return ShareSettings(int(saved), _POLICIES[policy])
