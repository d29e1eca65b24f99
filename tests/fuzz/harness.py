"""Changes the files of a corpus in many ways, and reads each: hypothesis chooses, and makes a finding small."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz.targets import CORPUS, Target, attack, corpus

EXAMPLES: Final = 300  # of a target in a round
MEMORY: Final = Path(".hypothesis/fuzz")  # of hypothesis: the last findings, tried first
LONGEST: Final = 200  # bytes of a piece that is put in
# Words with a meaning in JSON, YAML, CSV, PEM or Kubernetes objects.
WORDS: Final = tuple(
    b'[ ] { } : , " \\ # & * ! | > - ? \n \t \x00 \xff \xef\xbb\xbf null true ~ .inf .nan -0 1e999 9223372036854775808'
    b" \xe2\x80\xae &a *a <<: !!int !!binary --- ... %YAML \\u0000 \\ud800 100m 1Gi metadata spec kind items".split(
        b" "
    )
)


def changed(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return bytes that are a seed with pieces cut out, repeated and put in, or any bytes."""
    pieces = st.one_of(
        st.sampled_from(WORDS), st.binary(max_size=LONGEST), st.builds(_repeated, st.sampled_from(WORDS), _COUNTS)
    )
    edits = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), pieces), max_size=6)
    if not seeds:
        return st.binary(max_size=LONGEST)
    return st.one_of(st.binary(max_size=LONGEST), st.builds(_edited, st.sampled_from(seeds), edits))


_COUNTS: Final = st.integers(1, 200)


def _repeated(word: bytes, count: int) -> bytes:
    return word * count


def _edited(seed: bytes, edits: list[tuple[float, float, bytes]]) -> bytes:
    """Replace a part that begins at a fraction of the seed, of at most an eighth of it, by each piece."""
    for start, part, piece in edits:
        begin = int(start * len(seed))
        end = begin + int(part * len(seed) / 8)
        seed = seed[:begin] + piece + seed[end:]
    return seed


def fuzz(name: str, target: Target, *, folder: Path = CORPUS, examples: int = EXAMPLES, memory: Path = MEMORY) -> None:
    """Read many changed files. Raises Finding, whose file has the smallest bytes that fail."""
    last = b""

    @settings(
        max_examples=examples,
        deadline=None,
        database=DirectoryBasedExampleDatabase(memory),
        suppress_health_check=list(HealthCheck),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        print_blob=False,
    )
    @given(changed([path.read_bytes() for path in corpus(name, folder)]))
    def read(data: bytes) -> None:
        nonlocal last
        last = data
        attack(target, data)

    try:
        read()
    except Exception as error:  # whatever a reader raises is the finding
        place = folder / name / f"found-{hashlib.sha256(last).hexdigest()[:12]}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(last)  # NB: hypothesis runs the smallest example last
        error.add_note(f"{name}: {last[:200]!r}")
        raise Finding(place) from error


class Finding(Exception):
    """A reader failed for the bytes in `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"a reader failed for {path}")
        self.path = path
