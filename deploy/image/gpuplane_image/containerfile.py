"""Reads the settings of the image out of the last stage of the Containerfile, so that they are said once."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from .layout import Settings

CONTAINERFILE = Path(__file__).resolve().parents[1] / "Containerfile"


def read_settings(text: str, arguments: dict[str, str]) -> Settings:
    """LABEL, ENV, USER, WORKDIR and ENTRYPOINT (as JSON); `arguments` replace the defaults of ARG."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    stage = re.split(r"(?m)^FROM .*$", joined)[-1]
    values: dict[str, str] = {}
    found: dict[str, str] = {}
    labels: dict[str, str] = {}
    environment: list[str] = []
    for line in stage.strip().splitlines():
        word, _, rest = line.partition(" ")
        match word:
            case "ARG":
                name, _, default = rest.partition("=")
                values[name] = arguments.get(name, default)
            case "LABEL":
                labels |= dict(pair.split("=", 1) for pair in shlex.split(_replaced(rest, values)))
            case "ENV":
                environment += shlex.split(_replaced(rest, values))
            case _:
                found[word] = rest.strip()
    return Settings(
        entrypoint=tuple(json.loads(found["ENTRYPOINT"])),
        user=found["USER"],
        environment=tuple(environment),
        workdir=found["WORKDIR"],
        labels=labels,
    )


def _replaced(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)
