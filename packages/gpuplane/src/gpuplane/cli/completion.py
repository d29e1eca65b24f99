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
from gpuplane.cli.word_order import commands_first, flag_of_value, flags_below, named_parser, own_flags
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
    local rest=${COMP_LINE:0:COMP_POINT} space word sign head= words=() count=0 index
    # Readline cuts words at = and :, as those of --output=json and of some contexts. Here they are whole again.
    for ((index = 0; index <= COMP_CWORD; index++)); do
        space=${rest%%[![:space:]]*}
        rest=${rest#"$space"}
        word=${COMP_WORDS[index]}
        ((index < COMP_CWORD)) || word=$rest
        rest=${rest#"$word"}
        if [[ -z $space && $count -gt 0 ]]; then
            words[count-1]+=$word
        else
            words[count++]=$word
        fi
    done
    # Readline leaves what stands before the last = or : in place.
    word=${words[count-1]}
    for sign in = :; do
        if [[ $COMP_WORDBREAKS == *"$sign"* && $word == *"$sign"* ]]; then
            space=${word%"${word##*"$sign"}"}
            [ ${#space} -le ${#head} ] || head=$space
        fi
    done
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("${word#"$head"}")
    done < <(gpuplane __complete "${words[@]:1}" 2> /dev/null)
    [ ${#COMPREPLY[@]} -gt 0 ] || compopt -o default
}
complete -F _gpuplane gpuplane""",
    "zsh": """\
#compdef gpuplane
_gpuplane() {
    local -a found
    found=("${(@f)$(gpuplane __complete "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    if [[ -n "$found" ]]; then compadd -a found; else compset -P "*="; _files; fi
}
if [[ $funcstack[1] == _gpuplane ]]; then _gpuplane "$@"; else compdef _gpuplane gpuplane; fi""",
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
    """Return the completions of the last of `words`, as whole words: `--output=json` for `--output=j`."""
    *before, last = words or [""]
    root = build(installed())
    before = commands_first(root, before)
    of_help = before[:1] == ["help"]
    command, _ = named_parser(root, before[1:] if of_help else before)
    if of_help:
        found = list(subparsers(command))
    elif "--" in before:
        found = []  # the words of a program that `share run` starts
    elif last.startswith("-"):
        found = _flags(command, last, before)
    else:
        action = flag_of_value(own_flags(command) | flags_below(command), before[-1]) if before else None
        if action is not None:
            found = _values(action, words)
        else:
            found = list(subparsers(command)) or [
                value for action in command._actions if not action.option_strings for value in _values(action, words)
            ]
    return sorted({text for text in found if text.startswith(last)})


def _flags(command: argparse.ArgumentParser, word: str, before: Sequence[str]) -> list[str]:
    """Return the flags that begin with a word, or the values of the flag that it names before an equals sign."""
    below = flags_below(command)
    name, equals, value = word.partition("=")
    if not equals:
        own = [text for text in own_flags(command) if text.startswith(word)]
        return own or list(below)
    action = (below | own_flags(command)).get(name)
    if action is None or action.nargs == 0:
        return []
    return [f"{name}={text}" for text in _values(action, [*before, name, value])]


def _values(action: argparse.Action, words: Sequence[str]) -> list[str]:
    """Return the values that an argument can have, as far as they can be listed."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    target = getattr(action, "completer", "")
    return list(resolve_name(target)(words)) if target else []


def explained(words: Sequence[str]) -> list[str]:
    """The codes of findings once their first letters are there, else the pods that ask for GPUs."""
    last = words[-1]
    if not last[:1].isupper():  # no pod's name begins so
        return pods(words)
    from gpuplane.api.codes import CODES  # late: their texts are long

    return list(CODES)


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


def doctor_checks(words: Sequence[str]) -> list[str]:
    """The checks of `gpuplane doctor`."""
    from gpuplane.cli.doctor.checks.registry import CHECKS  # late: other tabs do without

    return [check.name for check in CHECKS]


def _after(words: Sequence[str], *flags: str) -> str:
    """Return the word after one of the flags or behind its equals sign, empty for none."""
    apart = [part for word in words for part in (word.split("=", 1) if word.startswith(flags) else [word])]
    return next((value for flag, value in pairwise(apart) if flag in flags), "")


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
    for text in _printable(words):
        sys.stdout.write(text + "\n")
    return 0


def _printable(words: Sequence[str]) -> list[str]:
    """Return the candidates without those that a terminal would carry out: a kubeconfig may name contexts at will."""
    return [text for text in candidates(words) if text.isprintable()]


def kubectl_complete() -> int:
    """Entry point of `kubectl_complete-gpuplane`.

    NB: kubectl wants the value alone for `--flag=value`, as cobra's scripts put the flag before it.
    """
    words = sys.argv[1:]
    flag, equals, _ = words[-1].partition("=") if words else ("", "", "")
    head = flag + equals if equals and flag.startswith("-") else ""
    for text in _printable(words):
        sys.stdout.write(text.removeprefix(head) + "\n")
    sys.stdout.write(":4\n")
    return 0
