"""A tenant that is root in its container and takes from its node all that the directory of its limits lets it take."""

from __future__ import annotations

import msgspec

ATTACK = """
import ctypes, itertools, json, os, sys
MOST = int(os.environ.get("MOST_BYTES", 1 << 30))
PLACE = os.environ["GPUPLANE_LIMITS"]
PAGE = PLACE + "/usage"
libc = ctypes.CDLL(None, use_errno=True)
done, file = set(), os.open(PAGE, os.O_RDWR)
size = os.fstat(file).st_size
def took(way, call, *arguments):
    try:
        call(*arguments)
        done.add(way)
        return True
    except OSError:
        return False
def fallocate(mode, at, length):
    if libc.fallocate(file, mode, ctypes.c_long(at), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")
def grab(way, mode, at):
    # As much as there is, down to the last block.
    length = MOST
    while length >= 4096 and at < MOST:
        if took(way, fallocate, mode, at, length):
            at += length
        else:
            length //= 2
def fill():
    at = size
    while at < MOST and took("write", os.pwrite, file, bytes(1 << 20), at):
        at += 1 << 20
seen = {"least_free": os.statvfs(PLACE).f_bavail * os.statvfs(PLACE).f_frsize, "most_blocks": 0, "most_attributes": 0}
def look():
    room = os.statvfs(PLACE)  # of the node, since this directory lies on its file system
    seen["least_free"] = min(seen["least_free"], room.f_bavail * room.f_frsize)
    seen["most_blocks"] = max(seen["most_blocks"], os.fstat(file).st_blocks * 512)
for number in itertools.count():
    grab("fallocate", 0, 0); look()
    took("truncate", os.ftruncate, file, size)
    grab("behind the end", 1, size); look()
    took("truncate", os.ftruncate, file, size)
    fill(); look()
    took("truncate", os.ftruncate, file, 1 << 50)
    took("hole", fallocate, 3, 0, size)
    grab("behind a hole", 1, size); look()
    took("truncate", os.ftruncate, file, 0)
    attributes = 0
    for kind in ("user", "trusted", "security"):
        for name in range(64):
            attributes += 60000 * took(kind, os.setxattr, file, f"{kind}.{name}", bytes(60000))
    seen["most_attributes"] = max(seen["most_attributes"], attributes); look()
    for name in os.listxattr(file):
        took("no attribute", os.removexattr, file, name)
    took("mode", os.fchmod, file, 0o777)
    for way, call in {
        "directory": lambda: os.mkdir(f"{PLACE}/{number}"),
        "file": lambda: os.close(os.open(f"{PLACE}/{number}", os.O_CREAT | os.O_WRONLY)),
        "symbolic link": lambda: os.symlink("/etc/passwd", f"{PLACE}/{number}"),
        "link": lambda: os.link(PAGE, f"{PLACE}/{number}"),
        "node": lambda: os.mkfifo(f"{PLACE}/{number}"),
        "name": lambda: os.rename(PAGE, f"{PLACE}/{number}"),
        "end": lambda: os.unlink(PAGE),
        "limits": lambda: os.truncate(PLACE + "/limits", 0),
        "owner": lambda: os.truncate(PLACE + "/owner.json", 0),
    }.items():
        took(way, call)
    look()
    if number % 10 == 9:
        print(json.dumps({**seen, "rounds": number + 1, "done": sorted(done)}), flush=True)
"""
"""Prints a `Taken` as a line after each ten rounds; takes no more than MOST_BYTES of its environment at a time."""

INSIDE = {"fallocate", "behind a hole", "write", "truncate", "hole", "mode"}
"""Ways that stay within the page's own file system."""


class Taken(msgspec.Struct, frozen=True):
    """The worst that the tenant reached: bytes that its node had free, bytes of its page and of attributes."""

    least_free: int
    most_blocks: int
    most_attributes: int
    rounds: int
    done: frozenset[str]


def last(text: str) -> Taken | None:
    """The last whole line of what the program has printed."""
    lines = [line for line in text.split("\n")[:-1] if line.startswith("{")]
    return msgspec.json.decode(lines[-1], type=Taken) if lines else None
