"""Compacts the store by the clock, as a real API server compacts etcd: every five minutes.

Each time it forgets what was before the time of the last one, so a version is known for five to ten minutes.

Source: pkg/storage/etcd3/compact.go of k8s.io/apiserver.
"""

from __future__ import annotations

from typing import Final

from kubekit.kube.clock import Clock
from tinykube.apiserver.store import ObjectStore

INTERVAL_S: Final = 300.0


async def compact_by_clock(store: ObjectStore, clock: Clock) -> None:
    """Compact until cancelled."""
    before: int | None = None
    while True:
        await clock.sleep(INTERVAL_S)
        if before is not None:
            store.compact(before)
        before = store.version
