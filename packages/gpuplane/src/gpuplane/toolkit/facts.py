"""The toolkit's facts about a host, before any decision: plain data, read in `observing.py`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuplane import names
from gpuplane.hardware import GPUFacts
from gpuplane.host import Before, ChangeRecord
from gpuplane.toolkit.places import RuntimeName, RuntimePaths
from kubekit.errors import InvalidInput, Terminal

# The programs of NVIDIA's toolkit that configurations name.
RUNTIME, HOOK, CLI, CTK = (
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-container-cli",
    "nvidia-ctk",
)
CDI_HOOK = "nvidia-cdi-hook"
REAL = f"{RUNTIME}.real"  # the binary behind the scripts of `toolkit.shipped`
PROGRAMS = (RUNTIME, f"{RUNTIME}.cdi", f"{RUNTIME}.legacy", HOOK, CLI, CTK, CDI_HOOK)
LOW_LEVEL = ("runc", "crun")  # what starts containers
# Runtimes by name, with the program of each.
RUNTIMES = {"nvidia": RUNTIME, "nvidia-cdi": f"{RUNTIME}.cdi", "nvidia-legacy": f"{RUNTIME}.legacy"}


class ToolkitError(Terminal):
    """The runtime cannot be made to give out GPUs; `reason` is the CamelCase cause that the stage shows."""

    def __init__(self, reason: str, what: str, *, where: str = "", cure: str = "") -> None:
        super().__init__(what, where=where, cure=cure)
        self.reason = reason


class DriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's files on the host. `root` is where they lie ("/" or "/run/nvidia/driver"); other paths begin there.

    `libraries` and `binaries` are absolute paths below `root`. `links` are links that lead to the libraries, those in
    their directories and those that programs rely on, path -> target. `configs` are files of Vulkan, EGL, OpenCL and
    X.Org, their place in a container -> path. `sockets` has the path in a container -> path of the host.
    """

    root: str = "/"
    version: str = ""
    libraries: tuple[str, ...] = ()
    links: Mapping[str, str] = {}
    binaries: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    configs: Mapping[str, str] = {}
    sockets: Mapping[str, str] = {}
    ldconfig: str = "/sbin/ldconfig"


class NodeAccess(msgspec.Struct, frozen=True):
    """The permission bits and the group of a device node."""

    mode: int
    gid: int

    @property
    def needs_group(self) -> bool:
        """Return whether a process without root needs the node's group."""
        return self.gid != 0 and self.mode & 0o006 != 0o006


class DeviceNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Device nodes. `root` is where /dev lies ("/", or the driver's); `nodes` are names in it, "nvidia-caps/..." too.

    `drm` are the names in /dev/dri that belong to a GPU, by its PCI address, `drm_links` links in /dev/dri/by-path to
    them, name -> target. `access` is of the nodes in `nodes` and, as "dri/card0", in `drm`. `caps` maps
    "gpu0/gi1/ci0/access" to the N of /dev/nvidia-caps/nvidia-capN.
    """

    root: str = "/"
    nodes: frozenset[str] = frozenset()
    drm: Mapping[str, tuple[str, ...]] = {}
    drm_links: Mapping[str, Mapping[str, str]] = {}
    caps: Mapping[str, int] = {}
    access: Mapping[str, NodeAccess] = {}


class ToolkitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A host. `main` is the runtime's own configuration file as it is, `record` how it was before us (None: untouched).

    `effective` is the content of `place.effective`. `others` are the files that the runtime takes in besides, in
    order, path -> content; ours are not among them. `gpus` is None where NVML does not answer: then no CDI
    specification is written. `programs` maps those of PROGRAMS that are on the host to their absolute paths, `shipped`
    those that gpuplane installs to their contents. `low_level` are the runtimes of the host that start containers,
    absolute paths in order of preference. `own_hook` is our CDI hook, for a host that has and gets none of NVIDIA's;
    b"" otherwise. `nri`: GPUs come into containers by
    NRI, and the runtime's configuration is left alone.
    """

    place: RuntimePaths
    version: tuple[int, ...] = ()
    main: Before = Before()
    effective: bytes | None = None
    record: ChangeRecord | None = None
    others: Mapping[str, bytes] = {}
    gpus: tuple[GPUFacts, ...] | None = None
    driver: DriverFiles = DriverFiles()
    devices: DeviceNodes = DeviceNodes()
    programs: Mapping[str, str] = {}
    shipped: Mapping[str, bytes] = {}
    low_level: tuple[str, ...] = ()
    own_hook: bytes = b""
    nri: bool = False

    @property
    def runtime(self) -> RuntimeName:
        return self.place.runtime

    def program(self, name: str) -> str:
        """Return the path of a program, or where it belongs."""
        return self.programs.get(name, f"/{names.TOOLKIT_DIR}/{name}")

    def has(self, name: str) -> bool:
        """Return whether the program is on the host, or will be."""
        if name in self.programs or name in self.shipped:
            return True
        return bool(self.own_hook) if name == CDI_HOOK else name in RUNTIMES.values() and REAL in self.shipped


def decoded(data: bytes, where: str) -> str:
    """A configuration file's text.

    Raises:
        InvalidInput: it is no UTF-8, with the line.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"it is no UTF-8 text: {error.reason}",
            where=f"{where}:{data.count(10, 0, error.start) + 1}",
            cure="repair the file; nothing was changed",
        ) from None
