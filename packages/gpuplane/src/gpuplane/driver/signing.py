"""Signatures of kernel modules: under Secure Boot a kernel loads only modules that a key it trusts has signed.

Compiled modules are signed with the machine owner's key that DKMS, or Ubuntu's and Debian's shim, made on the host, and
only where Secure Boot is on. Without such a key, or where the firmware does not trust it, a driver that has to be
compiled is refused before anything is fetched. Modules of packages come with the signature of their maker.

Pure: the bytes of the host's files come as arguments. Sources: the UEFI specification (the variable `SecureBoot`), shim
(`MokListRT`, the list of machine owner's keys that the kernel takes over), dkms(8), update-secureboot-policy(8). A
file in `efivarfs` begins with four bytes of attributes.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from gpuplane.driver.released import DriverProblem, Family, Released

_VARIABLES: Final = "sys/firmware/efi/efivars"
SECURE_BOOT: Final = f"{_VARIABLES}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
TRUSTED: Final = f"{_VARIABLES}/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
_ATTRIBUTES: Final = 4  # bytes
KEY_PLACES: Final = (
    ("/var/lib/shim-signed/mok/MOK.priv", "/var/lib/shim-signed/mok/MOK.der"),
    ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub"),
)
"""Private key and certificate (DER): of Ubuntu's and Debian's shim, which their DKMS uses too, and of DKMS alone."""

_MAKE_KEY: Final = {
    Family.UBUNTU: "update-secureboot-policy --new-key; mokutil --import /var/lib/shim-signed/mok/MOK.der",
    Family.DEBIAN: "dkms generate_mok; mokutil --import /var/lib/dkms/mok.pub",
    Family.RHEL: "dkms generate_mok; mokutil --import /var/lib/dkms/mok.pub",
    Family.SUSE: "dkms generate_mok; mokutil --import /var/lib/dkms/mok.pub",
}
_SIGNED_PACKAGES: Final = (Family.UBUNTU, Family.SUSE)  # their makers' keys are trusted without further ado
_CONFIRM: Final = "reboot, and confirm the key at the node's console"


class SigningKey(msgspec.Struct, frozen=True):
    """A machine owner's key: paths on the host, and a digest of its certificate."""

    private: str
    certificate: str
    fingerprint: str


class SigningFacts(msgspec.Struct, frozen=True):
    """The state of Secure Boot: whether it is on, the host's key, and whether the firmware trusts the key."""

    secure_boot: bool = False
    key: SigningKey | None = None
    trusted: bool = False

    @property
    def wanted(self) -> SigningKey | None:
        """The key to sign compiled modules with; None where no signature is needed or possible."""
        return self.key if self.secure_boot else None

    @property
    def fingerprint(self) -> str:
        return self.wanted.fingerprint if self.wanted is not None else ""


def signing_facts(
    secure_boot: bytes | None, key: tuple[str, str] | None, certificate: bytes | None, trusted: bytes | None
) -> SigningFacts:
    """Return the facts of a host.

    Args:
        secure_boot: the variable `SecureBoot`; None on machines without UEFI.
        key: the place of KEY_PLACES that the host has both files of.
        certificate: the content of its second file.
        trusted: the variable `MokListRT`; None where it cannot be read, and then the key counts as trusted.
    """
    if key is None or certificate is None:
        return SigningFacts(_is_on(secure_boot))
    found = SigningKey(*key, hashlib.sha256(certificate).hexdigest()[:12])
    return SigningFacts(_is_on(secure_boot), found, trusted is None or certificate in trusted)


def _is_on(variable: bytes | None) -> bool:
    return variable is not None and variable[_ATTRIBUTES : _ATTRIBUTES + 1] == b"\x01"


def signing_problem(facts: SigningFacts, driver: Released) -> DriverProblem | None:
    """Return why the kernel would refuse the modules that are compiled for `driver`; None where it would not."""
    if not facts.secure_boot or driver.wanted.precompiled or driver.family is None:
        return None
    if facts.key is None:
        cure = f"{_MAKE_KEY[driver.family]}; {_CONFIRM}"
        if driver.family in _SIGNED_PACKAGES:
            packages = f'usePrecompiled: true and version: "{driver.branch}" (signed packages)'
            cure = f"ClusterPolicy spec.driver.{packages}, or on the node: {cure}"
        what = "Secure Boot is on, and the host has no key to sign compiled modules with"
        return DriverProblem("SecureBoot", what, KEY_PLACES[0][0] + ", " + KEY_PLACES[1][0], cure)
    if not facts.trusted:
        return DriverProblem(
            "SecureBoot",
            "Secure Boot is on, and the firmware does not trust the host's key for modules",
            facts.key.certificate,
            f"mokutil --import {facts.key.certificate}; {_CONFIRM}",
        )
    return None
