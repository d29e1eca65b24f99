"""The cluster's instances as EC2 shows them, and the newest of our own launches, which EC2 shows seconds late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.errors import is_instance_gone
from gpuplane.autoscaler.providers.aws.instances import LIVE, TOKEN_TAG, described_instances, instance_id
from gpuplane.autoscaler.providers.provider import CLAIM_TAG, MANAGED_TAG, CloudInstance
from kubekit.errors import KubekitError, Retryable
from kubekit.kube.clock import Clock

_LATE_SECONDS: Final = 60.0  # until an instance that was launched is surely described
_PAGE: Final = 1000


class LaunchedInstance(msgspec.Struct, frozen=True):
    """An instance of our own launch, `at` monotonic seconds."""

    instance: CloudInstance
    token: str
    at: float


class AwsInstances:
    """The instances of one cluster."""

    def __init__(self, cluster: str, calls: AwsCalls, clock: Clock) -> None:
        self._cluster = cluster
        self._calls = calls
        self._clock = clock
        self._launched: dict[str, LaunchedInstance] = {}  # by provider id, until EC2 describes it

    def remember(self, instance: CloudInstance, token: str) -> None:
        """Count an instance as present until EC2 shows it, for a minute at most."""
        self._launched[instance.provider_id] = LaunchedInstance(instance, token, self._clock.now())

    async def one(self, provider_id: str) -> CloudInstance | None:
        """Return an instance; None if it is gone."""
        identity = instance_id(provider_id)
        if not identity:
            return None
        found = await self._described({"instance-id": [identity]})
        if found:
            return found[0] if found[0].state != "gone" else None
        return self._late().get(provider_id)

    async def all(self) -> tuple[CloudInstance, ...]:
        """Return the instances that are not gone."""
        found = await self._described({f"tag:{MANAGED_TAG}": [self._cluster], "instance-state-name": list(LIVE)})
        return tuple((self._late() | {instance.provider_id: instance for instance in found}).values())

    async def of_launch(self, claim: str, token: str) -> list[CloudInstance]:
        """Return the instances of a launch, gone or not; the one that counts first."""
        named = {f"tag:{MANAGED_TAG}": [self._cluster], f"tag:{CLAIM_TAG}": [claim], f"tag:{TOKEN_TAG}": [token]}
        found = await self._described(named)
        if not found:
            self._late()
            late = [kept for kept in self._launched.values() if kept.token == token]
            found = [kept.instance for kept in late if kept.instance.claim == claim]
        return sorted(found, key=lambda one: (one.state == "gone", one.launched, one.provider_id))

    async def provider_ids(self, identities: Sequence[str]) -> dict[str, str]:
        """Return the provider ids of the instances that are this cluster's, gone or not, by EC2's ids."""
        found = await self._described({f"tag:{MANAGED_TAG}": [self._cluster], "instance-id": list(identities)})
        ours = [*self._late(), *(instance.provider_id for instance in found)]
        return {instance_id(provider): provider for provider in ours if instance_id(provider) in identities}

    async def terminate(self, provider_id: str) -> None:
        """Begin to end an instance; one that is gone is no error."""
        identity = instance_id(provider_id)
        if not identity:
            return
        try:
            await self._calls.call("ec2", "terminate_instances", InstanceIds=[identity])
        except KubekitError as error:
            if not is_instance_gone(error):
                raise
            if provider_id in self._late():
                # NB: EC2 answers "not found" also for what it does not show yet.
                raise Retryable("EC2 does not know the new instance yet", where=provider_id) from error
        self._launched.pop(provider_id, None)

    async def reboot(self, provider_id: str) -> None:
        """Restart an instance."""
        await self._calls.call("ec2", "reboot_instances", InstanceIds=[instance_id(provider_id)])

    async def _described(self, filters: dict[str, list[str]]) -> list[CloudInstance]:
        asked: list[dict[str, Any]] = [{"Name": name, "Values": values} for name, values in filters.items()]
        pages = await self._calls.pages("ec2", "describe_instances", "Reservations", Filters=asked, MaxResults=_PAGE)
        found = list(described_instances(pages))
        for instance in found:
            self._launched.pop(instance.provider_id, None)
        return found

    def _late(self) -> dict[str, CloudInstance]:
        limit = self._clock.now() - _LATE_SECONDS
        self._launched = {key: kept for key, kept in self._launched.items() if kept.at > limit}
        return {key: kept.instance for key, kept in self._launched.items()}
