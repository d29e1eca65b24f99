"""Entry point: reads the command line, starts the command, turns errors into words and exit codes.

Exit codes, the same for every `-o`: 0 yes; 1 the answer is no; 2 wrong usage; 3 could not ask; 130 interrupted.

argparse and not a richer library: every operand of every node starts through here, and its import is 10 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from gpuplane.cli.collection import end_process
from gpuplane.cli.parser import parse
from gpuplane.cli.terminal import Console as Screen
from kubekit.errors import KubekitError

OK, INTERRUPTED = 0, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the value is the process's exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["__complete"]:
        from gpuplane.cli.completion import complete

        return complete(words[1:])
    options = parse(words)
    options.command_line = words  # for answers that name the command that made them
    screen = Screen.of(options)
    try:
        return int(options.command(options, screen))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has what it wanted.
        sys.stderr.close()
        return OK
    except KubekitError as error:
        if getattr(options, "verbose", False):
            import traceback

            traceback.print_exc()
        screen.error(error)
        return error.exit_code


def run() -> NoReturn:
    """Run the process's own command, and end with its exit code."""
    end_process(main())


if __name__ == "__main__":
    run()
