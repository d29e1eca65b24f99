"""Exit codes of `gpuplane share run`, as docker has them; all others are the command's own."""

from __future__ import annotations

from typing import Final

FAILED: Final = 125  # we could not run it
CANNOT_RUN: Final = 126  # it is no program, or not allowed
NOT_FOUND: Final = 127  # there is no such command
