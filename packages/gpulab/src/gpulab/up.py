"""`gpuplane up` and `gpuplane down`: the embedded cluster, started and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpulab.cloud.settings import CLUSTER_NAME, COMPONENT, CloudAddress, CloudSettings, environment, read_address
from gpulab.clusters import clusters, load, require_startable
from gpulab.clusters import down as stop
from gpulab.clusters import up as start
from gpulab.distribution import GPUPLANE
from gpulab.exports import exports
from gpuplane.cli.forms import as_document, require_form
from gpuplane.cli.main import INTERRUPTED
from gpuplane.cli.options import did_you_mean
from gpuplane.cli.terminal import Console, prefixed
from kubekit.errors import InvalidInput, KubekitError, NoAnswer, Terminal, UsageError
from simgpu.machines import DEMO_MACHINES, machine, machines
from tinykube.cluster import ClusterHandle, ClusterSpec, MachineSpec
from tinykube.cluster.directory import ClusterDirectory

if TYPE_CHECKING:
    from gpulab.kubernetes.preflight import BuildFacts

SYSTEM: Final = (MachineSpec(name="system", machine="cpu-ubuntu24"),)
"""The nodes of a cluster with a cloud: one without GPUs, for what runs besides GPU pods."""
_CLOUD_SECONDS: Final = 120.0  # 8 where nothing else runs, most of it moto's import
EMBEDDED_SECONDS: Final = 30.0  # until the API server answers; usually 1
REAL_SECONDS: Final = 240.0  # usually 6
MACHINE_ROOT: Final = "hostPaths.rootFS=/machine"  # of machines with containerd, see gpulab.kubernetes.init
_POLL_SECONDS: Final = 0.05


def up(options: Namespace, screen: Console) -> int:
    if options.list_machines:
        return _list_machines(options, screen)
    require_form(options.output, ("text", "json", "yaml", "name"), "a started cluster")
    release = _release(options)
    components = cloud_components(options)
    spec = ClusterSpec(
        name=options.name,
        nodes=SYSTEM if components and not options.node else node_specs(options.node, default=not options.light_nodes),
        light_nodes=options.light_nodes,
        port=options.port,
        persist=options.persist,
        scheduler_config=str(options.scheduler_config.absolute()) if options.scheduler_config else "",
        images=image_directories(options.image),
        components=components,
        kubernetes=release,
    )
    if release:
        from gpulab.kubernetes.preflight import planned

        spec = with_kubelets(spec, options.kubelet, screen)
        if options.dry_run:
            for line in planned(checked(spec), spec):
                screen.print(line)
            return 0
        build_programs(spec, screen)
    return asyncio.run(_up(spec, options, screen))


def with_kubelets(spec: ClusterSpec, kubelet: str, screen: Console, *, needed: Sequence[Path] = ()) -> ClusterSpec:
    """Return the specification with the kubelets that `--kubelet` asks for.

    Args:
        needed: directories that machines with real kubelets have to see.

    Raises Unavailable, UsageError.
    """
    from gpulab.kubernetes import images, node, watches
    from gpulab.kubernetes.preflight import has_containerd

    if spec.images and kubelet == "real":
        raise UsageError("containerd starts images, not directories", where="--image", cure="--kubelet simulated")
    why_not = "--image names directories" if spec.images else node.lacking() or images.lacking()
    why_not = why_not or next(filter(None, map(node.unseen, needed)), "")
    if kubelet != "simulated" and not why_not:
        why_not = watches.lacking(len(spec.nodes))
    containerd = has_containerd(kubelet, why_not, len(spec.nodes))
    if why_not and kubelet == "auto" and spec.nodes:
        text = f"kubelets are simulated; for real ones with containerd: {why_not}"
        for line in prefixed(f" {screen.glyph('warn')} ", text, screen):
            screen.say(line)
    return msgspec.structs.replace(spec, containerd=containerd)


def _release(options: Namespace) -> str:
    """Return the release of --kubernetes, empty without it. Raises UsageError for options that go with the other kind
    of cluster.
    """
    if not options.kubernetes:
        if options.dry_run:
            raise UsageError(
                "only a real Kubernetes is built", where="--dry-run", cure="add --kubernetes, or leave it out"
            )
        return ""
    from gpulab.kubernetes.preflight import find_release

    for name, why in (("persist", "etcd has all objects on disk"), ("cloud", "the cloud is the embedded cluster's")):
        if getattr(options, name):
            raise UsageError(f"{why}", where=f"--{name} with --kubernetes", cure=f"leave out --{name}")
    return find_release(options.kubernetes)


def checked(spec: ClusterSpec) -> BuildFacts:
    """Return what is built of a real cluster's programs. Raises Unavailable, and what `up` would raise early."""
    from gpulab.kubernetes.preflight import free_bytes, look, require, require_room, sets_of

    home = GPUPLANE.home()
    require_startable(spec)
    require(facts := look(sets_of(spec)))
    require_room(home, free_bytes(home), spec)
    return facts


