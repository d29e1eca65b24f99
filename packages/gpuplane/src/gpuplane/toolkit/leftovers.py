"""Programs that stay when the toolkit leaves, for containers that still run.

containerd and docker start a container by a program (`BinaryName`), and go on using it: their shims call it to kill and
to delete the container, long after the configuration stopped to name it. So each of gpuplane's scripts that a running
container needs is replaced by one that calls the plain runtime, and deletes itself with the last of these containers.

A shim's bundle, `STATE/io.containerd.runtime.v2.task/NAMESPACE/ID`, has the program's path in the file `runtime`.
Source: github.com/containerd/containerd, cmd/containerd-shim-runc-v2.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.host import Host, load_state, save_state
from gpuplane.toolkit.facts import RUNTIMES
from gpuplane.toolkit.places import RuntimePaths

log = logging.getLogger("gpuplane.toolkit")

SCRIPTS: Final = tuple(f"{names.TOOLKIT_DIR}/{program}" for program in RUNTIMES.values())
_BUNDLES: Final = "io.containerd.runtime.v2.task"
_STATES: Final = ("run/containerd", "run/docker/containerd/daemon")
_PLAIN: Final = re.compile(r'^\[ -e \S+ \] \|\| exec (\S+) "\$@"$', re.MULTILINE)
_REMOVED: Final = re.compile(r"^rmdir /(\S+) ", re.MULTILINE)
_MARK: Final = "# Left by gpuplane:"
_SCRIPT: Final = f"""\
#!/bin/sh
{_MARK} containers that were started with this program still run. It deletes itself with the last of them.
deleting=
for word; do
    [ "$word" = delete ] && deleting=yes
    id=$word
done
[ "$deleting" ] || exec {{plain}} "$@"
{{plain}} "$@" || exit
for runtime in {{bundles}}; do
    program=
    {{{{ read -r program < "$runtime"; }}}} 2> /dev/null
    case $runtime in */"$id"/runtime) continue ;; esac
    [ "$program" = {{program}} ] && exit
done
rm -f {{program}}
{{directories}}
"""


def leave(host: Host, component: str, place: RuntimePaths | None, planned: Iterable[str] = ()) -> tuple[str, ...]:
    """Replace the recorded scripts that running containers need, except `planned` ones, and forget their records.

    Returns the paths that stay.
    """
    state = load_state(host, component)
    if state is None:
        return ()
    candidates = {record.path for record in state.records if record.path in SCRIPTS} - set(planned)
    left = []
    for path in sorted(candidates & needed(host, place)) if candidates else ():
        found = _PLAIN.search(host.read_text(path) or "")
        if found is None:
            continue
        host.write_atomic(path, _script(path, found[1], place, state.made).encode(), mode=0o755)
        # NB: a container that ended meanwhile called the program of before, and would leave this one for ever.
        if path in needed(host, place):
            log.info("program left until its containers end path=%s", host.shown(path))
            left.append(path)
    if left:
        records = tuple(record for record in state.records if record.path not in left)
        save_state(host, component, msgspec.structs.replace(state, records=records))
    return tuple(left)


def clear(host: Host, place: RuntimePaths | None) -> None:
    """Delete the programs that no container needs any more: a machine that restarts ends containers without them."""
    found = [path for path in SCRIPTS if is_left(host, path)]
    unused = set(found) - (needed(host, place) if found else set())
    directories = directories_of(host, unused)
    for path in unused:
        host.remove(path)
    for directory in directories:
        host.remove_dir(directory)


def directories_of(host: Host, paths: Iterable[str] = SCRIPTS) -> tuple[str, ...]:
    """The directories that programs left at `paths` delete with themselves, innermost first."""
    found = {name for path in paths if is_left(host, path) for name in _REMOVED.findall(host.read_text(path) or "")}
    return tuple(sorted(found, key=len, reverse=True))


def is_left(host: Host, path: str) -> bool:
    """Return whether the program at `path` is one that stays for running containers only."""
    return path in SCRIPTS and _MARK in (host.read_text(path) or "")[:200]


def needed(host: Host, place: RuntimePaths | None) -> set[str]:
    """The paths of the programs that running containers were started with."""
    found = set()
    for base in _states(place):
        for namespace in host.list(f"{base}/{_BUNDLES}"):
            for container in host.list(f"{base}/{_BUNDLES}/{namespace}"):
                program = host.read_text(f"{base}/{_BUNDLES}/{namespace}/{container}/runtime")
                found.add((program or "").lstrip("/"))
    return found


def _states(place: RuntimePaths | None) -> list[str]:
    """The directories in which containerds have their state: next to the socket, unless their configuration differs."""
    own = [place.socket.rpartition("/")[0]] if place is not None else []
    return list(dict.fromkeys((*own, *_STATES)))


def _script(path: str, plain: str, place: RuntimePaths | None, made: Iterable[str]) -> str:
    bundles = " ".join(f"/{base}/{_BUNDLES}/*/*/runtime" for base in _states(place))
    directories = sorted((d for d in made if f"{path}/".startswith(f"{d}/")), key=len, reverse=True)
    removal = "\n".join(f"rmdir /{directory} 2> /dev/null" for directory in directories)
    return _SCRIPT.format(plain=plain, bundles=bundles, program=f"/{path}", directories=f"{removal}\nexit 0".lstrip())
