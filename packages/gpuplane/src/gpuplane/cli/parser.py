"""The whole command line as one table of parsers; what a command does is imported only when it runs."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from gpuplane import __version__
from gpuplane.cli.components import OPERANDS, OTHERS
from gpuplane.cli.machine_parser import add_machine
from gpuplane.cli.share_parser import add_share
from gpuplane.cli.simulate_parser import add_simulate
from gpuplane.cli.verbs import Verbs, installed


def lazy(module: str, function: str) -> Callable[[Namespace, Any], int]:
    """The command `module.function`, imported when it is called."""

    def call(options: Namespace, screen: Any) -> int:
        place = module if "." in module else f"gpuplane.cli.{module}"
        result: int = getattr(importlib.import_module(place), function)(options, screen)
        return result

    return call


class Parser(ArgumentParser):
    """argparse whose usage errors name the command's own help, and end with `wrong_usage`."""

    wrong_usage = 2

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **more})

    def error(self, message: str) -> NoReturn:
        self.exit(self.wrong_usage, f"{self.prog}: {message}\nSee '{self.prog} --help'.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # NB: argparse has no public way to word this error.
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = did_you_mean(str(value), choices) or f": choose from {', '.join(choices)}"
        name = "/".join(action.option_strings) or action.metavar or action.dest
        raise argparse.ArgumentError(None, f"unknown {name}: {value}{meant}")


def completed(argument: argparse.Action, by: str) -> None:
    """Have the values of an argument listed at a tab: `by` is a function of `gpuplane.cli.completion`, or
    `module:function`.
    """
    argument.completer = by if ":" in by else f"gpuplane.cli.completion:{by}"  # type: ignore[attr-defined]


FORMS: Final = ("text", "wide", "json", "yaml", "name")
"""The forms of a list of objects that have names."""
DOCUMENTS: Final = ("text", "json", "yaml")
"""The forms of a report, and of the answer of a command that writes."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean status?`, empty when nothing is near."""
    from difflib import get_close_matches  # late: only after a mistake

    near = get_close_matches(word, list(choices), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def examples(parser: ArgumentParser, *lines: str) -> None:
    """End the help of a command with command lines that a reader can copy."""
    parser.epilog = "\n".join(["examples:", *(f"  {line}" for line in lines)])


def parse(arguments: Sequence[str]) -> Namespace:
    """The options of one command line; `command` is the function to call. Exits with 2 on wrong usage."""
    words = _without_help(arguments)
    for_all = not words or words[0].startswith("-")  # the help lists every command
    runs = words[:1] == ["run"]
    if for_all or not knows(parser := build(only_run=runs), words):
        parser = build(installed(), only_run=runs)
        if len(words) > 1:
            from gpuplane.cli.word_order import commands_first  # late: an operand's words need no other order

            words = commands_first(parser, _without_help(commands_first(parser, words)))
    options, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(parser, words, unknown)
    if not hasattr(options, "command"):
        parser.print_help()
        parser.exit(0)
    return options


def _without_help(words: Sequence[str]) -> list[str]:
    """Return `help COMMAND` as `COMMAND --help`."""
    return [*words[1:], "--help"] if list(words[:1]) == ["help"] else list(words)


def _refuse(parser: Parser, words: Sequence[str], unknown: Sequence[str]) -> NoReturn:
    """End with wrong usage, as the command does that the unknown words were for."""
    from gpuplane.cli.word_order import find_flag, flags_below, named_parser, own_flags  # late: only after a mistake

    command, _ = named_parser(parser, words)
    if command is parser and find_flag(flags_below(parser), unknown[0]) is not None:
        parser.error(f"no COMMAND is named for {' '.join(unknown)}")
    meant = did_you_mean(unknown[0].partition("=")[0], own_flags(command))
    command.error(f"unknown: {' '.join(unknown)}{meant}")


def knows(parser: ArgumentParser, arguments: Sequence[str]) -> bool:
    """Return whether the first words name a command of this parser, and its action or component."""
    for word in arguments:
        choices = subparsers(parser)
        if not choices:
            return True
        if word not in choices:
            return False
        parser = choices[word]
    return not subparsers(parser)


def subparsers(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of the words that may follow, by word."""
    for action in parser._actions:  # NB: argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def build(extensions: Iterable[Verbs] = (), *, only_run: bool = False) -> Parser:
    """The parser of gpuplane's own commands and those of `extensions`.

    Shell completion and the reference in docs/ are made from it too. With `only_run` it knows `gpuplane run` alone: a
    container starts so, and the other commands take a tenth of its start.
    """
    extensions = tuple(extensions)
    called_by_kubectl = Path(sys.argv[0]).name == "kubectl-gpuplane"
    name = "kubectl gpuplane" if called_by_kubectl else "gpuplane"
    parser = Parser(prog=name, description="GPUs on Kubernetes, from bare machines to a shared cluster.")
    parser.add_argument("--version", action="version", version=f"gpuplane {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    examples(
        parser,
        "gpuplane demo                         the whole story on this machine",
        "gpuplane install --dry-run            the manifests, to read first",
        "gpuplane status                       what every GPU node waits for",
        "gpuplane explain ml/train-0           why a pod waits, and what would help",
        "gpuplane help install                 the help of a command",
    )
    if not only_run:
        for verbs in extensions:
            verbs.add_commands(commands)
        _real(commands)
        _hand(commands)
        add_share(commands, talk_options, form_options, lazy, examples)
        add_simulate(commands, talk_options, form_options, lazy, examples)
    _run(commands, extensions)
    return parser


def talk_options() -> Parser:
    """Return a parent parser with the options for the amount of output and for colours."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("output")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress and no hints")
    group.add_argument("-v", "--verbose", action="store_true", help="a stack trace with an error")
    group.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="colour of verdicts")
    return parent


def form_options(*choices: str) -> Parser:
    """The forms that a command's answer can have."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("output")
    group.add_argument("-o", "--output", choices=choices, default="text", help="form of the answer")
    return parent


def _cluster() -> Parser:
    """Return a parent parser with the options that select the cluster."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("cluster")
    group.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="kubeconfig file (default: $KUBECONFIG, ~/.kube/config)"
    )
    context = group.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    completed(context, "contexts")
    return parent


