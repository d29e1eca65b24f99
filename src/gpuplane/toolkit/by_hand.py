"""The toolkit without a cluster, for `gpuplane toolkit configure | unconfigure | cdi` on one machine."""

from __future__ import annotations

import msgspec

from gpuplane.errors import Retryable
from gpuplane.hardware import GPU, open_gpus
from gpuplane.host import Host
from gpuplane.toolkit import applying, cdi_spec
from gpuplane.toolkit.facts import Facts, RuntimeName
from gpuplane.toolkit.observing import observe
from gpuplane.toolkit.planning import Plan, plan


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, or would be: the runtime, the changed paths, the diff (dry run), why there is no CDI spec."""

    runtime: RuntimeName | None = None
    changed: tuple[str, ...] = ()
    diff: str = ""
    no_cdi: str = ""
    restart: str = ""  # the command that makes the runtime read its configuration, where it was not told


async def configure(
    host: Host,
    *,
    runtime: str = "",
    set_as_default: bool | None = None,
    restart: bool = True,
    dry_run: bool = False,
) -> Report:
    """Let the machine's container runtime give out GPUs, and write the CDI cdi_spec.

    Raises:
        InvalidInput, ToolkitError, HostError: with place and cure; the machine is as it was.
    """
    facts, why = _observe(host, runtime)
    planned = plan(facts, set_as_default=set_as_default)
    if dry_run:
        text = applying.diff(host, planned)
        return Report(runtime=facts.runtime, diff=text, no_cdi=why, restart=_command(planned) if text else "")
    changed = await applying.apply(host, planned, restart=restart)
    due = not restart and any(path in planned.restart_for for path in changed)
    return Report(runtime=facts.runtime, changed=changed, no_cdi=why, restart=_command(planned) if due else "")


async def unconfigure(host: Host, *, restart: bool = True, dry_run: bool = False) -> Report:
    """Give the runtime its configuration back, byte for byte."""
    if dry_run:
        return Report(diff=applying.undo_diff(host))
    return Report(changed=await applying.unconfigure(host, restart=restart))


def cdi(host: Host, *, management: bool = False) -> str:
    """The CDI specification of this machine's GPUs, as JSON.

    Raises:
        Retryable: NVML does not answer.
    """
    facts, _ = _observe(host, "containerd", must_answer=True)
    path = cdi_spec.MANAGEMENT_SPEC if management else cdi_spec.SPEC
    return cdi_spec.specs(facts)[path]


def _observe(host: Host, runtime: str, *, must_answer: bool = False) -> tuple[Facts, str]:
    """The machine's facts, and why it has no GPUs to specify, if so."""
    gpus: tuple[GPU, ...] | None = None
    version = why = ""
    try:
        source = open_gpus(host.root, host.root / "dev")
        try:
            gpus, version = source.inventory(), source.driver_version()
        finally:
            source.close()
    except Retryable as error:
        if must_answer:
            raise
        why = str(error)
    return observe(host, gpus=gpus, driver_version=version, runtime=runtime), why


def _command(planned: Plan) -> str:
    verb = "reload" if planned.runtime is RuntimeName.DOCKER else "restart"
    unit = "crio" if planned.runtime is RuntimeName.CRIO else planned.runtime.value
    return f"systemctl {verb} {unit}"
