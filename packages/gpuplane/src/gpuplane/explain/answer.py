"""The answer of `gpuplane explain POD` as data: what `-o json` prints, and what the picture is drawn from. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.offers import GpuUnits, units_asked
from gpuplane.explain.cures import cures
from gpuplane.explain.evictions import EvictionAnswer
from gpuplane.explain.gangs import GangAnswer
from gpuplane.explain.proving import Cure, gib, place_of, runs_on
from gpuplane.explain.scheduled import Scheduling, scheduling
from gpuplane.explain.words import request_text
from gpuplane.explain.world import GPU_RESOURCES, ClusterFacts, NodeVerdict, Object, World
from gpuplane.sharing import Assignment, LedgerGPU, of_pod, request_of
from gpuplane.sharing.held import held_parts, in_parts, in_units
from gpuplane.sharing.placement import Lack
from gpuplane.sharing.unsupported import unsupported
from kubekit.api.core import Container, Event, Pod, has_ended
from kubekit.errors import InvalidInput

# Reasons of GPUs in addition to those of placement: one that would do by itself, where not enough of them are together;
# and one of which nothing is left.
TOGETHER: Final = "together"
HELD_WHOLE: Final = "whole"
CHOSEN_BY_KUBELET: Final = "no assignment: the kubelet chose the GPUs, and only it knows which"


class ReasonTally(msgspec.Struct, frozen=True, rename="camel"):
    """The number of nodes or GPUs with one reason; `nearest` lacks least, as node/GPU, `missing` of it."""

    count: int
    reason: str
    nearest: str = ""
    missing: str = ""


class FreeGPU(msgspec.Struct, frozen=True, rename="camel"):
    """The free part of one GPU, and why it does not suffice; `reason` is a key of REASONS or empty."""

    index: int
    core: int
    memory_mib: int
    reason: str


class FreeNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node that only its GPUs keep from taking the pod; `exact` is false where holders do not say which they hold."""

    node: str
    gpus: tuple[FreeGPU, ...]
    exact: bool = True


class Held(msgspec.Struct, frozen=True, rename="camel"):
    """The part of one GPU that one container holds; `fault` says why the GPU is not usable.

    `unit` is what it holds where that is neither a share nor a whole GPU: `2 replicas`. Where no annotation names the
    GPU and the node has no other, `container` is all the pod's containers with GPUs.
    """

    container: str
    gpu: str  # node/index
    uuid: str
    model: str
    core: int
    memory_mib: int
    fault: str = ""
    unit: str = ""


class PoolAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of one pool: it would buy `type` for `price` dollars an hour, or nothing by the rule `why_not`.

    `price` is that of the built-in list: on-demand, in the region of `Explanation.priced`. `spot`: the pool may buy the
    type as spot too, or only so where `capacity_type` is spot; such a node costs `price` at most. `region` is where the
    pool buys, empty where that is unknown. `also_not` are further rules, each found once the rule before it is away.
    `cures` let the pool buy a node; each was decided again with the change made. `given_up` are the preferences of the
    pod that the node does not keep.
    """

    pool: str
    type: str = ""
    capacity_type: str = ""
    price: float = 0.0
    why_not: str = ""
    spot: bool = False
    region: str = ""
    also_not: tuple[str, ...] = ()
    cures: tuple[Cure, ...] = ()
    given_up: tuple[str, ...] = ()


class Buying(msgspec.Struct, frozen=True, rename="camel"):
    """The work of the autoscaler for a pod. `autoscaler` is its Deployment, empty where none is installed.

    `state`: none-installed, not-running, standing-aside, coming (a node is on its way), refused (it said no), failed
    (a launch found no capacity), nominated (a node that exists is promised), or undecided. `text` says it in words,
    `claim` is the NodeClaim on its way. `cure` is empty where nothing has to be done.
    """

    state: str
    text: str
    autoscaler: str = ""
    claim: str = ""
    cure: str = ""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """`state`: waiting, placed, ended, or nothing (it asks for no GPU).

    `node_reasons` and `gpu_reasons` sum up to `nodes` and `gpus`. `runs_on` is where it would be placed now, as
    node/GPU: of a waiting pod, or of a placed one if it came again.
    """

    pod: str
    state: str
    asks: str = ""
    since: str = ""
    now: str = ""
    can_ever_run: bool | None = True  # None where `unread` keeps it unknown
    quota: str = ""  # ok, exceeded, or empty where none is set
    queue: str = ""  # name and share of the pod scheduler's queue that it is in
    waits_for_queue: str = ""  # why that queue lets it wait, whatever is free
    gang: GangAnswer | None = None  # of a waiting pod of the pod scheduler; the reasons of nodes are of the pod alone
    evictions: EvictionAnswer | None = None  # what preemption would do for it; None where it has a place
    findings: tuple[str, ...] = ()
    nodes: int = 0
    node_reasons: tuple[ReasonTally, ...] = ()
    gpus: int = 0
    gpu_reasons: tuple[ReasonTally, ...] = ()
    free: tuple[FreeNode, ...] = ()
    free_not_listed: int = 0  # further nodes of this kind, where the operator answered
    cures: tuple[Cure, ...] = ()
    node: str = ""
    held: tuple[Held, ...] = ()
    runs_on: str = ""
    unread: tuple[str, ...] = ()  # the kinds that the user may not list: then only events say why the pod waits
    reported: tuple[str, ...] = ()  # the newest event of each reason, where `unread` says that nothing else is known
    # Where no node takes the pod: what each node pool would buy, or why it would not.
    pools: tuple[PoolAnswer, ...] = ()
    priced: str = ""  # date and region of the prices of `pools`
    unread_volumes: tuple[str, ...] = ()  # kinds without which the zones of its volumes are unknown to `pools`
    unread_scheduling: tuple[str, ...] = ()  # kinds that the pod's scheduler reads, and the user may not list
    buying: Buying | None = None  # where there are node pools
    note: str = ""  # further facts: gates, kube-scheduler's own words, an assignment that is broken


def explain(raw: Object, facts: ClusterFacts, now: str, world: World | None = None) -> Explanation:
    """Why the pod is where it is, or why it waits. `world` is that of the facts, where there is one already."""
    pod = msgspec.convert(raw, Pod)
    meta, bound, phase = pod.metadata, pod.spec.node_name, pod.status.phase
    start = Explanation(f"{meta.namespace}/{meta.name}", "waiting", since=meta.creation_timestamp, now=now)
    try:
        request = request_of(pod)
    except InvalidInput as error:
        state = "placed" if bound else "waiting"
        return _with(start, state=state, node=bound, can_ever_run=False, findings=error.findings or (str(error),))
    devices = {name: number for name, number in units_asked(pod).items() if name not in GPU_RESOURCES}
    start = _with(start, asks=request_text(request, devices), node=bound)
    if not request and not devices:
        return _with(start, state="nothing", note="" if bound else _scheduler_said(pod))
    if has_ended(phase):
        return _with(start, state="ended", note=f"ended: {phase}")
    world = world or World(facts)
    if bound:
        return _placed(start, raw, pod, world)
    return _waiting(start, raw, pod, world)


def explain_by_events(
    raw: Object, unread: Sequence[str], events: Iterable[Event], now: str, why: str = ""
) -> Explanation:
    """Say what a user may know who may read the pod's namespace alone: no other tenant is named.

    `why` says why the operator did not answer instead.
    """
    found = _with(explain(raw, ClusterFacts((), ()), now), queue="", gang=None, evictions=None)
    if found.state != "waiting" or found.findings:
        return _with(found, unread=tuple(unread), runs_on="")
    newest: dict[str, Event] = {}
    for event in sorted(events, key=_time):
        newest[event.reason] = event
    reported = [f"{event.reason}: {event.message}" for event in newest.values() if event.message]
    condition = _scheduler_said(msgspec.convert(raw, Pod))
    reported = reported or ([condition] if condition else [])
    return _with(
        found, unread=tuple(unread), reported=tuple(reported), can_ever_run=None, cures=(), runs_on="", note=why
    )


def _time(event: Event) -> str:
    return event.last_timestamp or event.event_time or event.first_timestamp or ""


def _with(explanation: Explanation, **changes: Any) -> Explanation:
    return msgspec.structs.replace(explanation, **changes)


# -- a pod that is placed ----------------------------------------------------------------------------------------------


def _placed(start: Explanation, raw: Object, pod: Pod, world: World) -> Explanation:
    node, uid = pod.spec.node_name, pod.metadata.uid
    since = next((c.last_transition_time or "" for c in pod.status.conditions if c.type == "PodScheduled"), start.since)
    start = _with(start, state="placed", since=since)
    try:
        assignment = of_pod(pod)
    except InvalidInput as error:
        return _with(start, note=str(error))
    again = ""
    if uid in world.pods:
        free = {**raw, "spec": {key: value for key, value in raw["spec"].items() if key != "nodeName"}}
        with world.without(uid):
            again = runs_on(world.judge(free))
    units = world.units(node) if node in world.nodes else ()
    if in_parts(pod, units):
        start, assignment = _with(start, asks=in_units(units_asked(pod), units)), None
    held = _assigned(assignment, node, world.gpus(node)) if assignment is not None else _kept(pod, units, world)
    return _with(start, held=tuple(held), runs_on=again, note="" if held else CHOSEN_BY_KUBELET)


def _assigned(assignment: Assignment, node: str, listed: Sequence[LedgerGPU]) -> list[Held]:
    """Return the parts that the pod's annotation names."""
    gpus = {gpu.uuid: gpu for gpu in listed} | {str(gpu.index): gpu for gpu in listed}
    held = []
    for container, parts in assignment.containers.items():
        for part in parts:
            gpu = gpus.get(part.uuid or str(part.index))
            fault = "not on the node any more" if gpu is None else gpu.fault
            model, whole = (gpu.model, gpu.memory_mib) if gpu is not None else ("", 0)
            memory = part.memory_mib or (whole if part.core >= 100 else 0)
            held.append(Held(container, f"{node}/{part.index}", part.uuid, model, part.core, memory, fault))
    return held


