"""The driver's root with the kernel's own overlayfs, in a mount namespace: nothing of this machine changes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import asyncio, os, pathlib
    from gpuplane.driver.installer import _run
    from gpuplane.driver.steps import ROOT, STORE, clear, mount, refresh
    from gpuplane.host import Host

    host = Host(pathlib.Path("/"))
    asyncio.run(_run(host, mount(("opt",))))
    inside = pathlib.Path(ROOT)
    assert (inside / "etc/os-release").read_bytes() == pathlib.Path("/etc/os-release").read_bytes()
    assert (inside / "opt/there").read_text() == "before"
    assert all((inside / path).exists() for path in ("proc/self/status", "sys/kernel", "dev/null"))
    assert (inside / "run/mark").read_text() == "run"
    assert not list((inside / "run/nvidia/driver").iterdir())

    # What is written in there is not on the host, what is deleted in there stays.
    (inside / "etc/gpuplane-test").write_text("x")
    (inside / "opt/there").unlink()
    assert not os.path.exists("/etc/gpuplane-test")
    assert pathlib.Path("/opt/there").read_text() == "before"
    assert (pathlib.Path(STORE) / "host/upper/etc/gpuplane-test").read_text() == "x"

    # A file that was looked for in vain comes to the host: the next try finds it.
    assert not (inside / "opt/late").exists()
    pathlib.Path("/opt/late").write_text("late")
    asyncio.run(_run(host, refresh(("opt",))))
    assert (inside / "opt/late").read_text() == "late"
    assert (inside / "etc/gpuplane-test").read_text() == "x"

    # The same as an installer that was killed: mounted again, it is all there.
    asyncio.run(_run(host, clear(True)[:1]))
    asyncio.run(_run(host, mount(("opt",))))
    assert (inside / "etc/gpuplane-test").read_text() == "x"
    assert not (inside / "opt/there").exists()

    asyncio.run(_run(host, clear(True)))
    assert not os.path.exists(STORE)
    assert not list(inside.iterdir())
    assert os.path.exists("/dev/null") and os.path.exists("/proc/self") and pathlib.Path("/run/mark").exists()
    print("done")
"""
# The places that are written to are memory of the namespace.
SETUP = """
set -e
mount --make-rprivate /
for place in /run /var/lib /opt; do mount -t tmpfs tmpfs $place; done
echo -n run >/run/mark
echo -n before >/opt/there
exec "$@"
"""


