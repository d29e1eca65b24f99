"""The provenance of an image: an in-toto statement with SLSA's predicate, of what the build tool put into the archive.

Forms: https://in-toto.io/Statement/v1 and https://slsa.dev/provenance/v1. The statement is unsigned; the publisher of
an image signs it. The same inputs give the same bytes, so it names neither a time nor a machine.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from .dependencies import PACKAGES, REPOSITORY
from .images import ImageInfo

BUILDER: Final = "https://gpuplane.dev/deploy/image/build.py"
BUILD_TYPE: Final = "https://gpuplane.dev/components/image/v1"
SOURCES: Final = ("pyproject.toml", "requirements.lock", "LICENSE", "native", "deploy/image")


def write_provenance(info: ImageInfo, epoch: int, repository: Path = REPOSITORY) -> Path:
    """Write the statement next to the archive; its path. `epoch` is SOURCE_DATE_EPOCH of the build, in seconds."""
    output = info.path.with_name(info.path.name.removesuffix(".tar").removesuffix(".oci") + ".provenance.json")
    output.write_text(json.dumps(provenance(info, epoch, committed(repository)), indent=2) + "\n")
    return output


def provenance(info: ImageInfo, epoch: int, commit: str = "") -> dict[str, Any]:
    """Return the statement. `commit` is the git commit of the sources, empty where they are of none."""
    materials = [
        {"name": name, "digest": {"sha256": digest}} | ({"uri": name} if name.startswith("pkg:") else {})
        for name, digest in sorted({pair for layer in info.layers for pair in layer.inputs.items()})
    ]
    if commit:
        materials.insert(0, {"name": "gpuplane", "digest": {"gitCommit": commit}})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": info.tag, "digest": {"sha256": info.digest.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"tag": info.tag},
                "internalParameters": {"SOURCE_DATE_EPOCH": epoch},
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "byproducts": [
                    {"name": layer.name, "digest": {"sha256": layer.digest.removeprefix("sha256:")}}
                    for layer in info.layers
                ],
            },
        },
    }


def committed(repository: Path) -> str:
    """Return the git commit of the sources; empty where they are changed, or where there is no git."""
    places = [*SOURCES, *(f"packages/{package}" for package in PACKAGES)]
    changed = _git(repository, "status", "--porcelain", "--", *places)
    return "" if changed is None or changed else _git(repository, "rev-parse", "HEAD") or ""


def _git(repository: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
