"""The configuration file is followed or refused, never half followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.device_plugin.config import DeviceIDStrategy, DeviceListStrategy, PluginConfig, load, parse
from gpuplane.errors import InvalidInput


def refused(data: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidInput) as caught:
        parse(data, where="config.yaml")
    return caught.value.findings


def test_without_a_file_containers_get_variable_and_cdi_names() -> None:
    assert load(None).device_list_strategy == {DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI}


def test_a_file_with_the_documented_defaults_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        """
version: v1
flags:
  migStrategy: none
  failOnInitError: true
  nvidiaDriverRoot: /
  gdsEnabled: false
  useNodeFeatureAPI: null
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: [envvar]
    deviceIDStrategy: index
sharing:
  timeSlicing:
    resources: []
"""
    )
    config = load(path)
    assert config.device_list_strategy == {DeviceListStrategy.ENVVAR}
    assert config.device_id_strategy is DeviceIDStrategy.INDEX


def test_strategies_may_be_one_a_list_or_separated_by_commas() -> None:
    for written in ("cdi-cri", ["cdi-cri"]):
        config = parse({"version": "v1", "flags": {"plugin": {"deviceListStrategy": written}}})
        assert config.device_list_strategy == {DeviceListStrategy.CDI_CRI}
    both = parse({"version": "v1", "flags": {"plugin": {"deviceListStrategy": "envvar,cdi-cri"}}})
    assert both.device_list_strategy == set(DeviceListStrategy)


def test_what_is_not_acted_upon_is_refused_with_every_place_at_once() -> None:
    findings = refused(
        {
            "version": "v1",
            "flags": {
                "migStrategy": "mixed",
                "gdsEnabled": 0,
                "plugin": {"deviceListStrategy": ["volume-mounts"], "passDeviceSpec": True},
            },
            "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
        }
    )
    assert [finding.split(":")[0] for finding in findings] == [
        "flags.migStrategy",
        "flags.gdsEnabled",
        "flags.plugin.passDeviceSpec",
        "sharing.timeSlicing",
        "flags.plugin.deviceListStrategy",
    ]
    assert "did you mean passDeviceSpecs" in findings[2]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({}, "version"),
        ({"version": "v2"}, "version"),
        ({"version": "v1", "flags": []}, "flags"),
        ({"version": "v1", "flags": {"plugin": "x"}}, "flags.plugin"),
        ({"version": "v1", "flags": {"plugin": {"deviceListStrategy": []}}}, "flags.plugin.deviceListStrategy"),
        ({"version": "v1", "flags": {"plugin": {"deviceIDStrategy": ["uuid"]}}}, "flags.plugin.deviceIDStrategy"),
        ({"version": "v1", 3: 4}, "3"),
    ],
)
def test_broken_files(data: Any, place: str) -> None:
    assert refused(data)[0].startswith(place + ":")


@pytest.mark.parametrize("text", ["a: [", "- x", "", "\x00"])
def test_unreadable_files_name_themselves(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"config\.yaml"):
        load(path)
    with pytest.raises(InvalidInput, match="absent"):
        load(tmp_path / "absent")


keys = st.sampled_from(["version", "flags", "plugin", "sharing", "resources", "deviceListStrategy", "mps", "gfd", "x"])
leaves = st.sampled_from([None, True, 0, "v1", "envvar", "uuid", "", [], ["envvar"], [None], {}])
values = leaves | st.dictionaries(keys, leaves | st.dictionaries(keys, leaves, max_size=3), max_size=3)


@settings(deadline=None)
@given(st.dictionaries(keys, values, max_size=4))
def test_any_mapping_gives_a_configuration_or_findings(data: dict[str, Any]) -> None:
    try:
        assert isinstance(parse(data), PluginConfig)
    except InvalidInput as error:
        assert error.findings
