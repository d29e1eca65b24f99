"""The machines that can be simulated. Figures are those that nvidia-smi and data sheets give for these models.

MIG tables: NVIDIA, "Multi-Instance GPU User Guide", supported profiles and placements.
"""

from __future__ import annotations

from typing import Final

from kubekit.errors import InvalidInput
from simgpu.profile import GPUModel, GpuPlace, GpuProfile, MigProfileSpec


def _mig(
    names: tuple[str, ...], memory: tuple[int, ...], multiprocessors: tuple[int, ...]
) -> tuple[MigProfileSpec, ...]:
    """The seven profiles that GPUs with seven compute and eight memory slices share."""
    shape = (
        # id, number, slices, memory slices, capacity, placements, copy engines
        (19, 0, 1, 1, 7, (0, 1, 2, 3, 4, 5, 6), 1),
        (20, 7, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        (15, 9, 1, 2, 4, (0, 2, 4, 6), 1),
        (14, 1, 2, 2, 3, (0, 2, 4), 2),
        (9, 2, 3, 4, 2, (0, 4), 3),
        (5, 3, 4, 4, 1, (0,), 4),
        (0, 4, 7, 8, 1, (0,), 7),
    )
    return tuple(
        MigProfileSpec(
            name=name,
            id=row[0],
            number=row[1],
            slices=row[2],
            memory_slices=row[3],
            memory_mib=mib,
            capacity=row[4],
            multiprocessors=count,
            placements=row[5],
            copy_engines=row[6],
        )
        for name, mib, count, row in zip(names, memory, multiprocessors, shape, strict=True)
    )


H100 = GPUModel(
    name="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    reserved_mib=562,
    context_mib=520,
    compute=(9, 0),
    architecture=9,
    brand=14,
    pci_device=0x233010DE,
    pci_subsystem=0x16C110DE,
    multiprocessors=132,
    cores=16896,
    sm_clock=1980,
    memory_clock=2619,
    idle_clock=345,
    bus_width=5120,
    l2_mib=50,
    bandwidth=3352,
    power_limit=700,
    power_min=200,
    power_idle=70,
    temperature_idle=30,
    temperature_busy=66,
    temperature_slowdown=89,
    memory_temperature=42,
    pcie_generation=5,
    pcie_gbps=55,
    shared_per_multiprocessor_kib=228,
    shared_optin_kib=227,
    row_remapping=True,
    nvlinks=18,
    nvlink_version=7,
    vbios="96.00.99.00.01",
    part="692-2G520-0200-000",
    mig=_mig(
        ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
        (9984, 9984, 20096, 20096, 40448, 40448, 81152),
        (16, 16, 26, 32, 60, 64, 132),
    ),
)

A100 = GPUModel(
    name="NVIDIA A100-SXM4-40GB",
    memory_mib=40960,
    reserved_mib=425,
    context_mib=420,
    compute=(8, 0),
    architecture=7,
    brand=14,
    pci_device=0x20B010DE,
    pci_subsystem=0x134F10DE,
    multiprocessors=108,
    cores=6912,
    sm_clock=1410,
    memory_clock=1215,
    idle_clock=210,
    bus_width=5120,
    l2_mib=40,
    bandwidth=1555,
    power_limit=400,
    power_min=100,
    power_idle=52,
    temperature_idle=29,
    temperature_busy=63,
    temperature_slowdown=92,
    memory_temperature=40,
    pcie_generation=4,
    pcie_gbps=25,
    shared_per_multiprocessor_kib=164,
    shared_optin_kib=163,
    row_remapping=True,
    nvlinks=12,
    nvlink_version=5,
    vbios="92.00.45.00.03",
    part="692-2G506-0200-002",
    mig=_mig(
        ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
        (4864, 4864, 9856, 9856, 19968, 19968, 40192),
        (14, 14, 14, 28, 42, 56, 98),
    ),
)

A10G = GPUModel(
    name="NVIDIA A10G",
    memory_mib=23028,
    reserved_mib=297,
    context_mib=262,
    compute=(8, 6),
    architecture=7,
    brand=14,
    pci_device=0x223710DE,
    pci_subsystem=0x152F10DE,
    multiprocessors=80,
    cores=10240,
    sm_clock=1710,
    memory_clock=6251,
    idle_clock=210,
    bus_width=384,
    l2_mib=6,
    bandwidth=600,
    power_limit=300,
    power_min=100,
    power_idle=16,
    temperature_idle=24,
    temperature_busy=61,
    temperature_slowdown=95,
    pcie_generation=4,
    pcie_gbps=25,
    threads_per_multiprocessor=1536,
    row_remapping=True,
    vbios="94.02.75.00.01",
    part="900-2G133-A840-100",
)

L4 = GPUModel(
    name="NVIDIA L4",
    memory_mib=23034,
    reserved_mib=435,
    context_mib=198,
    compute=(8, 9),
    architecture=8,
    brand=14,
    pci_device=0x27B810DE,
    pci_subsystem=0x16CA10DE,
    multiprocessors=58,
    cores=7424,
    sm_clock=2040,
    memory_clock=6251,
    idle_clock=210,
    bus_width=192,
    l2_mib=48,
    bandwidth=300,
    power_limit=72,
    power_min=40,
    power_idle=12,
    temperature_idle=33,
    temperature_busy=68,
    temperature_slowdown=96,
    pcie_generation=4,
    pcie_gbps=12,
    threads_per_multiprocessor=1536,
    row_remapping=True,
    vbios="95.04.29.00.06",
    part="900-2G193-0000-001",
)

T4 = GPUModel(
    name="Tesla T4",
    memory_mib=15360,
    reserved_mib=417,
    context_mib=103,
    compute=(7, 5),
    architecture=6,
    brand=14,
    pci_device=0x1EB810DE,
    pci_subsystem=0x12A210DE,
    multiprocessors=40,
    cores=2560,
    sm_clock=1590,
    memory_clock=5001,
    idle_clock=300,
    bus_width=256,
    l2_mib=4,
    bandwidth=320,
    power_limit=70,
    power_min=60,
    power_idle=9,
    temperature_idle=32,
    temperature_busy=72,
    temperature_slowdown=93,
    pcie_generation=3,
    pcie_gbps=12,
    threads_per_multiprocessor=1024,
    shared_per_multiprocessor_kib=64,
    shared_optin_kib=64,
    vbios="90.04.96.00.02",
    part="900-2G183-0000-001",
)

K80 = GPUModel(
    name="Tesla K80",
    memory_mib=11441,
    reserved_mib=69,
    context_mib=67,
    compute=(3, 7),
    architecture=2,
    brand=2,
    pci_device=0x102D10DE,
    pci_subsystem=0x106C10DE,
    multiprocessors=13,
    cores=2496,
    sm_clock=875,
    memory_clock=2505,
    idle_clock=324,
    bus_width=384,
    l2_mib=1.5,
    bandwidth=240,
    power_limit=149,
    power_min=100,
    power_idle=26,
    temperature_idle=34,
    temperature_busy=74,
    temperature_slowdown=88,
    pcie_generation=3,
    pcie_gbps=11,
    shared_per_multiprocessor_kib=112,
    shared_optin_kib=48,
    energy_counter=False,
    vbios="80.21.25.00.01",
    part="900-22080-0000-000",
)

P100 = GPUModel(
    name="Tesla P100-PCIE-16GB",
    memory_mib=16384,
    reserved_mib=103,
    context_mib=255,
    compute=(6, 0),
    architecture=4,
    brand=2,
    pci_device=0x15F810DE,
    pci_subsystem=0x118F10DE,
    multiprocessors=56,
    cores=3584,
    sm_clock=1328,
    memory_clock=715,
    idle_clock=405,
    bus_width=4096,
    l2_mib=4,
    bandwidth=732,
    power_limit=250,
    power_min=125,
    power_idle=26,
    temperature_idle=31,
    temperature_busy=67,
    temperature_slowdown=82,
    pcie_generation=3,
    pcie_gbps=12,
    shared_per_multiprocessor_kib=64,
    shared_optin_kib=48,
    energy_counter=False,
    vbios="86.00.4D.00.01",
    part="900-2H400-6300-031",
)

P40 = GPUModel(
    name="Tesla P40",
    memory_mib=24576,
    reserved_mib=125,
    context_mib=145,
    compute=(6, 1),
    architecture=4,
    brand=2,
    pci_device=0x1B3810DE,
    pci_subsystem=0x11D910DE,
    multiprocessors=30,
    cores=3840,
    sm_clock=1531,
    memory_clock=3615,
    idle_clock=544,
    bus_width=384,
    l2_mib=3,
    bandwidth=347,
    power_limit=250,
    power_min=125,
    power_idle=10,
    temperature_idle=24,
    temperature_busy=68,
    temperature_slowdown=92,
    pcie_generation=3,
    pcie_gbps=12,
    shared_per_multiprocessor_kib=96,
    shared_optin_kib=48,
    energy_counter=False,
    vbios="86.02.23.00.01",
    part="900-2G610-0000-000",
)

# Two sockets; on each, two PCIe switches with two GPUs each.
_SXM_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_TWO_SOCKETS_192 = (((0, 47), (96, 143)), ((48, 95), (144, 191)))
_TWO_SOCKETS_96 = (((0, 23), (48, 71)), ((24, 47), (72, 95)))


def _sxm(buses: tuple[int, ...], pairs: bool) -> tuple[GpuPlace, ...]:
    return tuple(
        GpuPlace(
            bus=bus,
            device=0x1C + index % 2 if pairs else 0,
            numa=index // 4,
            switch=f"switch{index // 2}" if pairs else f"switch{index}",
            tree=f"tree{index // 2}",
            bridge=f"bridge{index}",
        )
        for index, bus in enumerate(buses)
    )


PROFILES: dict[str, GpuProfile] = {
    profile.name: profile
    for profile in (
        GpuProfile(
            name="8x-h100",
            model=H100,
            places=_sxm(_SXM_BUSES, pairs=False),
            cpus=_TWO_SOCKETS_192,
            nvswitch=True,
        ),
        GpuProfile(
            name="8x-a100",
            model=A100,
            places=_sxm((0x10, 0x10, 0x20, 0x20, 0x90, 0x90, 0xA0, 0xA0), pairs=True),
            cpus=_TWO_SOCKETS_96,
            nvswitch=True,
        ),
        # One socket, a bridge for each GPU: nothing is nearer than the host bridge.
        GpuProfile(
            name="4x-a10g",
            model=A10G,
            places=tuple(GpuPlace(bus=0, device=device, numa=0, bridge="root") for device in (0x1B, 0x1C, 0x1D, 0x1E)),
            cpus=(((0, 47),),),
        ),
        # One GPU on each socket.
        GpuProfile(
            name="2x-l4",
            model=L4,
            places=(GpuPlace(bus=0x17, numa=0, bridge="a"), GpuPlace(bus=0xCA, numa=1, bridge="b")),
            cpus=_TWO_SOCKETS_96,
        ),
        GpuProfile(name="1x-t4", model=T4, places=(GpuPlace(bus=0, device=0x1E),), cpus=(((0, 3),),)),
        GpuProfile(name="1x-k80", model=K80, places=(GpuPlace(bus=0, device=0x1E),), cpus=(((0, 3),),)),
        # One board: a K80 is two GPUs behind a switch of its own.
        GpuProfile(
            name="2x-k80",
            model=K80,
            places=(GpuPlace(bus=0x06, switch="board"), GpuPlace(bus=0x07, switch="board")),
            cpus=(((0, 7),),),
        ),
        # Four boards, as the instances of clouds have them.
        GpuProfile(
            name="8x-k80",
            model=K80,
            places=tuple(GpuPlace(bus=0, device=0x17 + index, switch=f"board{index // 2}") for index in range(8)),
            cpus=(((0, 31),),),
        ),
        GpuProfile(name="1x-p40", model=P40, places=(GpuPlace(bus=0, device=0x08),), cpus=(((0, 7),),)),
        GpuProfile(name="1x-p100", model=P100, places=(GpuPlace(bus=0, device=0x1E),), cpus=(((0, 7),),)),
    )
}


_MODELS: Final = {name.partition("-")[2]: profile.model for name, profile in PROFILES.items()}
_MOST: Final = 8


def profile(name: str) -> GpuProfile:
    """Return the profile of this name. Raises InvalidInput with the names there are.

    A number of GPUs of a known model that no profile has, such as 4x-t4, are GPUs of one host bridge.
    """
    if name in PROFILES:
        return PROFILES[name]
    count, times, model = name.partition("x-")
    if not (times and model in _MODELS and count.isdigit() and 1 <= int(count) <= _MOST):
        raise InvalidInput(
            f"no hardware profile {name!r}", where="hardware profile", cure=f"one of {', '.join(PROFILES)}"
        )
    first = 0x1F - int(count)
    places = tuple(GpuPlace(bus=0, device=first + index, bridge="root") for index in range(int(count)))
    return GpuProfile(name=name, model=_MODELS[model], places=places)
