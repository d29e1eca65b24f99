"""Random configurations as people write them: any order, indentation, quoting, comments and line ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from gpuplane.toolkit.toml_edit import literal

PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
# Which containerd reads which version of its configuration.
RELEASES = {1: ["1.6.9", "1.7.2"], 2: ["1.6.9", "1.7.28", "2.0.5", "2.1.4"], 3: ["2.0.5", "2.1.4"], 4: ["2.3.0"]}
WORDS = st.sampled_from(["root", "state", "debug", "a b", "é", "a-b_1", "sandbox_image"])
VALUES = st.one_of(
    st.text(max_size=6).filter(lambda text: "set by gpuplane" not in text),
    st.integers(-9, 9),
    st.booleans(),
    st.lists(st.text(max_size=4), max_size=2),
)
RUNTIME = st.fixed_dictionaries(
    {"runtime_type": st.just("io.containerd.runc.v2")},
    optional={"options": st.just({"SystemdCgroup": True}), "pod_annotations": st.just(["a.*"])},
)
_NOTES = st.sampled_from(["", "", " # note", "  # [x]", "\t#= 1"])
_BETWEEN = st.sampled_from([[], [], [""], ["# a comment"], ["", "  # [plugins]", "#imports = []"]])


def _tables(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    values = {key: value for key, value in data.items() if not isinstance(value, dict)}
    if path and (values or not data):
        yield path, values
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _tables(value, (*path, key))


@st.composite
def toml(draw: st.DrawFn, data: dict[str, Any], top: list[str]) -> str:
    """`data` in a spelling of its own, after the lines `top`, which stand before every table."""

    def key(name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or draw(st.integers(0, 5)) == 0:
            return literal(name)
        return name

    def text(value: Any) -> str:
        if isinstance(value, str) and value.isprintable() and "'" not in value and draw(st.booleans()):
            return f"'{value}'"
        if isinstance(value, list) and value and draw(st.booleans()):
            return f"[ # first\n  {f',{chr(10)}  '.join(map(text, value))}\n]"
        return literal(value)

    lines: list[str] = []
    for line in draw(st.permutations(top)):
        lines += [line + draw(_NOTES), *draw(_BETWEEN)]
    indent = draw(st.sampled_from(["", "  ", "\t"]))
    tables = draw(st.permutations(list(_tables(data))))
    dotted = all(values for _, values in tables) and draw(st.integers(0, 3)) == 0  # no header at all
    for path, values in tables:
        space = draw(st.sampled_from(["", " "]))
        header = f"{space}.{space}".join(map(key, path))
        if not dotted:
            lines += [indent * draw(st.integers(0, 2)) + f"[{space}{header}{space}]" + draw(_NOTES), *draw(_BETWEEN)]
        above = f"{header}{space}.{space}" if dotted else ""
        for name, value in draw(st.permutations(list(values.items()))):
            equals = draw(st.sampled_from([" = ", "=", "  =\t"]))
            lines += [f"{indent}{above}{key(name)}{equals}{text(value)}{draw(_NOTES)}", *draw(_BETWEEN)]
    newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    whole = "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))
    return whole.replace("\n", newline)


@st.composite
def containerd(draw: st.DrawFn) -> tuple[str, str]:
    """Return the runtime's version as the Node has it, and the runtime's configuration."""
    version = draw(st.sampled_from([1, 2, 3, 4]))
    top = [] if version == 1 and draw(st.booleans()) else [f"version = {version}"]
    top += [f"{literal(k)} = {literal(v)}" for k, v in draw(st.dictionaries(WORDS, VALUES, max_size=2)).items()]
    if draw(st.booleans()):
        entries = draw(st.lists(st.sampled_from(["/etc/x/*.toml", "../y.toml"]), max_size=2, unique=True))
        comma = draw(st.sampled_from(["", ", "])) if entries else ""
        top.append(f"imports = [{draw(st.sampled_from(['', ' ']))}{', '.join(map(literal, entries))}{comma}]")
    data: dict[str, Any] = {}
    if draw(st.booleans()):
        cri: dict[str, Any] = draw(st.dictionaries(WORDS, VALUES, max_size=2))
        cri |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "enable_cdi": st.booleans(),
                    "cdi_spec_dirs": st.sampled_from([[], ["/etc/cdi"], ["/etc/cdi", "/run/cdi"]]),
                    "registry": st.just({"config_path": "/etc/containerd/certs.d"}),
                },
            )
        )
        runtimes = draw(st.dictionaries(st.sampled_from(["runc", "crun", "kata", "nvidia"]), RUNTIME, max_size=2))
        if runtimes:
            cri["containerd"] = {"runtimes": runtimes, "snapshotter": "overlayfs"}
            # containerd before 2.0 does not start CRI without its default runtime
            if (version <= 2 and "runc" not in runtimes) or draw(st.booleans()):
                cri["containerd"]["default_runtime_name"] = draw(st.sampled_from(sorted(runtimes)))
        data = {"plugins": {PLUGINS[version]: cri, "io.containerd.internal.v1.opt": {"path": "/opt"}}}
    said = f"containerd://{draw(st.sampled_from(RELEASES[version]))}"
    return said, draw(toml(data, top))


@st.composite
def docker(draw: st.DrawFn) -> tuple[str, str]:
    """The same for docker."""
    values = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), VALUES)
    data: dict[str, Any] = draw(
        st.dictionaries(st.sampled_from(["data-root", "debug", "log-opts", "é"]), values, max_size=3)
    )
    data |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "runtimes": st.dictionaries(st.sampled_from(["kata", "nvidia"]), st.just({"path": "/x"}), max_size=2),
                "features": st.dictionaries(st.sampled_from(["cdi", "buildkit"]), st.booleans(), max_size=2),
                "cdi-spec-dirs": st.sampled_from([[], ["/etc/cdi"], ["/run/cdi"]]),
            },
        )
    )
    if draw(st.booleans()):
        data["default-runtime"] = draw(st.sampled_from(["runc", *data.get("runtimes", ())]))
    text = json.dumps(
        dict(draw(st.permutations(list(data.items())))),
        indent=draw(st.sampled_from([None, 0, 2, "\t"])),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")])),
    )
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    said = f"docker://{draw(st.sampled_from(['24.0.7', '27.1.0', '28.3.0']))}"
    return said, draw(st.sampled_from(["", "\n", " \t"])) + text + draw(st.sampled_from(["", "\n", "\n\n"]))


@st.composite
def crio(draw: st.DrawFn) -> tuple[str, str]:
    """The same for cri-o."""
    runtime = st.fixed_dictionaries(
        {"runtime_path": st.just("/usr/bin/crun")}, optional={"monitor_path": st.just("/usr/bin/conmon")}
    )
    section: dict[str, Any] = draw(st.dictionaries(WORDS, VALUES, max_size=2))
    section["runtimes"] = draw(st.dictionaries(st.sampled_from(["crun", "kata"]), runtime, max_size=2))
    if draw(st.booleans()):
        section["default_runtime"] = draw(st.sampled_from(["crun", "runc", *section["runtimes"]]))
    if draw(st.booleans()):
        section["cdi_spec_dirs"] = draw(st.sampled_from([["/etc/cdi"], ["/var/run/cdi"]]))
    said = f"cri-o://{draw(st.sampled_from(['1.28.1', '1.32.8']))}"
    return said, draw(toml({"crio": {"runtime": section, "image": {}}}, []))


PATHS = {
    "containerd": "etc/containerd/config.toml",
    "docker": "etc/docker/daemon.json",
    "cri-o": "etc/crio/crio.conf",
}
ANY = st.one_of(containerd(), docker(), crio())