def build_programs(spec: ClusterSpec, screen: Console) -> None:
    """Build the programs of a real cluster that are missing. Raises what `checked` raises."""
    from gpulab.kubernetes import binaries
    from gpulab.kubernetes.preflight import expected, sets_of

    def progress(text: str) -> None:
        screen.say(f" {screen.glyph('wait')} {text}")

    if work := expected(checked(spec), os.cpu_count() or 1):
        progress(work)
    binaries.build_all(sets_of(spec), progress)


async def _up(spec: ClusterSpec, options: Namespace, screen: Console) -> int:
    starting = asyncio.create_task(_started(spec, screen))
    # Ctrl-C cancels this task, which cancels the other.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, starting.cancel)
    began = time.monotonic()
    try:
        handle, address = await starting
    except asyncio.CancelledError:
        screen.say(_interrupted(spec.name, screen))
        return INTERRUPTED
    took = time.monotonic() - began
    if options.output != "text":
        named = options.output == "name"
        screen.print(handle.name if named else as_document("Cluster", describe(handle, address), options.output))
        screen.out.flush()
    else:
        what = f"cluster {handle.name}" + (f" of Kubernetes {spec.kubernetes}" if spec.kubernetes else "")
        screen.print(f"{screen.glyph('good')} {what} answers on {handle.server} after {took:.1f}s")
        if handle.containers is not None:
            screen.print(f"  containers: {handle.containers}")
        screen.say("Try:")
        for line in next_commands(handle, address):
            screen.say(f"  {line}")
    if options.detach:
        return 0
    screen.say("Ctrl-C stops it.")
    try:
        await _until_interrupted()
    finally:
        await stop(handle.name)
        screen.say(f"{screen.glyph('good')} cluster {handle.name} is down")
    return 0


async def _started(spec: ClusterSpec, screen: Console) -> tuple[ClusterHandle, CloudAddress | None]:
    """Start a cluster with its cloud; when cancelled, stop what was started."""

    def progress(text: str) -> None:
        screen.say(f" {screen.glyph('wait')} {text}")

    earlier = spec.name in clusters()
    handle = await start(spec, progress=progress, timeout=REAL_SECONDS if spec.kubernetes else EMBEDDED_SECONDS)
    try:
        if spec.containerd:
            await make_images(handle, progress)
        if not spec.components:
            return handle, None
        progress("starting the simulated cloud")
        return handle, await cloud_address(handle)
    except asyncio.CancelledError:
        await stop(handle.name, keep_files=earlier)
        raise


def _interrupted(name: str, screen: Console) -> str:
    """Return the message after an interruption, with the command that removes what is left."""
    rest = "nothing of it is left" if name not in clusters() else f"gpuplane down {name} removes its files"
    return f"{screen.glyph('warn')} interrupted: cluster {name} is stopped, {rest}"


def directory_of(handle: ClusterHandle) -> ClusterDirectory:
    return ClusterDirectory(GPUPLANE, handle.name, handle.directory.parent.parent)


async def make_images(handle: ClusterHandle, progress: Callable[[str], None] = lambda _: None) -> None:
    """Make the images for a cluster's machines, whose kubelets wait for them.

    Raises Unavailable when there can be none; the cluster is stopped then.
    """
    from gpulab.kubernetes import images
    from gpulab.kubernetes.machine import images_of

    directory = directory_of(handle)
    try:
        await asyncio.to_thread(images.make, images_of(directory), progress)
    except KubekitError:
        await stop(handle.name, base=directory.base, keep_files=True)
        raise


def down(options: Namespace, screen: Console) -> int:
    if options.name and options.named and options.name != options.named:
        what = f"{options.name} and {options.named} are two clusters"
        raise UsageError(what, where="gpuplane down", cure="name one of them")
    options.name = options.name if options.name is not None else options.named
    if options.name == "":  # as of a variable that is not set: it must not end a cluster that was not named
        raise UsageError("'' names no cluster", where="gpuplane down", cure="gpuplane ls shows those there are")
    if options.name and options.name not in (there := clusters()):
        meant = did_you_mean(options.name, there)
        raise InvalidInput(
            f"there is no cluster {options.name}{meant}", where=str(GPUPLANE.home()), cure="gpuplane ls lists them"
        )
    name = asyncio.run(stop(options.name or "", keep_files=options.keep_files))
    if options.output != "text":
        screen.print(as_document("Cluster", {"name": name, "running": False}, options.output))
    else:
        screen.print(f"{screen.glyph('good')} cluster {name} is down")
    return 0


