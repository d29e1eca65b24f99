"""containerd's configuration: what comes out of what, for the three versions."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from gpuplane.toolkit import containerd
from gpuplane.toolkit.places import CONTAINERD
from kubekit.errors import InvalidInput

PROGRAMS = {
    "nvidia": "/usr/local/nvidia/toolkit/nvidia-container-runtime",
    "nvidia-cdi": "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi",
    "nvidia-legacy": "/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy",
}
V2 = """\
version = 2
# where images lie
root = "/data/containerd"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pause:3.9"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.internal.v1.opt"]
  path = "/opt/containerd"
"""
V1 = """\
# an old one
root = "/data"
[plugins.cri]
  sandbox_image = "pause"
  [plugins.cri.containerd.runtimes.runc.options]
    SystemdCgroup = true
"""


def configured(
    main: str, default: str | None = None, others: dict[str, str] | None = None, **more: Any
) -> dict[str, str]:
    return containerd.configure(CONTAINERD, main, others or {}, programs=PROGRAMS, default=default, **more)


def merged(files: dict[str, str], plugin: str) -> dict[str, Any]:
    """The CRI table that containerd before 2.1 ends up with: the imported plugin table replaces the whole."""
    main = tomllib.loads(files[CONTAINERD.config])
    plugins = dict(main.get("plugins", {}))
    if CONTAINERD.drop_in in files:
        assert CONTAINERD.imports in main["imports"]
        plugins.update(tomllib.loads(files[CONTAINERD.drop_in])["plugins"])
    table: dict[str, Any] = plugins[plugin]
    return table


@pytest.mark.parametrize(("number", "plugin"), [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")])
def test_versions_2_and_3_get_a_drop_in_with_the_whole_table(number: int, plugin: str) -> None:
    text = V2.replace("version = 2", f"version = {number}").replace("io.containerd.grpc.v1.cri", plugin)
    files = configured(text)
    main = files[CONTAINERD.config]
    added = [line for line in main.splitlines() if line not in text.splitlines()]
    assert added == ['imports = ["/etc/containerd/conf.d/99-nvidia*.toml"]  # set by gpuplane']
    table = merged(files, plugin)
    assert table["sandbox_image"] == "pause:3.9"
    assert table["registry"] == {"config_path": "/etc/containerd/certs.d"}
    assert table["enable_cdi"] is True
    assert table["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    runtimes = table["containerd"]["runtimes"]
    assert table["containerd"]["default_runtime_name"] == "runc"
    assert runtimes["nvidia-cdi"] == {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"SystemdCgroup": True, "BinaryName": PROGRAMS["nvidia-cdi"]},
    }
    assert set(runtimes) == {"runc", *PROGRAMS}
    drop_in = tomllib.loads(files[CONTAINERD.drop_in])
    assert drop_in["version"] == number
    assert set(drop_in["plugins"]) == {plugin}


def test_a_runtime_of_the_old_kind_gets_its_program_by_its_own_option() -> None:
    old = V2.replace("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")
    runtimes = merged(configured(old), "io.containerd.grpc.v1.cri")["containerd"]["runtimes"]
    assert runtimes["nvidia"] == {
        "runtime_type": "io.containerd.runtime.v1.linux",
        "options": {"SystemdCgroup": True, "Runtime": PROGRAMS["nvidia"]},
    }


@pytest.mark.parametrize(
    ("version", "passed"), [((1, 6, 20), ["mine.*", "cdi.k8s.io/*"]), ((1, 7, 0), ["mine.*"]), ((), ["mine.*"])]
)
def test_annotations_that_name_devices_are_passed_on_before_containerd_1_7(
    version: tuple[int, ...], passed: list[str]
) -> None:
    text = V2.replace(
        'runtime_type = "io.containerd.runc.v2"', 'runtime_type = "x"\ncontainer_annotations = ["mine.*"]'
    )
    assert "mine" in text
    runtimes = merged(configured(text, containerd=version), "io.containerd.grpc.v1.cri")["containerd"]["runtimes"]
    assert [runtimes[name]["container_annotations"] for name in PROGRAMS] == [passed] * len(PROGRAMS)
    assert runtimes["runc"]["container_annotations"] == ["mine.*"]


def test_an_empty_type_of_runtime_is_not_inherited() -> None:
    runtimes = merged(configured(V2.replace("io.containerd.runc.v2", "")), "io.containerd.grpc.v1.cri")["containerd"]
    assert runtimes["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    assert runtimes["runtimes"]["runc"]["runtime_type"] == ""


def test_version_4_is_of_a_containerd_that_merges() -> None:
    files = configured(V2.replace("= 2", "= 4", 1).replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"))
    drop_in = tomllib.loads(files[CONTAINERD.drop_in])
    assert drop_in["version"] == 4
    table = drop_in["plugins"]["io.containerd.cri.v1.runtime"]
    assert "sandbox_image" not in table
    assert table["containerd"]["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True


def test_version_1_is_edited_in_place() -> None:
    files = configured(V1, "nvidia")
    assert set(files) == {CONTAINERD.config}
    data = tomllib.loads(files[CONTAINERD.config])
    assert data["root"] == "/data"
    table = data["plugins"]["cri"]
    assert table["sandbox_image"] == "pause"
    assert table["enable_cdi"] is True
    assert table["containerd"]["default_runtime_name"] == "nvidia"
    assert table["containerd"]["runtimes"]["nvidia"]["options"] == {
        "SystemdCgroup": True,
        "BinaryName": PROGRAMS["nvidia"],
    }
    assert containerd.strip(CONTAINERD, files[CONTAINERD.config]) == V1


@pytest.mark.parametrize("text", ["", "\n", "# nothing set\n"])
def test_without_a_configuration_there_is_a_small_one(text: str) -> None:
    files = configured(text)
    main = tomllib.loads(files[CONTAINERD.config])
    assert main == {"version": 2, "imports": [CONTAINERD.imports]}
    assert set(merged(files, "io.containerd.grpc.v1.cri")["containerd"]["runtimes"]) == {"runc", *PROGRAMS}
    assert containerd.strip(CONTAINERD, files[CONTAINERD.config]) == text


CNI = "[plugins.{}.cni]\nbin_dir = '/usr/lib/cni'\n"


@pytest.mark.parametrize(
    ("text", "plugin"),
    [(CNI, "cri"), ("version = 2\n" + CNI, "io.containerd.grpc.v1.cri"), ("", "io.containerd.grpc.v1.cri")],
)
@pytest.mark.parametrize("version", [(), (1, 6), (1, 7), (2, 0), (2, 1)])
def test_the_built_in_runc_stays_where_a_table_of_runtimes_takes_its_place(
    text: str, plugin: str, version: tuple[int, ...]
) -> None:
    files = configured(text.format(f'"{plugin}"'), containerd=version)
    runtimes = merged(files, plugin)["containerd"]["runtimes"]
    assert runtimes.pop("runc", None) == ({"runtime_type": "io.containerd.runc.v2"} if version < (2, 0) else None)
    assert set(runtimes) == set(PROGRAMS)


@pytest.mark.parametrize(
    ("runtimes", "default", "inherited"),
    [
        ({"kata": {"runtime_type": "kata"}, "runc": {"runtime_type": "r"}}, "kata", "kata"),
        ({"runc": {"runtime_type": "r"}}, "nvidia", "r"),
        ({"crun": {"runtime_type": "c"}}, "gone", "c"),
        ({}, "runc", "io.containerd.runc.v2"),
    ],
)
def test_options_come_from_the_default_runtime_or_runc_or_crun(
    runtimes: dict[str, Any], default: str, inherited: str
) -> None:
    from gpuplane.toolkit.toml_edit import dump

    plugin = "io.containerd.grpc.v1.cri"
    section = {"default_runtime_name": default, "runtimes": runtimes}
    files = configured(dump({"version": 2, "plugins": {plugin: {"containerd": section}}}))
    assert merged(files, plugin)["containerd"]["runtimes"]["nvidia"]["runtime_type"] == inherited


def test_other_imports_are_kept_and_count_as_containerd_counts_them() -> None:
    main = 'version = 2\nimports = ["/etc/containerd/extra/*.toml"]\n' + V2.partition("\n")[2]
    other = '[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "other"\n'
    files = configured(main, others={"/etc/containerd/extra/a.toml": other})
    assert tomllib.loads(files[CONTAINERD.config])["imports"] == ["/etc/containerd/extra/*.toml", CONTAINERD.imports]
    replaced = merged(files, "io.containerd.grpc.v1.cri")
    assert replaced["sandbox_image"] == "other"
    assert "registry" not in replaced
    deep = merged(
        configured(main, others={"/etc/containerd/extra/a.toml": other}, containerd=(2, 1)),
        "io.containerd.grpc.v1.cri",
    )
    # from 2.1 on containerd merges key by key, so only what is ours is written
    assert set(deep) == {"containerd"}
    assert deep["containerd"]["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True


def test_an_import_that_covers_the_drop_in_already_is_enough() -> None:
    main = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    assert configured(main)[CONTAINERD.config] == main


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("version = 2\nroot = \n", "does not parse", "/etc/containerd/config.toml:2"),
        ("version = 9\n", "version 9", "/etc/containerd/config.toml:1"),
        ('# v\nversion = "2"\n', "version '2'", "/etc/containerd/config.toml:2"),
        ("version = 2\nimports = 3\n", "imports is no array", "/etc/containerd/config.toml:2"),
        (
            'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nx = 1\ncdi_spec_dirs = ""\n',
            "cdi_spec_dirs is no array of strings",
            "/etc/containerd/config.toml:4",
        ),
        (
            'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\nruntimes = 1\n',
            "runtimes is no table",
            "/etc/containerd/config.toml:3",
        ),
        ("plugins = {cri = {sandbox_image = 'x'}}\n", "cannot be edited safely", "/etc/containerd/config.toml"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, message: str, where: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        configured(text)
    assert caught.value.where == where
    assert caught.value.cure
