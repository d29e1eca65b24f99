"""The cures for errors of CUDA, NVML and the driver's Xid messages: the one table of them.

Invariants: plain data without any import, since the vectorAdd, which starts once for each GPU, reads it too; every
entry has a cure; what a number means is what NVIDIA's documents say, in our words.

Source: NVIDIA, "CUDA Driver API" (CUresult), "NVML API Reference" (nvmlReturn_t), "XID Errors".
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it, without importing typing
if TYPE_CHECKING:
    from typing import Final

LOOK_FOR_XID: Final = "look for Xid lines in dmesg on the node"
_RESET: Final = "drain the node and reset the GPU (nvidia-smi -r) or reboot it; replace the GPU when it happens again"
_REBOOT: Final = "drain the node and reboot it; when it happens again, reseat or replace the GPU"
_APPLICATION: Final = "look at the application: the GPU is not to blame; compute-sanitizer finds the access"
_NEWER_DRIVER: Final = "install a newer driver"
_MATCH: Final = "reload the kernel modules or reboot: libcuda and the loaded kernel module are of different versions"
_MPS: Final = "look at the log of the MPS control daemon, and start it again"

CUDA: Final = {
    1: ("a wrong argument", "report it: the validator's own call is wrong for this driver"),
    2: ("out of memory", "see with nvidia-smi which process fills the GPU's memory and end it"),
    3: ("the driver is not initialised", "modprobe nvidia nvidia-uvm, then try again"),
    4: ("the driver is shutting down", "wait for the driver's installation to end"),
    34: ("a stub library", "take the CUDA toolkit's stubs directory out of LD_LIBRARY_PATH: it hides the real libcuda"),
    46: ("device unavailable", "end the process that holds the GPU exclusively, or nvidia-smi -c DEFAULT"),
    100: (
        "no GPU",
        "give the container a GPU (resources.limits nvidia.com/gpu), then compare nvidia-smi -L on the node",
    ),
    101: ("no such GPU", "compare with nvidia-smi -L on the node"),
    200: ("an invalid program", _NEWER_DRIVER),
    201: ("an invalid context", LOOK_FOR_XID),
    209: ("no code for this GPU", "install a driver that supports this GPU"),
    214: ("an uncorrectable ECC error", _RESET),
    218: ("PTX that does not compile", _NEWER_DRIVER),
    220: ("an uncorrectable NVLink error", "nvidia-smi nvlink -e shows the link; " + _RESET),
    221: (
        "no PTX compiler",
        "install libnvidia-ptxjitcompiler.so.1 of the same version as the driver next to libcuda.so.1",
    ),
    222: ("PTX of a newer version", _NEWER_DRIVER),
    223: ("compiling PTX is switched off", "unset CUDA_DISABLE_PTX_JIT in the environment"),
    304: ("the operating system refused", "see that /dev/nvidia* are there and may be opened, and " + LOOK_FOR_XID),
    700: ("an illegal address", LOOK_FOR_XID),
    702: ("a kernel ran too long", LOOK_FOR_XID),
    719: ("a kernel failed", LOOK_FOR_XID),
    800: ("not permitted", "nvidia-smi -q -d COMPUTE: another process may hold the GPU exclusively"),
    802: (
        "the system is not ready",
        "start nvidia-fabricmanager of the same version as the driver (systemctl start nvidia-fabricmanager)",
    ),
    803: ("driver versions that do not match", _MATCH),
    804: (
        "the compatibility libraries do not fit this GPU",
        "remove the CUDA compatibility libraries, or install a newer driver",
    ),
    805: ("MPS cannot be reached", _MPS),
    806: ("MPS does not answer", _MPS),
    807: ("MPS is not ready", _MPS),
    808: ("MPS has no room for another client", "end some of the programs that share the GPU"),
    809: ("MPS has no connection left", "end some of the programs that share the GPU"),
    999: ("unknown", "modprobe nvidia-uvm, see that /dev/nvidia-uvm is there, and " + LOOK_FOR_XID),
}
"""CUresult -> (what it means, cure)."""

NVML: Final = {
    1: ("not initialised", "modprobe nvidia"),
    4: ("no permission", "run as root, in a privileged container on a node"),
    8: ("external power is missing", "plug in the GPU's power cables"),
    9: ("the driver is not loaded", "modprobe nvidia"),
    10: ("the driver did not answer in time", LOOK_FOR_XID),
    11: ("an interrupt problem", "look for IRQ lines in dmesg; check the machine's firmware settings"),
    12: ("no library", "install the driver's user space: libnvidia-ml.so.1"),
    14: ("the GPU's stored settings are damaged", "replace the GPU: its inforom is corrupted"),
    15: ("the GPU is lost", _REBOOT),
    16: ("the GPU needs a reset", _RESET),
    17: ("the operating system refused", "see that /dev/nvidiactl is there and may be opened (SELinux, cgroups)"),
    18: ("library and kernel module of different versions", "reload the driver's modules, or reboot the node"),
    19: ("the GPU is in use", "end the processes on it: nvidia-smi, or kubectl get pods on the node"),
    20: ("not enough memory", "free memory on the node"),
    23: ("not enough resources", "end some of the processes on the GPU"),
    27: ("not ready", "wait for the driver's installation to end; then modprobe nvidia"),
    28: ("the GPU is gone", _REBOOT),
    29: ("a state that does not allow it", "nvidia-smi -q shows the GPU's modes"),
    999: ("unknown", LOOK_FOR_XID),
}
"""nvmlReturn_t -> (what it means, cure). A code for a value that the GPU does not offer is no failure."""

XID: Final = {
    8: ("the GPU stopped processing", _APPLICATION),
    13: ("graphics engine exception of an application", _APPLICATION),
    31: ("GPU memory page fault of an application", _APPLICATION),
    32: ("invalid or corrupted push buffer", "check the PCIe slot and risers; " + _RESET),
    38: ("driver firmware error", "install a newer driver; " + _RESET),
    43: ("an application's channel was stopped", _APPLICATION),
    45: ("an application was cleaned up before its end", "look for the Xid before it in dmesg"),
    48: ("double bit ECC error", _RESET),
    56: ("display engine error", _RESET),
    57: ("error programming the display", _RESET),
    58: ("display engine error", _RESET),
    61: ("internal micro-controller halt", _RESET),
    62: ("internal micro-controller halt", _RESET),
    63: ("row remapping recorded", "reset the GPU when its jobs are done, so that the spare row is used"),
    64: (
        "row remapping failed",
        "reset the GPU; replace it when it has no spare rows left (nvidia-smi -q -d ROW_REMAPPER)",
    ),
    68: ("video processor exception of an application", _APPLICATION),
    69: ("graphics engine class error", _APPLICATION),
    74: ("NVLink error", "nvidia-smi nvlink -e shows the link; reset the GPU; check the bridge or NVSwitch"),
    79: ("fallen off the bus", _REBOOT),
    92: ("high rate of single bit ECC errors", "nvidia-smi -q -d ECC; replace the GPU when the rate stays"),
    94: ("contained ECC error", "start the application again; reset the GPU when its other jobs are done"),
    95: ("uncontained ECC error", _RESET),
    109: ("context switch timeout of an application", _APPLICATION),
    110: ("security fault", _RESET),
    119: ("GPU system processor timeout", _RESET),
    120: ("GPU system processor error", _RESET),
    121: (
        "corrected error on the link between CPU and GPU",
        "nothing at once; replace the board if the error is frequent",
    ),
    140: ("unrecovered ECC error", _RESET),
    143: ("the GPU could not be initialised", _REBOOT),
    144: ("NVLink error", "nvidia-smi nvlink -e shows the link; reset the GPU; check the bridge or NVSwitch"),
    145: ("NVLink error", "nvidia-smi nvlink -e shows the link; reset the GPU; check the bridge or NVSwitch"),
    154: (
        "the driver asks for a recovery",
        "the line in dmesg says which: reset the GPU, or drain and reboot the node",
    ),
}
"""Xid -> (what it means, cure)."""


FAULTS: Final = (
    ("row remapping failed", XID[64][1]),
    ("ECC error", XID[48][1]),
    ("lost", NVML[15][1]),
    (
        "fails the vectorAdd",
        "drain the node and look at the GPU: nvidia-smi -q -d ECC, dmesg for Xid lines; reset or replace it",
    ),
    ("asks for draining peer-to-peer traffic", "end the programs that use the GPU together with others of the node"),
    ("asks for draining and a reset", "reset the GPU (nvidia-smi -r) when its jobs are done, or reboot the node then"),
    ("asks for a reset of the GPU", "drain the node and reset the GPU (nvidia-smi -r) or reboot it"),
    ("asks for a re", _REBOOT),
)
"""(words of what a GPUNode says of a GPU, cure); the first that fits counts. Xid messages are in the table above."""


def of_cuda(code: int) -> str:
    return CUDA[code][1] if code in CUDA else LOOK_FOR_XID


def of_nvml(code: int) -> str:
    """The cure, "" for a code that is no failure of the node."""
    return NVML[code][1] if code in NVML else ""


def of_xid(xid: int) -> str:
    return XID[xid][1] if xid in XID else _RESET


def of_fault(why: str) -> str:
    """Return the cure of a GPU that is not usable, from what its GPUNode says of it: `Xid 79: fallen off the bus`."""
    number = why.removeprefix("Xid ").partition(":")[0]
    if why.startswith("Xid ") and number.isdecimal():
        return of_xid(int(number))
    return next((cure for words, cure in FAULTS if words in why), LOOK_FOR_XID)


def xid_meaning(xid: int) -> str:
    """Return the meaning of an Xid in a few words, "" when it is not in the table."""
    return XID[xid][0] if xid in XID else ""
