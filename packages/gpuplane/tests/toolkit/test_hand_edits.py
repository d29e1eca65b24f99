"""What people write into a configuration of ours stays when our part is taken out, and the file stays valid."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from gpuplane.toolkit import apply
from gpuplane.toolkit.applying import unconfigure
from gpuplane.toolkit.places import CONTAINERD
from gpuplane.toolkit.toml_strip import strip
from kubekit.errors import InvalidInput
from tinykube.kubelet.runtimes import read_config

MAIN = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "p"\n'
OURS = CONTAINERD.imports
LINE = f'imports = ["{OURS}"]  # set by gpuplane\n'
RUNTIME = "containerd://1.7.24"
# What a person makes of our line, and what is left of it without us.
EDITS = {
    "several lines, mark below": (f'imports = [\n  "{OURS}"\n]  # set by gpuplane\n', ""),
    "several lines, mark above": (f'imports = [  # set by gpuplane\n  "{OURS}",\n]\n', ""),
    "own import after ours": (f'imports = ["{OURS}", "/m/*.toml"]  # set by gpuplane\n', 'imports = ["/m/*.toml"]\n'),
    "own import before ours": (f'imports = ["/m/*.toml", "{OURS}"]  # set by gpuplane\n', 'imports = ["/m/*.toml"]\n'),
    "own import in place of ours": ('imports = ["/m/*.toml"]  # set by gpuplane\n', 'imports = ["/m/*.toml"]\n'),
    "single quotes, no mark": (f"imports = ['/m/*.toml' ,'{OURS}']\n", "imports = ['/m/*.toml' ,]\n"),
    "lines of their own": (
        f'imports = [\n  "/m/*.toml", # mine\n  "{OURS}",\n  # last\n]  # set by gpuplane\n',
        'imports = [\n  "/m/*.toml", # mine\n  # last\n]\n',
    ),
    "ours first of several lines": (
        f'imports = [  # set by gpuplane\n  "{OURS}",\n  "/m/*.toml",  # mine\n]\n',
        'imports = [\n  "/m/*.toml",  # mine\n]\n',
    ),
    "only a comment besides": (
        f'imports = [  # set by gpuplane\n  "{OURS}", # keep\n]\n',
        "imports = [\n  # keep\n]\n",
    ),
    "twice": (f'imports = ["{OURS}", "{OURS}"]  # set by gpuplane\n', ""),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("edit", EDITS)
async def test_only_our_import_goes(world: Any, edit: str, newline: str) -> None:
    main = MAIN.replace("\n", newline)
    world.write("etc/containerd/config.toml", main)
    world.write("m/a.toml", "version = 2\n")
    await apply(world.host, world.plan(RUNTIME))
    text = world.host.read("etc/containerd/config.toml").decode()
    ours, (theirs, left) = LINE.replace("\n", newline), (part.replace("\n", newline) for part in EDITS[edit])
    assert ours in text
    world.write("etc/containerd/config.toml", text.replace(ours, theirs))
    await unconfigure(world.host)
    rest = world.host.read("etc/containerd/config.toml").decode()
    assert rest == text.replace(ours, left)
    tomllib.loads(rest)


async def test_an_own_import_next_to_ours_survives_the_next_look(world: Any) -> None:
    world.write("etc/containerd/config.toml", MAIN)
    world.write("m/a.toml", 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nmine = 1\n')
    await apply(world.host, world.plan(RUNTIME))
    text = world.host.read("etc/containerd/config.toml").decode()
    world.write("etc/containerd/config.toml", text.replace(LINE, EDITS["own import after ours"][0]))
    for _ in range(2):
        await apply(world.host, world.plan(RUNTIME))
        data = tomllib.loads(world.host.read("etc/containerd/config.toml").decode())
        assert data["imports"] == ["/m/*.toml", OURS]  # ours has the whole table, and comes last
        drop_in = tomllib.loads(world.host.read(CONTAINERD.drop_in).decode())
        assert drop_in["plugins"]["io.containerd.grpc.v1.cri"]["mine"] == 1
    await unconfigure(world.host)
    assert tomllib.loads(world.host.read("etc/containerd/config.toml").decode())["imports"] == ["/m/*.toml"]


@pytest.mark.parametrize(
    "text",
    [
        "a = [  # set by gpuplane\n1]\n",  # not a line of ours: its mark is inside of a value
        'a = """  # set by gpuplane\n"""\n',
        "# set by gpuplane: begin\n[x]\ny = [\n# set by gpuplane: end\n]\n",
    ],
)
def test_what_cannot_be_taken_out_safely_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be edited safely"):
        strip(text, {"imports": OURS}, "/etc/containerd/config.toml")


def test_a_file_that_does_not_parse_stays_as_it_is() -> None:
    text = f"{LINE}broken = = 1\n"
    assert strip(text, {"imports": OURS}, "f") == text


CRI = '"io.containerd.grpc.v1.cri"'
DOTTED = {
    "containerd, version 1": (
        "containerd://1.6.20",
        "plugins . 'cri' . enable_cdi = false # mine\nplugins.cri . containerd . runtimes.runc . runtime_type = 'r'\n",
    ),
    "containerd, version 2": (
        "containerd://1.7.24",
        f"version = 2\nplugins . {CRI} . containerd . 'runtimes' . runc.runtime_type = \"io.containerd.runc.v2\"\n",
    ),
    "containerd, version 3": (
        "containerd://2.1.4",
        "version = 3\n[ plugins . 'io.containerd.cri.v1.runtime' ]\ncontainerd . default_runtime_name = 'runc'\n",
    ),
    "cri-o": ("cri-o://1.32.8", "crio . \"runtime\" . default_runtime = 'crun'\n"),
}


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("case", DOTTED)
async def test_dotted_keys_with_spaces_are_configured_and_restored(world: Any, case: str, default: bool) -> None:
    runtime, text = DOTTED[case]
    path = "etc/crio/crio.conf" if case == "cri-o" else "etc/containerd/config.toml"
    world.write(path, text)
    await apply(world.host, world.plan(runtime, set_as_default=default))
    seen = read_config(world.root, *runtime.split("://"))
    assert "nvidia" in seen.handlers
    assert (seen.default == "nvidia") is default
    assert await apply(world.host, world.plan(runtime, set_as_default=default)) == ()
    await unconfigure(world.host)
    assert world.host.read(path).decode() == text
