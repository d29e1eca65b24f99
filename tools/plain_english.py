"""Checks names and prose against docs/language.md, as far as a program can. `make lint` runs it.

- words that the rules replace, in docs, docstrings, comments and messages; text in backticks is code and passes
- docstrings that begin with a clause ("What is kept ...") instead of a verb or a noun
- sentences of more than 30 words, in docs
- public class names that occur twice in the repository
- module names that say nothing to a Kubernetes engineer

Prints each finding as `path:line: message`, and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
LONGEST_SENTENCE: Final = 30  # words
REPLACEMENTS: Final = {
    "anew": "again",
    "nobody": "no pod, no user, no process",
    "somebody": "the pod, the user, the process",
    "anybody": "any pod, any user, any process",
    "everybody": "all pods, all users, all processes",
    "whoever": "the user who, the process that",
    "whom": "the noun",
    "beside": "next to, besides",
    "is told": "is reported, receives",
    "are told": "are reported, receive",
    "what is none": "an invalid ...",
    "is so already": "is equal, exists",
}
CLAUSES: Final = frozenset({"What", "Who", "Whose", "Whether", "Which", "Where", "How", "That"})
MODULES: Final = frozenset(
    {"kept", "told", "brain", "flights", "compared", "outside", "waking", "turns", "misc", "utils", "helpers", "common"}
)

_WORDS: Final = re.compile(r"\b(" + "|".join(REPLACEMENTS) + r")\b", re.IGNORECASE)
_CLAUSE: Final = re.compile(r'"""\s*(' + "|".join(CLAUSES) + r")\b")
_CLASS: Final = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`\n]*`")
_CODE_LIST: Final = re.compile(r"(?:`[^`]*`|\[[^\]]*\]\([^)]*\))(?:(?:,| and| or|, and|, or)\s+`[^`]*`)*")
_NO_PROSE: Final = re.compile(r"\s*(#|\||!\[|<)|    ")
_ITEM: Final = re.compile(r"\s*([-*]|\d+\.)\s+")


class Finding(NamedTuple):
    """One place that breaks a rule; `line` counts from 1."""

    path: Path
    line: int
    message: str


def replaced_words(path: Path, text: str, first_line: int = 1) -> Iterator[Finding]:
    """Find words that the rules replace in `text`, which begins at `first_line` of `path`."""
    for number, line in enumerate(text.splitlines(), first_line):
        for match in _WORDS.finditer(_CODE.sub("", line)):
            word = match[1].lower()
            yield Finding(path, number, f'"{word}": write {REPLACEMENTS[word]}')


def prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and strings (docstrings, messages) of a source, each with its first line."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield token.start[0], token.string


def clause_docstrings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Find docstrings that begin with a clause."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            word = (ast.get_docstring(node) or " ").split(maxsplit=1)[:1]
            if word and word[0] in CLAUSES:
                message = f'the docstring begins with "{word[0]}": begin with a verb (function) or a noun (class)'
                yield Finding(path, getattr(node, "lineno", 1), message)


def long_sentences(path: Path, markdown: str) -> Iterator[Finding]:
    """Find sentences of more than `LONGEST_SENTENCE` words; a code span, or a list of them, counts as one word."""
    for line, sentence in sentences(markdown):
        words = len(_CODE_LIST.sub("code", sentence).split())
        if words > LONGEST_SENTENCE:
            yield Finding(path, line, f"a sentence of {words} words, at most {LONGEST_SENTENCE}: split it")


def sentences(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page with their first lines, without headings, tables, pictures and code blocks."""
    block: list[str] = []
    start = 0
    fenced = False
    for number, line in enumerate([*markdown.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        item = None if fenced else _ITEM.match(line)
        ends = fenced or fence or not line.strip() or (_NO_PROSE.match(line) is not None and not item)
        if (ends or item) and block:
            yield from _split(start, "\n".join(block))
            block = []
        if not ends:
            start = start if block else number
            block.append(line[item.end() :] if item else line)


def _split(start: int, text: str) -> Iterator[tuple[int, str]]:
    position = 0
    for match in re.finditer(r"[.!?:;](?=[*_`)\"]*\s)|\Z", text):
        sentence = " ".join(text[position : match.end()].split())
        if sentence:
            yield start + text[:position].count("\n"), sentence
        position = match.end()


def repeated_classes(trees: Iterable[tuple[Path, ast.Module]]) -> Iterator[Finding]:
    """Find public top-level classes that share their name."""
    places: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path, tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append((path, node.lineno))
    for name, found in sorted(places.items()):
        for path, line in found[1:]:
            yield Finding(path, line, f"class {name} is also in {found[0][0]}: give each its own name")


def check(sources: Iterable[Path], pages: Iterable[Path]) -> Iterator[Finding]:
    """Check Python sources and Markdown pages.

    Parsing takes a hundred times as long as a search, so only sources that may have a finding are parsed.
    """
    texts = {path: path.read_text() for path in sources}
    classes: dict[str, list[Path]] = defaultdict(list)
    for path, source in texts.items():
        if _WORDS.search(source):
            for line, text in prose_of_python(source):
                yield from replaced_words(path, text, line)
        if _CLAUSE.search(source):
            yield from clause_docstrings(path, ast.parse(source))
        for match in _CLASS.finditer(source):
            classes[match[1]].append(path)
        if path.stem in MODULES:
            yield Finding(path, 1, f"module {path.stem}: name it by a noun that a Kubernetes engineer searches for")
    repeated = {path for paths in classes.values() if len(paths) > 1 for path in paths}
    yield from repeated_classes((path, ast.parse(texts[path])) for path in sorted(repeated))
    for path in pages:
        text = path.read_text()
        yield from replaced_words(path, text)
        yield from long_sentences(path, text)


def main() -> int:
    sources = [path for path in sorted(ROOT.glob("packages/*/src/**/*.py")) if "_pb2" not in path.name]
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("packages/*/docs/**/*.md")),
    ]
    found = list(check(sources, pages))
    for path, line, message in found:
        sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {message}\n")
    return 1 if found or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
