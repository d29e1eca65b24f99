"""Secure Boot: compiled modules are signed with the host's own key, or refused with a cure that works."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.driver import DriverError, install
from gpuplane.driver.by_hand import plan
from gpuplane.driver.installer import prepare, uninstall
from gpuplane.driver.signing import KEY_PLACES, SECURE_BOOT, TRUSTED, signing_facts
from packages.gpuplane.tests.driver.machine import VERSION, WANTED, Machine, tree

ON, OFF = "\x06\0\0\0\x01", "\x06\0\0\0\0"
SHIM, DKMS = KEY_PLACES
UBUNTU_CURE = 'usePrecompiled: true and version: "570"'


def secure(machine: Machine, *, trusted: str = "") -> None:
    """Switch Secure Boot on; `trusted` is the certificate that was enrolled."""
    machine.write(SECURE_BOOT, ON)
    machine.write(TRUSTED, f"\x06\0\0\0 vendor; {trusted}")


def add_key(machine: Machine, place: tuple[str, str], certificate: str = "certificate of the host") -> None:
    machine.write(place[0].lstrip("/"), "private\n")
    machine.write(place[1].lstrip("/"), certificate + "\n")


def enrol(machine: Machine, place: tuple[str, str]) -> None:
    """Enrol the key as `mokutil --import` and the confirmation after the reboot do."""
    secure(machine, trusted=(machine.root / place[1].lstrip("/")).read_text())


def signers(machine: Machine) -> list[str]:
    return [command for command in machine.ran if "sign-file" in command]


@pytest.mark.parametrize("system", ["ubuntu", "debian", "rocky", "sles"])
@pytest.mark.parametrize("place", [SHIM, DKMS], ids=["shim", "dkms"])
async def test_modules_are_signed_with_the_key_of_the_host(tmp_path: Path, system: str, place: tuple[str, str]) -> None:
    machine = Machine(tmp_path, system)
    add_key(machine, place)
    enrol(machine, place)
    bare = tree(machine.root)
    await install(machine.host, wanted=WANTED)
    assert machine.loaded == f"{VERSION} open"
    assert len(signers(machine)) == 4  # nvidia, uvm, modeset, drm
    assert f"sha512 {place[0]} {place[1]}" in signers(machine)[0]
    machine.ran.clear()
    machine.boot(machine.system.kernels[0])
    await install(machine.host, wanted=WANTED)
    assert signers(machine) == []
    await uninstall(machine.host)
    assert tree(machine.root) == bare


async def test_nothing_is_signed_where_secure_boot_is_off(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "debian")
    add_key(machine, DKMS)
    machine.write(SECURE_BOOT, OFF)
    await install(machine.host, wanted=WANTED)
    assert (machine.loaded, signers(machine)) == (f"{VERSION} open", [])


@pytest.mark.parametrize(
    ("system", "cure", "place"),
    [
        ("ubuntu", "update-secureboot-policy --new-key", SHIM),
        ("debian", "dkms generate_mok", DKMS),
        ("rocky", "dkms generate_mok", DKMS),
        ("sles", "dkms generate_mok", DKMS),
    ],
)
async def test_without_a_key_nothing_is_begun_and_the_printed_key_cures(
    tmp_path: Path, system: str, cure: str, place: tuple[str, str]
) -> None:
    machine = Machine(tmp_path, system)
    secure(machine)
    bare = tree(machine.root)
    assert plan(machine.host, WANTED).end.reason == "SecureBoot"
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=WANTED)
    assert caught.value.reason == "SecureBoot"
    assert cure in caught.value.cure
    assert f"mokutil --import {place[1]}" in caught.value.cure
    assert machine.ran == []
    assert tree(machine.root) == bare
    # The first half of the cure makes a key, which the firmware does not trust yet.
    add_key(machine, place)
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=WANTED)
    assert (caught.value.reason, caught.value.where) == ("SecureBoot", place[1])
    assert caught.value.cure.startswith(f"mokutil --import {place[1]}; reboot")
    assert machine.ran == []
    enrol(machine, place)
    await install(machine.host, wanted=WANTED)
    assert machine.loaded == f"{VERSION} open"


@pytest.mark.parametrize("system", ["ubuntu", "sles"])
async def test_signed_packages_are_the_other_cure(tmp_path: Path, system: str) -> None:
    machine = Machine(tmp_path, system)
    secure(machine)
    machine.stock("*")
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=WANTED)
    assert UBUNTU_CURE in caught.value.cure
    await install(machine.host, wanted=msgspec.structs.replace(WANTED, precompiled=True, version="570"))
    assert machine.loaded.endswith("open")
    assert signers(machine) == []


async def test_modules_are_built_again_when_secure_boot_is_switched_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "debian")
    await install(machine.host, wanted=WANTED)
    machine.boot(machine.system.kernels[0])
    add_key(machine, DKMS)
    enrol(machine, DKMS)
    await install(machine.host, wanted=WANTED)
    assert machine.loaded == f"{VERSION} open"
    assert len(signers(machine)) == 4


async def test_a_new_key_signs_the_modules_of_every_kernel_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "debian")
    old, new = machine.system.kernels
    add_key(machine, DKMS)
    enrol(machine, DKMS)
    await install(machine.host, wanted=WANTED)
    add_key(machine, DKMS, "another certificate")
    enrol(machine, DKMS)
    assert await prepare(machine.host, new, wanted=WANTED)
    for kernel in (new, old):
        machine.boot(kernel)
        await install(machine.host, wanted=WANTED)
        assert machine.loaded == f"{VERSION} open"


@given(st.none() | st.binary(max_size=8), st.none() | st.binary(min_size=1), st.none() | st.binary())
def test_secure_boot_is_on_by_one_byte_only(
    variable: bytes | None, certificate: bytes | None, trusted: bytes | None
) -> None:
    facts = signing_facts(variable, DKMS if certificate is not None else None, certificate, trusted)
    assert facts.secure_boot == (variable is not None and len(variable) > 4 and variable[4] == 1)
    assert (facts.wanted is not None) == (facts.secure_boot and certificate is not None)
    assert facts.trusted == (certificate is not None and (trusted is None or certificate in trusted))
