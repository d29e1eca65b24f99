"""Reading a mapping field by field, with every mistake noted at its place: what `gpuplane.api.pluginconfig` is made of.

Invariant: at `end`, whatever no call has asked for is a finding; so no field can be ignored by accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

E = TypeVar("E", bound=StrEnum)
_TRUE: Final = ("1", "t", "true", "TRUE", "True", "T")  # as Go reads the truth
_FALSE: Final = ("0", "f", "false", "FALSE", "False", "F")


class SectionReader:
    """One section of the file. `findings` is shared with the sections above and below.

    A field without a value (`key:`) leaves the default, as Helm's null does. `variable` is the environment's word for a
    field, which goes before the file's.
    """

    def __init__(self, data: Mapping[Any, Any], environment: Mapping[str, str], findings: list[str], path: str = ""):
        self.findings = findings
        self._data = data
        self._environment = environment
        self._path = path
        self._asked: list[str] = []

    def wrong(self, field: str, message: str) -> None:
        self.findings.append(f"{self._path}{field}: {message}")

    def raw(self, field: str, variable: str = "") -> Any:
        """The value as it stands, None for none."""
        self._asked.append(field)
        if variable and self._environment.get(variable):
            return self._environment[variable]
        return self._data.get(field)

    def text(self, field: str, variable: str = "", *, default: str = "", required: bool = False) -> str:
        value = self.raw(field, variable)
        if value is None:
            if required:
                self.wrong(field, "is missing")
            return default
        if isinstance(value, str) and (value or not required):
            return value or default
        self.wrong(field, f"must be a text, is {value!r}")
        return default

    def path(self, field: str, variable: str = "", *, default: str) -> str:
        value = self.text(field, variable, default=default)
        if not value.startswith("/") or ".." in value.split("/"):
            self.wrong(field, f"must be an absolute path, is {value!r}")
        return value

    def flag(self, field: str, variable: str = "", *, default: bool = False) -> bool:
        value = self.raw(field, variable)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if variable and value in (*_TRUE, *_FALSE) and self._environment.get(variable) == value:
            return value in _TRUE
        self.wrong(field, f"must be true or false, is {value!r}")
        return default

    def choice(self, field: str, kind: type[E], variable: str, default: E) -> E:
        value = self.raw(field, variable)
        if value is None:
            return default
        if isinstance(value, list):
            self.wrong(field, "is one value, not a list")
        elif value in list(kind):
            return kind(value)
        else:
            self.wrong(field, f"{value!r} is unknown, choose of {', '.join(kind)}")
        return default

    def choices(self, field: str, kind: type[E], variable: str) -> list[E]:
        """One value, a list, or several with commas; none without a value."""
        value = self.raw(field, variable)
        if value is None:
            return []
        values = value if isinstance(value, list) else str(value).split(",")
        for item in values:
            if item not in list(kind):
                self.wrong(field, f"{item!r} is unknown, choose of {', '.join(kind)}")
        if not values:
            self.wrong(field, f"is empty, choose of {', '.join(kind)}")
        return [kind(item) for item in values if item in list(kind)]

    def refused(self, field: str, why: str, variable: str = "", *, accepted: Iterable[Any]) -> None:
        """A field that this release does not act on: only values that say what happens anyway are accepted."""
        value = self.raw(field, variable)
        if isinstance(value, str) and variable and self._environment.get(variable) == value and value in _FALSE:
            value = False
        # NB: 0 == False in Python, but not in a configuration file.
        if value is None or any(value == one and type(value) is type(one) for one in accepted):
            return
        self.wrong(field, f"{value!r} is not supported: {why}")

    def section(self, field: str) -> SectionReader:
        """The section, empty where there is none or it is no mapping (which is a finding then)."""
        value = self.raw(field)
        if value is not None and not isinstance(value, dict):
            self.wrong(field, f"must be a group of fields, is {value!r}")
        return self._below(value if isinstance(value, dict) else {}, field)

    def sections(self, field: str) -> list[SectionReader]:
        """The sections of a list."""
        value = self.raw(field)
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(field, f"must be a list, is {value!r}")
            return []
        found = []
        for index, item in enumerate(value):
            if isinstance(item, dict):
                found.append(self._below(item, f"{field}[{index}]"))
            else:
                self.wrong(f"{field}[{index}]", f"must be a group of fields, is {item!r}")
        return found

    def _below(self, data: Mapping[Any, Any], field: str) -> SectionReader:
        return SectionReader(data, self._environment, self.findings, f"{self._path}{field}.")

    def end(self) -> None:
        """Report every field that was not read."""
        from difflib import get_close_matches  # late: only a wrong file needs it

        for field in self._data:
            if field not in self._asked:
                near = get_close_matches(str(field), self._asked, 1)
                self.wrong(str(field), "is unknown" + (f", did you mean {near[0]}?" if near else ""))
