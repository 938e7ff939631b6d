"""Replaces a piece of Python source, given as text, anywhere in a folder and in any layout."""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from functools import lru_cache
from pathlib import Path

_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
_CLOSING = {")", "]", "}"}
Token = tuple[str, int, int]
"""(what it says, where it begins, where it ends): characters of the source."""


def tokens(source: str) -> list[Token]:
    """Without line breaks, indents, comments and commas before a closing bracket; strings by their value."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Token] = []
    for t in _tokenized(source):
        if t.type in _LAYOUT or not t.string:
            continue
        if t.string in _CLOSING and found and found[-1][0] == ",":
            found.pop()
        begin, end = (starts[row - 1] + column for row, column in (t.start, t.end))
        found.append((_said(t), begin, end))
    return found


def _tokenized(source: str) -> list[tokenize.TokenInfo]:
    """A piece of a statement ends too early for the tokenizer, after it gave all tokens."""
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            found.append(token)
    except (tokenize.TokenError, IndentationError):
        pass
    return found


def _said(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.STRING and not token.string.lower().startswith(("f", "rf", "fr")):
        return repr(ast.literal_eval(token.string))
    return token.string


@lru_cache(maxsize=512)
def _of_file(path: Path) -> tuple[str, list[Token]]:
    source = path.read_text()
    return source, tokens(source)


def find(old: str, folder: Path) -> list[tuple[Path, int, int]]:
    """The places of the piece: files with the first and last character, found by tokens."""
    wanted = [t[0] for t in tokens(textwrap.dedent(old).strip())]
    found = []
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
        _, there = _of_file(path)
        said = [t[0] for t in there]
        for k in range(len(said) - len(wanted) + 1):
            if said[k] == wanted[0] and said[k : k + len(wanted)] == wanted:
                found.append((path, there[k][1], there[k + len(wanted) - 1][2]))
    return found


def replaced(old: str, new: str, folder: Path) -> tuple[Path, str]:
    """The file with the piece and its text with the other; ValueError unless the piece is there exactly once."""
    places = find(old, folder)
    if len(places) != 1:
        raise ValueError(f"its text is {len(places)} times in {folder}; adapt it")
    path, begin, end = places[0]
    source, _ = _of_file(path)
    line = source[source.rfind("\n", 0, begin) + 1 : begin]
    indent = line[: len(line) - len(line.lstrip())]
    text = textwrap.dedent(new).strip().replace("\n", "\n" + indent)
    return path, source[:begin] + text + source[end:]
