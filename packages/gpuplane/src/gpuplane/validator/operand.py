"""The validator of one node: proves CUDA on every GPU when the toolkit holds, and a pod with a GPU when the plugin
does.

Driven by watches of the node's own GPUNode and Node, and of the files that it makes or stands on. A failed check is
repeated when the GPUNode's GPUs, health, labels or annotations change, when what lies on the node does, or after a
pause of minutes; nothing else repeats. A proof lasts across restarts of this pod, and is made again after a boot of the
node: then the status files are gone, or of another boot. Files of driver and toolkit are waited for then, before they
are called missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, cast

from gpuplane import names
from gpuplane.api.gpunode import GPU, GPUNode, Stage, StageName, StageState
from gpuplane.api.requests import GpuOffer, offer_of
from gpuplane.host import HostError
from gpuplane.operand import OperandContext, VectorAdd, report_stage
from gpuplane.validator import checks, decide
from gpuplane.validator.char_links import make_links, wanted_links
from gpuplane.validator.checks import ValidationFacts, ValidationProblem
from gpuplane.validator.decide import Attempt, ValidationStep
from gpuplane.validator.features import OTHERS
from gpuplane.validator.features import mark as mark_features
from gpuplane.validator.problems import no_usable_gpu, unusable, vector_add_problem
from gpuplane.validator.process import VectorAddProcess
from gpuplane.validator.recheck import any_returned, keep_checking
from gpuplane.validator.workload import NoRoom, run_pod
from kubekit.api.core import Node
from kubekit.errors import KubekitError
from kubekit.kube import Controller, Informer

log = logging.getLogger("gpuplane.validator")

BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
NO_LINKS_ENV: Final = "DISABLE_DEV_CHAR_SYMLINK_CREATION"
NO_CUDA_ENV, NO_POD_ENV = "CUDA_WITH_WORKLOAD", "PLUGIN_WITH_WORKLOAD"
UNSEEN_SECONDS: Final = 10.0
ABSENT_SECONDS: Final = 15.0
MISSING_SECONDS: Final = 30.0
NOT_RUN: Final = "no GPU was free, so no pod was run"
NOT_WANTED: Final = "the ClusterPolicy wants no workload run"


class PluginProof(Protocol):
    """Prove that a pod which asks for GPUs by the node's `offer` gets one that works; the problem if not.

    Raises:
        NoRoom: no GPU is free.
        ApiError: the API server refused or is away.
    """

    async def __call__(self, context: OperandContext, offer: GpuOffer) -> ValidationProblem | None: ...


async def run(
    context: OperandContext,
    prove_plugin: PluginProof = run_pod,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Runs until cancelled. Status files and reports stay: they are facts about the node, not about this pod.

    Args:
        environment: switches of the ClusterPolicy's `validator`.
    """
    own = f"metadata.name={context.node_name}"
    nodes = Informer(context.client, GPUNode, fields=own)
    machines = Informer(context.client, Node, fields=own)
    name = context.node_name
    validator = Validator(
        context,
        nodes.get,
        lambda: allocatable_gpus(machines.get(name)),
        boot=lambda: boot_of(context, machines.get(name)),
        environment=environment,
        prove_plugin=prove_plugin,
    )
    controller = Controller("validator", [nodes, machines], validator.reconcile)
    check_again = asyncio.Event()

    def changed(old: GPUNode | None, new: GPUNode | None) -> None:
        if old is not None and new is not None and any_returned(old.status, new.status):
            check_again.set()

    nodes.add_handler(changed)
    others = [asyncio.create_task(_watch_files(context, controller))]
    if not is_off(environment, NO_CUDA_ENV):
        others.append(asyncio.create_task(keep_checking(context, lambda: nodes.get(name), check_again)))
    try:
        await controller.run()
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await nodes.stop()
        await machines.stop()


async def _watch_files(context: OperandContext, controller: Controller) -> None:
    """Look again when a status file or a link in `/dev/char` changes: a boot or a person takes them away, and driver
    and toolkit bring theirs back."""
    host = context.host
    files = [f"{names.VALIDATIONS_DIR}/{name}" for name in (*ValidationStep, *OTHERS)] + [*checks.WATCHED]
    try:
        while True:
            links = wanted_links(host)
            watch = cast("AsyncGenerator[None, None]", host.watch(*files, *links))
            async with contextlib.aclosing(watch) as changes:
                async for _ in changes:
                    controller.enqueue(context.node_name)
                    if wanted_links(host) != links:
                        break  # the driver came, or other devices did
    except KubekitError as error:
        log.warning("status files not watched, checked at the next change of the node: %s", error)


