"""NVIDIA's container runtime as a runtime handler: it adds the GPUs that NVIDIA_VISIBLE_DEVICES names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_BINARY: Final = "nvidia-container-runtime"  # with endings for its modes, such as .cdi
_KIND: Final = "nvidia.com/gpu"
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"


def handler_devices(binary: str, env: Mapping[str, str]) -> list[str]:
    """Return the CDI devices that the handler of this binary adds to a container: none unless it is NVIDIA's."""
    return visible_names(env.get(_VISIBLE, "")) if Path(binary).name.startswith(_BINARY) else []


def visible_names(value: str) -> list[str]:
    """CDI names for NVIDIA_VISIBLE_DEVICES; nothing for empty, void and none."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts or parts[0] in ("void", "none"):
        return []
    return [part if "=" in part else f"{_KIND}={part}" for part in parts]