def _kept(pod: Pod, units: Sequence[GpuUnits], world: World) -> list[Held]:
    """Return the parts of a pod for which the kubelet chose; empty where they are unknown."""
    node = pod.spec.node_name
    gpus = {gpu.index: gpu for gpu in world.gpus(node)}
    containers = ",".join(one.name for one in (*pod.spec.containers, *pod.spec.init_containers) if _with_gpus(one))
    return [
        Held(containers, f"{node}/{part.index}", gpu.uuid, gpu.model, part.core, part.memory_mib, gpu.fault, part.unit)
        for part in held_parts(pod, world.gpus(node), units)
        if (gpu := gpus.get(part.index)) is not None
    ]


def _with_gpus(container: Container) -> bool:
    return any(name in GPU_RESOURCES or name.startswith(names.NVIDIA_PREFIX) for name in container.resources.limits)


# -- a pod that waits --------------------------------------------------------------------------------------------------


def _waiting(start: Explanation, raw: Object, pod: Pod, world: World) -> Explanation:
    verdicts = world.judge(raw)
    never = _unsupported(raw, pod)
    place = "" if never else runs_on(verdicts)
    lacking = [verdict for verdict in verdicts if verdict.about == "gpus" and verdict.lacks]
    free = tuple(_free(world, verdict) for verdict in lacking)
    gates = [gate["name"] for gate in raw["spec"].get("schedulingGates") or ()]
    note = f"scheduling gates hold it back: {', '.join(gates)}" if gates else never
    found = Scheduling() if note else scheduling(world, raw, start.now, fits=bool(place))
    if found.refused:
        place = ""
    elif found.place is not None:
        place = found.place
    alone = not never and found.gang is None and not found.waits_for_queue
    return _with(
        start,
        can_ever_run=world.can_ever_run(raw),
        quota=_quota(verdicts, pod.metadata.namespace in world.facts.quotas),
        queue=found.queue,
        waits_for_queue=found.waits_for_queue,
        gang=found.gang,
        evictions=found.evictions,
        nodes=len(verdicts),
        node_reasons=_nodes(verdicts),
        gpus=sum(len(verdict.lacks) for verdict in lacking),
        gpu_reasons=_gpus(lacking, free),
        free=free,
        cures=tuple(cures(world, raw, verdicts)) if alone and not place and not found.refused else found.cures,
        runs_on=place,
        unread_scheduling=world.facts.scheduling.unread if found.asked else (),
        note=note or found.refused or (_scheduler_said(pod) if place else ""),
    )


