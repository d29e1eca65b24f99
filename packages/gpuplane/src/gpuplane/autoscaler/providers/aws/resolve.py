"""Classes as AWS has them now: subnets, security groups, images and launch template, remembered for a minute."""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.images import CUSTOM, FAMILIES, LATEST, image_parameters, newest, split_alias
from gpuplane.autoscaler.providers.aws.lookup import AwsLookup, FoundSubnet, FoundTemplate
from gpuplane.autoscaler.providers.aws.machines import DeclaredMachines, read_machines
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.provider import MachineClass, ResolvedClass
from kubekit.errors import InvalidInput
from kubekit.kube.clock import Clock

_REMEMBERED_SECONDS: Final = 60.0


class AwsClass(msgspec.Struct, frozen=True):
    """One class at one moment. `images` are (id, arch, whether it is for GPUs); `template` the one that it names.

    Without one, `family` is that of the images, as amiFamily spells it, and `profile` the nodes' instance profile.
    """

    declared: DeclaredMachines
    subnets: tuple[FoundSubnet, ...] = ()
    groups: tuple[str, ...] = ()
    images: tuple[tuple[str, str, bool], ...] = ()
    template: FoundTemplate | None = None
    trouble: str = ""
    family: str = ""
    profile: str = ""

    @property
    def version(self) -> str:
        return self.template.version if self.template is not None else ""

    def public(self) -> ResolvedClass:
        """Return what the autoscaler needs of it."""
        return ResolvedClass(
            zones=tuple(sorted({subnet.zone for subnet in self.subnets})),
            subnets=tuple((subnet.id, subnet.zone) for subnet in self.subnets),
            security_groups=self.groups,
            images=self.images,
            version=self.version,
            trouble=self.trouble,
        )


class ClassResolver:
    """Resolves classes."""

    def __init__(self, settings: AwsSettings, calls: AwsCalls, clock: Clock) -> None:
        self._settings = settings
        self._lookup = AwsLookup(calls)
        self._clock = clock
        self._known: dict[bytes, tuple[AwsClass, float]] = {}

    async def resolve(self, machines: MachineClass) -> AwsClass:
        """Return a class, at most a minute old. Raises Retryable or Terminal where AWS could not be asked."""
        key = msgspec.json.encode(machines)
        known = self._known.get(key)
        if known is not None and self._clock.now() - known[1] < _REMEMBERED_SECONDS:
            return known[0]
        found = await self._resolve(machines)
        self._known = {
            kept: one for kept, one in self._known.items() if self._clock.now() - one[1] < _REMEMBERED_SECONDS
        }
        self._known[key] = (found, self._clock.now())
        return found

    async def _resolve(self, machines: MachineClass) -> AwsClass:
        try:
            declared = read_machines(machines)
        except InvalidInput as error:
            return AwsClass(DeclaredMachines(()), trouble=str(error))
        if not declared.subnets:
            return AwsClass(declared, trouble="it selects no subnets; set subnetSelector or subnetSelectorTerms")
        subnets = await self._lookup.subnets(declared.subnets)
        if not subnets:
            terms = " or ".join(str(term) for term in declared.subnets)
            return AwsClass(declared, trouble=f"no subnet has {terms}; tag the subnets, or correct the selector")
        if declared.launch_template:
            return await self._of_template(declared, subnets)
        try:
            return await self._of_parts(declared, subnets)
        except InvalidInput as error:
            return AwsClass(declared, subnets, trouble=f"{error}")

    async def _of_template(self, declared: DeclaredMachines, subnets: tuple[FoundSubnet, ...]) -> AwsClass:
        template = await self._lookup.template(declared.launch_template)
        if template is None:
            trouble = f"there is no launch template {declared.launch_template}; create it, or correct launchTemplate"
            return AwsClass(declared, subnets, trouble=trouble)
        images = ((template.image, "", True), (template.image, "", False)) if template.image else ()
        return AwsClass(declared, subnets, template.groups, images, template)

    async def _of_parts(self, declared: DeclaredMachines, subnets: tuple[FoundSubnet, ...]) -> AwsClass:
        """Return a class that says itself what a launch template would. Raises InvalidInput where it cannot."""
        if not declared.groups:
            raise InvalidInput("it selects no security groups", cure="set securityGroupSelector or -Terms")
        groups = await self._lookup.groups(declared.groups)
        if not groups:
            terms = " or ".join(str(term) for term in declared.groups)
            raise InvalidInput(f"no security group has {terms}", cure="tag a group, or correct the selector")
        family, images = await self._images(declared)
        if not images:
            raise InvalidInput("no machine image is found", cure="correct amiFamily or the selector of images")
        profile = declared.instance_profile or self._settings.instance_profile
        if family == "AL2023" and not self._settings.service_network:
            raise InvalidInput("the network of Services is unknown, which AL2023 needs", cure="set SERVICE_CIDR")
        return AwsClass(declared, subnets, groups, images, family=family, profile=profile)

    async def _images(self, declared: DeclaredMachines) -> tuple[str, tuple[tuple[str, str, bool], ...]]:
        """Return the family and the images of a class. Raises InvalidInput."""
        alias = next((term.alias for term in declared.images if term.alias), "")
        family, version = split_alias(alias) if alias else (declared.family or CUSTOM, LATEST)
        if alias or not declared.images:
            if family not in FAMILIES.values():
                raise InvalidInput(f"amiFamily {family} selects no images", cure="set amiSelector or amiSelectorTerms")
            found = []
            for parameter in image_parameters(family, version, self._settings.kubernetes):
                image = await self._lookup.parameter(parameter.name)
                found += [(image, parameter.arch, parameter.gpu)] if image else []
            return family, tuple(found)
        images = []
        for term in declared.images:
            if term.parameter:
                value = await self._lookup.parameter(term.parameter)
                images += await self._lookup.images(now=self._clock.wall(), ids=[value]) if value else []
            else:
                images += await self._lookup.images(now=self._clock.wall(), term=term)
        return family, newest(images)
