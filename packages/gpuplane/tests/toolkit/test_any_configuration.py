"""Any valid configuration: gpuplane's part works in it, everything else stays, and every byte is restored."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gpuplane.toolkit import apply, applying, json_edit
from gpuplane.toolkit.applying import unconfigure
from gpuplane.toolkit.facts import RUNTIMES
from kubekit.errors import InvalidInput
from packages.gpuplane.tests.toolkit.spellings import ANY, PATHS
from tinykube.kubelet.runtimes import RuntimeConfig, read_config

COMMON = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the runtimes that were signalled to read their configuration."""
    found: list[str] = []

    async def tell(host: object, place: Any, sleep: object, runtimes: object = ()) -> bool:
        found.append(place.name)
        return True

    monkeypatch.setattr(applying, "tell", tell)
    return found


def read(world: Any, said: str) -> RuntimeConfig:
    """The configuration as the runtime itself sees it."""
    kind, _, version = said.partition("://")
    return read_config(world.root, kind, version)


@pytest.fixture
def make(memory: Path, make_world: Any) -> Iterator[Callable[[], Any]]:
    """New machines, in memory."""
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield lambda: make_world(Path(tempfile.mkdtemp(dir=directory)))


def start(make: Callable[[], Any], config: tuple[str, str]) -> tuple[Any, str, str]:
    said, text = config
    world = make()
    path = PATHS[said.partition("://")[0]]
    world.write(path, text)
    world.write("etc/y.toml", "")
    (world.root / path).chmod(0o640)
    return world, said, path


@COMMON
@given(config=ANY, default=st.sampled_from([None, True, False]))
async def test_it_works_twice_is_once_and_all_comes_back(
    make: Callable[[], Any],
    tree_of: Any,
    told: list[str],
    config: tuple[str, str],
    default: bool | None,
) -> None:
    world, said, _ = start(make, config)
    before, was = tree_of(world.root), read(world, said)
    try:
        planned = world.plan(said, set_as_default=default)
    except InvalidInput as error:
        event("refused")
        assert "cannot be edited safely" in error.what
        assert tree_of(world.root) == before
        return
    told.clear()
    await apply(world.host, planned)
    assert len(told) == bool(planned.restart_for)
    now = read(world, said)
    for name, program in RUNTIMES.items():
        if name not in was.handlers or not said.startswith("containerd"):
            assert now.handlers[name].binary == f"/usr/bin/{program}"
    assert {name: now.handlers[name] for name in was.handlers if name not in RUNTIMES} == {
        name: handler for name, handler in was.handlers.items() if name not in RUNTIMES
    }
    without_cdi = said.startswith(("containerd://1.6", "docker://24"))
    assert now.cdi is not without_cdi
    assert {"/var/run/cdi", "/run/cdi"} & set(now.cdi_dirs)
    wanted = default if default is not None else said.startswith(("containerd://1.6", "docker"))
    assert now.default == ("nvidia" if wanted else was.default)
    again = world.plan(said, set_as_default=default)
    assert again == planned
    assert await apply(world.host, again) == ()
    assert len(told) == bool(planned.restart_for)
    await unconfigure(world.host)
    assert tree_of(world.root) == before


@COMMON
@given(config=ANY, data=st.data())
async def test_what_was_edited_since_stays_and_only_our_part_goes(
    make: Callable[[], Any],
    tree_of: Any,
    told: list[str],
    config: tuple[str, str],
    data: st.DataObject,
) -> None:
    world, said, path = start(make, config)
    before = tree_of(world.root)
    try:
        await apply(world.host, world.plan(said))
    except InvalidInput:
        return
    ours, text = (world.root / path).read_bytes().decode(), config[1]
    if said.startswith("docker"):
        value = data.draw(st.sampled_from([True, "x", {"a": [1]}]))
        where = data.draw(st.sampled_from([("log-level",), ("runtimes", "mine"), ("features", "mine")]))
        edited, expected = (json_edit.set_value(one, where, value, path) for one in (ours, text))
        if data.draw(st.booleans()):
            edited = json.dumps(json.loads(edited), indent=data.draw(st.sampled_from([None, 1, 3])))
        world.write(path, edited)
        await unconfigure(world.host)
        assert json.loads(world.host.read(path)) == json.loads(expected)
    else:
        newline = "\r\n" if "\r\n" in text else "\n"
        comment = data.draw(st.sampled_from(["# mine", "", '# imports = ["x"]']))
        table = data.draw(st.sampled_from(["", f"[mine]{newline}a = 1{newline}"]))
        head, tail = f"{comment}{newline}", f"{'' if ours.endswith(newline) or not ours else newline}{table}"
        world.write(path, head + ours + tail)
        await apply(world.host, world.plan(said))  # ours is still in it
        await unconfigure(world.host)
        left = world.host.read(path).decode()
        assert left.startswith(head)
        assert tomllib.loads(left) == tomllib.loads(f"{text}{newline}{table}")
        lost = [line for line in text.split(newline) if line not in left.split(newline)]
        assert not lost
    rest = tree_of(world.root)
    assert {name: entry for name, entry in rest.items() if name != path} == {
        name: entry for name, entry in before.items() if name != path
    }