def boot_of(context: OperandContext, node: Node | None) -> str:
    """Names the boot that the node is in: the kernel's word, else the kubelet's; "" where neither is known."""
    said = context.host.read_text(BOOT_ID)
    return said or (node.status.node_info.boot_id if node is not None else "")


def is_off(environment: Mapping[str, str], name: str) -> bool:
    """Return whether a switch of the ClusterPolicy's `validator` is off."""
    return environment.get(name, "").strip().lower() in ("false", "0", "f")


def allocatable_gpus(node: Node | None) -> GpuOffer:
    return offer_of(node.status.allocatable) if node is not None else GpuOffer()


class Validator:
    """The state of one node's validations between two passes.

    Args:
        get: the newest GPUNode of that name, None while there is none.
        allocatable: the GPUs that the node's kubelet offers now.
        clock: monotonic seconds.
        boot: names the boot that the node is in.
        environment: switches of the ClusterPolicy's `validator`.
        prove_plugin: runs a pod with a GPU.
    """

    def __init__(
        self,
        context: OperandContext,
        get: Callable[[str], GPUNode | None],
        allocatable: Callable[[], GpuOffer],
        clock: Callable[[], float] = time.monotonic,
        boot: Callable[[], str] = lambda: "",
        environment: Mapping[str, str] = os.environ,
        prove_plugin: PluginProof = run_pod,
    ) -> None:
        self._context = context
        self._get = get
        self._allocatable = allocatable
        self._clock = clock
        self._boot = boot
        self._environment = environment
        self._prove_plugin = prove_plugin
        self._host = context.host
        self._said = ""  # of the links
        self._failed: dict[ValidationStep, Attempt] = {}
        self._absent: float | None = None  # since when the kubelet offers no GPU
        self._missing: float | None = None  # since when driver or toolkit are not all there
        self._unseen: dict[
            ValidationStep, tuple[str, float]
        ] = {}  # digest, and until when the watch may take to show it

    async def reconcile(self, name: str) -> float | None:
        """Validate what is due; the seconds after which to look again, None when only a change can bring news.

        Raises ApiError; what is wrong with the node is reported, not raised.
        """
        node = self._get(name)
        if node is None:
            return None
        if decide.holds(node.status, StageName.DRIVER):
            self._link()
        unseen = self._still_unseen(node)
        offered = self._allocatable().count > 0
        step = decide.next_step(
            node.status,
            self._files(),
            advertised=offered,
            boot=self._boot(),
            unseen=unseen,
        )
        if step is None:
            return UNSEEN_SECONDS if unseen else None
        if step is ValidationStep.PLUGIN and (left := self._grace(offered)):
            return left
        facts = self._facts() if step is ValidationStep.CUDA else None
        if facts is not None and (left := self._until_it_may_fail(node, facts)):
            return left
        fingerprint = decide.fingerprint(node, offered, facts)
        wait = decide.seconds_to_wait(self._failed.get(step), fingerprint, self._clock())
        if wait:
            return wait
        digest = decide.digest(node.status)
        try:
            note = await (self._cuda(node, facts) if step is ValidationStep.CUDA else self._plugin())
            text = decide.content(digest, self._boot())
            self._host.write_atomic(step.file, text.encode(), durable=False)
        except (HostError, OSError) as error:
            outcome: ValidationProblem | None = unusable(error)
        except Failed as error:
            outcome = error.problem
        else:
            outcome = None
        if outcome is None:
            self._failed.pop(step, None)
            done = Stage(state=StageState.DONE, since=self._context.now(), message=note, digest=digest)
            await report_stage(self._context, step.stage, done)
            self._unseen[step] = (digest, self._clock() + UNSEEN_SECONDS)
            return None
        self._failed[step] = attempt = decide.after_failure(self._failed.get(step), fingerprint, self._clock())
        with contextlib.suppress(HostError, OSError):
            self._host.remove(step.file, durable=False)
        failed = Stage(
            state=StageState.FAILED,
            since=self._context.now(),
            reason=outcome.reason,
            message=outcome.message,
            where=outcome.where,
            cure=outcome.cure,
        )
        await report_stage(self._context, step.stage, failed)
        return attempt.due - self._clock()

    def _files(self) -> dict[str, str]:
        """The status files that can be read; an obstacle is reported when a file is to be written."""
        try:
            return self._host.read_files(names.VALIDATIONS_DIR, [step.value for step in ValidationStep])
        except HostError:
            return {}

    def _facts(self) -> ValidationFacts | None:
        """Read the node's state; None when it cannot be read, which is reported when the step is tried."""
        try:
            return checks.read_facts(self._host)
        except HostError:
            return None

    def _hindrance(self, node: GPUNode, facts: ValidationFacts) -> ValidationProblem | None:
        uuids = [gpu.uuid for gpu in decide.gpus_to_prove(node.status)]
        return checks.first_problem(facts, uuids, namespace=self._context.namespace)

    def _until_it_may_fail(self, node: GPUNode, facts: ValidationFacts) -> float:
        """Return how long missing files may still appear: after a boot they appear one after the other, and are
        watched.
        """
        problem = self._hindrance(node, facts) if decide.gpus_to_prove(node.status) else None
        if problem is None or problem.reason not in checks.AWAITED:
            self._missing = None
            return 0.0
        if self._missing is None:
            self._missing = self._clock()
            log.info("waiting: %s", problem.message)
        return max(0.0, self._missing + MISSING_SECONDS - self._clock())

    def _grace(self, offered: bool) -> float:
        """Return how long GPUs that the kubelet no longer offers may stay away: a plugin that restarts is no
        failure.
        """
        if offered:
            self._absent = None
            return 0.0
        if self._absent is None:
            self._absent = self._clock()
        return max(0.0, self._absent + ABSENT_SECONDS - self._clock())

    def _still_unseen(self, node: GPUNode) -> dict[ValidationStep, str]:
        """Return the reports that the watch has not delivered yet; without them, a stage would be proved twice."""
        self._unseen = {
            step: (digest, until)
            for step, (digest, until) in self._unseen.items()
            if self._clock() < until and not decide.shown(node.status, step, digest)
        }
        return {step: digest for step, (digest, _) in self._unseen.items()}

    async def _cuda(self, node: GPUNode, facts: ValidationFacts | None) -> str:
        """Driver, toolkit, and the vectorAdd on every GPU. Raises Failed."""
        context, gpus = self._context, decide.gpus_to_prove(node.status)
        if not gpus:
            raise Failed(no_usable_gpu(node))
        facts = facts or checks.read_facts(self._host)
        problem = self._hindrance(node, facts)
        if problem is not None:
            raise Failed(problem)
        if (problem := mark_features(self._host)) is not None:
            raise Failed(problem)
        if is_off(self._environment, NO_CUDA_ENV):
            return NOT_WANTED
        vector_add = context.vector_add or _process(facts)
        results = await asyncio.gather(*(_errors(vector_add, gpu) for gpu in gpus))
        failures = [(gpu, error) for gpu, error in zip(gpus, results, strict=True) if error is not None]
        if decide.is_known_unusable(node.status, gpus[0]):
            if len(failures) == len(gpus):
                raise Failed(no_usable_gpu(node))
            failures = []  # one that works is enough: the device plugin looks at all of them again
        if failures:
            raise Failed(vector_add_problem(failures))
        log.info("vectorAdd passed gpus=%d of=%d", len(gpus), len(node.status.gpus))
        return ""

    async def _plugin(self) -> str:
        """The kubelet offers GPUs, and a pod that asks for one gets one that works. Raises Failed, ApiError."""
        context = self._context
        offer = self._allocatable()
        if offer.count <= 0:
            cure = f"kubectl -n {context.namespace} logs ds/nvidia-device-plugin-daemonset"
            raise Failed(
                ValidationProblem(
                    "NothingAllocatable", f"the kubelet offers no {offer.resource}", context.node_name, cure
                )
            )
        if is_off(self._environment, NO_POD_ENV):
            return NOT_WANTED
        try:
            problem = await self._prove_plugin(context, offer)
        except NoRoom:
            return NOT_RUN
        if problem is not None:
            raise Failed(problem)
        return ""

    def _link(self) -> None:
        if self._environment.get(NO_LINKS_ENV, "").strip().lower() in ("true", "1", "t"):
            return
        said = ""
        try:
            if made := make_links(self._host):
                log.info("links made in /dev/char count=%d", made)
        except (HostError, OSError) as error:
            # Containers get their GPUs all the same; they may lose them at a daemon-reload.
            said = f"no links in /dev/char: {error}"
        if said and said != self._said:
            log.warning(said)
        self._said = said


class Failed(KubekitError):
    """A validation found something wrong."""

    def __init__(self, problem: ValidationProblem) -> None:
        super().__init__(problem.message, where=problem.where, cure=problem.cure)
        self.problem = problem


def _process(facts: ValidationFacts) -> VectorAdd:
    if facts.library is None:
        raise AssertionError("checked before")
    return VectorAddProcess(Path(facts.library))


async def _errors(vector_add: VectorAdd, gpu: GPU) -> KubekitError | None:
    try:
        await vector_add(gpu.uuid)
    except KubekitError as error:
        log.error("vectorAdd failed gpu=%d: %s", gpu.index, error)
        return error
    return None