def _scope(of_labels: str, default: str) -> Parser:
    """Return a parent parser with the options that select what is read, as kubectl has them."""
    parent = Parser(add_help=False)
    group = parent.add_argument_group("selection")
    spaces = group.add_mutually_exclusive_group()
    space = spaces.add_argument(
        "-n", "--namespace", default="", metavar="NAME", help=f"pods of this namespace (default: {default})"
    )
    completed(space, "namespaces")
    spaces.add_argument("-A", "--all-namespaces", action="store_true", help="pods of all namespaces")
    group.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help=f"{of_labels} with these labels, as pool=train"
    )
    return parent


def _timeout() -> Parser:
    parent = Parser(add_help=False)
    group = parent.add_argument_group("cluster")
    group.add_argument(
        "--timeout", type=duration, metavar="TIME", default=300.0, help="how long to wait at most, as 90s or 5m"
    )
    return parent


def duration(text: str) -> float:
    """`90s`, `5m`, `1h` or bare seconds, in seconds."""
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
    try:
        seconds = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 90s, 5m or 1h") from None
    if math.isnan(seconds):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 90s, 5m or 1h")
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative")
    return seconds


def _real(commands: Any) -> None:
    parents = [talk_options(), _cluster(), _timeout()]
    install = commands.add_parser(
        "install",
        parents=[*parents, form_options(*DOCUMENTS)],
        help="put gpuplane on the cluster of the current kubeconfig",
    )
    install.add_argument("--image", metavar="IMAGE", help="image of the operator and the operands")
    install.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of the ClusterPolicy's spec, as driver.enabled=false",
    )
    install.add_argument(
        "--admission",
        choices=["open", "closed", "none"],
        default="open",
        help="the webhook that refuses pods which can never run: open (default) lets pods pass while it is away, none "
        "leaves it out",
    )
    install.add_argument(
        "--scheduler",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the extender that places pods with GPUs (default); kube-scheduler must be configured to call it",
    )
    install.add_argument("--only", choices=["crds", "policy"], help="apply these objects of the installation alone")
    install.add_argument("--dry-run", action="store_true", help="print the manifests instead of applying them")
    install.add_argument("--wait", action="store_true", help="until every GPU node is ready")
    install.set_defaults(command=lazy("install", "install"))

    uninstall = commands.add_parser(
        "uninstall",
        parents=[*parents, form_options(*DOCUMENTS)],
        help="take gpuplane off the cluster, every node as it was",
    )
    uninstall.add_argument("--only", choices=["crds", "policy"], help="remove these objects of the installation alone")
    uninstall.add_argument("--dry-run", action="store_true", help="print what would be removed")
    uninstall.set_defaults(command=lazy("install", "uninstall"))

    status = commands.add_parser(
        "status",
        parents=[*parents, form_options(*FORMS), _scope("nodes", "all")],
        help="nodes by stage with reasons; GPUs with who holds what",
    )
    status.add_argument("what", nargs="?", choices=["nodes", "gpus"], default="nodes", help="nodes (default) or gpus")
    status.add_argument("-w", "--watch", action="store_true", help="stay and show each change")
    status.add_argument(
        "--wait", action="store_true", help="until every GPU node is ready; exit 1 when --timeout runs out"
    )
    status.set_defaults(command=lazy("status", "status"))

    explain = commands.add_parser(
        "explain",
        parents=[*parents, form_options(*FORMS), _scope("pods", "the context's")],
        help="why a pod is where it is, or why it waits, GPU by GPU; what a code of a finding means",
    )
    what = explain.add_argument(
        "what",
        nargs="*",
        metavar="POD|CODE",
        help="a pod, also as NAMESPACE/NAME, or as GP201 (default: the pods that wait for GPUs)",
    )
    completed(what, "explained")
    explain.set_defaults(command=lazy("explain", "run"))

    examples(
        install,
        "gpuplane install --dry-run",
        "gpuplane install --image registry.example.com/gpuplane:0.1.0 --wait",
        "gpuplane install --scheduler --admission open --set driver.version=570.133.20",
    )
    examples(uninstall, "gpuplane uninstall --dry-run", "gpuplane uninstall")
    examples(
        status,
        "gpuplane status",
        "gpuplane status gpus -n ml            what the pods of one namespace hold",
        "gpuplane status -l pool=train -w      the nodes of a pool, and each change",
        "gpuplane status --wait --timeout 10m",
        "gpuplane status -o json | jq .fits",
    )
    examples(
        explain,
        "gpuplane explain ml/tune-42",
        "gpuplane explain tune-42 -n ml -o json",
        "gpuplane explain -A                   every pod that waits for GPUs",
        "gpuplane explain GP201                what a code means",
    )


