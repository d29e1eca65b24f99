"""The findings of checks, apart from the checks, for modules that only report them."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong.

    `path` is as `spec.driver.env[0].name`; `at` says whether the place is the field's name or its value; `shown` is the
    value as JSON; `cure` what to write instead, empty when it is unknown. Lines and columns count from 1; 0: unknown.
    """

    code: str
    path: str
    message: str
    cure: str = ""
    severity: Literal["error", "warning"] = "error"
    at: Literal["key", "value"] = "value"
    shown: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        text = f"{self.code} {self.path}: {self.message}" if self.path else f"{self.code} {self.message}"
        return f"{text}; {self.cure}" if self.cure else text