async def cloud_address(handle: ClusterHandle) -> CloudAddress:
    """Return the address of a cluster's cloud once it answers. Raises NoAnswer."""
    from gpulab.cloud.client import answers  # late: most clusters have no cloud

    directory = directory_of(handle)
    try:
        async with asyncio.timeout(_CLOUD_SECONDS):
            while True:
                address = read_address(directory)
                if address is not None and await asyncio.to_thread(answers, address):
                    return address
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        log = directory.log_of(COMPONENT)
        await stop(handle.name, base=directory.base, keep_files=True)
        raise NoAnswer(
            f"the simulated cloud did not answer within {_CLOUD_SECONDS:.0f} s", where=str(log), cure="look at the log"
        ) from None


def cloud_components(options: Namespace) -> dict[str, dict[str, Any]]:
    """Return the cloud as the cluster's specification has it; nothing without --cloud. Raises UsageError, Terminal."""
    if not options.cloud:
        if options.launch_template:
            raise UsageError("a launch template belongs to a cloud", where="--launch-template", cure="add --cloud")
        return {}
    require_cloud()
    from gpulab.cloud.templates import read_template  # late: most clusters have no cloud

    settings = CloudSettings(launch_templates=tuple(map(read_template, options.launch_template)))
    return {COMPONENT: msgspec.to_builtins(settings)}


def require_cloud() -> None:
    """Raise Terminal when the modules of a simulated cloud are not installed."""
    lacking = [name for name in ("boto3", "flask", "flask_cors", "moto") if find_spec(name) is None]
    if lacking:
        cure = "make setup in a clone, otherwise pip install 'gpuplane-gpulab[cloud]'"
        raise Terminal(f"the simulated cloud needs {', '.join(lacking)}", where="--cloud", cure=cure)


def describe(handle: ClusterHandle, address: CloudAddress | None = None) -> dict[str, object]:
    """Return the content of `-o json` and `-o yaml` for a cluster; `address` is that of its cloud."""
    mode = handle.containers
    cloud: dict[str, Any] = {}
    if address is not None:
        cloud["cloud"] = {
            "environment": environment(address),
            "interruptionQueue": CLUSTER_NAME,
            "serviceNetwork": _service_network(handle),
        }
    return {
        "name": handle.name,
        "kubeconfig": str(handle.kubeconfig),
        "server": handle.server,
        "directory": str(handle.directory),
        "nodes": [{"name": node.name, "machine": node.machine} for node in handle.spec.nodes],
        "lightNodes": handle.spec.light_nodes,
        "kubernetes": handle.spec.kubernetes,
        "kubelets": "real" if handle.spec.containerd else "simulated",
        "containers": None if mode is None else {"isolation": mode.isolation.value, "lacks": mode.lacks},
        "running": True,
    } | cloud


def next_commands(handle: ClusterHandle, address: CloudAddress | None = None) -> list[str]:
    """Return the commands to go on with; a command may have several lines, none longer than 76 columns."""
    if address is not None:
        first, *others = autoscaler_options(handle, address)
        lines = [f"gpuplane install --autoscaler {first}", *(f"  {option}" for option in others)]
        return [
            *exports(handle.kubeconfig),
            *(f"export {name}={value}" for name, value in environment(address).items()),
            *(f"{line} \\" for line in lines[:-1]),
            lines[-1],
            "gpuplane cloud ls",
            f"gpuplane down {handle.name}",
        ]
    return [
        *exports(handle.kubeconfig),
        "kubectl get nodes",
        f"gpuplane install {root_setting(handle.spec)}--wait",
        f"gpuplane down {handle.name}",
    ]


def root_setting(spec: ClusterSpec) -> str:
    """Return the option of `gpuplane install` by which operands find the simulated hardware; empty where / has it."""
    return f"--set {MACHINE_ROOT} " if spec.containerd else ""


def autoscaler_options(handle: ClusterHandle, address: CloudAddress) -> list[str]:
    """Return the options by which `gpuplane install --autoscaler` uses a cluster's cloud."""
    settings = {"INTERRUPTION_QUEUE": CLUSTER_NAME, "SERVICE_CIDR": _service_network(handle)}
    found = {**environment(address), **settings}
    return [f"--cluster-name={CLUSTER_NAME}", *(f"--cloud-env={name}={value}" for name, value in found.items())]


