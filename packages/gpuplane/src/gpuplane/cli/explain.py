"""`gpuplane explain POD`: why it is where it is, or why it waits, GPU by GPU; `explain GP201`: what a code means.

A report: it exits with 0 once answered, whatever the answer is, with 1 when there is no such pod or code, with 3 when
the cluster cannot be asked.
"""

from __future__ import annotations

import asyncio
import re
from argparse import Namespace
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from gpuplane.api.requests import uses_gpus
from gpuplane.cli.collection import without_collection
from gpuplane.cli.explain_text import page
from gpuplane.cli.forms import as_document
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation, explain, explain_by_events
from gpuplane.explain.reading import listed, nearest_pod, read_facts, read_pod, unreadable
from gpuplane.explain.with_pools import with_pools
from gpuplane.explain.world import Object, World
from kubekit.api.core import Event, Pod
from kubekit.errors import InvalidInput, NoAnswer, UsageError
from kubekit.kube import Client, Forbidden, SystemClock

_CODE: Final = re.compile(r"gp\d{1,4}", re.IGNORECASE)


def run(options: Namespace, screen: Console) -> int:
    """Explain what is named: a code, or a pod as NAME, NAMESPACE/NAME, pod/NAME or `pod NAME`."""
    words: Sequence[str] = options.what
    if words and (options.all_namespaces or options.selector):
        raise UsageError("a pod by its name and -A or -l exclude each other", cure=f"gpuplane explain {words[0]}")
    if len(words) == 1 and _CODE.fullmatch(words[0]):
        from gpuplane.cli.check import explain as explain_code  # late: schemas and YAML, which pods need none of

        options.code = words[0]
        return explain_code(options, screen)
    with without_collection():
        return _explain_pods(options, words, screen)


def _explain_pods(options: Namespace, words: Sequence[str], screen: Console) -> int:
    if words:
        namespace, name = _named(words, options.namespace)
        screen.print(_text(asyncio.run(_ask(options, namespace, name)), options.output, screen))
        return 0
    found = asyncio.run(_ask_all(options))
    if options.output in ("json", "yaml"):
        screen.print(as_document("ExplanationList", {"items": msgspec.to_builtins(found)}, options.output))
    elif found:
        between = "\n" if options.output == "name" else "\n\n"
        screen.print(between.join(_text(one, options.output, screen) for one in found))
    else:
        screen.say("no pod waits for GPUs")
    return 0


def _text(explanation: Explanation, form: str, screen: Console) -> str:
    """Return the explanation in the form that was asked for."""
    if form in ("json", "yaml"):
        return as_document("Explanation", msgspec.to_builtins(explanation), form)
    if form == "name":
        return f"pod/{explanation.pod.partition('/')[2]}"
    return page(explanation, screen, wide=form == "wide")


def _named(words: Sequence[str], namespace: str) -> tuple[str, str]:
    """(namespace, name) of the pod; the namespace is empty for that of the context."""
    kinds = ("pod", "pods", "po")
    parts = [part for word in words for part in word.split("/")]
    if len(parts) > 1 and parts[0] in kinds:
        parts = parts[1:]
    if len(parts) == 2 and len(words) == 1:
        if not parts[0]:
            raise UsageError(f"{words[0]!r} names no namespace before the slash", cure=f"gpuplane explain {parts[1]}")
        if not parts[1]:
            raise UsageError(f"{words[0]!r} names no pod after the slash", cure=f"gpuplane explain -n {parts[0]}")
        if namespace not in ("", parts[0]):
            raise UsageError(
                f"two namespaces are named: {parts[0]} in {words[0]!r}, and -n {namespace}",
                cure=f"gpuplane explain {parts[1]} -n {parts[0]}",
            )
        return parts[0], parts[1]
    if len(parts) != 1 or not parts[0]:
        raise UsageError(
            f"{' '.join(words)!r} names no pod and no code",
            cure="gpuplane explain NAME [-n NAMESPACE], NAMESPACE/NAME, or a code such as GP201",
        )
    return namespace, parts[0]


async def _ask(options: Namespace, namespace: str, name: str) -> Explanation:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-explain") as client:
        try:
            async with asyncio.timeout(options.timeout):
                return await explained(client, namespace or client.namespace or "default", name)
        except TimeoutError:
            raise NoAnswer(
                f"the cluster did not answer within {options.timeout:g} s", where=client.endpoint.context
            ) from None


