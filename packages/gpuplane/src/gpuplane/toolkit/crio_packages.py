"""Facts about cri-o by packager and by release, in one place: where its programs lie, and since when it can do what.

Sources: the history of cri-o/packaging (`10-crun.conf`, `10-crio.conf`, `cri-o.spec`; the commits of 30 January and 15
July 2024), the go.mod and the release notes of cri-o/cri-o. What NRI needs is in `operand/nri/runtimes.py`.
"""

from __future__ import annotations

from typing import Final

import msgspec


class CrioPackages(msgspec.Struct, frozen=True):
    """The packages of one packager from a release on.

    `drop_in` is the file below /etc/crio/crio.conf.d that sets the default runtime, "" for none. `program` is the path
    of a program by its name, as `/usr/bin/crio-{}`, and `named` says whether the drop-in has it.
    """

    packager: str
    since: tuple[int, int]
    drop_in: str
    program: str
    named: bool

    def path(self, name: str) -> str:
        return self.program.format(name)


PACKAGES: Final = (
    CrioPackages("cri-o", (1, 28), "10-crun.conf", "/usr/bin/{}", named=False),
    CrioPackages("cri-o", (1, 29), "10-crio.conf", "/usr/bin/crio-{}", named=True),
    CrioPackages("cri-o", (1, 31), "10-crio.conf", "/usr/libexec/crio/{}", named=True),
    CrioPackages("distribution", (1, 0), "", "/usr/bin/{}", named=False),
)
"""NB: the last releases of 1.29 and 1.30 have the paths of 1.31. A plan goes by the drop-in that is there."""

PROGRAM_DIRS: Final = tuple(
    dict.fromkeys(row.path("").strip("/") for row in PACKAGES if row.program.endswith("/{}") and row.named)
)
"""Directories in which runc and crun lie by their names, besides the usual search path."""

READS_GIDS: Final = (1, 31)  # additionalGids of CDI 0.7
