"""Feature labels: from files of a machine to what node feature discovery would say of it."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane.discovery import Features, feature_labels, observe
from gpuplane.discovery.cpuid import feature_names
from gpuplane.discovery.sources.kernel import version_of
from gpuplane.host import Host

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
FILES = (
    *("proc/cpuinfo", "proc/swaps", "proc/sys/kernel/osrelease", "etc/os-release"),
    *("sys/bus/pci/devices/0/class", "sys/bus/pci/devices/0/vendor", "sys/bus/usb/devices/1/idProduct"),
    *("sys/devices/system/cpu/intel_pstate/status", "sys/fs/cgroup/misc.capacity", "sys/class/dmi/id/sys_vendor"),
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
)

PREFIX = "feature.node.kubernetes.io/"

# The labels of expected-cluster.md that this machine has, and the others that follow from its files.
EXPECTED: Final = {
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


# (files, what they add or change) for every label of every source.
CASES: Final = [
    ({"proc/swaps": "Filename\n/swapfile file 1 0 -2\n"}, {"memory-swap": "true"}),
    ({"sys/devices/system/node/node1/cpulist": "4-7\n"}, {"memory-numa": "true"}),
    ({"sys/bus/nd/devices/dimm0/devtype": "nd_dimm\n"}, {"memory-nv.present": "true"}),
    ({"sys/bus/nd/devices/dax0/devtype": "nd_dax\n"}, {"memory-nv.present": "true", "memory-nv.dax": "true"}),
    ({"sys/fs/selinux/enforce": "1"}, {"kernel-selinux.enabled": "true"}),
    ({"sys/devices/system/cpu/intel_pstate/status": "off\n"}, {}),
    (
        {
            "sys/devices/system/cpu/intel_pstate/status": "passive\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
        },
        {"cpu-pstate.status": "passive", "cpu-pstate.turbo": "true"},
    ),
    (
        {
            "sys/devices/system/cpu/intel_pstate/status": "active\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "sys/devices/system/cpu/cpufreq/policy0/affected_cpus": "0\n",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave\n",
            "sys/devices/system/cpu/cpufreq/policy1/affected_cpus": "\n",
            "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance\n",
        },
        {"cpu-pstate.status": "active", "cpu-pstate.turbo": "false", "cpu-pstate.scaling_governor": "powersave"},
    ),
    (
        {
            "sys/devices/system/cpu/cpuidle/current_driver": "intel_idle\n",
            "sys/module/intel_idle/parameters/max_cstate": "9\n",
        },
        {"cpu-cstate.enabled": "true"},
    ),
    (
        {
            "sys/devices/system/cpu/cpuidle/current_driver": "intel_idle\n",
            "sys/module/intel_idle/parameters/max_cstate": "0\n",
        },
        {"cpu-cstate.enabled": "false"},
    ),
    ({"sys/devices/system/cpu/cpuidle/current_driver": "acpi_idle\n"}, {}),
    (
        {
            "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "2300000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/base_frequency": "2800000\n",
        },
        {"cpu-power.sst_bf.enabled": "true"},
    ),
    (
        {
            "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "2300000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/base_frequency": "2800000\n",
            "sys/devices/cpu_atom/cpus": "1\n",
        },
        {},
    ),
    ({"sys/devices/system/node/node0/x86/sgx_total_bytes": "98566144\n"}, {"cpu-security.sgx.enabled": "true"}),
    ({"sys/devices/system/node/node0/x86/sgx_total_bytes": "0\n"}, {}),
    ({"sys/module/kvm_intel/parameters/tdx": "Y\n"}, {"cpu-security.tdx.enabled": "true"}),
    ({"sys/module/kvm_intel/parameters/tdx": "N\n"}, {}),
    (
        {"sys/module/kvm_amd/parameters/sev": "Y\n", "sys/module/kvm_amd/parameters/sev_es": "1\n"},
        {"cpu-security.sev.enabled": "true", "cpu-security.sev.es.enabled": "true"},
    ),
    ({"sys/module/kvm_amd/parameters/sev_snp": "Y\n"}, {"cpu-security.sev.snp.enabled": "true"}),
    ({"sys/firmware/uv/prot_virt_host": "1\n"}, {"cpu-security.se.enabled": "true"}),
    ({"sys/devices/vio/ibm,compression-v1/nx_gzip_caps": ""}, {"cpu-coprocessor.nx_gzip": "true"}),
    ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, {"cpu-model.hypervisor": "kvm"}),
    ({"sys/class/dmi/id/sys_vendor": "VMware, Inc.\n"}, {"cpu-model.hypervisor": "vmware"}),
    (
        {"sys/class/net/eth0/device/sriov_totalvfs": "8\n", "sys/class/net/eth0/device/sriov_numvfs": "0\n"},
        {"network-sriov.capable": "true"},
    ),
    (
        {"sys/class/net/eth0/device/sriov_totalvfs": "8\n", "sys/class/net/eth0/device/sriov_numvfs": "4\n"},
        {"network-sriov.capable": "true", "network-sriov.configured": "true"},
    ),
    ({"sys/class/net/eth0/device/sriov_totalvfs": "many\n"}, {}),
    (
        {
            "sys/bus/pci/devices/0000:00:05.0/class": "0x020000\n",
            "sys/bus/pci/devices/0000:00:05.0/vendor": "0x15b3\n",
            "sys/bus/pci/devices/0000:00:05.0/device": "0x1017\n",
            "sys/bus/pci/devices/0000:00:05.0/sriov_totalvfs": "8\n",
        },
        {"pci-15b3.present": "true", "pci-15b3.sriov.capable": "true"},
    ),
    (
        {"sys/bus/pci/devices/0000:00:06.0/class": "0x060400\n", "sys/bus/pci/devices/0000:00:06.0/vendor": "0x8086\n"},
        {},
    ),
    (
        {
            "sys/bus/usb/devices/1-1/idVendor": "1d6b\n",
            "sys/bus/usb/devices/1-1/idProduct": "0002\n",
            "sys/bus/usb/devices/1-1/bDeviceClass": "00\n",
            "sys/bus/usb/devices/1-1/1-1:1.0/bInterfaceClass": "0e\n",
            "sys/bus/usb/devices/1-1/1-1:1.1/bInterfaceClass": "09\n",
            "sys/bus/usb/devices/1-1:1.0/bInterfaceClass": "ff\n",
        },
        {"usb-0e_1d6b_0002.present": "true"},
    ),
    (
        {
            "sys/bus/usb/devices/2-1/idVendor": "1a6e\n",
            "sys/bus/usb/devices/2-1/idProduct": "089a\n",
            "sys/bus/usb/devices/2-1/bDeviceClass": "ff\n",
        },
        {"usb-ff_1a6e_089a.present": "true"},
    ),
]


@pytest.mark.parametrize(("files", "added"), CASES)
def test_each_label_follows_from_its_file(world: Any, files: dict[str, str], added: dict[str, str]) -> None:
    for path, text in files.items():
        world.write(path, text)
    assert labels_of(world.root) == EXPECTED | added


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [({"cpu0": "0,2"}, "true"), ({"cpu0": "0-1"}, "true"), ({"cpu0": "0", "cpu1": "1"}, "false")],
)
def test_threads_of_a_core_where_cpuinfo_does_not_count_them(
    tmp_path: Path, siblings: dict[str, str], expected: str
) -> None:
    for cpu, text in siblings.items():
        folder = tmp_path / f"sys/devices/system/cpu/{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    assert labels_of(tmp_path) == {"cpu-hardware_multithreading": expected}


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ("fpu cx8 cmov fxsr lm mmx sse sse2", 0),
        ("fpu cx8 cmov fxsr lm mmx sse sse2 syscall", 1),
        ("fpu cx8 cmov fxsr lm mmx sse sse2 syscall cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3", 2),
        ("avx512bw avx512cd avx512dq avx512f avx512vl", 0),
    ],
)
def test_levels_of_x86_64_are_cumulative(flags: str, levels: int) -> None:
    found = {name for name in feature_names(flags.split()) if name.startswith("X86_64_V")}
    assert found == {f"X86_64_V{level}" for level in range(1, levels + 1)}


def test_what_every_machine_has_is_a_feature_and_no_label(world: Any) -> None:
    features = observe(Host(world.root))
    assert {"SSE", "SSE2", "RDRAND", "HTT"} <= features.flags["cpu.cpuid"]
    assert not {f"{PREFIX}cpu-cpuid.{flag}" for flag in ("SSE", "SSE2", "RDRAND", "HTT")} & set(
        feature_labels(features)
    )


def test_arm_flags_are_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd aes sha2\n")
    assert set(labels_of(tmp_path)) == {f"cpu-cpuid.{flag}" for flag in ("FP", "ASIMD", "AES", "SHA2")}


def test_features_that_are_for_rules_only(world: Any) -> None:
    for path, text in {
        "proc/modules": "ib_uverbs 16384 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n",
        "lib/modules/4.15.0-1051-aws/modules.builtin": "kernel/fs/ext4/ext4.ko\nkernel/x\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/device/sriov_numvfs": "2\n",
        "sys/class/net/lo/mtu": "65536\n",
        "sys/class/net/bonding_masters/x": "",
        "sys/devices/virtual/dmi/id/sys_vendor": "Amazon EC2\n",
        "sys/devices/system/node/node0/x86/sgx_total_bytes": "1000\n",
        "sys/module/kvm_amd/parameters/sev": "1\n",
        "sys/fs/cgroup/misc.capacity": "sev 509\nodd\n",
        "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
        "sys/devices/system/cpu/cpu1/topology/physical_package_id": "1\n",
        "sys/bus/pci/devices/0000:00:1e.0/iommu_group/type": "DMA\n",
    }.items():
        world.write(path, text)
    (world.root / "sys/devices/virtual/misc/kvm").mkdir(parents=True)
    found = observe(Host(world.root), "node-1")
    assert found.flags["kernel.loadedmodule"] == {"ib_uverbs", "nvidia"}
    assert found.flags["kernel.enabledmodule"] == {"ib_uverbs", "nvidia", "ext4"}
    assert found.attributes["memory.hugepages"] == {"enabled": "true", "hugepages-2Mi": "4", "hugepages-1Gi": "0"}
    assert found.attributes["memory.numa"] == {"is_numa": "false", "node_count": "1"}
    assert found.attributes["memory.swap"] == {"enabled": "false"}
    assert found.attributes["kernel.kvm"] == {"enabled": "true"}
    assert found.attributes["kernel.config"]["HZ"] == "250"
    assert found.attributes["system.name"] == {"nodename": "node-1"}
    assert found.attributes["system.dmiid"] == {"sys_vendor": "Amazon EC2"}
    assert found.attributes["system.osrelease"]["NAME"] == "Ubuntu"
    assert found.attributes["cpu.security"] == {
        "sgx.enabled": "true",
        "sgx.epc": "1000",
        "sev.enabled": "true",
        "sev.asids": "509",
    }
    assert found.attributes["cpu.topology"]["socket_count"] == "2"
    assert found.instances["network.device"] == ({"name": "eth0", "operstate": "up", "sriov_numvfs": "2"},)
    assert found.instances["network.virtual"] == ({"name": "lo", "mtu": "65536"},)
    assert found.instances["storage.block"] == ({"name": "nvme0n1", "rotational": "0"},)
    gpu = next(device for device in found.instances["pci.device"] if device["vendor"] == "10de")
    assert gpu == {"class": "0302", "vendor": "10de", "device": "1eb8", "iommu_group/type": "DMA"}


def test_a_compressed_kernel_configuration_wins_and_a_broken_one_is_no_error(world: Any) -> None:
    packed = gzip.compress(b'CONFIG_NO_HZ=y\nCONFIG_PREEMPT=m\nCONFIG_NO_HZ_FULL="odd"\n')
    (world.root / "proc/config.gz").write_bytes(packed)
    found = observe(Host(world.root))
    assert found.attributes["kernel.config"] == {"NO_HZ": "y", "PREEMPT": "m", "NO_HZ_FULL": "odd"}
    labels = labels_of(world.root)
    options = ("NO_HZ", "PREEMPT", "NO_HZ_FULL")
    assert [labels[f"kernel-config.{option}"] for option in options] == ["true", "true", "odd"]
    (world.root / "proc/config.gz").write_bytes(packed[:20])
    assert "kernel.config" not in observe(Host(world.root)).attributes


def test_the_kernels_configuration_is_read_once_for_each_kernel(world: Any) -> None:
    host = Host(world.root)
    before = observe(host)
    world.write("boot/config-4.15.0-1051-aws", "CONFIG_NO_HZ_FULL=y\n")
    assert observe(host, "", before).attributes["kernel.config"] == before.attributes["kernel.config"]
    world.write("proc/sys/kernel/osrelease", "6.8.0\n")
    world.write("boot/config-6.8.0", "CONFIG_NO_HZ_FULL=y\n")
    assert observe(host, "", before).attributes["kernel.config"] == {"NO_HZ_FULL": "y"}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("6.8.0+bad#1", {"full": "6.8.0_bad_1"}),
        ("5.14.0-427.el9.x86_64", {"full": "5.14.0-427.el9.x86_64", "major": "5", "minor": "14", "revision": "0"}),
        ("6.1-", {"full": "6.1", "major": "6", "minor": "1"}),
        ("", {}),
    ],
)
def test_kernel_versions(release: str, expected: dict[str, str]) -> None:
    assert version_of(release) == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("ID=arch\nVERSION_ID=rolling\n", {"ID": "arch", "VERSION_ID": "rolling"}),
        ("VERSION_ID=9\n", {"VERSION_ID": "9", "VERSION_ID.major": "9"}),
        ("ID='a b'\n", {}),
        (f"VERSION_ID={'x' * 64}\n", {}),
    ],
)
def test_releases_of_the_operating_system(tmp_path: Path, release: str, expected: dict[str, str]) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(release)
    assert labels_of(tmp_path) == {f"system-os_release.{name}": value for name, value in expected.items()}


def test_what_no_label_can_say_is_left_out() -> None:
    devices = ({"class": "ff", "vendor": "../..", "device": "0001"}, {"class": "09", "vendor": "1d6b", "device": "2"})
    bridge = {"class": "0604", "vendor": "8086"}
    assert feature_labels(Features(instances={"usb.device": devices, "pci.device": (bridge,)})) == {}


@given(st.dictionaries(st.sampled_from([*FILES, "proc/modules", "proc/config.gz"]), st.binary(max_size=200)))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_of_any_file_is_an_error(tmp_path: Path, content: dict[str, bytes]) -> None:
    for path, data in content.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    for name, value in feature_labels(observe(Host(tmp_path))).items():
        assert LABEL.fullmatch(name.removeprefix(PREFIX)), name
        assert LABEL.fullmatch(value), value
