"""Label values: what Kubernetes allows, and how names of products become one."""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 63

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9\-_. ]")


def label_value(text: str) -> str:
    """`Tesla K80` as a label can hold it, `Tesla-K80`: spaces to dashes, and out with what no label may have."""
    return "-".join(_FOREIGN.sub("", text).split())


def strict_label_value(text: str) -> str:
    """The same, never longer than a label and with a letter or digit at both ends; equal for equal texts."""
    return label_value(text)[:LONGEST].strip("-_.")
