"""Options of writes and deletions, as the REST paths read them and the registry obeys them."""

from __future__ import annotations

import msgspec

from tinykube.apiserver.hooks import SYSTEM, User
from tinykube.apiserver.strictness import RepeatedFields


class WriteOptions(msgspec.Struct, frozen=True):
    """The options of a write. `manager` empty: not recorded in managedFields.

    `validation` of unknown fields is Ignore, Warn or Strict; empty: the writer is our own and built-in kinds are not
    looked through. `repeated` are the fields that the body has twice; `patch`: what comes in was made by a patch, whose
    faults are reported as faults of the patch.
    """

    user: User = SYSTEM
    manager: str = ""
    operation: str = "Update"  # or Apply
    dry_run: bool = False
    validation: str = ""
    warnings: list[str] = []
    repeated: RepeatedFields | None = None
    patch: bool = False


BY_SYSTEM = WriteOptions()


class Delete(msgspec.Struct, frozen=True):
    """The options of a deletion; None: the kind's default."""

    grace: int | None = None
    propagation: str | None = None
    uid: str | None = None
    version: str | None = None
