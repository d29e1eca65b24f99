"""Edits of users in a configuration of ours stay when our part is removed, and the file stays valid."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from gpuplane.toolkit import apply, template_edit
from gpuplane.toolkit.applying import unconfigure
from gpuplane.toolkit.places import CONTAINERD
from gpuplane.toolkit.toml_strip import strip
from kubekit.errors import InvalidInput
from packages.gpuplane.tests.toolkit.machine import K3S
from tinykube.kubelet.runtimes import read_config

MAIN = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "p"\n'
OURS = CONTAINERD.imports
LINE = f'imports = ["{OURS}"]  # set by gpuplane\n'
RUNTIME = "containerd://1.7.24"
# A user's edit of our line, and the rest of it without our part.
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


BASE = '{{ template "base" . }}\n'
THEIRS = "# mine\n{{ if .Debug }}\ndebug = true\n{{ end }}\n" + BASE
BELOW = '\n[plugins."x"]\n  a = 1\n'


class K3sHost:
    """A node of k3s, whose start makes config.toml from the template."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.render("")

    @property
    def template(self) -> str:
        return (self.world.host.read(f"{K3S}/config.toml.tmpl") or b"").decode()

    def write(self, text: str) -> None:
        self.world.write(f"{K3S}/config.toml.tmpl", text)

    def render(self, imports: str) -> None:
        self.world.write(f"{K3S}/config.toml", imports + MAIN)

    def plan(self) -> Any:
        return self.world.plan("containerd://1.7.24-k3s1")


@pytest.fixture
def k3s(world: Any) -> K3sHost:
    world.write("run/k3s/containerd/containerd.sock", "")
    return K3sHost(world)


def ours(text: str) -> str:
    """The text with the import of k3s's drop-in in place of containerd's."""
    return text.replace(OURS, f"/{K3S}/config.toml.d/99-nvidia*.toml")


@pytest.mark.parametrize(("start", "newline"), [("", "\n"), (THEIRS, "\n"), (THEIRS, "\r\n")])
@pytest.mark.parametrize("edit", EDITS)
async def test_only_our_import_goes_from_a_template(k3s: K3sHost, edit: str, start: str, newline: str) -> None:
    if start:
        k3s.write(start.replace("\n", newline))
    await apply(k3s.world.host, k3s.plan(), restart=False)
    line, (theirs, left) = ours(LINE).replace("\n", newline), (ours(part) for part in EDITS[edit])
    assert line in k3s.template
    k3s.write(k3s.template.replace(line, theirs.replace("\n", newline)) + BELOW)
    await unconfigure(k3s.world.host, restart=False)
    assert k3s.template == (left + (start or BASE)).replace("\n", newline) + BELOW


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("started", [False, True])
async def test_an_edited_import_of_a_template_works_and_settles(k3s: K3sHost, edit: str, started: bool) -> None:
    k3s.write(THEIRS)
    await apply(k3s.world.host, k3s.plan(), restart=False)
    theirs, left = map(ours, EDITS[edit])
    k3s.render(theirs if started else ours(LINE))
    k3s.write(theirs + THEIRS)
    await apply(k3s.world.host, k3s.plan(), restart=False)
    assert k3s.template.endswith(THEIRS)
    imports = k3s.template.removesuffix(THEIRS)
    assert tomllib.loads(imports)["imports"] == [*tomllib.loads(left).get("imports", []), ours(OURS)]
    if not left:
        assert imports == (theirs if edit != "twice" else ours(LINE))  # the users' layout stays
    k3s.render(imports)
    assert await apply(k3s.world.host, k3s.plan(), restart=False) == ()


BRANCHES = '{{ if .A }}\nimports = ["/a/*.toml"]\n{{ else }}\nimports = ["/b/*.toml"]\n{{ end }}\n' + BASE


@pytest.mark.parametrize("text", [BRANCHES, 'imports = [{{ range .I }}"{{ . }}",{{ end }}]\n' + BASE])
async def test_imports_that_cannot_be_read_are_refused_until_ours_is_added_by_hand(k3s: K3sHost, text: str) -> None:
    k3s.write(text)
    k3s.render('imports = ["/a/*.toml"]\n')
    with pytest.raises(InvalidInput, match="edited safely") as refused:
        k3s.plan()
    assert refused.value.cure == ours(f'add "{OURS}" to its imports')
    cured = text.replace('["/', ours(f'["{OURS}", "/')).replace("[{{", ours(f'["{OURS}", {{{{'))
    k3s.write(cured)
    k3s.render(ours(f'imports = ["{OURS}", "/a/*.toml"]\n'))
    await apply(k3s.world.host, k3s.plan(), restart=False)
    assert k3s.template == cured
    await unconfigure(k3s.world.host, restart=False)
    assert k3s.template == cured


@pytest.mark.parametrize(
    "text",
    [
        'imports = [{{ .A }}, "OURS"]  # set by gpuplane\n',
        "a = 1  # set by gpuplane\n",  # no line of ours
        '[table]\nimports = ["OURS"]  # set by gpuplane\n',
        'a = """\nimports = ["OURS"]  # set by gpuplane\n"""\n',
    ],
)
def test_a_template_that_cannot_be_edited_safely_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be edited safely"):
        template_edit.strip(text.replace("OURS", OURS), "imports", OURS, "/config.toml.tmpl")


@pytest.mark.parametrize(
    "text",
    [
        '# odd """ quotes\nimports = ["/a"]\n' + BASE,
        'x = [\n [1],\n]\nimports = ["/a"]\n' + BASE,
    ],
)
def test_no_second_statement_is_added_to_a_template(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be edited safely"):
        template_edit.add_element(text, "imports", OURS, "/config.toml.tmpl")


@pytest.mark.parametrize("ends", [("{{/*", "*/}}"), ("{{- /*", "*/ -}}")])
def test_imports_in_a_comment_of_the_template_are_none(ends: tuple[str, str]) -> None:
    text = f'{ends[0]} as before:\nimports = ["/a"]\n{ends[1]}\n{BASE}'
    added = template_edit.add_element(text, "imports", OURS, "/config.toml.tmpl")
    assert added == LINE + text
    assert template_edit.array(added, "imports") == [OURS]
    assert template_edit.strip(added, "imports", OURS, "/config.toml.tmpl") == text


def test_a_comment_of_ours_goes_from_a_template() -> None:
    text = f"{{{{ .A }}}}\n# {LINE}# mine\n"
    assert template_edit.strip(text, "imports", OURS, "f") == "{{ .A }}\n# mine\n"
