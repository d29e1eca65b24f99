"""`gpuplane simulate nodes`: the nodes to buy for pods that wait, with prices, compared with Karpenter's own way."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.manifests import check_text
from gpuplane.autoscaler.asks import PodAsk, counted_in_gpus, read_asks, selected_values
from gpuplane.autoscaler.catalogue import InstanceType, aws_catalogue
from gpuplane.autoscaler.manifest_volumes import unknown_claims
from gpuplane.autoscaler.manifests import NodeQuestion, read_question
from gpuplane.autoscaler.options import PoolOptions, make_options
from gpuplane.autoscaler.overlays import overlaid
from gpuplane.autoscaler.preferences import preference_rules
from gpuplane.autoscaler.providers import aws_types
from gpuplane.autoscaler.purchase import NodePurchase, decide_as_karpenter, decide_purchase
from gpuplane.cli.forms import as_document
from gpuplane.cli.inputs import LONGEST_TABLE, read_input
from gpuplane.cli.nodes_drawn import draw
from gpuplane.cli.nodes_growth import parts_of, price_curve
from gpuplane.cli.nodes_html import nodes_page
from gpuplane.cli.output_files import require_output, write_output
from gpuplane.cli.simulate_files import read_jobs
from gpuplane.cli.simulate_types import read_types
from gpuplane.cli.terminal import Console, count, prefixed
from gpuplane.sharing.packing import MILLI, Job
from kubekit.documents import DocumentError
from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import compile_pod
from kubekit.yaml_documents import load_all_yaml

_DUPLICATE: Final = "GP117"
_MOST_NAMED: Final = 5  # claims in one line
_NAME_A_FILE: Final = "name a file that can be written"


def nodes(options: Namespace, screen: Console) -> int:
    if options.html is not None:
        require_output(options.html, option="--html", cure=_NAME_A_FILE)
    question = _read(options, screen)
    if not question.pools:
        cure = "a Provisioner of karpenter.sh/v1alpha5 or a NodePool of karpenter.sh/v1 or v1beta1"
        raise InvalidInput("no file has a node pool", where="--pools", cure=cure)
    if not question.pods:
        raise InvalidInput("no file has a pod that waits", where="--pods", cure="a Pod, a workload, or a CSV of pods")
    catalogue, prices = _catalogue(options)
    rules = preference_rules(True, question.pools)
    asks = read_asks(question.pods, rules, question.volumes)
    offers, verdicts = overlaid(_offers(question, catalogue, options, asks), question.overlays)
    for name, verdict in verdicts.items():
        if verdict.reason:
            screen.say(f"the NodeOverlay {name} is not applied: {verdict.message}")
    ours = decide_purchase(asks, offers)
    unaware = msgspec.structs.replace(question, sharing=msgspec.structs.replace(question.sharing, known=False))
    their_offers, _ = overlaid(_offers(unaware, catalogue, options, asks), question.overlays)
    in_gpus = counted_in_gpus(asks, rules)
    theirs = decide_as_karpenter(in_gpus, their_offers)
    if question.overlays:
        prices += ", with NodeOverlays"
    if options.html is not None:
        parts = parts_of(asks)
        curves = (
            price_curve(asks, parts, ours, lambda some: decide_purchase(some, offers)),
            price_curve(in_gpus, parts, theirs, lambda some: decide_as_karpenter(some, their_offers)),
        )
        facts = _facts(question, asks, prices)
        page = nodes_page(ours, theirs, draw(ours.nodes, asks), curves, options.command_line, facts)
        write_output(options.html, page.encode(), option="--html", cure=_NAME_A_FILE)
    if options.output != "text":
        screen.print(as_document("NodePurchase", _as_json(ours, theirs, prices), options.output))
    else:
        numbers = (count(len(asks), "pod"), count(len(question.pools), "node pool"), f"prices {prices}")
        screen.print(f"nodes    {'   '.join(numbers)}")
        screen.print()
        _show(ours, theirs, screen)
    if options.html is not None:
        screen.say(f"wrote {options.html}")
    return 0


def _facts(question: NodeQuestion, asks: Sequence[PodAsk], prices: str) -> dict[str, str]:
    """Return what the purchase is made of, in words."""
    return {
        "Pods": count(len(asks), "pod"),
        "Node pools": ", ".join(pool.name for pool in question.pools),
        "Prices": f"{prices}, dollars an hour",
    }


def _offers(
    question: NodeQuestion, catalogue: Sequence[InstanceType], options: Namespace, asks: Sequence[PodAsk]
) -> list[PoolOptions]:
    zones = tuple(zone.strip() for zone in options.zones.split(",")) if options.zones else ()
    if not all(zones):
        what = f"{options.zones!r} has an empty name"
        raise InvalidInput(what, where="--zones", cure="names with commas between: us-east-1a,us-east-1b")
    built_in = options.types is None
    daemons = [compile_pod(pod) for pod in question.daemons]
    return [
        make_options(
            pool,
            question.classes,
            catalogue,
            question.sharing,
            daemons,
            region=aws_types.REGION if built_in else "",
            zones=zones or (aws_types.ZONES if built_in else ()),
            asked=selected_values(asks),
        )
        for pool in question.pools
    ]


def _catalogue(options: Namespace) -> tuple[Sequence[InstanceType], str]:
    if options.types is None:
        return aws_catalogue(), f"of {aws_types.PRICED}, on-demand"
    return read_types(options.types), f"of {options.types.name}"


# -- the answer --------------------------------------------------------------------------------------------------------


def _show(ours: NodePurchase, theirs: NodePurchase, screen: Console) -> None:
    if ours.nodes:
        screen.print(f"  {'BUY':28} {'POOL':18} {'$/h EACH':>9} {'$/h ALL':>10} {'PODS':>6}")
    sums: dict[tuple[float, str, str, str], list[int]] = {}
    for node in ours.nodes:
        option = node.option
        row = sums.setdefault((option.price, option.machine.name, option.capacity_type, option.pool.name), [0, 0])
        row[0] += 1
        row[1] += len(node.pods)
    for (price, machine, kind, pool), (number, pods) in sorted(sums.items(), key=lambda row: -row[0][0] * row[1][0]):
        name = f"{number} {screen.glyph('times')} {machine}{' spot' * (kind == 'spot')}"
        screen.print(f"  {name:28} {pool:18} {price:9.3f} {price * number:10.2f} {pods:6}")
    if ours.nodes:
        screen.print()
    screen.print(f"  total        {ours.price:10.2f} $/h   {count(len(ours.nodes), 'node')}")
    for line in prefixed(f"  Karpenter    {theirs.price:10.2f} $/h   ", _in_words(theirs, screen), screen):
        screen.print(line)
    # A saving is a fact only where both ways run the same pods.
    if ours.waiting.keys() == theirs.waiting.keys() and theirs.price > 0:
        saved = theirs.price - ours.price
        screen.print(f"  saved        {saved:10.2f} $/h   {saved / theirs.price:.0%}")
    if ours.given_up:
        screen.print()
        _show_given_up(ours, screen)
    if ours.waiting:
        screen.print()
        _show_waiting(ours, screen)


def _in_words(answer: NodePurchase, screen: Console) -> str:
    machines = Counter(node.option.machine.name for node in answer.nodes)
    parts = [f"{number} {screen.glyph('times')} {name}" for name, number in machines.most_common(3)]
    more = f" and {count(len(machines) - 3, 'type')} more" if len(machines) > 3 else ""
    waiting = f"; {count(len(answer.waiting), 'pod')} without a node" if answer.waiting else ""
    return f"{count(len(answer.nodes), 'node')}{': ' * bool(parts)}{', '.join(parts)}{more}{waiting}"


def _show_given_up(answer: NodePurchase, screen: Console) -> None:
    screen.print(f"  {screen.glyph('warn')} {count(len(answer.given_up), 'pod')} without something that they prefer")
    _show_grouped(answer.given_up, screen)


def _show_waiting(answer: NodePurchase, screen: Console) -> None:
    screen.print(f"  {screen.glyph('bad')} {count(len(answer.waiting), 'pod')} without a node")
    _show_grouped(answer.waiting, screen)


def _show_grouped(found: Mapping[str, tuple[str, ...]], screen: Console) -> None:
    """Print pods with their lines, those with equal lines together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for pod, lines in found.items():
        groups.setdefault(lines, []).append(pod)
    for reasons, pods in groups.items():
        more = f" and {count(len(pods) - 1, 'pod')} more" if len(pods) > 1 else ""
        screen.print(f"      {pods[0]}{more}")
        for reason in reasons:
            for line in screen.wrapped(reason, 10):
                screen.print(f"          {line}")


