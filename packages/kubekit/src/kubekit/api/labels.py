"""Names and values of labels: what Kubernetes allows, and how names of products become a value."""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 63

_LONGEST_PREFIX: Final = 253
_PART: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9\-_. ]")


def is_label_name(text: str) -> bool:
    """Return whether Kubernetes takes it as the name of a label or the key of a taint: `gpu`, `example.com/gpu`."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > _LONGEST_PREFIX or not _PREFIX.fullmatch(prefix)):
        return False
    return _PART.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Return whether Kubernetes takes it as the value of a label or a taint; the empty text is one."""
    return not text or _PART.fullmatch(text) is not None


def label_value(text: str) -> str:
    """`Tesla K80` as a label can hold it, `Tesla-K80`: spaces to dashes, and out with what no label may have."""
    return "-".join(_FOREIGN.sub("", text).split())


def strict_label_value(text: str) -> str:
    """The same, never longer than a label and with a letter or digit at both ends; equal for equal texts."""
    return label_value(text)[:LONGEST].strip("-_.")