def _hand(commands: Any) -> None:
    parents = [talk_options(), form_options(*DOCUMENTS)]
    check = commands.add_parser(
        "check", parents=parents, help="every error of a manifest or configuration file at once"
    )
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML or JSON; - for standard input")
    check.set_defaults(command=lazy("check", "check"))
    examples(check, "gpuplane check train.yaml policy.yaml", "kubectl get clusterpolicy -o yaml | gpuplane check -")
    commands.add_parser("help", help="the help of a command: gpuplane help COMMAND")

    add_machine(commands, talk_options, form_options, lazy, examples)

    completion = commands.add_parser("completion", help="a completion script for your shell")
    completion.add_argument("shell", choices=["bash", "zsh", "fish", "tcsh"], help="the shell")
    completion.set_defaults(command=lazy("completion", "completion"))
    examples(
        completion,
        "source <(gpuplane completion bash)    for this shell",
        "gpuplane completion bash > ~/.local/share/bash-completion/completions/gpuplane",
        "gpuplane completion zsh > ~/.zfunc/_gpuplane    with ~/.zfunc in fpath",
        "gpuplane completion fish > ~/.config/fish/completions/gpuplane.fish",
    )


def _run(commands: Any, extensions: Iterable[Verbs]) -> None:
    run = commands.add_parser("run", help="start one component: what the pods start, and just as well a shell")
    components = run.add_subparsers(title="components", metavar="COMPONENT", required=True)
    known = OPERANDS | OTHERS
    for verbs in extensions:
        known = known | dict(verbs.components)
    for name, component in known.items():
        parents = [_cluster()] if "kubeconfig" in component.flags else []
        part = components.add_parser(name, parents=parents, help=component.about)
        part.add_argument("-v", "--verbose", action="store_true", help="log details")
        for flag in component.flags:
            if flag in _RUN_FLAGS:
                argument = part.add_argument(f"--{flag}", **_RUN_FLAGS[flag])
                if flag == "node-name":
                    completed(argument, "nodes")
        part.set_defaults(command=lazy("run", "run"), component=name, entry=component)
    examples(
        run,
        "gpuplane run operator --kubeconfig ~/.kube/config    from a shell",
        "gpuplane run scheduler --print-config kube    what kube-scheduler needs",
        "gpuplane run device-plugin --node-name gpu-t-01 -v",
    )


_POLICIES: Final = ("opportunity", "fragmentation", "tightest", "spread", "topology")
_RUN_FLAGS: Final[dict[str, dict[str, Any]]] = {
    "node-name": {"default": "", "help": "the node it works for (default: $NODE_NAME)"},
    "host-root": {
        "type": Path, "default": Path("/"), "metavar": "DIR", "help": "root of the node's file system",
    },
    "kubelet-dir": {
        "type": Path, "default": Path("/var/lib/kubelet"), "metavar": "DIR", "help": "the kubelet's directory",
    },
    "config": {"type": Path, "metavar": "FILE", "help": "the component's configuration file"},
    "port": {"type": int, "help": "port to serve on"},
    "lease-duration": {
        "type": int, "default": 15, "metavar": "SECONDS",
        "help": "how long another replica waits for one that is silent (default: 15)",
    },
    "tls-cert-file": {"type": Path, "metavar": "FILE", "help": "serve HTTPS with this certificate, in PEM"},
    "tls-private-key-file": {"type": Path, "metavar": "FILE", "help": "its key; both are read again when they change"},
    "client-ca-file": {
        "type": Path, "metavar": "FILE", "help": "with HTTPS: take calls only with a certificate of this authority",
    },
    "node-policy": {
        "choices": _POLICIES, "default": "opportunity", "help": "how nodes are chosen (default: %(default)s)",
    },
    "gpu-policy": {
        "choices": _POLICIES, "default": "", "help": "how GPUs of a node are chosen (default: as --node-policy)",
    },
    "print-config": {
        "choices": ["kube", "policy", "second"], "default": "",
        "help": "print the configuration for kube-scheduler, and end: its current format (kube), the file of releases "
        "before 1.23 (policy), or a second scheduler (second)",
    },
    "url": {"default": "", "help": "with --print-config: where kube-scheduler reaches it (default: the Service)"},
    "uninstall": {"action": "store_true", "help": "undo what this component did to the node, and end"},
}  # fmt: skip
