"""Inputs of the image: the locked packages, the settings of the Containerfile, and the errors that stop a build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.image.gpuplane_image import ImageError, debian, dependencies, elf
from deploy.image.gpuplane_image.compose import UNUSED_SERVICES, USED_DATA, prune
from deploy.image.gpuplane_image.containerfile import CONTAINERFILE, read_settings

BUILD = CONTAINERFILE.parent / "build.py"
LOCK = (dependencies.REPOSITORY / "requirements.lock").read_text()


def roots() -> set[str]:
    return dependencies.runtime_roots()


def names(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))


def needed(name: str, extras: frozenset[str], seen: set[str]) -> set[str]:
    """Return the requirements of installed packages on this machine, from their metadata: the independent answer."""
    if name in seen:
        return seen
    seen.add(name)
    for line in requires(name) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            needed(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)
    return seen


def test_the_runtime_lock_has_all_that_runs_and_no_tool() -> None:
    locked = names(dependencies.runtime_lock(LOCK, roots()))
    wanted: set[str] = set()
    for root in roots():
        needed(root, frozenset(), wanted)
    assert wanted <= locked
    assert not locked & {"pytest", "mypy", "ruff", "ziglang", "hatchling", "hypothesis", "kubernetes", "cuda-bindings"}
    # Beyond that only what other platforms and Pythons, and extras, ask for.
    assert len(locked - wanted) <= 6


def test_every_locked_package_keeps_its_pin_and_hashes() -> None:
    chosen = dependencies.runtime_lock(LOCK, roots())
    for block in re.split(r"\n(?=\w)", chosen.strip()):
        assert block in LOCK
        assert "--hash=sha256:" in block


def test_a_lock_without_a_dependency_is_refused() -> None:
    with pytest.raises(ImageError, match=r"requirements\.lock lacks left-pad: make lock"):
        dependencies.runtime_lock(LOCK, {"left-pad"})


def test_needs_are_followed_through_others() -> None:
    lock = (
        "a==1 \\\n    --hash=x\n    # via project\nB_c==2\n    # via a\nd==3\n    # via\n    #   e\n    #   b-c\ne==4\n"
    )
    assert dependencies.runtime_lock(lock, {"a"}) == "a==1 \\\n    --hash=x\nB_c==2\nd==3\n"


def test_the_settings_are_those_of_the_last_stage() -> None:
    settings = read_settings(CONTAINERFILE.read_text(), {"VERSION": "9.8.7"})
    assert settings.entrypoint == ("/usr/bin/gpuplane",)
    assert settings.user == "65532:65532"
    assert "PYTHONDONTWRITEBYTECODE=1" in settings.environment
    assert settings.labels["org.opencontainers.image.version"] == "9.8.7"
    assert settings.labels["org.opencontainers.image.licenses"] == dependencies.project()["license"]


def test_the_containerfile_names_the_version_of_the_project() -> None:
    version = dependencies.project()["version"]
    assert read_settings(CONTAINERFILE.read_text(), {}).labels["org.opencontainers.image.version"] == version


def test_the_image_has_the_services_that_the_autoscaler_calls(tmp_path: Path) -> None:
    packages = Path(sysconfig.get_path("purelib"))
    for name in ("boto3", "botocore"):
        shutil.copytree(packages / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    prune(tmp_path, UNUSED_SERVICES, USED_DATA)
    assert sum(path.stat().st_size for path in (tmp_path / "botocore" / "data").rglob("*")) < 4 << 20
    program = (
        "import boto3; assert boto3.__file__.startswith(sys.argv[1]), boto3.__file__; "
        "session = boto3.session.Session(region_name='us-east-1'); "
        "[session.client(name) for name in ('ec2', 'iam', 'pricing', 'sqs', 'ssm', 'sts')]"
    )
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"
    done = subprocess.run([sys.executable, "-c", start, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@given(st.binary(max_size=300), st.integers(0, 63), st.binary(min_size=1, max_size=8))
def test_stripping_never_fails_and_never_adds(data: bytes, at: int, noise: bytes) -> None:
    header = bytearray(Path(sys.executable).resolve().read_bytes()[:4096])
    header[at : at + len(noise)] = noise
    for some in (data, b"\x7fELF\x02\x01" + data, bytes(header)):
        assert len(elf.without_symbols(some)) <= len(some)


def test_a_stripped_library_loads_and_strips_no_further(tmp_path: Path) -> None:
    import msgspec._core as core

    original = Path(core.__file__)
    target = tmp_path / "msgspec" / original.name
    target.parent.mkdir()
    for file in original.parent.glob("*.py"):
        (target.parent / file.name).write_bytes(file.read_bytes())
    target.write_bytes(original.read_bytes())
    target.chmod(0o755)
    elf.strip(tmp_path)
    assert target.stat().st_size < original.stat().st_size
    assert elf.without_symbols(target.read_bytes()) == target.read_bytes()
    command = "import msgspec; print(msgspec.json.decode(b'[1]'), msgspec.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", command], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["[1]", str(target.parent / "__init__.py")]


def refused(*arguments: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, str(BUILD), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout) == (1, "")
    return run.stderr


def test_a_machine_without_apt_is_told_so_in_one_line(tmp_path: Path) -> None:
    said = refused("--cache", str(tmp_path), PATH=str(tmp_path))
    assert said.startswith("build.py: there is no apt-get here: install apt (Debian, Ubuntu), or build deploy/image")
    assert said.count("\n") == 1


@pytest.mark.skipif(not debian.KEYRING.is_file(), reason="needs Debian's archive keyring")
def test_a_machine_without_network_is_told_so_in_one_line(tmp_path: Path) -> None:
    said = refused("--cache", str(tmp_path), GPUPLANE_DEBIAN_MIRROR="http://127.0.0.1:9")
    first, last = said.strip().splitlines()
    assert first == "image: reading the package lists of Debian bookworm"
    assert last.startswith("build.py: the package lists of http://127.0.0.1:9 cannot be had (")
    assert last.endswith("look at the network and the proxy, or set GPUPLANE_DEBIAN_MIRROR")
    assert sysconfig.get_platform().startswith("linux")
