"""The attempts of a measurement, in a file: a broken-off measurement goes on with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tests.e2e.reports import Outcome, Spec

FILE: Final = "specs.json"


class Ledger:
    """All attempts in the order in which they ended. The file is whole at any moment."""

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """Begin in `folder`, or go on with what is there. Raises ValueError for a file of something else."""
        self.file = folder / FILE
        self.specs: list[Spec] = []
        folder.mkdir(parents=True, exist_ok=True)
        if resume and self.file.exists():
            try:
                self.specs = msgspec.json.decode(self.file.read_bytes(), type=list[Spec])
            except msgspec.DecodeError as error:
                raise ValueError(f"{self.file} has no attempts: {error}; leave out --resume") from None

    def add(self, specs: Iterable[Spec]) -> None:
        """Note attempts."""
        self.specs += specs
        new = self.file.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(self.specs), indent=1))
        new.replace(self.file)

    def outcomes(self) -> dict[str, list[Outcome]]:
        """Return the outcomes of each spec in order."""
        found: dict[str, list[Outcome]] = {}
        for spec in self.specs:
            found.setdefault(spec.name, []).append(spec.outcome)
        return found

    def of(self, names: Iterable[str]) -> Iterator[Spec]:
        """Yield the attempts of these specs."""
        wanted = set(names)
        return (spec for spec in self.specs if spec.name in wanted)
