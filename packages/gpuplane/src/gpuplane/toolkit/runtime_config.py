"""`config.toml` of nvidia-container-runtime: how NVIDIA's own runtime and hook find the driver and other programs.

Its place is where other tools look. It has the keys of NVIDIA's own installation for what is on the host, in CDI mode:
NVIDIA_VISIBLE_DEVICES names devices of the specification `nvidia.com/gpu`.
"""

from __future__ import annotations

from typing import Any

from gpuplane import names
from gpuplane.toolkit import toml_edit
from gpuplane.toolkit.facts import CLI, CTK, HOOK, ToolkitFacts
from gpuplane.toolkit.shipped import CONFIG

PATH = CONFIG


def config_toml(facts: ToolkitFacts, runtimes: tuple[str, ...]) -> str:
    """The file's text for this host; `runtimes` start containers, the first that is there."""
    root = facts.driver.root
    cli: dict[str, Any] = {"root": root}
    if facts.has(CLI):
        ldconfig = f"{'' if root == '/' else root}{facts.driver.ldconfig}"
        cli = {
            "environment": [],
            "ldconfig": f"@{ldconfig}",
            "load-kmods": True,
            "path": facts.program(CLI),
            **cli,
        }
    data: dict[str, Any] = {
        "accept-nvidia-visible-devices-as-volume-mounts": False,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": True,
        "disable-require": False,
        "nvidia-container-cli": cli,
        "nvidia-container-runtime": {
            "log-level": "info",
            "mode": "cdi",
            "runtimes": list(runtimes),
            "modes": {"cdi": {"default-kind": names.CDI_KIND}},
        },
    }
    if facts.has(HOOK):
        data["nvidia-container-runtime-hook"] = {"path": facts.program(HOOK), "skip-mode-detection": True}
    if facts.has(CTK):
        data["nvidia-ctk"] = {"path": facts.program(CTK)}
    return toml_edit.dump(data)