@pytest.mark.namespaces
def test_the_drivers_root_is_the_host_under_a_layer_of_its_own() -> None:
    if os.geteuid() != 0:
        pytest.skip("overlays of the whole machine can be mounted by root only")
    start = ("unshare", "--mount", "sh", "-c", SETUP, "sh")
    if subprocess.run([*start, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are refused here")
    done = subprocess.run(
        [*start, sys.executable, "-c", textwrap.dedent(SCRIPT)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "done", done.stderr


COMMAND = """
    import asyncio, pathlib, subprocess
    from gpuplane.driver.installer import _run
    from gpuplane.driver.node_command import NODE_COMMAND, command_files
    from gpuplane.driver.steps import ROOT, clear, install, mount
    from gpuplane.driver.released import Family, Released
    from gpuplane.host import Host, apply_changes, revert

    steps = install(Released(version="570.133.20", digest="d", family=Family.DEBIAN, os_id="debian"), "6.1.0")
    assert steps[0].argv[0] == "rm"

    def nvidia_smi(*words, user=0):
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, user=user)
        return done.returncode, done.stdout + done.stderr

    host = Host(pathlib.Path("/"))
    before = sorted(pathlib.Path("/usr/local/bin").iterdir())
    apply_changes(host, "driver", command_files(host, None))
    code, said = nvidia_smi()
    assert code == 12 and "no driver yet" in said
    asyncio.run(_run(host, mount(("usr/local/bin",))))
    inside = pathlib.Path(ROOT)
    assert (inside / NODE_COMMAND).exists()
    asyncio.run(_run(host, steps[:1]))
    program = inside / "usr/bin/nvidia-smi"
    program.write_text('#!/bin/sh\\necho "$(cat /etc/inside) $*"; exit 3\\n')
    program.chmod(0o755)
    (inside / "etc/inside").write_text("driver")
    assert not (inside / NODE_COMMAND).exists()
    assert nvidia_smi("-L", "a b") == (3, "driver -L a b\\n")
    code, said = nvidia_smi(user=65534)
    assert code == 4 and "sudo /usr/local/bin/nvidia-smi" in said
    inside_first = subprocess.run(["chroot", ROOT, "nvidia-smi"], capture_output=True, text=True)
    assert inside_first.stdout.startswith("driver ")
    asyncio.run(_run(host, clear(True)))
    revert(host, "driver")
    assert sorted(pathlib.Path("/usr/local/bin").iterdir()) == before
    print("done")
"""


@pytest.mark.namespaces
def test_nvidia_smi_of_the_node_is_that_in_the_drivers_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("overlays of the whole machine can be mounted by root only")
    own = "cp -a /usr/local/bin /run/bin; mount --bind /run/bin /usr/local/bin"
    setup = SETUP.replace('exec "$@"', f'{own}\nexec "$@"')
    start = ("unshare", "--mount", "sh", "-c", setup, "sh")
    if subprocess.run([*start, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are refused here")
    done = subprocess.run(
        [*start, sys.executable, "-c", textwrap.dedent(COMMAND)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "done", done.stderr


READ_ONLY = """
    import pathlib
    from gpuplane.driver.installer import _write_host_files
    from gpuplane.host import Host, load_state, revert

    host = Host(pathlib.Path("/run/node"))
    for _ in range(2):
        _write_host_files(host, {"digest": "d"})
        assert load_state(host, "driver").notes == {"digest": "d"}
        assert not host.exists("usr/local/bin/nvidia-smi")
    revert(host, "driver")
    assert load_state(host, "driver") is None
    print("done")
"""


@pytest.mark.namespaces
def test_a_read_only_usr_leaves_out_nvidia_smi_and_nothing_else() -> None:
    if os.geteuid() != 0:
        pytest.skip("file systems can be mounted by root only")
    node = "mkdir -p /run/node/usr; mount -t tmpfs tmpfs /run/node/usr; mkdir -p /run/node/usr/local/bin"
    setup = SETUP.replace('exec "$@"', f'{node}\nmount -o remount,ro /run/node/usr\nexec "$@"')
    start = ("unshare", "--mount", "sh", "-c", setup, "sh")
    if subprocess.run([*start, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are refused here")
    done = subprocess.run(
        [*start, sys.executable, "-c", textwrap.dedent(READ_ONLY)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "done", done.stderr


POD = """
    import asyncio, pathlib, subprocess, sys
    from gpuplane.driver.installer import _run
    from gpuplane.driver.steps import clear, mount
    from gpuplane.host import Host

    # As the driver's pod has it: the node's root at /host, mounts go both ways.
    root = pathlib.Path("/run/pod/host")
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--rbind", "/", root], check=True)
    asyncio.run(_run(Host(root), mount(()) if sys.argv[1] == "mount" else clear(True)))
"""
NODE = """
set -e
script=$1 python=$2
other() { unshare --mount --propagation unchanged "$@"; }
mount --make-rshared /
mkdir -p /run/nvidia/driver
mkfifo /run/started /run/go
# A pod of another component, started before the driver, with /run/nvidia from the node to the container.
other sh -c 'mount --make-rslave /; echo ready >/run/started; read -r _ </run/go
    test -e /run/nvidia/driver/etc/os-release && echo "seen by pods"' &
read -r _ </run/started
other "$python" -c "$script" mount
test -e /run/nvidia/driver/etc/os-release && echo "mounted on the node"
echo go >/run/go
wait
other "$python" -c "$script" clear
[ -z "$(ls /run/nvidia/driver)" ] && echo "gone from the node"
"""


@pytest.mark.namespaces
def test_the_drivers_root_is_mounted_on_the_node_and_in_pods_that_look_there() -> None:
    """As NVIDIA's driver container leaves it: the mount outlives the pod that made it."""
    if os.geteuid() != 0:
        pytest.skip("overlays of the whole machine can be mounted by root only")
    start = ("unshare", "--mount", "sh", "-c", SETUP, "sh")
    if subprocess.run([*start, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are refused here")
    done = subprocess.run(
        [*start, "sh", "-c", NODE, "sh", textwrap.dedent(POD), sys.executable],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["mounted on the node", "seen by pods", "gone from the node"], done.stderr
