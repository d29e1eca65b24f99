"""Feature labels: from files of a machine to what node feature discovery would say of it."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import pytest

from gpuplane.discovery import Facts, feature_labels, observe
from gpuplane.discovery.facts import PciDevice, UsbDevice
from gpuplane.host import Host

PREFIX = "feature.node.kubernetes.io/"

# The labels of expected-cluster.md that this machine has, and the others that follow from its files.
EXPECTED = {
    "cpu-cpuid.ADX": "true",
    "cpu-cpuid.AESNI": "true",
    "cpu-cpuid.AVX": "true",
    "cpu-cpuid.AVX512F": "true",
    "cpu-cpuid.AVX512VNNI": "true",
    "cpu-cpuid.CMPXCHG8": "true",
    "cpu-cpuid.FMA3": "true",
    "cpu-cpuid.FXSROPT": "true",
    "cpu-cpuid.HYPERVISOR": "true",
    "cpu-cpuid.OSXSAVE": "true",
    "cpu-cpuid.X87": "true",
    "cpu-cpuid.XSAVE": "true",
    "cpu-hardware_multithreading": "true",
    "cpu-model.family": "6",
    "cpu-model.id": "85",
    "cpu-model.vendor_id": "Intel",
    "kernel-config.NO_HZ": "true",
    "kernel-config.NO_HZ_IDLE": "true",
    "kernel-version.full": "4.15.0-1051-aws",
    "kernel-version.major": "4",
    "kernel-version.minor": "15",
    "kernel-version.revision": "0",
    "pci-10de.present": "true",
    "storage-nonrotationaldisk": "true",
    "system-os_release.ID": "ubuntu",
    "system-os_release.VERSION_ID": "22.04",
    "system-os_release.VERSION_ID.major": "22",
    "system-os_release.VERSION_ID.minor": "04",
}


def labels_of(root: Path) -> dict[str, str]:
    labels = feature_labels(observe(Host(root)))
    assert all(name.startswith(PREFIX) for name in labels)
    return {name.removeprefix(PREFIX): value for name, value in labels.items()}


def test_a_t4_machine_has_the_documented_labels(world: Any) -> None:
    assert labels_of(world.root) == EXPECTED


def test_a_file_without_an_answer_is_left_out(world: Any) -> None:
    (world.root / "proc/swaps").unlink()
    (world.root / "proc/swaps").mkdir()
    (world.root / "sys/fs/selinux/enforce").mkdir(parents=True)
    assert labels_of(world.root) == EXPECTED


def test_an_empty_root_has_no_features(tmp_path: Path) -> None:
    assert labels_of(tmp_path) == {}


def test_everything_else_that_can_be_seen(world: Any) -> None:
    for path, text in {
        "proc/swaps": "Filename\n/swapfile file 1 0 -2\n",
        "sys/fs/selinux/enforce": "1",
        "sys/devices/system/node/node1/cpulist": "4-7\n",
        "sys/devices/system/cpu/intel_pstate/status": "active\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
        "sys/devices/system/cpu/cpufreq/policy0/affected_cpus": "0\n",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpufreq/policy1/affected_cpus": "\n",
        "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpuidle/current_driver": "intel_idle\n",
        "sys/module/intel_idle/parameters/max_cstate": "9\n",
        "sys/class/net/eth0/device/sriov_totalvfs": "8\n",
        "sys/class/net/eth0/device/sriov_numvfs": "0\n",
        "sys/bus/usb/devices/1-1/idVendor": "1d6b\n",
        "sys/bus/usb/devices/1-1/idProduct": "0002\n",
        "sys/bus/usb/devices/1-1/bDeviceClass": "00\n",
        "sys/bus/usb/devices/1-1/1-1:1.0/bInterfaceClass": "0e\n",
        "sys/bus/usb/devices/1-1/1-1:1.1/bInterfaceClass": "09\n",
        "sys/bus/usb/devices/1-1:1.0/bInterfaceClass": "ff\n",
    }.items():
        world.write(path, text)
    assert labels_of(world.root) == EXPECTED | {
        "memory-swap": "true",
        "memory-numa": "true",
        "kernel-selinux.enabled": "true",
        "cpu-pstate.status": "active",
        "cpu-pstate.turbo": "false",
        "cpu-pstate.scaling_governor": "powersave",
        "cpu-cstate.enabled": "true",
        "network-sriov.capable": "true",
        "usb-0e_1d6b_0002.present": "true",
    }


@pytest.mark.parametrize(
    ("siblings", "expected"), [({"cpu0": "0,2"}, True), ({"cpu0": "0-1"}, True), ({"cpu0": "0", "cpu1": "1"}, False)]
)
def test_threads_of_a_core_where_cpuinfo_does_not_count_them(
    tmp_path: Path, siblings: dict[str, str], expected: bool
) -> None:
    for cpu, text in siblings.items():
        folder = tmp_path / f"sys/devices/system/cpu/{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    assert observe(Host(tmp_path)).multithreading is expected


def test_a_compressed_kernel_configuration_wins_and_a_broken_one_is_no_error(world: Any) -> None:
    packed = gzip.compress(b'CONFIG_NO_HZ=y\nCONFIG_PREEMPT=m\nCONFIG_NO_HZ_FULL="odd"\n')
    (world.root / "proc/config.gz").write_bytes(packed)
    assert observe(Host(world.root)).kernel_config == {"NO_HZ": "true", "PREEMPT": "true", "NO_HZ_FULL": "odd"}
    (world.root / "proc/config.gz").write_bytes(packed[:20])
    assert observe(Host(world.root)).kernel_config == {}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(kernel="6.8.0+bad#1"), {"kernel-version.full": "6.8.0_bad_1"}),
        (Facts(kernel="5.14.0-427.el9.x86_64"), {"kernel-version.full": "5.14.0-427.el9.x86_64"}),
        (
            Facts(kernel="6.1-"),
            {"kernel-version.full": "6.1", "kernel-version.major": "6", "kernel-version.minor": "1"},
        ),
        (Facts(os_release={"ID": "arch", "VERSION_ID": "rolling"}), {"system-os_release.VERSION_ID": "rolling"}),
        (Facts(os_release={"VERSION_ID": "9"}), {"system-os_release.VERSION_ID.major": "9"}),
        (Facts(pci=frozenset({PciDevice("0200", "15b3", sriov=True)})), {"pci-15b3.sriov.capable": "true"}),
        (Facts(multithreading=False), {"cpu-hardware_multithreading": "false"}),
    ],
)
def test_single_facts(facts: Facts, expected: dict[str, str]) -> None:
    labels = feature_labels(facts)
    assert {name: labels.get(PREFIX + name) for name in expected} == expected


def test_what_no_label_can_say_is_left_out() -> None:
    facts = Facts(
        os_release={"ID": "a b", "VERSION_ID": "x" * 64},
        usb=frozenset({UsbDevice("ff", "../..", "0001"), UsbDevice("09", "1d6b", "0002")}),
        pci=frozenset({PciDevice("0604", "8086")}),
    )
    assert feature_labels(facts) == {}


def test_a_pass_takes_little(world: Any) -> None:
    host = Host(world.root)
    facts = observe(host)
    start = time.process_time()
    for _ in range(20):
        facts = observe(host, facts)
        feature_labels(facts)
    print(f"one pass: {(time.process_time() - start) / 20 * 1e3:.2f} ms")
    assert facts == observe(host)
