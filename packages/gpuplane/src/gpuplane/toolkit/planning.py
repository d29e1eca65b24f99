"""Plans the files on a host that make its container runtime offer GPUs: pure, from facts to files.

A plan is a set of whole files, what each path returns to, and which of them the runtime has to read again. A plan of a
host that is as planned is the same plan, so applying it changes nothing.
"""

from __future__ import annotations

import functools
import hashlib

import msgspec

from gpuplane import names
from gpuplane.host import Before, ChangeRecord, ManagedFile, base_of
from gpuplane.toolkit import (
    cdi_spec,
    containerd,
    crio,
    docker,
    json_edit,
    runtime_config,
    shipped,
    template_edit,
    toml_edit,
)
from gpuplane.toolkit.facts import (
    CDI_HOOK,
    LOW_LEVEL,
    RUNTIME,
    RUNTIMES,
    DriverFiles,
    ToolkitError,
    ToolkitFacts,
    decoded,
)
from gpuplane.toolkit.places import Edit, RuntimeName, RuntimePaths

LIBCUDA = "libcuda.so.1"


class ToolkitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`restart_for` are the paths that the runtime reads only on a reload; `digest` names all contents together.

    `version` is the runtime's for which this is planned, () when unknown; `runtimes` are those that its main file names
    for us. `handlers` are those that pods can choose by a RuntimeClass.
    """

    place: RuntimePaths
    version: tuple[int, ...] = ()
    runtimes: frozenset[str] = frozenset()
    handlers: tuple[str, ...] = ()
    files: tuple[ManagedFile, ...]
    restart_for: frozenset[str]
    digest: str

    @property
    def runtime(self) -> RuntimeName:
        return self.place.runtime


def plan(facts: ToolkitFacts, *, set_as_default: bool | None = None) -> ToolkitPlan:
    """The files for this host.

    Args:
        set_as_default: whether containers that ask for no runtime get `nvidia`. None: where there is no other way
            to give a pod its GPUs (docker, and containerd before 1.7), if the program is there; the others know CDI.

    Raises:
        InvalidInput: a configuration does not parse or cannot be edited safely.
        ToolkitError: RuntimeBinaryMissing, when `nvidia` shall be the default and every container would fail;
            DriverIncomplete, when containers would get a driver without CUDA; DeviceNodesMissing.
    """
    _check_driver(facts.driver)
    _check_devices(facts)
    there = facts.has(RUNTIME)
    if set_as_default and not there:
        raise ToolkitError(
            "RuntimeBinaryMissing",
            f"{RUNTIME} is not on the host, and every container would fail with it as the default",
            where=facts.program(RUNTIME),
            cure="install the NVIDIA container toolkit, or leave the default runtime as it is",
        )
    wants_default = there and (_lacks_cdi(facts) if set_as_default is None else set_as_default)
    base = base_of(facts.main, facts.record, lambda now: _strip(facts, now))
    configs = {} if facts.nri else _configs(facts, base, "nvidia" if wants_default else None)
    main = facts.place.config
    if main in configs and _same_meaning(facts.place, configs[main], facts.main):
        # Edited since, and our part is still in it: theirs is the layout to keep, and nothing has to restart.
        configs[main] = _decode(facts.main, main)
    mode = facts.main.mode if facts.main.kind == "file" else 0o644
    # NB: cri-o reads every file in the directory of its drop-ins, also one that never got its name.
    above = facts.runtime is RuntimeName.CRIO
    files = [
        ManagedFile(
            path=path,
            data=text.encode(),
            mode=mode,
            before=base if path == main else None,
            above=above and path == facts.place.drop_in,
        )
        for path, text in configs.items()
    ]
    tools = [] if facts.nri else _tools(facts, base)
    specs = cdi_spec.specs(facts)
    if specs and facts.own_hook:
        tools.append(ManagedFile(path=f"{names.TOOLKIT_DIR}/{CDI_HOOK}", data=facts.own_hook, mode=0o755))
    tools += [ManagedFile(path=path, data=text.encode(), durable=False) for path, text in specs.items()]
    # NB: what is referred to comes before what refers to it, and the main file, which starts it all, last.
    ordered = tuple(tools + files)
    digest = hashlib.sha256()
    for file in ordered:
        digest.update(f"{file.path} {file.fingerprint}\n".encode())
    return ToolkitPlan(
        place=facts.place,
        version=facts.version,
        handlers=_handlers(facts),
        runtimes=frozenset(name for name, program in RUNTIMES.items() if main in configs and facts.has(program)),
        files=ordered,
        restart_for=frozenset(configs),
        digest=digest.hexdigest()[:16],
    )


def _handlers(facts: ToolkitFacts) -> tuple[str, ...]:
    """Return the runtimes that this configuration offers to RuntimeClasses.

    docker is left out: the kubelet's way to it (cri-dockerd) knows no other runtime than the default in some releases.
    """
    if facts.nri or facts.runtime is RuntimeName.DOCKER:
        return ()
    return tuple(name for name, program in RUNTIMES.items() if facts.has(program))


def _tools(facts: ToolkitFacts, base: Before) -> list[ManagedFile]:
    """NVIDIA's programs, where gpuplane brings them, and their configuration."""
    runtimes = tuple(dict.fromkeys((*_stock_program(facts, base), *facts.low_level))) or LOW_LEVEL
    config = runtime_config.config_toml(facts, runtimes).encode()
    return [*shipped.files(facts, runtimes[0]), ManagedFile(path=runtime_config.PATH, data=config)]


