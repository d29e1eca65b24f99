"""Feature files: `name=value` lines that users and other programs leave in `features.d` on the machine.

A file is read as a whole or not at all. A mistake is reported with file, line and cure. The previous content, if this
process has read it, stays in force until the file is corrected.

Source of the format: node feature discovery's customization guide, "Feature files".
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from gpuplane.api.nodefeature_checks import full_name, label_problems
from gpuplane.discovery.features import Features
from gpuplane.discovery.sources.reading import names
from gpuplane.host import Host, HostError
from kubekit.errors import InvalidInput

DIRECTORY: Final = "etc/kubernetes/node-feature-discovery/features.d"
MAX_BYTES: Final = 65536


class LocalFile(msgspec.Struct, frozen=True):
    """The content of one file: features for rules, and labels."""

    features: dict[str, str] = {}
    labels: dict[str, str] = {}


class LocalFeatures(msgspec.Struct, frozen=True):
    """The content of all files, by file; `problems` are the errors of invalid ones."""

    files: dict[str, LocalFile] = {}
    problems: tuple[InvalidInput, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """In full; a file later in the alphabet has the last word."""
        found = {name: value for _, file in sorted(self.files.items()) for name, value in file.labels.items()}
        return {full_name(name): value for name, value in found.items()}

    @property
    def features(self) -> Features:
        found = {name: value for _, file in sorted(self.files.items()) for name, value in file.features.items()}
        if not self.files:
            return Features()
        return Features(attributes={"local.feature": found, "local.label": self.labels})


def read_local(host: Host, now: str, before: LocalFeatures | None = None) -> LocalFeatures:
    """All files as they are now (RFC 3339, for what expires)."""
    files: dict[str, LocalFile] = {}
    problems = []
    for name in names(host, DIRECTORY):
        if name.startswith("."):
            continue  # one that is still being written
        path = f"{DIRECTORY}/{name}"
        try:
            data = host.read(path, limit=MAX_BYTES + 1)
            if data is not None:
                files[name] = parse(data, now, f"/{path}")
        except InvalidInput as error:
            problems.append(error)
        except HostError as error:
            problems.append(InvalidInput(error.what, where=f"/{path}", cure=error.cure or "make it a readable file"))
        if name not in files and before is not None and name in before.files:
            files[name] = before.files[name]
    return LocalFeatures(files, tuple(problems))


def parse(data: bytes, now: str, path: str) -> LocalFile:
    """One file. Raises InvalidInput for the first mistake, with its line."""
    if len(data) > MAX_BYTES:
        raise InvalidInput(f"is larger than {MAX_BYTES} bytes", where=path, cure="split it into several files")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        broken = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput("is no UTF-8 text", where=f"{path}:{broken}", cure="write it in UTF-8") from error
    features: dict[str, str] = {}
    labels: dict[str, str] = {}
    skip: set[str] = set()
    expired = False
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        where = f"{path}:{number}"
        if line.startswith("# +"):
            directive, _, value = line.removeprefix("# +").partition("=")
            if directive == "expiry-time":
                expired = _time(value.strip(), where) < _time(now, where)
            elif directive in ("no-feature", "no-label"):
                skip.add(directive)
            else:
                cure = "there are expiry-time=TIME, no-feature and no-label"
                raise InvalidInput(f"there is no directive {directive}", where=where, cure=cure)
        elif line and not line.startswith("#") and not expired:
            name, equals, value = line.partition("=")
            name, value = name.strip(), value.strip() if equals else "true"
            if not name:
                raise InvalidInput("there is no name before the =", where=where, cure="write name=value")
            if "no-feature" not in skip:
                features[name] = value
            if "no-label" not in skip:
                problem = next(label_problems(name, value, ""), None)
                if problem is not None:
                    cure = problem.cure or "# +no-label in the line above keeps it a feature only"
                    raise InvalidInput(f"{line}: {problem.message}", where=where, cure=cure)
                labels[name] = value
            skip.clear()
    return LocalFile(features, labels)


def _time(text: str, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput(f"{text!r} is no time", where=where, cure="write it as 2027-01-31T12:00:00Z")
    return moment