def _as_json(ours: NodePurchase, theirs: NodePurchase, prices: str) -> dict[str, Any]:
    def summary(answer: NodePurchase) -> dict[str, Any]:
        return {
            "dollars_per_hour": round(answer.price, 6),
            "nodes": [
                {
                    "pool": node.option.pool.name,
                    "type": node.option.machine.name,
                    "capacity_type": node.option.capacity_type,
                    "zone": node.option.zone,
                    "dollars_per_hour": node.option.price,
                    "pods": list(node.pods),
                }
                for node in answer.nodes
            ],
            "given_up": {pod: list(preferences) for pod, preferences in answer.given_up.items()},
            "waiting": {pod: list(reasons) for pod, reasons in answer.waiting.items()},
        }

    return {**summary(ours), "karpenter": summary(theirs), "prices": prices}


# -- files -------------------------------------------------------------------------------------------------------------


def _read(options: Namespace, screen: Console) -> NodeQuestion:
    objects: list[Any] = []
    for path in dict.fromkeys([*options.pools, *options.pods]):
        if path.suffix == ".csv":
            objects += [_pod_of_job(job) for job in read_jobs(path)]
        else:
            objects += _documents(path, screen)
    question = read_question(objects)
    if question.others:
        screen.say(f"not part of the question: {', '.join(question.others)}")
    if unknown := unknown_claims(question.pods, question.volumes):
        more = f" and {len(unknown) - _MOST_NAMED} more" * (len(unknown) > _MOST_NAMED)
        screen.say(f"volumes that may be anywhere, by what the files have: {', '.join(unknown[:_MOST_NAMED])}{more}")
    return question