def _stock_program(facts: ToolkitFacts, base: Before) -> tuple[str, ...]:
    """The program of the runtime whose options ours take over, where the configuration names one."""
    text = _decode(base if facts.effective is None else Before("file", facts.effective), facts.place.config)
    others = {path: _decode(Before("file", data), path) for path, data in facts.others.items()}
    module = {RuntimeName.DOCKER: docker, RuntimeName.CRIO: crio, RuntimeName.CONTAINERD: containerd}[facts.runtime]
    program = module.stock_program(facts.place, text, others, frozenset(RUNTIMES))
    # A default runtime that is NVIDIA's under another name would start itself.
    return (program,) if program and not program.rpartition("/")[2].startswith(RUNTIME) else ()


def _check_driver(driver: DriverFiles) -> None:
    """Raises ToolkitError when the driver has libraries, but not the one that every CUDA program loads."""
    there = {path.rpartition("/")[2] for path in (*driver.libraries, *driver.links)}
    if there and LIBCUDA not in there:
        directory = min((*driver.libraries, *driver.links)).rpartition("/")[0]
        raise ToolkitError(
            "DriverIncomplete",
            f"driver {driver.version} has no {LIBCUDA}",
            where=f"{driver.root.rstrip('/')}{directory}",
            cure=f"install the driver's libraries of version {driver.version} again",
        )


def _check_devices(facts: ToolkitFacts) -> None:
    """Raises ToolkitError when NVML lists GPUs and none of them has a device node for containers."""
    if facts.gpus and not any(f"nvidia{gpu.minor}" in facts.devices.nodes for gpu in facts.gpus):
        raise ToolkitError(
            "DeviceNodesMissing",
            f"none of the {len(facts.gpus)} GPUs has a device node",
            where=f"{facts.devices.root.rstrip('/')}/dev/nvidia{facts.gpus[0].minor}",
            cure="nvidia-modprobe -u -c 0, or nvidia-smi as root, makes them",
        )


def strip_record(place: RuntimePaths, record: ChangeRecord, now: Before) -> Before:
    """Return the record after an edit by others: their changes stay, gpuplane's are removed."""
    if record.path != place.config:
        return record.before  # the other files are ours alone
    text = _decode(now, record.path)
    if place.runtime is RuntimeName.DOCKER:
        text = docker.strip(text, _decode(record.before, record.path), RUNTIMES, f"/{record.path}")
    else:
        text = containerd.strip(place, text)
    return _stripped(record.before, now, text)


def _configs(facts: ToolkitFacts, base: Before, default: str | None) -> dict[str, str]:
    text = _decode(base, facts.place.config)
    others = tuple((path, _decode(Before("file", data), path)) for path, data in facts.others.items())
    programs = tuple((name, facts.program(program)) for name, program in RUNTIMES.items() if facts.has(program))
    effective = None
    if facts.effective is not None:
        effective = _decode(Before("file", facts.effective), facts.place.effective)
    return dict(_configured(facts.place, facts.version, text, effective, others, programs, default))


Texts = tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=16)
def _configured(
    place: RuntimePaths,
    version: tuple[int, ...],
    text: str,
    effective: str | None,
    others: Texts,
    programs: Texts,
    default: str | None,
) -> Texts:
    """The files by path and text; remembered, since nodes of one kind have the same configuration."""
    given = dict(programs)
    if place.runtime is RuntimeName.DOCKER:
        new = docker.configure(text, f"/{place.config}", programs=given, default=default, docker=version)
        files = {place.config: new} if new != text else {}
    elif place.runtime is RuntimeName.CRIO:
        files = crio.configure(place, text, dict(others), programs=given, default=default)
    else:
        files = containerd.configure(
            place, text, dict(others), effective=effective, programs=given, default=default, containerd=version
        )
    return tuple(files.items())


def _lacks_cdi(facts: ToolkitFacts) -> bool:
    """Return whether the runtime cannot be asked for CDI devices by a kubelet."""
    if facts.runtime is RuntimeName.CONTAINERD:
        return () < facts.version < (1, 7)
    return facts.runtime is RuntimeName.DOCKER


def _same_meaning(place: RuntimePaths, text: str, now: Before) -> bool:
    path = place.config
    if now.kind != "file":
        return False
    if place.edit is Edit.TEMPLATE:
        return template_edit.same(text, _decode(now, path), "imports")
    parse = json_edit.parse if place.runtime is RuntimeName.DOCKER else toml_edit.parse
    return parse(text, path) == parse(_decode(now, path), path)


def _strip(facts: ToolkitFacts, now: Before) -> Before:
    """The main file without our part, where it is not as we left it."""
    if facts.record is not None:
        return strip_record(facts.place, facts.record, now)
    if facts.runtime is RuntimeName.CONTAINERD and now.kind == "file":
        return _stripped(Before(), now, containerd.strip(facts.place, _decode(now, facts.place.config)))
    return now


def _stripped(before: Before, now: Before, text: str) -> Before:
    """`now` with another text; absent when the file was made by us and nothing of others is in it."""
    made = ("", "{}", containerd.BASE_TEMPLATE.strip())
    if before.kind == "absent" and text.strip() in made and now.data.decode().strip() not in made:
        return Before()
    return msgspec.structs.replace(now, data=text.encode())


def _decode(file: Before, path: str) -> str:
    return decoded(file.data, f"/{path.lstrip('/')}")
