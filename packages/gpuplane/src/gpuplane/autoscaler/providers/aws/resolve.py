"""Classes as AWS has them now: subnets, security groups, images and launch template, remembered for a minute."""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.images import CUSTOM, FAMILIES, LATEST, image_parameters, newest, split_alias
from gpuplane.autoscaler.providers.aws.lookup import AwsLookup, FoundSubnet, FoundTemplate
from gpuplane.autoscaler.providers.aws.machines import DeclaredMachines, read_machines
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.provider import (
    IMAGES,
    PROFILE,
    SECURITY_GROUPS,
    SUBNETS,
    VALIDATION,
    MachineClass,
    ResolvedClass,
)
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
    lacking: str = ""
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
            lacking=self.lacking,
            profile=self.profile,
            disk_bytes=self.template.disk_bytes if self.template is not None else 0,
        )


class PartMissing(InvalidInput):
    """A part of a class that is not there. `part` is its condition, `found` what was found before."""

    def __init__(self, part: str, what: str, cure: str, found: AwsClass) -> None:
        super().__init__(what, cure=cure)
        self.found = msgspec.structs.replace(found, trouble=str(self), lacking=part)


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
            return AwsClass(DeclaredMachines(()), trouble=str(error), lacking=VALIDATION)
        if not declared.subnets:
            trouble = "it selects no subnets; set subnetSelector or subnetSelectorTerms"
            return AwsClass(declared, trouble=trouble, lacking=SUBNETS)
        subnets = await self._lookup.subnets(declared.subnets)
        if not subnets:
            terms = " or ".join(str(term) for term in declared.subnets)
            trouble = f"no subnet has {terms}; tag the subnets, or correct the selector"
            return AwsClass(declared, trouble=trouble, lacking=SUBNETS)
        if declared.launch_template:
            return await self._of_template(declared, subnets)
        try:
            return await self._of_parts(AwsClass(declared, subnets))
        except PartMissing as missing:
            return missing.found

    async def _of_template(self, declared: DeclaredMachines, subnets: tuple[FoundSubnet, ...]) -> AwsClass:
        template = await self._lookup.template(declared.launch_template)
        if template is None:
            trouble = f"there is no launch template {declared.launch_template}; create it, or correct launchTemplate"
            return AwsClass(declared, subnets, trouble=trouble, lacking=VALIDATION)
        images = ((template.image, "", True), (template.image, "", False)) if template.image else ()
        return AwsClass(declared, subnets, template.groups, images, template)

    async def _of_parts(self, found: AwsClass) -> AwsClass:
        """Return a class that says itself what a launch template would. Raises PartMissing where it cannot."""
        declared = found.declared
        if not declared.groups:
            cure = "set securityGroupSelector or -Terms"
            raise PartMissing(SECURITY_GROUPS, "it selects no security groups", cure, found)
        groups = await self._lookup.groups(declared.groups)
        if not groups:
            terms = " or ".join(str(term) for term in declared.groups)
            cure = "tag a group, or correct the selector"
            raise PartMissing(SECURITY_GROUPS, f"no security group has {terms}", cure, found)
        found = msgspec.structs.replace(found, groups=groups)
        try:
            family, images = await self._images(declared)
        except InvalidInput as error:
            raise PartMissing(IMAGES, error.what, error.cure, found) from error
        if not images:
            raise PartMissing(IMAGES, "no machine image is found", "correct amiFamily or the selector of images", found)
        found = msgspec.structs.replace(found, images=images, family=family)
        profile = declared.instance_profile or await self._lookup.profile_of(declared.role)
        profile = profile or self._settings.instance_profile
        if not profile and declared.role:
            cure = f"aws iam create-instance-profile and add-role-to-instance-profile --role-name {declared.role}"
            raise PartMissing(PROFILE, f"no instance profile has the role {declared.role}", cure, found)
        found = msgspec.structs.replace(found, profile=profile)
        if family == "AL2023" and not self._settings.service_network:
            what = "the network of Services is unknown, which AL2023 needs"
            raise PartMissing(VALIDATION, what, "set SERVICE_CIDR", found)
        return found

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
