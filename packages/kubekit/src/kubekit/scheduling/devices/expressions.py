"""Evaluates the CEL selectors of device classes and requests on a device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from kubekit.cel import CelError, CelProgram, CelSyntaxError
from kubekit.cel.values import Quantity, Semver
from kubekit.errors import Terminal
from kubekit.scheduling.devices.facts import SliceDevice
from kubekit.scheduling.devices.slices import qualified


class SelectorError(Terminal):
    """A selector cannot be evaluated on a device, such as one that reads an attribute that the device lacks."""


class _Domains(dict[str, dict[str, Any]]):
    """Values by domain and name; an unknown domain has no names."""

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}

    def __contains__(self, domain: object) -> bool:
        return isinstance(domain, str)


@lru_cache(maxsize=1024)
def _program(source: str) -> CelProgram:
    return CelProgram(source, ("device",))


def matches(selectors: Iterable[str], driver: str, device: SliceDevice, of: str) -> bool:
    """Return whether all selectors are true for a device.

    Args:
        of: the class or the claim with the selectors, for errors.

    Raises SelectorError.
    """
    variables: dict[str, Any] | None = None
    for number, source in enumerate(selectors):
        try:
            program = _program(source)
        except CelSyntaxError as error:
            raise SelectorError(f"{of}: selector #{number}: CEL compile error: {error}") from error
        if variables is None:
            variables = {"device": _view(driver, device)}
        try:
            value = program(variables)
        except CelError as error:
            raise SelectorError(f"{of}: selector #{number}: CEL runtime error: {error}") from error
        if not isinstance(value, bool):
            raise SelectorError(f"{of}: selector #{number}: CEL runtime error: the result is no bool")
        if not value:
            return False
    return True


def _view(driver: str, device: SliceDevice) -> dict[str, Any]:
    attributes, capacity = _Domains(), _Domains()
    for name, (kind, value) in device.attributes.items():
        domain, _, identifier = name.partition("/")
        attributes.setdefault(domain, {})[identifier] = Semver(value) if kind == "version" else value
    for name, amount in device.capacity.items():
        domain, _, identifier = qualified(name, driver).partition("/")
        capacity.setdefault(domain, {})[identifier] = Quantity(amount.value)
    return {
        "driver": driver,
        "allowMultipleAllocations": device.shareable,
        "attributes": attributes,
        "capacity": capacity,
    }
