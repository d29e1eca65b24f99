"""Launch one instance for one claim: an earlier launch of it first, then a fleet for each capacity type."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.providers.aws import fleet
from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.errors import code_of, is_template_missing
from gpuplane.autoscaler.providers.aws.images import image_for
from gpuplane.autoscaler.providers.aws.instances import launch_tags, provider_id
from gpuplane.autoscaler.providers.aws.inventory import AwsInstances
from gpuplane.autoscaler.providers.aws.machines import where_of
from gpuplane.autoscaler.providers.aws.market import AwsMarket
from gpuplane.autoscaler.providers.aws.resolve import AwsClass
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.aws.templates import LaunchTemplates, owner_of, template_data
from gpuplane.autoscaler.providers.aws.userdata import JoinParameters, user_data
from gpuplane.autoscaler.providers.provider import (
    CloudInstance,
    LaunchRequest,
    MachineClass,
    NoCapacity,
    Offering,
)
from kubekit.errors import KubekitError, Retryable
from kubekit.kube.clock import Clock

log = logging.getLogger("gpuplane.autoscaler")


class LaunchSource(msgspec.Struct, frozen=True):
    """The launch template of a launch, and the image for each type where the template says none."""

    name: str
    version: str
    images: dict[str, str] = {}
    made: bool = False


class InstanceLauncher:
    """Launches."""

    def __init__(
        self, settings: AwsSettings, calls: AwsCalls, instances: AwsInstances, market: AwsMarket, clock: Clock
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._instances = instances
        self._market = market
        self._clock = clock
        self._templates = LaunchTemplates(settings.cluster, calls, clock)

    async def launch(self, request: LaunchRequest, found: AwsClass) -> CloudInstance:
        """Launch, or return the instance of an earlier launch with the same token. `found` has no trouble."""
        if before := await self._launched_before(request):
            return before
        closed: list[Offering] = []
        what: dict[str, None] = {}
        for number, offerings in enumerate(fleet.by_capacity_type(request.offerings), 1):
            try:
                return await self._launch(request, found, offerings, f"{request.token}-{number}")
            except NoCapacity as error:
                closed += error.closed
                what[error.what] = None
        raise NoCapacity("; ".join(what) or "there is no offering", closed=closed, where=request.claim)

    async def release(self, machines: MachineClass) -> None:
        """Delete the launch templates that were made of a class."""
        await self._templates.delete_of(owner_of(machines))

    async def _launched_before(self, request: LaunchRequest) -> CloudInstance | None:
        found = await self._instances.of_launch(request.claim, request.token)
        for extra in found[1:]:
            if extra.state in ("pending", "running"):
                log.warning("ending second instance claim=%s instance=%s", request.claim, extra.provider_id)
                await self._instances.terminate(extra.provider_id)
        return found[0] if found else None

    async def _launch(
        self, request: LaunchRequest, found: AwsClass, offerings: Sequence[Offering], token: str
    ) -> CloudInstance:
        source = await self._source(request, found, offerings)
        chosen = fleet.choices(offerings, found.subnets, source.images)
        if not chosen:
            where = where_of(request.machines)
            zones = ", ".join(sorted({offering.zone for offering in offerings}))
            raise NoCapacity(f"no subnet in {zones}, or no image for its types", closed=offerings, where=where)
        try:
            answer = await self._create(request, found, source, chosen, token)
        except KubekitError as error:
            if not (source.made and is_template_missing(error)):
                raise
            self._templates.forget(source.name)  # deleted by a user or an earlier process: made again, once
            source = await self._source(request, found, offerings)
            answer = await self._create(request, found, source, chosen, token)
        launched = fleet.read_fleet(answer, chosen)
        offering = launched.choice.offering
        instance = CloudInstance(
            provider_id=provider_id(offering.zone, launched.id),
            claim=request.claim,
            pool=request.pool,
            machine=offering.machine,
            zone=offering.zone,
            capacity_type=offering.capacity_type,
            image=launched.choice.image or (found.template.image if found.template is not None else ""),
            state="pending",
            launched=self._clock.wall(),
            subnet=launched.choice.subnet.id,
            security_groups=found.groups,
            version=found.version,
        )
        self._instances.remember(instance, request.token)
        log.info(
            "launched claim=%s instance=%s type=%s zone=%s capacity=%s price=%.4f",
            request.claim,
            launched.id,
            offering.machine,
            offering.zone,
            offering.capacity_type,
            offering.price,
        )
        return instance

    async def _create(
        self,
        request: LaunchRequest,
        found: AwsClass,
        source: LaunchSource,
        chosen: Sequence[fleet.LaunchOverride],
        token: str,
    ) -> dict[str, object]:
        parameters = fleet.fleet_request(
            chosen,
            source.name,
            source.version,
            token=token,
            tags=launch_tags(request, self._settings.cluster, found.declared.tags, found.version),
            context=found.declared.context,
            own_prices=request.own_prices,
        )
        try:
            return await self._calls.call("ec2", "create_fleet", **parameters)
        except KubekitError as error:
            if code_of(error) == "IdempotentParameterMismatch":
                what = "an earlier launch of this claim had other offerings, and EC2 does not show its instance yet"
                raise Retryable(what, where=request.claim) from error
            raise

    async def _source(self, request: LaunchRequest, found: AwsClass, offerings: Sequence[Offering]) -> LaunchSource:
        """Return the template that the class names, or one that is made of the class."""
        if found.template is not None:
            return LaunchSource(found.template.name, found.template.version)
        declared = found.declared
        join = JoinParameters(request.labels, request.taints, request.kubelet, declared.local_disks)
        text = user_data(found.family, declared.user_data, join, self._settings)
        data = template_data(
            declared,
            found.family,
            groups=found.groups,
            profile=found.profile,
            user_data=text,
            of_ipv6=self._settings.is_of_ipv6,
        )
        known = {machine.name: machine for machine in await self._market.types()}
        images = {offering.machine: _image(found, known.get(offering.machine)) for offering in offerings}
        name = await self._templates.ensure(data, owner_of(request.machines))
        return LaunchSource(name, "$Latest", images, made=True)


def _image(found: AwsClass, machine: InstanceType | None) -> str:
    return image_for(found.images, machine.arch, gpus=machine.gpus > 0) if machine is not None else ""
