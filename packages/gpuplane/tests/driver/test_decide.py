"""The table of the driver's decisions."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.driver import Action, DriverFacts, decide
from gpuplane.driver.released import DriverProblem, Released

P = Released(version="535.1", digest="535.1-open-abc")
UNFIT = Released(version="1", digest="d", problem=DriverProblem("GPUTooOld", "a", "b", "c"))
READY = {"package": P, "installed": P.digest, "mounted": True, "built": ("5.15",)}
BARE = DriverFacts(gpus=1, kernel="5.15", package=P)


@pytest.mark.parametrize(
    ("changes", "action", "reason"),
    [
        ({"gpus": 0}, Action.FAIL, "NoGPU"),
        ({"library": "usr/lib64"}, Action.LOAD, ""),
        ({"library": "usr/lib64", "module": "535.1"}, Action.PRESENT, ""),
        ({"library": "usr/lib64", "module": "535.1", "package": P}, Action.PRESENT, ""),
        ({"library": "usr/lib64", "module": "535.1", "may_install": False}, Action.PRESENT, ""),
        ({"module": "535.1"}, Action.UNLOAD, ""),
        ({"package": P, "may_install": False}, Action.FAIL, "DriverDisabled"),
        (
            {"package": Released(version="1", digest="d", problem=DriverProblem("Why", "a", "b", "c"))},
            Action.FAIL,
            "Why",
        ),
        ({"package": P, "nouveau": True}, Action.RELEASE, ""),
        ({"package": P, "nouveau": True, "nouveau_users": 1}, Action.FAIL, "NouveauLoaded"),
        ({"package": P}, Action.MOUNT, ""),
        ({"package": P, "mounted": True}, Action.INSTALL, ""),
        ({"package": P, "mounted_other": True}, Action.CLEAR, ""),
        ({"package": P, "begun": P.digest, "broken": True}, Action.CLEAR, ""),
        ({"package": P, "begun": "other"}, Action.CLEAR, ""),
        ({"package": P, "module": "535.1", "installed": "other", "library": "usr/lib64"}, Action.UNLOAD, ""),
        ({**READY, "built": ()}, Action.BUILD, ""),
        ({**READY, "mounted": False}, Action.MOUNT, ""),
        (READY, Action.LOAD, ""),
        ({**READY, "module": "535.1"}, Action.DONE, ""),
        ({**READY, "module": "535.1", "unloaded": ("nvidia-uvm",)}, Action.LOAD, ""),
        ({**READY, "module": "535.1", "daemons_missing": ("nvidia-persistenced",)}, Action.START, ""),
        ({"library": "usr/lib64", "module": "535.1", "unloaded": ("nvidia-uvm",)}, Action.PRESENT, ""),
        ({**READY, "module": "470"}, Action.UNLOAD, ""),
        ({**READY, "module": "470", "users": 3, "daemons": (("nvidia-persistenced", 7),)}, Action.STOP, ""),
        ({**READY, "module": "470", "users": 3}, Action.FAIL, "ModuleInUse"),
    ],
)
def test_what_is_next(changes: dict[str, object], action: Action, reason: str) -> None:
    decision = decide(msgspec.structs.replace(BARE, **changes))
    assert (decision.action, decision.reason) == (action, reason)
    if action is Action.FAIL:
        assert decision.what
        assert decision.where
        assert decision.cure
