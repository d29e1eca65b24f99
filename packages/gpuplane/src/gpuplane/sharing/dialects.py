"""By which names a node offers its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gpuplane import names
from kubekit.errors import InvalidInput

ENABLE = "enable"


class Dialect(StrEnum):
    NVIDIA = "nvidia"  # nvidia.com/gpu and what the configuration makes of it
    TENCENT = "tencent"  # tencent.com/vcuda-core and -memory
    ALPHA = "alpha"  # alpha.kubernetes.io/nvidia-gpu


def offered(label: str, environment: Mapping[str, str]) -> frozenset[Dialect]:
    """Return the dialects of a node whose label `nvidia-device-enable` is `label`.

    Raises InvalidInput for a dialect that does not exist.
    """
    shares = label == ENABLE
    said = [word.strip() for word in environment.get(names.DIALECTS_ENV, "").split(",") if word.strip()]
    if not said:
        return frozenset((Dialect.TENCENT if shares else Dialect.NVIDIA,))
    if unknown := [word for word in said if word not in list(Dialect)]:
        what = f"{names.DIALECTS_ENV}: {unknown[0]!r} is unknown"
        raise InvalidInput(what, cure=f"choose of {', '.join(Dialect)}", findings=(what,))
    return frozenset(Dialect(word) for word in said if shares or word != Dialect.TENCENT)
