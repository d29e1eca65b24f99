"""The toolkit operand: CDI specifications and the runtime's configuration on its node, kept as planned.

A stage is a fact about the node: when this ends, all stays. Only `uninstall` takes it back.
"""

from __future__ import annotations

from gpuplane import names
from gpuplane.api.gpunode import Machine, Stage, StageName, StageState
from gpuplane.host import Host, HostError, Locked, observe_file
from gpuplane.operand import OperandContext, StageOutcome, keep_stage, remove_stage
from gpuplane.operand.nri.runtimes import NriRuntime, Unfit, refuse_unfit
from gpuplane.toolkit import applying
from gpuplane.toolkit.facts import ToolkitError, ToolkitFacts
from gpuplane.toolkit.observing import observe, with_nri
from gpuplane.toolkit.planning import ToolkitPlan, plan
from kubekit.api.core import Node
from kubekit.errors import InvalidInput, KubekitError, Retryable, Terminal


async def run(context: OperandContext) -> None:
    """Configure this node's runtime, report the stage, repeat when gpuplane's part is changed; until cancelled."""
    host = context.host
    watched: dict[str, str] = {}

    async def attempt() -> StageOutcome:
        node = await context.client.get(Node, context.node_name)
        said = node.status.node_info.container_runtime_version
        # Before the driver is looked for: it may become ready while the runtime is restarted.
        ready = observe_file(host, names.DRIVER_READY).fingerprint
        facts = _observe(context, host, said)
        note = ""
        if context.variables.get(names.NRI_ENV, "").strip().lower() == "true":
            without = _why_no_nri(host, said)
            note = f"configured all the same: {without}" if without else "not configured: GPUs come by NRI"
            facts = facts if without else with_nri(facts)
        planned = plan(facts)
        await applying.apply(host, planned, sleep=context.sleep)
        watched.clear()
        watched.update((path, observe_file(host, path).fingerprint) for path in _watched(facts, planned))
        watched[names.DRIVER_READY] = ready
        return StageOutcome(
            Stage(state=StageState.DONE, since=context.now(), message=note, digest=planned.digest),
            Machine(
                runtime=facts.runtime.value,
                runtime_version=said.partition("://")[2],
                handlers=planned.handlers,
            ),
        )

    async def until_changed() -> None:
        async for _ in host.watch(*watched):
            if any(observe_file(host, path).fingerprint != seen for path, seen in watched.items()):
                return

    await keep_stage(context, StageName.TOOLKIT, attempt, until_changed, reason_of)


async def uninstall(context: OperandContext) -> None:
    """Give this node's runtime its configuration back, byte for byte."""
    host = context.host

    async def undo() -> None:
        await applying.unconfigure(host, sleep=context.sleep)

    await remove_stage(context, StageName.TOOLKIT, undo, reason_of)


def _observe(context: OperandContext, host: Host, said: str) -> ToolkitFacts:
    try:
        source = context.open_gpus()
        try:
            gpus, version = source.inventory(), source.driver_version()
        finally:
            source.close()
    except (Retryable, Terminal) as error:
        raise ToolkitError("GPUsDoNotAnswer", error.what, where=error.where, cure=error.cure) from error
    return observe(host, gpus=gpus, driver_version=version, runtime=said)


def _why_no_nri(host: Host, said: str) -> str:
    """Why our NRI plugin cannot work with the runtime that the Node tells; empty when it can."""
    name, _, version = said.partition("://")
    try:
        refuse_unfit(NriRuntime(name, version))
    except Unfit as error:
        return error.what
    return "" if host.exists(names.NRI_SOCKET) else f"there is no /{names.NRI_SOCKET}"


def _watched(facts: ToolkitFacts, planned: ToolkitPlan) -> tuple[str, ...]:
    """The files whose change means that the plan may be another: ours and the runtime's."""
    ours = (file.path for file in planned.files)
    place = (facts.place.config, *([facts.place.effective] if facts.place.effective else []))
    return tuple(dict.fromkeys((*ours, *place, *facts.others)))


def reason_of(error: KubekitError) -> str:
    """The stable CamelCase cause that a failed stage shows for an error."""
    if isinstance(error, ToolkitError):
        return error.reason
    if isinstance(error, InvalidInput):
        return "ConfigurationInvalid"
    if isinstance(error, Locked):
        return "ToolkitBusy"
    if isinstance(error, HostError):
        return "HostFileSystem"
    return type(error).__name__
