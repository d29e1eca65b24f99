"""The device plugin's offer on a node that does not exist yet."""

from __future__ import annotations

import pytest

from gpuplane import names
from gpuplane.api.pluginconfig import load
from gpuplane.device_plugin.shares.ids import units_of
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.forecast import forecast, mig_devices
from kubekit.errors import InvalidInput

A100 = "NVIDIA A100-SXM4-40GB"
SLICED = b"{version: v1, sharing: {timeSlicing: {%s resources: [{name: %s, replicas: 4}]}}}"


def offered(config: bytes = b"", model: str = A100, count: int = 2, **labels: str) -> dict[str, int]:
    named = {{"mig": names.MIG_CONFIG_LABEL, "share": names.SHARE_LABEL}[key]: value for key, value in labels.items()}
    return forecast(model, 40960, count, load(config), named).offered


def test_whole_gpus() -> None:
    assert offered() == {"nvidia.com/gpu": 2}


def test_replicas_by_time_slicing_and_by_mps() -> None:
    assert offered(SLICED % (b"", b"nvidia.com/gpu")) == {"nvidia.com/gpu": 8}
    renamed = SLICED % (b"renameByDefault: true,", b"nvidia.com/gpu")
    assert offered(renamed) == {"nvidia.com/gpu.shared": 8}
    mps = b"{version: v1, sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}}"
    assert offered(mps) == {"nvidia.com/gpu": 6}


def test_mig_devices_by_their_layout() -> None:
    mixed, single = b"{version: v1, flags: {migStrategy: mixed}}", b"{version: v1, flags: {migStrategy: single}}"
    assert offered(mixed, mig="all-1g.5gb") == {"nvidia.com/mig-1g.5gb": 14}
    assert offered(mixed, mig="all-1g.10gb") == {"nvidia.com/mig-1g.10gb": 8}
    balanced = {"nvidia.com/mig-1g.5gb": 4, "nvidia.com/mig-2g.10gb": 2, "nvidia.com/mig-3g.20gb": 2}
    assert offered(mixed, mig="all-balanced") == balanced
    assert offered(single, mig="all-2g.10gb") == {"nvidia.com/gpu": 6}
    assert offered(mixed, mig="all-disabled") == {"nvidia.com/gpu": 2}
    sliced = mixed[:-1] + b", sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-7g.40gb, replicas: 2}]}}}"
    assert offered(sliced, mig="all-7g.40gb") == {"nvidia.com/mig-7g.40gb": 4}


@pytest.mark.parametrize("layout, cure", [("all-9g.1gb", "all-1g.5gb"), ("mine", "all-balanced")])
def test_an_unknown_layout_is_refused_with_those_that_are_known(layout: str, cure: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        offered(mig=layout)
    assert cure in caught.value.cure


def test_a_gpu_without_mig_and_a_strategy_that_cannot_offer_it() -> None:
    with pytest.raises(InvalidInput, match="Tesla T4 has no MIG"):
        offered(model="Tesla T4", mig="all-1g.5gb")
    with pytest.raises(InvalidInput, match="every GPU is in MIG mode"):
        offered(mig="all-1g.5gb")


def test_a_gpu_of_four_slices() -> None:
    assert mig_devices("NVIDIA RTX PRO 6000 Blackwell Server Edition", "all-balanced") == (
        "1g.24gb",
        "1g.24gb",
        "2g.48gb",
    )
    assert mig_devices("NVIDIA RTX PRO 6000 Blackwell Server Edition", "all-1g.24gb") == ("1g.24gb",) * 4


def test_shares_are_as_many_as_the_device_plugin_has_ids() -> None:
    found = offered(share="enable")
    gpu = GPUFacts(index=0, minor=0, uuid="GPU-0", model=A100, memory_bytes=40960 << 20, pci="", compute=(8, 0))
    assert found == {name: 2 * units_of(gpu, name) for name in (names.VCUDA_CORE, names.VCUDA_MEMORY)}


def test_gpus_are_placed_where_shares_are_and_counted_where_replicas_are() -> None:
    shares = forecast(A100, 40960, 2, load(b""), {names.SHARE_LABEL: "enable"})
    assert shares.places_shares and not shares.state.by_count
    assert shares.state.core == (100, 100) and shares.state.memory == (40960, 40960)
    assert forecast(A100, 40960, 2, load(SLICED % (b"", b"nvidia.com/gpu")), {}).state.by_count
    assert not forecast(A100, 40960, 2, load(b""), {}).state.by_count
