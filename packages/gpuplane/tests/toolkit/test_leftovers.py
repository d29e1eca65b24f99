"""The toolkit leaves while its containers run: the programs that their shims call stay until the containers end."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from gpuplane.toolkit import apply, plan
from gpuplane.toolkit.applying import unconfigure
from gpuplane.toolkit.leftovers import SCRIPTS, is_left
from gpuplane.toolkit.observing import with_nri

RUNTIME = "containerd://2.1.9"
PROGRAM = "usr/local/nvidia/toolkit/nvidia-container-runtime"
BUNDLES = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
RUNC = "usr/sbin/runc"


def start(world: Any, container: str, program: str = PROGRAM, bundles: str = BUNDLES) -> None:
    """Write a container's files as a shim does."""
    world.write(f"{bundles}/{container}/runtime", f"/{program}")


def end(world: Any, container: str) -> None:
    shutil.rmtree(world.root / BUNDLES / container)


def call(world: Any, *arguments: str, answer: str = 'echo "runc $*"') -> str:
    """Call the program that stayed as a shim does, with the test's root in place of the host's."""
    script = (world.root / PROGRAM).read_text()
    for path in ("/run/containerd", f"/{PROGRAM}", f"/{RUNC}", "rmdir /usr"):
        new = f"rmdir {world.root}/usr" if path == "rmdir /usr" else f"{world.root}{path}"
        script = script.replace(path, new)
    # In the bundles are the host's paths.
    script = script.replace(f'[ "$program" = {world.root}', '[ "$program" = ')
    world.write(RUNC, f"#!/bin/sh\n{answer}\n")
    (world.root / RUNC).chmod(0o755)
    done = subprocess.run(["sh", "-c", script, "runtime", *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


async def test_a_program_stays_for_its_containers_and_deletes_itself_with_the_last(bare: Any, tree_of: Any) -> None:
    bare.write(RUNC, '#!/bin/sh\necho "runc $*"\n')
    before = tree_of(bare.root)
    await apply(bare.host, bare.plan(RUNTIME))
    for container in ("a", "b"):
        start(bare, container)
    start(bare, "c", "usr/bin/runc")
    await unconfigure(bare.host)
    assert [path for path in SCRIPTS if is_left(bare.host, path)] == [PROGRAM]
    left = tree_of(bare.root)
    assert {path for path in left if path not in before and not path.startswith("run/containerd")} == {
        *("usr/local", "usr/local/nvidia", "usr/local/nvidia/toolkit", PROGRAM)
    }
    assert call(bare, "--root", "/r", "kill", "a", "15") == "runc --root /r kill a 15\n"
    assert call(bare, "--root", "/r", "delete", "--force", "a") == "runc --root /r delete --force a\n"
    end(bare, "a")
    assert (bare.root / PROGRAM).exists()
    call(bare, "delete", "b")
    shutil.rmtree(bare.root / "run/containerd")
    (bare.root / RUNC).chmod(before[RUNC][1])
    assert tree_of(bare.root) == before


async def test_a_failed_delete_deletes_no_program(bare: Any) -> None:
    await apply(bare.host, bare.plan(RUNTIME))
    start(bare, "a")
    await unconfigure(bare.host)
    with pytest.raises(subprocess.CalledProcessError):
        call(bare, "delete", "a", answer="exit 1")
    assert (bare.root / PROGRAM).exists()


async def test_a_toolkit_that_comes_back_takes_the_program_over(bare: Any, tree_of: Any) -> None:
    before = tree_of(bare.root)
    await apply(bare.host, bare.plan(RUNTIME))
    planned = bare.plan(RUNTIME)
    start(bare, "a")
    await unconfigure(bare.host)
    assert bare.plan(RUNTIME) == planned
    await apply(bare.host, bare.plan(RUNTIME))
    assert not is_left(bare.host, PROGRAM)
    assert await apply(bare.host, bare.plan(RUNTIME)) == ()
    shutil.rmtree(bare.root / "run/containerd")
    await unconfigure(bare.host)
    assert tree_of(bare.root) == before


async def test_a_machine_that_was_restarted_loses_the_program_with_the_next_look(bare: Any, tree_of: Any) -> None:
    before = tree_of(bare.root)
    await apply(bare.host, bare.plan(RUNTIME))
    start(bare, "a")
    await unconfigure(bare.host)
    await unconfigure(bare.host)
    assert is_left(bare.host, PROGRAM)
    shutil.rmtree(bare.root / "run/containerd")
    await unconfigure(bare.host)
    assert tree_of(bare.root) == before


@pytest.mark.parametrize("ending", ["", ".cdi", ".legacy"])
async def test_containers_of_docker_and_of_the_other_runtimes_retain_their_program(bare: Any, ending: str) -> None:
    await apply(bare.host, bare.plan("docker://28.5.0"))
    start(bare, "a", f"{PROGRAM}{ending}", "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby")
    await unconfigure(bare.host)
    assert [path for path in SCRIPTS if is_left(bare.host, path)] == [f"{PROGRAM}{ending}"]


async def test_a_change_to_nri_leaves_the_program_too(bare: Any) -> None:
    await apply(bare.host, bare.plan(RUNTIME))
    start(bare, "a")
    await apply(bare.host, plan(with_nri(bare.observe(RUNTIME))))
    assert is_left(bare.host, PROGRAM)
