"""Follows the ConfigMaps of quotas; while one of them is invalid, its last valid version counts.

Invariants:

- Without the ConfigMap no namespace is limited. With a ConfigMap that was invalid at the start, no pod is admitted,
  since the limits are unknown; an event on the ConfigMap has the error.
- The settings in `gpu-quota-admission` may name another ConfigMap and other labels; they count as soon as a watch
  delivers them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpuplane import names
from gpuplane.scheduler.quota import NamespaceQuota, QuotaSettings, parse_quotas, parse_settings
from kubekit.api.core import ConfigMap
from kubekit.errors import InvalidInput, Retryable
from kubekit.kube import Client, Clock, Informer

log = logging.getLogger("gpuplane.scheduler")
NOT_UNDERSTOOD: Final = "QuotaNotUnderstood"


class QuotaWatch:
    """
    Args:
        changed: called after each change of quotas, with what nodes' labels mean now.
        report: called with a ConfigMap that is invalid, and why.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        changed: Callable[[QuotaSettings], None],
        report: Callable[[ConfigMap, str], None],
    ) -> None:
        self.broken = False  # what stands there now does not parse
        self.invalid: dict[str, tuple[ConfigMap, str]] = {}  # what was reported and is not corrected, by the key
        self._client = client
        self._report = report
        self._clock = clock
        self._changed = changed
        self._naming = QuotaSettings()
        self._quotas: dict[str, NamespaceQuota] | None = {}
        self._settings = self._informer(names.QUOTA_SETTINGS_CONFIGMAP, names.QUOTA_NAMESPACE)
        self._settings.add_handler(self._settings_changed)
        self._renamed = asyncio.Event()
        self._synced = asyncio.Event()

    def __call__(self, namespace: str) -> NamespaceQuota | None:
        """Return the quota of a namespace, None without one. Raises Retryable while quotas are unknown."""
        if self._quotas is None:
            raise Retryable(
                "the GPU quotas cannot be read",
                where=f"configmap {self._naming.namespace}/{self._naming.name}",
                cure=f"correct its {names.QUOTA_KEY}: kubectl describe shows what is wrong",
            )
        return self._quotas.get(namespace)

    async def synced(self) -> None:
        await self._synced.wait()

    async def run(self) -> None:
        """Follow the ConfigMaps until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settings.run())
            await self._settings.synced()
            while True:
                self._renamed.clear()
                self._synced.clear()
                quotas = self._informer(self._naming.name, self._naming.namespace)
                quotas.add_handler(self._quotas_changed)
                self._set({})
                task = group.create_task(quotas.run())
                await quotas.synced()
                self._synced.set()
                await self._renamed.wait()
                task.cancel()

    def _informer(self, name: str, namespace: str) -> Informer[ConfigMap]:
        return Informer(self._client, ConfigMap, namespace, fields=f"metadata.name={name}", clock=self._clock)

    def _settings_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        try:
            text = new.data.get(names.QUOTA_SETTINGS_KEY) if new is not None else None
            naming = QuotaSettings() if text is None else parse_settings(text)
        except InvalidInput as error:
            assert new is not None
            self._complain(new, names.QUOTA_SETTINGS_KEY, error)
            return
        self.invalid.pop(names.QUOTA_SETTINGS_KEY, None)
        if naming == self._naming:
            return
        moved = (naming.name, naming.namespace) != (self._naming.name, self._naming.namespace)
        self._naming = naming
        if moved:
            self._renamed.set()
        self._changed(naming)

    def _quotas_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None:
            self._set({})
            return
        try:
            text = new.data.get(names.QUOTA_KEY)
            if text is None:
                raise InvalidInput("the key is missing")
            quotas = parse_quotas(text)
        except InvalidInput as error:
            if not self._synced.is_set():
                self._quotas = None  # there is no last good one
            self.broken = True
            self._complain(new, names.QUOTA_KEY, error)
            return
        log.info("quotas read namespaces=%d", len(quotas))
        self._set(quotas)

    def _set(self, quotas: dict[str, NamespaceQuota]) -> None:
        self._quotas = quotas
        self.broken = False
        self.invalid.pop(names.QUOTA_KEY, None)
        self._changed(self._naming)

    def _complain(self, about: ConfigMap, key: str, error: InvalidInput) -> None:
        kept = (
            "the previous quota stays in force"
            if self._quotas is not None
            else "no pod gets GPUs until it is corrected"
        )
        log.error(
            "quotas invalid configmap=%s/%s key=%s: %s", about.metadata.namespace, about.metadata.name, key, error
        )
        text = f"{key}: {error}; {kept}"
        self.invalid[key] = about, text
        self._report(about, text)
