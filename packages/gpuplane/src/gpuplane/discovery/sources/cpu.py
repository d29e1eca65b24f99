"""The processor: flags, model, threads, power states, security.

Flags are the kernel's (see `gpuplane.discovery.cpuid`). Where node feature discovery asks the CPUID instruction for
more, the kernel's own answer is taken: SGX memory from sysfs, resource control from flags. The hypervisor's name comes
from the firmware's tables.
"""

from __future__ import annotations

import re
from typing import Final

from gpuplane.discovery import cpuid
from gpuplane.discovery.features import Features
from gpuplane.discovery.sources.reading import boolean, names, text, values
from gpuplane.host import Host

_CPUINFO_BYTES: Final = 8192  # the first processor's paragraph; all of them are 400 kB on large machines
_VENDORS: Final = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon", "CentaurHauls": "VIA"}
_CPUS: Final = "sys/devices/system/cpu"
_RDT: Final = {
    "cqm": "RDTMON",
    "cqm_occup_llc": "RDTCMT",
    "cqm_mbm_total": "RDTMBM",
    "cat_l3": "RDTL3CA",
    "cat_l2": "RDTl2CA",
    "mba": "RDTMBA",
}
# Firmware's vendor -> the hypervisor, as the CPUID library names it.
_HYPERVISORS: Final = (
    ("vmware", "vmware"),
    ("microsoft", "msvm"),
    ("xen", "xenhvm"),
    ("bhyve", "bhyve"),
    ("qemu", "kvm"),
    ("kvm", "kvm"),
    ("amazon ec2", "kvm"),
    ("google", "kvm"),
    ("openstack", "kvm"),
)


def discover(host: Host) -> Features:
    """Raises HostError when /proc cannot be read at all."""
    info = _cpuinfo(host)
    flags = frozenset(info.get("flags", "").split())
    arm = frozenset(info.get("Features", "").split())
    attributes = {
        "cpu.model": _model(host, info, flags),
        "cpu.topology": _topology(host, info),
        "cpu.pstate": _pstate(host),
        "cpu.cstate": _cstate(host),
        "cpu.rdt": _rdt(host, flags),
        "cpu.security": _security(host, flags),
        "cpu.sst": _sst(host),
        "cpu.coprocessor": _coprocessor(host),
    }
    return Features(
        flags={"cpu.cpuid": cpuid.feature_names(arm, arm=True) if arm else cpuid.feature_names(flags)},
        attributes={name: found for name, found in attributes.items() if found},
    )


def _cpuinfo(host: Host) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    data = (host.read("proc/cpuinfo", limit=_CPUINFO_BYTES) or b"").decode(errors="replace")
    found = {}
    for line in data.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    return found


def _model(host: Host, info: dict[str, str], flags: frozenset[str]) -> dict[str, str]:
    vendor = info.get("vendor_id", "")
    found = {
        "vendor_id": _VENDORS.get(vendor, re.sub(r"[^-A-Za-z0-9_.]+", "_", vendor)),
        "family": info.get("cpu family", ""),
        "id": info.get("model", ""),
        "hypervisor": _hypervisor(host, flags) if flags else "",
    }
    return {name: value for name, value in found.items() if value}


def _hypervisor(host: Host, flags: frozenset[str]) -> str:
    if "hypervisor" not in flags:
        return "none"
    seen = values(host, "sys/class/dmi/id", ("sys_vendor", "product_name", "bios_vendor"))
    said = " ".join(seen.values()).lower()
    return next((name for word, name in _HYPERVISORS if word in said), "")


def _topology(host: Host, info: dict[str, str]) -> dict[str, str]:
    """Return whether a core runs several threads: from cpuinfo where it says, else from sysfs; and the number of
    sockets.
    """
    found = {}
    siblings, cores = info.get("siblings", ""), info.get("cpu cores", "")
    if siblings.isdigit() and cores.isdigit():
        found["hardware_multithreading"] = boolean(int(siblings) > int(cores))
    sockets = set()
    for name in names(host, _CPUS):
        if re.fullmatch(r"cpu\d+", name):
            seen = values(host, f"{_CPUS}/{name}/topology", ("thread_siblings_list", "physical_package_id"))
            if "physical_package_id" in seen:
                sockets.add(seen["physical_package_id"])
            threads = seen.get("thread_siblings_list")
            if threads is not None and not (siblings and cores):
                several = bool(re.search(r"[,-]", threads))
                found["hardware_multithreading"] = boolean(
                    several or found.get("hardware_multithreading", "") == "true"
                )
    if sockets:
        found["socket_count"] = str(len(sockets))
    return found


