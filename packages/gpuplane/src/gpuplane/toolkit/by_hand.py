"""The toolkit without a cluster, for `gpuplane toolkit configure | unconfigure | cdi` on one machine."""

from __future__ import annotations

import msgspec

from gpuplane.hardware import GPUFacts, open_gpus
from gpuplane.host import Host
from gpuplane.toolkit import applying, cdi_spec, health
from gpuplane.toolkit.cdi_spec import DEFAULT, CdiOptions
from gpuplane.toolkit.facts import CDI_HOOK, ToolkitError, ToolkitFacts
from gpuplane.toolkit.observing import observe, version_of
from gpuplane.toolkit.places import RuntimeName
from gpuplane.toolkit.planning import plan
from gpuplane.toolkit.restart import by_hand
from kubekit.errors import InvalidInput, Retryable


class ToolkitReport(msgspec.Struct, frozen=True, kw_only=True):
    """The actions that were done, or would be.

    `place` is what was found ("k3s"), `config` its file. `no_cdi` says why there is no CDI specification. `restart` is
    the command that makes the runtime read its configuration, where it has not yet.
    """

    runtime: RuntimeName | None = None
    place: str = ""
    config: str = ""
    changed: tuple[str, ...] = ()
    diff: str = ""
    no_cdi: str = ""
    restart: str = ""


async def configure(
    host: Host,
    *,
    runtime: str = "",
    config: str = "",
    socket: str = "",
    set_as_default: bool | None = None,
    restart: bool = True,
    dry_run: bool = False,
) -> ToolkitReport:
    """Let the machine's container runtime give out GPUs, and write the CDI specifications.

    Raises:
        InvalidInput, ToolkitError, HostError: with place and cure; the machine is as it was.
    """
    try:
        facts, why = _observe(host, runtime, config, socket)
        if release := await health.release(host, facts.place):
            facts = msgspec.structs.replace(facts, version=version_of(f"{facts.runtime}://{release}"))
        planned = plan(facts, set_as_default=set_as_default)
    except InvalidInput as error:
        if error.where.startswith("/"):  # as the host calls it
            error.where = host.shown(error.where.lstrip("/"))
        raise
    text = applying.diff(host, planned) if dry_run else ""
    if dry_run:
        due = any(file.path in planned.restart_for and host.read(file.path) != file.data for file in planned.files)
        changed: tuple[str, ...] = ()
    else:
        changed = await applying.apply(host, planned, restart=restart)
        due = not restart and any(path in planned.restart_for for path in changed)
    return ToolkitReport(
        runtime=facts.runtime,
        place=facts.place.name,
        config=host.shown(facts.place.config),
        changed=changed,
        diff=text,
        no_cdi=why,
        restart=by_hand(facts.place) if due else "",
    )


async def unconfigure(host: Host, *, restart: bool = True, dry_run: bool = False) -> ToolkitReport:
    """Give the runtime its configuration back, byte for byte."""
    if dry_run:
        return ToolkitReport(diff=applying.undo_diff(host))
    place = applying.configured(host)
    changed = await applying.unconfigure(host, restart=restart)
    if place is None:
        return ToolkitReport(changed=changed)
    due = not restart and applying.concern_the_runtime(changed)
    return ToolkitReport(
        runtime=place.runtime,
        place=place.name,
        config=host.shown(place.config),
        changed=changed,
        restart=by_hand(place, forget=True) if due else "",
    )


def cdi(
    host: Host, *, management: bool = False, choice: CdiOptions = DEFAULT, hook: str = "", yaml: bool = False
) -> str:
    """The CDI specification of this machine's GPUs, as JSON or YAML.

    Args:
        hook: path of NVIDIA's hook program, where it is not found.

    Raises:
        Retryable: NVML does not answer.
        InvalidInput: `choice` names what is not there.
        ToolkitError: DeviceNodesMissing.
    """
    facts, _ = _observe(host, "containerd", must_answer=not management)
    if hook:
        facts = msgspec.structs.replace(facts, own_hook=b"", shipped={}, programs={**facts.programs, CDI_HOOK: hook})
    elif not host.exists(facts.program(CDI_HOOK)):
        facts = msgspec.structs.replace(
            facts, own_hook=b"", shipped={}
        )  # only `configure` installs it, and it was not run
    made = cdi_spec.management(facts, choice) if management else cdi_spec.spec(facts, facts.gpus or (), choice)
    if not made["devices"]:
        raise ToolkitError(
            "DeviceNodesMissing",
            "no GPU has a device node",
            where=host.shown("dev"),
            cure="nvidia-modprobe -u -c 0, or nvidia-smi as root, makes them",
        )
    return cdi_spec.as_yaml(made) if yaml else cdi_spec.as_json(made)


def _observe(
    host: Host, runtime: str, config: str = "", socket: str = "", *, must_answer: bool = False
) -> tuple[ToolkitFacts, str]:
    """The machine's facts, and why it has no GPUs to specify, if so."""
    gpus: tuple[GPUFacts, ...] | None = None
    version = why = ""
    try:
        source = open_gpus(host.root)
        try:
            gpus, version = source.inventory(), source.driver_version()
        finally:
            source.close()
    except Retryable as error:
        if must_answer:
            cure = error.cure.removesuffix("; it is tried again")
            raise Retryable(error.what, where=error.where, cure=cure) from None
        why = error.what
    return observe(host, gpus=gpus, driver_version=version, runtime=runtime, config=config, socket=socket), why