async def explained(client: Client, namespace: str, name: str) -> Explanation:
    """Explain one pod, as far as the client's user may read. Raises InvalidInput where there is no such pod."""
    pod = await _read_pod(client, namespace, name)
    try:
        facts = await read_facts(client)
    except Forbidden:
        [found] = await _by_operator(client, namespace, [pod])
        return found
    found = explain(pod, facts, SystemClock().wall())
    [found] = await with_pools(client, [pod], [found], facts.nodes)
    return found


async def _read_pod(client: Client, namespace: str, name: str) -> Object:
    """Return the pod. Raises InvalidInput where there is none, with the name that was meant if the user may see it."""
    try:
        return await read_pod(client, namespace, name)
    except InvalidInput as error:
        near = await nearest_pod(client, namespace, name)
        if not near:
            raise
        what = f"{error.what}; did you mean {near}?"
        raise InvalidInput(what, where=error.where, cure=f"gpuplane explain {near}") from error.__cause__


async def _ask_all(options: Namespace) -> list[Explanation]:
    """The explanations of the pods that wait for GPUs, the one that waits longest first."""
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-explain") as client:
        space = "" if options.all_namespaces else options.namespace or client.namespace or "default"
        chosen = None
        if options.selector:
            chosen = {pod.metadata.uid for pod in await client.list(Pod, space or None, labels=options.selector)}
        return await explained_waiting(client, space, chosen)


async def explained_waiting(
    client: Client, space: str, chosen: Collection[str] | None = None, most: int | None = None
) -> list[Explanation]:
    """Explain the pods that wait for GPUs, the one that waits longest first.

    Args:
        space: their namespace, empty for all. Raises Forbidden where the client's user may read neither.
        chosen: their uids, None for all.
        most: explain no more than so many.
    """
    facts = None
    try:
        facts = await read_facts(client)
        pods = facts.pods
    except Forbidden:
        if not space:
            raise
        pods = await listed(client, Pod.RESOURCE.path(space))
    waiting = [
        raw
        for raw in pods
        if not raw["spec"].get("nodeName")
        and space in ("", raw["metadata"]["namespace"])
        and (chosen is None or raw["metadata"]["uid"] in chosen)
        and uses_gpus(pod := msgspec.convert(raw, Pod))
        and not pod.status.ended
    ]
    waiting.sort(key=lambda raw: (raw["metadata"]["creationTimestamp"], raw["metadata"]["name"]))
    waiting = waiting[:most]
    if facts is None:
        return await _by_operator(client, space, waiting)
    now, world = SystemClock().wall(), World(facts)
    return await with_pools(client, waiting, [explain(raw, facts, now, world) for raw in waiting], facts.nodes)


async def _by_operator(client: Client, namespace: str, pods: Sequence[Object]) -> list[Explanation]:
    """Explain pods of a namespace to a user who may read no other: as the operator answers, else by their events."""
    from gpuplane.explain.asking import Unanswered, ask_operator  # late: most users read for themselves

    if not pods:
        return []
    try:
        found = await ask_operator(client, namespace, [pod["metadata"]["name"] for pod in pods])
    except Unanswered as error:
        return await _by_events(client, namespace, pods, str(error))
    if len(pods) == 1 and not found:
        return await _by_events(client, namespace, pods, "the operator does not know the pod yet")
    return found


async def _by_events(client: Client, namespace: str, pods: Sequence[Object], why: str) -> list[Explanation]:
    """Explain pods of a namespace by their events; `why` says why the operator does not explain them."""
    unread, now = await unreadable(client), SystemClock().wall()
    name = f",involvedObject.name={pods[0]['metadata']['name']}" if len(pods) == 1 else ""
    own: dict[str, list[Event]] = {}
    for event in await client.list(Event, namespace, fields=f"involvedObject.kind=Pod{name}"):
        own.setdefault(event.involved_object.name, []).append(event)
    events = [own.get(pod["metadata"]["name"], ()) for pod in pods]
    return [explain_by_events(pod, unread, told, now, why) for pod, told in zip(pods, events, strict=True)]
