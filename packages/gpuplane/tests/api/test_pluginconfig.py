"""The device plugin's configuration file is followed or refused, never half followed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.manifests import check_text
from gpuplane.api.pluginconfig import (
    DeviceIDStrategy,
    DeviceListStrategy,
    MigStrategy,
    PluginConfig,
    ReplicatedResource,
    ResourceNaming,
    SharingStrategy,
    load,
    parse,
)
from kubekit.errors import InvalidInput

UUID = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"


def refused(data: Any, **environment: str) -> tuple[str, ...]:
    with pytest.raises(InvalidInput) as caught:
        parse(data, environment, where="config.yaml")
    return caught.value.findings


def sliced(**resource: Any) -> dict[str, Any]:
    entry = {"name": "nvidia.com/gpu", "replicas": 10, **resource}
    return {"version": "v1", "sharing": {"timeSlicing": {"resources": [entry]}}}


def test_every_field_of_the_format() -> None:
    config = load(
        b"""
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  nvidiaDriverRoot: /run/nvidia/driver
  mpsRoot: /run/nvidia/mps
  gdsEnabled: false
  mofedEnabled: false
  gdrcopyEnabled: false
  useNodeFeatureAPI: null
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [volume-mounts, cdi-annotations]
    deviceIDStrategy: index
    cdiAnnotationPrefix: nvidia.cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
  gfd:
    oneshot: false
    noTimestamp: true
    outputFile: /etc/kubernetes/node-feature-discovery/features.d/gfd
    sleepInterval: 1m30s
    machineTypeFile: /etc/machine
resources:
  gpus:
  - {pattern: "*A100*", name: a100}
  - {pattern: "*", name: nvidia.com/gpu}
  mig:
  - {pattern: 1g.10gb, name: small}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: gpu, replicas: 4, devices: [0, "1", "1:0", GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]}
    - {name: nvidia.com/a100, rename: quarter, replicas: 4, devices: 2}
    - {name: nvidia.com/small, replicas: 2, devices: all}