def _service_network(handle: ClusterHandle) -> str:
    """Return the network of the cluster's Services, which user data of today's images names."""
    from tinykube.controlplane import service_range  # late: it takes half a second

    return service_range(directory_of(handle)).network


def node_specs(wanted: Sequence[str], *, default: bool) -> tuple[MachineSpec, ...]:
    """`MACHINE` and `NAME=MACHINE` arguments as specs; without any, the machines of the demo."""
    texts = wanted or (DEMO_MACHINES if default else ())
    specs = []
    for number, text in enumerate(texts, 1):
        name, equals, kind = text.partition("=")
        spec = MachineSpec(name=name, machine=kind) if equals else MachineSpec(name=f"sim-{number}", machine=text)
        if spec.machine not in machines():
            raise UsageError(
                f"no machine is called {spec.machine!r}{did_you_mean(spec.machine, machines())}",
                where="--node",
                cure="gpuplane up --list-machines lists them",
            )
        specs.append(spec)
    return tuple(specs)


def image_directories(wanted: Sequence[str]) -> dict[str, str]:
    """`NAME=DIR` arguments as name -> directory; `python` stands for this installation's. Raises UsageError."""
    found = {}
    for text in wanted:
        name, equals, place = text.rpartition("=")
        if not (name and equals and place):
            raise UsageError(f"{text!r} names no directory", where="--image", cure="--image 'tensorflow/*=DIR'")
        path = Path(sys.prefix) if place == "python" else Path(place).expanduser().resolve()
        if not (path / "bin").is_dir():
            raise UsageError(
                f"{path} has no bin",
                where="--image",
                cure="name a virtual environment, or python for the Python that runs gpuplane",
            )
        found[name] = str(path)
    return found


def ls(options: Namespace, screen: Console) -> int:
    """List the embedded clusters of this user."""
    found: list[dict[str, Any]] = []
    for name in clusters():
        try:
            found.append(describe(load(name)))
        except KubekitError as error:
            found.append({"name": name, "running": False, "what": error.what, "cure": error.cure})
    if options.output in ("json", "yaml"):
        screen.print(as_document("Clusters", {"clusters": found}, options.output))
        return 0
    if options.output == "name":
        for one in found:
            screen.print(one["name"])
        return 0
    if not found:
        screen.say("no embedded cluster; gpuplane up starts one")
        return 0
    rows = [("NAME", "STATE", "NODES", "SERVER", "KUBECONFIG")]
    for one in found:
        if one["running"]:
            number = f"{len(one['nodes']) + one['lightNodes']:5}"
            rows.append((one["name"], "running", number, one["server"], one["kubeconfig"]))
        else:
            rows.append((one["name"], "stopped", "", one["cure"], ""))
    _print_table(rows if options.output == "wide" else [row[:-1] for row in rows], screen)
    return 0


def machine_names(words: Sequence[str]) -> list[str]:
    """The machines that can be simulated, for completion: as NAME=MACHINE behind a name."""
    name, equals, _ = words[-1].rpartition("=")
    return [f"{name}{equals}{machine}" for machine in machines()]


def releases(words: Sequence[str]) -> list[str]:
    """The releases of Kubernetes that can be built, for completion."""
    from gpulab.kubernetes.binaries import version

    return [version("kubernetes").removeprefix("v").rpartition(".")[0]]


def cluster_names(words: Sequence[str]) -> list[str]:
    """The clusters that there are, for completion."""
    return list(clusters())


def _list_machines(options: Namespace, screen: Console) -> int:
    found = [machine(name) for name in machines()]
    if options.output in ("json", "yaml"):
        listed = [
            {"name": m.name, "os": m.os_image, "kernel": m.kernel, "runtime": m.runtime, "gpus": m.gpus} for m in found
        ]
        screen.print(as_document("Machines", {"machines": listed}, options.output))
        return 0
    if options.output == "name":
        for m in found:
            screen.print(m.name)
        return 0
    rows = [("NAME", "OS", "RUNTIME", "GPUS", "DRIVER", "KERNEL", "OS-IMAGE")]
    rows += [
        (
            *(m.name, f"{m.os.id}{m.os.version_id}", m.runtime, m.gpus or "no GPU"),
            *(m.driver if m.preinstalled else "none", m.kernel, m.os_image),
        )
        for m in found
    ]
    _print_table(rows if options.output == "wide" else [row[:5] for row in rows], screen)
    return 0


def _print_table(rows: Sequence[Sequence[str]], screen: Console) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        screen.print("   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


async def _until_interrupted() -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    await done.wait()
