"""`config.toml` of nvidia-container-runtime: how NVIDIA's own runtime and hook find driver and mode.

Its place and contents are what other tools look for; see expected values in the tests.
"""

from __future__ import annotations

from gpuplane import names
from gpuplane.toolkit.facts import CLI, CTK, HOOK, ToolkitFacts
from gpuplane.toolkit.places import RuntimeName

PATH = f"{names.TOOLKIT_DIR}/.config/nvidia-container-runtime/config.toml"
_LOW_LEVEL = {
    RuntimeName.DOCKER: ("docker-runc", "runc"),
    RuntimeName.CONTAINERD: ("runc", "crun"),
    RuntimeName.CRIO: ("crun", "runc"),
}


def config_toml(facts: ToolkitFacts) -> str:
    """The file's text for this host."""
    root = facts.driver.root
    ldconfig = f"{'' if root == '/' else root}{facts.driver.ldconfig}"
    runtimes = ", ".join(f'"{name}"' for name in _LOW_LEVEL[facts.runtime])
    return f"""\
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
  environment = []
  ldconfig = "@{ldconfig}"
  load-kmods = true
  path = "{facts.program(CLI)}"
  root = "{root}"

[nvidia-container-runtime]
  log-level = "info"
  mode = "auto"
  runtimes = [{runtimes}]
  [nvidia-container-runtime.modes.cdi]
    default-kind = "{names.CDI_MANAGEMENT_KIND}"
  [nvidia-container-runtime.modes.csv]
    mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime-hook]
  path = "{facts.program(HOOK)}"
  skip-mode-detection = true

[nvidia-ctk]
  path = "{facts.program(CTK)}"
"""