def _quota(verdicts: Iterable[NodeVerdict], limited: bool) -> str:
    if any(verdict.about == "quota" for verdict in verdicts):
        return "exceeded"
    return "ok" if limited else ""


def _nodes(verdicts: Sequence[NodeVerdict]) -> tuple[ReasonTally, ...]:
    """Reasons with the number of nodes; what is about GPUs last, since that is what can be done something about."""
    counted = Counter((verdict.about, verdict.reason or "fits") for verdict in verdicts)
    order = {"node": 0, "quota": 1, "gpus": 2, "": 3}
    ranked = sorted(counted.items(), key=lambda item: (order[item[0][0]], -item[1], item[0][1]))
    places = {verdict.reason: place_of(verdict) for verdict in verdicts if verdict.placement is not None}
    return tuple(
        ReasonTally(count, reason, places.get("", "") if not about else "") for (about, reason), count in ranked
    )


def _gpus(verdicts: Sequence[NodeVerdict], free: Sequence[FreeNode]) -> tuple[ReasonTally, ...]:
    """Reasons with the number of GPUs and the nearest one."""
    groups: dict[str, list[tuple[Lack, str]]] = {}
    for verdict, node in zip(verdicts, free, strict=True):
        for gpu, lack in zip(node.gpus, verdict.lacks, strict=True):
            groups.setdefault(gpu.reason or TOGETHER, []).append((lack, verdict.node))
    ranked = sorted(groups.items(), key=lambda item: (item[0] == "lost", -len(item[1]), item[0]))
    return tuple(_tally(reason, lacks) for reason, lacks in ranked)


def _tally(reason: str, lacks: Sequence[tuple[Lack, str]]) -> ReasonTally:
    if reason not in ("memory", "core"):
        where = ", ".join(f"{node}/{lack.gpu}" for lack, node in lacks[:2]) if reason == "lost" else ""
        return ReasonTally(len(lacks), reason, where)
    lack, node = min(lacks, key=lambda one: (one[0].core, one[0].memory_mib, one[1], one[0].gpu))
    missing = f"{lack.core}%" if reason == "core" else gib(lack.memory_mib)
    return ReasonTally(len(lacks), reason, f"{node}/{lack.gpu}", missing)


_GONE: Final = {"held": HELD_WHOLE, "lost": "lost"}  # of a GPU of which nothing is free


def _free(world: World, verdict: NodeVerdict) -> FreeNode:
    exact = not world.holdings.is_guessed(verdict.node)
    if not exact and all(lack.reason in _GONE for lack in verdict.lacks):
        gone = tuple(FreeGPU(lack.gpu, 0, 0, _GONE[lack.reason]) for lack in verdict.lacks)
        return FreeNode(verdict.node, gone, exact)
    state = world.holdings.node(verdict.node)
    assert state is not None  # it has GPUs that lack something
    gpus = []
    for lack, core, memory in zip(verdict.lacks, state.core, state.memory, strict=True):
        if lack.reason == "lost":
            gpus.append(FreeGPU(lack.gpu, 0, 0, lack.reason))
            continue
        whole = (lack.reason in ("core", "held") and not core) or (lack.reason == "held" and not exact)
        gpus.append(FreeGPU(lack.gpu, core, memory, HELD_WHOLE if whole else lack.reason))
    return FreeNode(verdict.node, tuple(gpus), exact)


def _unsupported(raw: Object, pod: Pod) -> str:
    """Return why the pod scheduler never places a pod that names it; empty for other pods."""
    ours = pod.spec.scheduler_name == names.SCHEDULER_NAME
    return unsupported(raw["metadata"], raw["spec"]) if ours else ""


def _scheduler_said(pod: Pod) -> str:
    name = "gpuplane's pod scheduler" if pod.spec.scheduler_name == names.SCHEDULER_NAME else "kube-scheduler"
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and condition.message:
            return f"{name} reported: {condition.message}"
    return "" if pod.status.conditions else "no scheduler has looked at it yet"
