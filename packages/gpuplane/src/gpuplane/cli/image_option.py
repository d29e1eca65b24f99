"""The option `--image`: a reference that container runtimes can pull, in the grammar of distribution/reference.

A placeholder such as `YOUR/IMAGE` is invalid: repositories are in lower case. Without this check every pod of the
installation would end in InvalidImageName.
"""

from __future__ import annotations

import re
from typing import Final

from kubekit.errors import UsageError

_NAME: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    r"(?:(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])"
    rf"(?::[0-9]+)?/)?{_NAME}(?:/{_NAME})*(?::\w[\w.-]{{0,127}})?(?:@[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-f]{{32,}})?",
    re.ASCII,
)


def require_image(image: str) -> None:
    """Raise UsageError for what is no reference of an image."""
    if not _REFERENCE.fullmatch(image):
        what = "names no image"
        if _REFERENCE.fullmatch(image.lower()):
            what = "names no image: its name is in lower case"
        raise UsageError(
            f"{image!r} {what}", where="--image", cure="gpuplane install --image registry.example.com/gpuplane:0.1.0"
        )
