"""Parsers read the fuzzers' seeds and earlier findings without a failure, and the fuzzers find planted defects."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubekit.errors import InvalidInput
from tests.fuzz.harness import Finding, fuzz
from tests.fuzz.targets import CORPUS, TARGETS, attack, corpus

FILES = [(name, path) for name in TARGETS for path in corpus(name)]


@pytest.mark.parametrize(("name", "path"), FILES, ids=lambda part: part if isinstance(part, str) else part.name)
def test_the_corpus_is_read(name: str, path: Path) -> None:
    attack(TARGETS[name], path.read_bytes())


def test_each_target_has_an_example_and_each_folder_a_target() -> None:
    assert {name for name, _ in FILES} == TARGETS.keys() == {path.name for path in CORPUS.iterdir()}


def test_each_example_is_accepted_by_its_reader() -> None:
    """An example that is refused at its first byte leads a fuzzer nowhere."""
    for name, path in FILES:
        if path.name.startswith("example"):
            TARGETS[name](path.read_bytes())


def test_a_finding_is_made_small_and_written_to_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "example").write_bytes(b'{"name": "value", "other": [1, 2, 3]}')

    def broken(data: bytes) -> None:
        if b"[[[" in data:
            raise RecursionError(data)
        if not data.startswith(b"{"):
            raise InvalidInput("refused")

    with pytest.raises(Finding) as found:
        fuzz("t", broken, folder=tmp_path, examples=3000, memory=tmp_path / "memory")
    assert found.value.path.read_bytes() == b"[[[" and found.value.path.parent == tmp_path / "t"
    assert isinstance(found.value.__cause__, RecursionError)


def test_a_reader_that_refuses_in_words_has_no_finding(tmp_path: Path) -> None:
    def strict(data: bytes) -> None:
        raise InvalidInput("no")

    fuzz("t", strict, folder=tmp_path, examples=50, memory=tmp_path / "memory")
