"""`config.toml` of NVIDIA's own runtime."""

from __future__ import annotations

from typing import Any

from gpuplane.toolkit.places import RuntimeName
from gpuplane.toolkit.runtime_config import config_toml

# expected-containerd-docker.md, for a driver root of its own
CONFIG = """\
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
  environment = []
  ldconfig = "@/run/nvidia/driver/sbin/ldconfig.real"
  load-kmods = true
  path = "/usr/local/nvidia/toolkit/nvidia-container-cli"
  root = "/run/nvidia/driver"

[nvidia-container-runtime]
  log-level = "info"
  mode = "auto"
  runtimes = ["docker-runc", "runc"]
  [nvidia-container-runtime.modes.cdi]
    default-kind = "management.nvidia.com/gpu"
  [nvidia-container-runtime.modes.csv]
    mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime-hook]
  path = "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook"
  skip-mode-detection = true

[nvidia-ctk]
  path = "/usr/local/nvidia/toolkit/nvidia-ctk"
"""


def test_the_runtimes_configuration_is_as_documented(world: Any) -> None:
    world.write("run/nvidia/validations/driver-ready", "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n")
    world.write("run/nvidia/driver/sbin/ldconfig.real", "")
    facts = world.observe("docker")
    assert facts.runtime is RuntimeName.DOCKER
    assert config_toml(facts) == CONFIG
    (world.root / "run/nvidia/validations/driver-ready").unlink()
    world.write("run/nvidia/validations/host-driver-ready", "")
    text = config_toml(world.observe("docker"))
    assert '  root = "/"\n' in text
    assert '  ldconfig = "@/sbin/ldconfig"\n' in text
