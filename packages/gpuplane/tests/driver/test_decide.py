"""The table of the driver's decisions."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.driver import Action, DriverFacts, decide
from gpuplane.driver.package import Package

P = Package("535.1", "simulated-535.1-abc")
BARE = DriverFacts(gpus=1, kernel="5.15")


@pytest.mark.parametrize(
    ("changes", "action", "reason"),
    [
        ({"gpus": 0}, Action.FAIL, "NoGPU"),
        ({"library": "usr/lib64"}, Action.LOAD, ""),
        ({"library": "usr/lib64", "module": "535.1"}, Action.PRESENT, ""),
        ({"library": "usr/lib64", "module": "535.1", "package": P}, Action.PRESENT, ""),
        ({"library": "usr/lib64", "module": "535.1", "may_install": False}, Action.PRESENT, ""),
        ({"module": "535.1"}, Action.FAIL, "DriverIncomplete"),
        ({}, Action.FAIL, "NoInstaller"),
        ({"package": P, "may_install": False}, Action.FAIL, "DriverDisabled"),
        ({"package": Package("", "d")}, Action.FAIL, "PackageIncomplete"),
        ({"package": Package("1", "d", ("libcuda.so.1",))}, Action.FAIL, "PackageIncomplete"),
        ({"package": P}, Action.INSTALL, ""),
        ({"package": P, "installed": ""}, Action.INSTALL, ""),
        ({"package": P, "installed": "other", "library": "usr/lib64"}, Action.INSTALL, ""),
        ({"package": P, "module": "535.1"}, Action.INSTALL, ""),
        ({"package": P, "installed": P.digest}, Action.LOAD, ""),
        ({"package": P, "installed": P.digest, "module": "535.1"}, Action.DONE, ""),
        ({"package": P, "installed": P.digest, "module": "535.1", "unloaded": ("nvidia-uvm",)}, Action.LOAD, ""),
        ({"library": "usr/lib64", "module": "535.1", "unloaded": ("nvidia-uvm",)}, Action.PRESENT, ""),
        ({"package": P, "installed": P.digest, "module": "470"}, Action.UNLOAD, ""),
        ({"package": P, "installed": P.digest, "module": "470", "users": 3}, Action.FAIL, "ModuleInUse"),
    ],
)
def test_what_is_next(changes: dict[str, object], action: Action, reason: str) -> None:
    decision = decide(msgspec.structs.replace(BARE, **changes))
    assert (decision.action, decision.reason) == (action, reason)
    if action is Action.FAIL:
        assert decision.what
        assert decision.where
        assert decision.cure
