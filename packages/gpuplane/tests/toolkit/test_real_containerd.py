"""A real containerd reads our configuration, where one was built (make test-kubernetes); it is not started."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpulab.kubernetes import binaries
from gpuplane.host import Host
from gpuplane.toolkit import apply, observe, plan
from gpuplane.toolkit.applying import unconfigure

PLUGIN = "io.containerd.cri.v1.runtime"
CGROUP = ".containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
CASES = {
    "version 1": f"root = '/data'\n[plugins.cri{CGROUP}",
    "version 2": f'version = 2\nroot = "/data"\n[plugins."io.containerd.grpc.v1.cri"{CGROUP}',
    "version 3": f"version = 3\nroot = '/data'\n[plugins.'{PLUGIN}'{CGROUP}",
    "version 4": f"version = 4\nroot = '/data'\n[plugins.'{PLUGIN}'{CGROUP}",
    "version 4, imports": f"version = 4\nroot = '/data'\nimports = ['other/*.toml']\n[plugins.'{PLUGIN}'{CGROUP}",
}
PROGRAMS = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's root with a real containerd in it."""
    if not binaries.built("containerd"):
        pytest.skip("no containerd was built here")
    for path in ("etc/containerd/other", "usr/bin", "var/lib", "run"):
        (tmp_path / path).mkdir(parents=True)
    shutil.copy(binaries.directory("containerd") / "containerd", tmp_path / "usr/bin/containerd")
    for ending in PROGRAMS.values():
        (tmp_path / f"usr/bin/nvidia-container-runtime{ending}").touch()
    return tmp_path


def dumped(root: Path) -> dict[str, Any]:
    """The whole configuration as containerd sees it."""
    before = () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user")
    done = subprocess.run(
        [*before, "chroot", root, "/usr/bin/containerd", "config", "dump"], capture_output=True, text=True, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this user may not change root")
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("said", ["containerd", "containerd://2.4.2"])
async def test_a_real_containerd_sees_ours_and_all_that_was_there(root: Path, case: str, said: str) -> None:
    main = root / "etc/containerd/config.toml"
    main.write_text(CASES[case])
    (root / "etc/containerd/other/a.toml").write_text(
        f"version = 4\n[plugins.'{PLUGIN}'.containerd]\nignore_rdt_not_enabled_errors = true\n"
    )
    before = dumped(root)
    assert before["root"] == "/data"
    host = Host(root)
    await apply(host, plan(observe(host, gpus=None, runtime=said), set_as_default=True))
    after = dumped(root)
    section, was = (data["plugins"][PLUGIN]["containerd"] for data in (after, before))
    for name, ending in PROGRAMS.items():
        runtime = section["runtimes"].pop(name)
        assert runtime["runtime_type"] == "io.containerd.runc.v2"
        assert runtime["options"] == {
            "SystemdCgroup": True,
            "BinaryName": f"/usr/bin/nvidia-container-runtime{ending}",
        }
    assert (section.pop("default_runtime_name"), was.pop("default_runtime_name")) == ("nvidia", "runc")
    assert set(before.pop("imports")) <= set(after.pop("imports"))
    assert after["plugins"][PLUGIN]["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert after == before
    await unconfigure(host)
    assert main.read_text() == CASES[case]