imex: {channelIDs: [], required: false}
"""
    )
    assert config == PluginConfig(
        mig_strategy=MigStrategy.MIXED,
        fail_on_init_error=False,
        driver_root="/run/nvidia/driver",
        dev_root="/run/nvidia/driver",
        pass_device_specs=True,
        device_list=frozenset((DeviceListStrategy.VOLUME_MOUNTS, DeviceListStrategy.CDI_ANNOTATIONS)),
        device_id=DeviceIDStrategy.INDEX,
        annotation_prefix="nvidia.cdi.k8s.io/",
        gpus=(ResourceNaming("*A100*", "nvidia.com/a100"), ResourceNaming("*", "nvidia.com/gpu")),
        mig=(ResourceNaming("1g.10gb", "nvidia.com/small"),),
        sharing=SharingStrategy.TIME_SLICING,
        replicated=(
            ReplicatedResource(
                resource="nvidia.com/gpu",
                replicas=4,
                offered="nvidia.com/gpu.shared",
                listed=("0", "1", "1:0", UUID),
            ),
            ReplicatedResource(resource="nvidia.com/a100", replicas=4, offered="nvidia.com/quarter", count=2),
            ReplicatedResource(resource="nvidia.com/small", replicas=2, offered="nvidia.com/small.shared"),
        ),
        fail_requests_above_one=True,
        gfd_timestamp=False,
        gfd_machine_file="/etc/machine",
        gfd_interval=90.0,
    )
    assert [config.gpus[0].matches(name) for name in ("NVIDIA A100-SXM4-40GB", "Tesla T4")] == [True, False]


def test_nothing_said_is_the_default() -> None:
    assert load(b"") == load(b"version: v1\nflags:\nsharing: {timeSlicing: {resources: []}}\n") == PluginConfig()


def test_strategies_may_be_one_a_list_or_separated_by_commas() -> None:
    for written in ("cdi-cri", ["cdi-cri"]):
        config = parse({"version": "v1", "flags": {"plugin": {"deviceListStrategy": written}}})
        assert config.device_list == {DeviceListStrategy.CDI_CRI}
    both = parse({"version": "v1", "flags": {"plugin": {"deviceListStrategy": "envvar,cdi-cri"}}})
    assert both.device_list == {DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI}


def test_the_environment_goes_before_the_file() -> None:
    written = {"version": "v1", "flags": {"migStrategy": "single", "failOnInitError": True}}
    config = parse(
        written,
        {
            "MIG_STRATEGY": "mixed",
            "FAIL_ON_INIT_ERROR": "false",
            "PASS_DEVICE_SPECS": "1",
            "DEVICE_LIST_STRATEGY": "envvar",
            "GDS_ENABLED": "false",
            "DEVICE_ID_STRATEGY": "",
        },
    )
    assert (config.mig_strategy, config.fail_on_init_error, config.pass_device_specs) == ("mixed", False, True)
    assert config.device_list == {DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI}
    assert refused(written, GDS_ENABLED="true")[0].startswith("flags.gdsEnabled: 'true' is not supported")


def test_mps_is_read_with_its_own_default() -> None:
    shared = {"resources": [{"name": "gpu", "replicas": 2}]}
    config = parse({"version": "v1", "sharing": {"mps": shared}})
    assert (config.sharing, config.fail_requests_above_one) == (SharingStrategy.MPS, True)
    assert refused({"sharing": {"mps": shared, "timeSlicing": shared}})[0].startswith(
        "sharing.mps: is set together with"
    )


def test_every_mistake_at_once_with_its_place() -> None:
    findings = refused(
        {
            "version": "v1",
            "flags": {
                "migStrategy": "triple",
                "gdsEnabled": 0,
                "plugin": {"deviceListStrategy": ["volume-mount"], "passDeviceSpec": True},
            },
            "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 1}]}},
            "imex": {"channelIDs": [0]},
        }
    )
    assert [finding.split(":")[0] for finding in findings] == [
        "flags.migStrategy",
        "flags.gdsEnabled",
        "flags.plugin.deviceListStrategy",
        "flags.plugin.passDeviceSpec",
        "sharing.timeSlicing.resources[0].replicas",
        "imex.channelIDs",
    ]
    assert "did you mean passDeviceSpecs" in findings[3]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"version": "v2"}, "version"),
        ({"version": "v1", "flags": []}, "flags"),
        ({"version": "v1", "flags": {"plugin": "x"}}, "flags.plugin"),
        ({"version": "v1", "flags": {"plugin": {"deviceListStrategy": []}}}, "flags.plugin.deviceListStrategy"),
        (
            {"version": "v1", "flags": {"plugin": {"deviceListStrategy": ["envvar", "volume-mounts"]}}},
            "flags.plugin.deviceListStrategy",
        ),
        ({"version": "v1", "flags": {"plugin": {"deviceIDStrategy": ["uuid"]}}}, "flags.plugin.deviceIDStrategy"),
        ({"version": "v1", "flags": {"plugin": {"cdiAnnotationPrefix": "cdi"}}}, "flags.plugin.cdiAnnotationPrefix"),
        ({"version": "v1", "flags": {"nvidiaDriverRoot": "run"}}, "flags.nvidiaDriverRoot"),
        ({"version": "v1", "flags": {"gfd": {"oneshot": True}}}, "flags.gfd.oneshot"),
        ({"version": "v1", "flags": {"gfd": {"sleepInterval": "10ms"}}}, "flags.gfd.sleepInterval"),
        ({"version": "v1", "flags": {"deviceDiscoveryStrategy": "tegra"}}, "flags.deviceDiscoveryStrategy"),
        ({"version": "v1", "resources": {"gpus": [{"pattern": "*"}]}}, "resources.gpus[0].name"),
        ({"version": "v1", "resources": {"gpus": {}}}, "resources.gpus"),
        ({"version": "v1", "resources": {"gpus": [{"pattern": "*", "name": "GPU"}]}}, "resources.gpus[0].name"),
        ({"version": "v1", 3: 4}, "3"),
        (sliced(replicas=0), "sharing.timeSlicing.resources[0].replicas"),
        (sliced(replicas=True), "sharing.timeSlicing.resources[0].replicas"),
        (sliced(replicas=100_000), "sharing.timeSlicing.resources[0].replicas"),
        (sliced(devices=0), "sharing.timeSlicing.resources[0].devices"),
        (sliced(devices=["first"]), "sharing.timeSlicing.resources[0].devices"),
        (sliced(devices=[0, "0"]), "sharing.timeSlicing.resources[0].devices"),
        (sliced(rename="a/b"), "sharing.timeSlicing.resources[0].rename"),
        (sliced(rename="x" * 60), "sharing.timeSlicing.resources[0].rename"),
        (sliced(name="x" * 53), "sharing.timeSlicing.resources[0].name"),
        (sliced(replica=3), "sharing.timeSlicing.resources[0].replica"),
    ],
)
def test_broken_files(data: Any, place: str) -> None:
    assert refused(data)[0].startswith(place + ":")


@pytest.mark.parametrize(
    ("entries", "place"),
    [
        ([{"name": "gpu", "replicas": 2}, {"name": "nvidia.com/gpu", "replicas": 3}], "resources[1].name"),
        (
            [{"name": "a", "rename": "c", "replicas": 2}, {"name": "b", "rename": "c", "replicas": 2}],
            "resources[1].rename",
        ),
        (
            [{"name": "a", "rename": "b", "replicas": 2}, {"name": "b", "rename": "c", "replicas": 2}],
            "resources[0].rename",
        ),
    ],
)
def test_names_that_collide(entries: list[dict[str, Any]], place: str) -> None:
    findings = refused({"version": "v1", "sharing": {"timeSlicing": {"resources": entries}}})
    assert [finding.split(":")[0] for finding in findings] == [f"sharing.timeSlicing.{place}"]


@pytest.mark.parametrize("text", [b"a: [", b"- x", b"\x00", b"\xff"])
def test_unreadable_files_name_themselves(text: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"config\.yaml"):
        load(text, where="config.yaml")


keys = st.sampled_from(
    ["version", "flags", "plugin", "sharing", "resources", "deviceListStrategy", "mps", "gfd", "gpus", "name", "x"]
)
leaves: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, "v1", "envvar", "uuid", "", [], ["envvar"], [None], [{}], {}]
)
values = leaves | st.dictionaries(keys, leaves | st.dictionaries(keys, leaves, max_size=3), max_size=3)


@settings(deadline=None)
@given(st.dictionaries(keys, values, max_size=4))
def test_any_mapping_gives_a_configuration_or_findings(data: dict[str, Any]) -> None:
    try:
        assert isinstance(parse(data), PluginConfig)
    except InvalidInput as error:
        assert error.findings


def test_gpuplane_check_points_at_the_place() -> None:
    text = "version: v1\nflags:\n  migStrategy: triple\n  plugins: {}\nsharing:\n  timeSlicing:\n"
    text += "    resources: [{name: gpu, replicas: 1}]\n"
    [document] = check_text(text)
    assert [(found.code, found.path, found.line, found.column) for found in document.findings] == [
        ("GP160", "flags.migStrategy", 3, 16),
        ("GP160", "flags.plugins", 4, 3),
        ("GP160", "sharing.timeSlicing.resources[0].replicas", 7, 39),
    ]
    assert check_text("version: v1\n")[0].findings == ()