def _pstate(host: Host) -> dict[str, str]:
    """intel_pstate's status, turbo, and the governor if all policies have the same."""
    seen = values(host, f"{_CPUS}/intel_pstate", ("status", "no_turbo"))
    status = seen.get("status", "off")
    if status == "off":
        return {}
    found = {"status": status}
    if "no_turbo" in seen:
        found["turbo"] = boolean(seen["no_turbo"].startswith("0"))
    if status == "active":
        base = f"{_CPUS}/cpufreq"
        policies = [values(host, f"{base}/{name}", ("affected_cpus", "scaling_governor")) for name in names(host, base)]
        governors = {p["scaling_governor"] for p in policies if p.get("affected_cpus") and "scaling_governor" in p}
        if len(governors) == 1:
            found["scaling_governor"] = governors.pop()
    return found


def _cstate(host: Host) -> dict[str, str]:
    if text(host, f"{_CPUS}/cpuidle/current_driver") != "intel_idle":
        return {}
    deepest = text(host, "sys/module/intel_idle/parameters/max_cstate") or ""
    return {"enabled": boolean(int(deepest) > 0)} if deepest.isdigit() else {}


def _rdt(host: Host, flags: frozenset[str]) -> dict[str, str]:
    found = {name: "true" for flag, name in _RDT.items() if flag in flags}
    if "RDTL3CA" in found and (classes := text(host, "sys/fs/resctrl/info/L3/num_closids")):
        found["RDTL3CA_NUM_CLOSID"] = classes
    return found


def _security(host: Host, flags: frozenset[str]) -> dict[str, str]:
    """Trusted execution: what is switched on, and how much of it there is (the latter becomes no label)."""
    found: dict[str, str] = {}
    base = "sys/devices/system/node"
    epc = sum(_whole(text(host, f"{base}/{node}/x86/sgx_total_bytes")) for node in names(host, base)) if flags else 0
    if epc:
        found |= {"sgx.enabled": "true", "sgx.epc": str(epc)}
    capacity = text(host, "sys/fs/cgroup/misc.capacity") or text(host, "sys/fs/cgroup/misc/misc.capacity") or ""
    lines = (line.split() for line in capacity.splitlines())
    limits = {words[0]: words[1] for words in lines if len(words) > 1}
    if text(host, "sys/module/kvm_intel/parameters/tdx") == "Y":
        found["tdx.enabled"] = "true"
        if "tdx" in limits:
            found["tdx.total_keys"] = limits["tdx"]
    if "tdx_guest" in flags:
        found["tdx.protected"] = "true"
    seen = values(host, "sys/module/kvm_amd/parameters", ("sev", "sev_es", "sev_snp"))
    for parameter, name, limit in (
        ("sev", "sev", "sev.asids"),
        ("sev_es", "sev.es", "sev.encrypted_state_ids"),
        ("sev_snp", "sev.snp", ""),
    ):
        if seen.get(parameter, "")[:1] in ("1", "Y"):
            found[f"{name}.enabled"] = "true"
            if limit and parameter in limits:
                found[limit] = limits[parameter]
    if text(host, "sys/firmware/uv/prot_virt_host") == "1":
        found["se.enabled"] = "true"
    return found


def _whole(value: str | None) -> int:
    return int(value) if value is not None and value.isdigit() else 0


def _sst(host: Host) -> dict[str, str]:
    """Speed Select: cores with a base frequency above that of others, which hybrid processors have by nature."""
    if host.exists("sys/devices/cpu_atom"):
        return {}
    cpus = (name for name in names(host, _CPUS) if re.fullmatch(r"cpu\d+", name))
    seen = {text(host, f"{_CPUS}/{name}/cpufreq/base_frequency") for name in cpus} - {None}
    return {"bf.enabled": "true"} if len(seen) > 1 else {}


def _coprocessor(host: Host) -> dict[str, str]:
    return {"nx_gzip": "true"} if host.exists("sys/devices/vio/ibm,compression-v1/nx_gzip_caps") else {}
