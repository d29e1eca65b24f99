"""Writes the status of classes: what each means in the cloud now, and whether nodes can be launched of it.

An EC2NodeClass has a condition for each part that it selects, in the order in which the parts are looked up: the first
that is not there is False, those after it are Unknown. An AWSNodeTemplate has subnets and security groups only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from gpuplane import names
from gpuplane.api.karpenter import ARCH_LABEL, INSTANCE_LABEL_PREFIX, AWSNodeTemplate, EC2NodeClass, declared_class
from gpuplane.api.nodeclaim import READY
from gpuplane.autoscaler.cloud import CloudView
from gpuplane.autoscaler.nodeclaims import with_condition
from gpuplane.autoscaler.providers.provider import CLASS_PARTS, VALIDATION, ResolvedClass
from gpuplane.autoscaler.watch import ClusterWatch
from kubekit.api.meta import Condition, to_dict
from kubekit.errors import InvalidInput, Terminal
from kubekit.kube import Client, Clock, Controller, NotFound, Source

log = logging.getLogger("gpuplane.autoscaler")
LOOK_SECONDS: Final = 60.0  # between two looks at what a class means in the cloud
_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"
_GPUS: Final = INSTANCE_LABEL_PREFIX + "gpu-count"
_Class = AWSNodeTemplate | EC2NodeClass


class ClassStatusController:
    """Reconciles the status of classes; a key is kind/name."""

    def __init__(self, client: Client, watch: ClusterWatch, cloud: CloudView, clock: Clock) -> None:
        self._client = client
        self._watch = watch
        self._cloud = cloud
        self._clock = clock
        sources = [Source(one, _key_of) for one in (watch.templates, watch.node_classes)]
        self.controller = Controller("classes", sources, self.reconcile, clock=clock)

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, key: str) -> float | None:
        """Write the status of one class, unless it is there already; returns the seconds until the next look.

        Raises what the cloud raises where it could not be asked: the last status stays.
        """
        kind, _, name = key.partition("/")
        of_old = kind == AWSNodeTemplate.RESOURCE.kind
        found: _Class | None = self._watch.templates.get(name) if of_old else self._watch.node_classes.get(name)
        if found is None or found.metadata.deletion_timestamp:
            return None
        status = class_status(found, await self._resolved(found), self._clock.wall())
        now = {field: text for field, text in to_dict(found.status).items() if field in status}
        if {field: value for field, value in status.items() if value} == now:
            return LOOK_SECONDS
        try:
            await self._client.patch(type(found), name, {"status": status}, subresource="status", manager=_MANAGER)
        except NotFound:
            return None
        return LOOK_SECONDS

    async def _resolved(self, found: _Class) -> ResolvedClass:
        try:
            return await self._cloud.meaning(declared_class(found))
        except (InvalidInput, Terminal) as error:
            return ResolvedClass(trouble=str(error), lacking=VALIDATION)


def class_status(found: _Class, meaning: ResolvedClass, now: str) -> dict[str, Any]:
    """Return the status of a class as a merge patch. `now` is RFC 3339."""
    status: dict[str, Any] = {
        "subnets": [{"id": subnet, "zone": zone} for subnet, zone in sorted(meaning.subnets)],
        "securityGroups": [{"id": group} for group in meaning.security_groups],
    }
    if isinstance(found, AWSNodeTemplate):
        return status
    status["amis"] = [_image(*image) for image in meaning.images]
    status["instanceProfile"] = meaning.profile or None
    status["conditions"] = to_dict(_conditions(found, meaning, now))
    return status


def _image(image: str, arch: str, gpus: bool) -> dict[str, Any]:
    of_arch = {"key": ARCH_LABEL, "operator": "In", "values": [arch]}
    return {"id": image, "requirements": [of_arch, {"key": _GPUS, "operator": "Exists" if gpus else "DoesNotExist"}]}


def _conditions(found: EC2NodeClass, meaning: ResolvedClass, now: str) -> tuple[Condition, ...]:
    conditions: tuple[Condition, ...] = found.status.conditions
    generation = found.metadata.generation
    lacking = (meaning.lacking or VALIDATION) if meaning.trouble else ""
    # Nothing was looked up of a class that cannot be read.
    known = not (lacking == VALIDATION and not meaning.subnets)
    for part in CLASS_PARTS:
        if part == lacking:
            conditions = with_condition(conditions, part, "False", f"Not{part}", meaning.trouble, now, generation)
            known = False
            continue
        status, reason = ("True", part) if known else ("Unknown", "AwaitingReconciliation")
        conditions = with_condition(conditions, part, status, reason, "", now, generation)
    if lacking:
        return with_condition(conditions, READY, "False", lacking, meaning.trouble, now, generation)
    return with_condition(conditions, READY, "True", READY, "", now, generation)


def _key_of(found: _Class) -> Iterable[str]:
    return (f"{found.RESOURCE.kind}/{found.metadata.name}",)
