"""The arguments of the commands that need no cluster and no GPU: `check`, `help` and `completion`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuplane.cli.options import DOCUMENTS, examples, form_options, lazy, talk_options


def add_local_commands(commands: Any) -> None:
    """Add `check`, `help` and `completion`."""
    parents = [talk_options(), form_options(*DOCUMENTS)]
    check = commands.add_parser(
        "check", parents=parents, help="every error of a manifest or configuration file at once"
    )
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML or JSON; - for standard input")
    check.set_defaults(command=lazy("check", "check"))
    examples(check, "gpuplane check train.yaml policy.yaml", "kubectl get clusterpolicy -o yaml | gpuplane check -")
    commands.add_parser("help", help="the help of a command: gpuplane help COMMAND")

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