def _documents(path: Path, screen: Console) -> Iterator[Any]:
    text = read_input(path, limit=LONGEST_TABLE)
    try:
        # NB: the last of two fields of one name counts, as for the API server of Provisioners; it is reported.
        found = load_all_yaml(text, where=str(path), limit=LONGEST_TABLE)
    except DocumentError as error:
        cure = "correct the line, or the one before"
        raise InvalidInput(f"is no YAML: {error.problem}", where=error.where, cure=cure) from error
    for number, one in enumerate(found, 1):
        if one is not None and not isinstance(one, dict):
            what = f"document {number} is no object of Kubernetes, but begins with {str(one)[:20]!r}"
            raise InvalidInput(what, where=str(path), cure="kind, metadata and spec, as kubectl prints them")
    for document in check_text(text):
        for finding in document.findings:
            if finding.code == _DUPLICATE:
                screen.say(f"{path}:{finding.line}  {finding.path} {finding.message}")
    yield from found


def _pod_of_job(job: Job) -> dict[str, Any]:
    """Return a pod of a trace, which asks for its GPUs in shares, rounded up to whole percents."""
    resources: dict[str, Any] = {"cpu": f"{job.cpu_milli}m", "memory": f"{job.memory_mib}Mi"}
    if job.gpus:
        resources[names.VCUDA_CORE] = 100 * job.gpus if job.milli == MILLI else -(-job.milli * 100 // MILLI)
    annotations = {names.GPU_MODELS_ANNOTATION: ",".join(job.models)} if job.models else {}
    return {
        "kind": "Pod",
        "metadata": {"name": job.name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"requests": resources, "limits": resources}}]},
    }
