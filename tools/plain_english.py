"""Checks names and prose against docs/language.md, as far as a program can. `make lint` runs it.

- words that the rules replace, in docs, manifests, docstrings, comments and messages; text in backticks passes
- verbs that the rules replace, where they are passive (`is told`): as a name, an option or in "given up" they pass
- sentences that begin with a clause or a pronoun ("What is asked ...", "One that waits ..."); questions and titles
  pass
- docstrings that begin with a clause (`What is kept ...`) instead of a verb or a noun
- sentences of more than 30 words, and sentences whose subject is "It" or "They", in docs
- public class names that occur twice in the repository
- module names that say nothing to a Kubernetes engineer

In tests, benchmarks and tools, the strings are data: only docstrings and comments are checked there.

Prints each finding as `path:line: message`, and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
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
    "is so already": "is equal, exists",
}
PASSIVES: Final = {
    "told": "reported, configured; or the actor receives, reads",
    "shown": "displayed, listed, visible",
    "said": "reported; or name the message, annotation, log",
    "given": "passed, allocated, returned, set",
    "kept": "retained, cached, stored, reserved; a promise is met",
}
PHRASES: Final = {
    "not known": "unknown",
    "not yet known": "still unknown",
    "is none": "is invalid, is missing",
    "are none": "are invalid, are missing",
    "was none": "was invalid, was missing",
    "were none": "were invalid, were missing",
}
SUBJECTS: Final = ("what", "whatever", "who", "nothing that", "one that", "one who", "those who", "none that")
CLAUSES: Final = frozenset({"What", "Who", "Whose", "Whether", "Which", "Where", "How", "That"})
MODULES: Final = frozenset(
    {"kept", "told", "brain", "flights", "compared", "outside", "waking", "turns", "misc", "utils", "helpers", "common"}
)

CODE_OF_TESTS: Final = (
    "conftest.py",
    "tests/**/*.py",
    "packages/*/tests/**/*.py",
    "benchmarks/**/*.py",
    "tools/**/*.py",
)

_WORDS: Final = re.compile(r"\b(" + "|".join(REPLACEMENTS) + r")\b", re.IGNORECASE)
# "given up", "kept apart" and the like are verbs of their own; "there is none" has its noun before it.
_PASSIVES: Final = re.compile(
    r"\b(?:is|are|was|were|be|been|being)(?: (?:not|never|only|also|still|now|then|once|always|already))? ("
    + "|".join(PASSIVES)
    + r")\b(?! (?:up|back|from|apart|together|alive|current|busy)\b)",
    re.IGNORECASE,
)
_PHRASES: Final = re.compile(r"(?<!\bthere )\b(" + "|".join(PHRASES) + r")\b")  # `None` is a value
# At the beginning of a line or after another sentence, and in capitals there. A question has its mark in the same line.
_SUBJECT_ANYWHERE: Final = re.compile(r"\b(" + "|".join(word.capitalize() for word in SUBJECTS) + r") (?=[a-z`])")
_SUBJECT: Final = re.compile(r"(?:^[\s#:*>-]*(?:[rf]*\"+)?|[.!?:;] )" + _SUBJECT_ANYWHERE.pattern + r"(?![^.!]*\?)")
_PRONOUN: Final = re.compile(r"[*_]*(It|They) (?=[a-z`])(?!(?:is|takes|may be|can be) \S+ (?:to|that)\b)")
_CLAUSE: Final = re.compile(r'"""\s*(' + "|".join(CLAUSES) + r")\b")
_CLASS: Final = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
_BEFORE_STATEMENT: Final = frozenset(
    {tokenize.ENCODING, tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT}
)
_C_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
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
    page = path.suffix == ".md"
    title = path.suffix == ".py" and not text.startswith("#") and "\n" not in text and "." not in text
    for number, line in enumerate(text.splitlines(), first_line):
        prose = _CODE.sub("``", line)
        for pattern, words in ((_WORDS, REPLACEMENTS), (_PASSIVES, PASSIVES), (_PHRASES, PHRASES)):
            for match in pattern.finditer(prose):
                yield Finding(path, number, f'"{match[1].lower()}": write {words[match[1].lower()]}')
        for match in () if title or (page and line.startswith("#")) else _SUBJECT.finditer(prose):
            yield Finding(path, number, f'"{match[1]}": begin the sentence with its noun')


def prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and strings (docstrings, messages) of a source, each with its first line."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield token.start[0], token.string


def prose_of_tests(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of a source, each with its first line; other strings are data of the tests."""
    before = tokenize.ENCODING
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token, after in itertools.pairwise(tokens):
        is_statement = before in _BEFORE_STATEMENT and after.type == tokenize.NEWLINE
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and is_statement):
            yield token.start[0], token.string
        before = token.type


def prose_of_c(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a source in C as text, each with its first line."""
    for match in _C_COMMENT.finditer(source):
        text = "\n".join(line.strip().removeprefix("*").strip() for line in match[0].strip("/* \t").splitlines())
        yield source.count("\n", 0, match.start()) + 1, text


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


def pronoun_sentences(path: Path, markdown: str) -> Iterator[Finding]:
    """Find sentences that begin with a pronoun for a word of another sentence; "It is ... to" has none."""
    for line, sentence in sentences(markdown):
        match = _PRONOUN.match(sentence)
        if match:
            yield Finding(path, line, f'"{match[1]}": begin the sentence with its noun')


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


def prose_findings(path: Path, source: str, prose: Callable[[str], Iterator[tuple[int, str]]]) -> Iterator[Finding]:
    """Find words, subjects and docstrings that break a rule in the part of a source that `prose` yields."""
    if any(pattern.search(source) for pattern in (_WORDS, _PASSIVES, _PHRASES, _SUBJECT_ANYWHERE)):
        for line, text in prose(source):
            yield from replaced_words(path, text, line)
    if _CLAUSE.search(source):
        yield from clause_docstrings(path, ast.parse(source))


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


def check(sources: Iterable[Path], pages: Iterable[Path], tests: Iterable[Path] = ()) -> Iterator[Finding]:
    """Check Python sources; pages in Markdown, manifests in YAML or sources in C; and the prose of tests.

    Parsing takes a hundred times as long as a search, so only sources that may have a finding are parsed.
    """
    texts = {path: path.read_text() for path in sources}
    classes: dict[str, list[Path]] = defaultdict(list)
    for path, source in texts.items():
        yield from prose_findings(path, source, prose_of_python)
        for match in _CLASS.finditer(source):
            classes[match[1]].append(path)
        if path.stem in MODULES:
            yield Finding(path, 1, f"module {path.stem}: name it by a noun that a Kubernetes engineer searches for")
    repeated = {path for paths in classes.values() if len(paths) > 1 for path in paths}
    yield from repeated_classes((path, ast.parse(texts[path])) for path in sorted(repeated))
    for path in tests:
        yield from prose_findings(path, path.read_text(), prose_of_tests)
    for path in pages:
        text = path.read_text()
        for line, prose in prose_of_c(text) if path.suffix in (".c", ".h") else [(1, text)]:
            yield from replaced_words(path, prose, line)
        if path.suffix == ".md":
            yield from long_sentences(path, text)
            yield from pronoun_sentences(path, text)


def main() -> int:
    sources = [path for path in sorted(ROOT.glob("packages/*/src/**/*.py")) if "_pb2" not in path.name]
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("packages/*/docs/**/*.md")),
        *sorted(ROOT.glob("packages/*/src/**/*.yaml")),
        *sorted(ROOT.glob("packages/*/native/**/*.[ch]")),
    ]
    tests = [path for pattern in CODE_OF_TESTS for path in sorted(ROOT.glob(pattern)) if "_pb2" not in path.name]
    found = list(check(sources, pages, tests))
    for path, line, message in found:
        sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {message}\n")
    return 1 if found or not sources or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
