"""Shell completion, made from the parser itself so that it knows every flag, and from what there is: pods, nodes,
namespaces, contexts, clusters, machines.

`gpuplane completion SHELL` prints a script that asks `gpuplane __complete WORDS...` at each tab.
`kubectl_complete-gpuplane` answers kubectl, which calls it with the words so far (the last one may be half typed) and
reads one candidate a line, then `:4` (cobra's "no file names"). An argument names in `completer` the function that
lists its values. A function that cannot ask in time lists nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, TypeVar

from gpuplane.api.requests import uses_gpus
from gpuplane.cli.parser import build, subparsers
from gpuplane.cli.terminal import Console
from gpuplane.cli.verbs import installed
from kubekit.api.core import Namespace as KubeNamespace
from kubekit.api.core import Node, Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client
from kubekit.kube.config import context_names

T = TypeVar("T")


ASK_SECONDS: Final = 2.0
"""How long a tab may wait for the cluster."""
_SCRIPTS: Final = {
    "bash": """\
_gpuplane() {
    local IFS=$'\\n'
    COMPREPLY=($(gpuplane __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null))
    [ ${#COMPREPLY[@]} -gt 0 ] || compopt -o default
}
complete -F _gpuplane gpuplane""",
    "zsh": """\
#compdef gpuplane
_gpuplane() {
    local -a found
    found=("${(@f)$(gpuplane __complete "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    if [[ -n "$found" ]]; then compadd -a found; else _files; fi
}
compdef _gpuplane gpuplane""",
    "fish": """\
function __gpuplane_complete
    set -l words (commandline -opc) (commandline -ct)
    gpuplane __complete $words[2..-1] 2> /dev/null
end
complete -c gpuplane -a '(__gpuplane_complete)'""",
}


def completion(options: Namespace, screen: Console) -> int:
    if options.shell in _SCRIPTS:
        screen.print(_SCRIPTS[options.shell])
        return 0
    import shtab

    screen.print(shtab.complete(build(installed()), shell=options.shell))
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of `words`."""
    parser: argparse.ArgumentParser = build(installed())
    *before, last = words or [""]
    for word in before:
        parser = subparsers(parser).get(word, parser)
    if last.startswith("-"):
        found = [text for action in parser._actions for text in action.option_strings]
    else:
        asked = next((action for action in parser._actions if before and before[-1] in action.option_strings), None)
        if asked is not None and asked.nargs != 0:
            found = _values(asked, words)
        else:
            found = list(subparsers(parser)) or [
                value for action in parser._actions if not action.option_strings for value in _values(action, words)
            ]
    return sorted({text for text in found if text.startswith(last)})


def _values(action: argparse.Action, words: Sequence[str]) -> list[str]:
    """Return the values that an argument can have, as far as they can be listed."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    target = getattr(action, "completer", "")
    return list(resolve_name(target)(words)) if target else []


def pods(words: Sequence[str]) -> list[str]:
    """The pods that ask for GPUs: as NAMESPACE/NAME, or by name alone after -n."""
    namespace = _after(words, "-n", "--namespace")
    found = _ask(words, lambda client: client.list(Pod, namespace or None))
    return [
        pod.metadata.name if namespace else f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in found
        if uses_gpus(pod)
    ]


def namespaces(words: Sequence[str]) -> list[str]:
    return [one.metadata.name for one in _ask(words, lambda client: client.list(KubeNamespace))]


def nodes(words: Sequence[str]) -> list[str]:
    return [one.metadata.name for one in _ask(words, lambda client: client.list(Node))]


def contexts(words: Sequence[str]) -> list[str]:
    """The contexts of the kubeconfig."""
    given = _after(words, "--kubeconfig")
    try:
        return list(context_names(Path(given) if given else None))
    except KubekitError:
        return []


def _after(words: Sequence[str], *flags: str) -> str:
    """Return the word after one of the flags, empty for none."""
    return next((value for flag, value in pairwise(words) if flag in flags), "")


def _ask(words: Sequence[str], question: Callable[[Client], Coroutine[Any, Any, list[T]]]) -> list[T]:
    async def ask() -> list[T]:
        given = _after(words, "--kubeconfig")
        place = Path(given) if given else None
        async with Client.connect(place, _after(words, "--context") or None, user_agent="gpuplane-complete") as client:
            return await question(client)

    async def in_time() -> list[T]:
        return await asyncio.wait_for(ask(), ASK_SECONDS)

    try:
        return asyncio.run(in_time())
    except (KubekitError, TimeoutError):
        return []


def complete(words: Sequence[str]) -> int:
    """Print the completions for the script of a shell."""
    for text in candidates(words):
        sys.stdout.write(text + "\n")
    return 0


def kubectl_complete() -> int:
    """Entry point of `kubectl_complete-gpuplane`."""
    for text in candidates(sys.argv[1:]):
        sys.stdout.write(text + "\n")
    sys.stdout.write(":4\n")
    return 0
