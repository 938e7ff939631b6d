"""Reading tables of traces: plain or gzip, columns at once, and errors that name file, line, column and the need."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from pycontrol.model.bounds import BOUNDS

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Value = TypeVar("Value")

GZIP = b"\x1f\x8b"
NOT_TEXT = (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error)
"""Errors of reading what is no text, or a gzip that is damaged or ends too soon."""
FIELD_CHARS = 1 << 26
"""A row of our own format carries all jobs of an app."""


class BadTrace(ValueError):
    """A trace that cannot be read, or an option that it does not take; the text says where and what is expected."""


def open_text(path: Path) -> IO[str]:
    """The file as text; gzip is found by its first bytes, whatever its name. OSError where it cannot be opened."""
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP
    return gzip.open(path, "rt", encoding="utf-8-sig") if zipped else path.open(encoding="utf-8-sig")


def head(path: Path, chars: int = 4096) -> str:
    """The first characters of a file, for recognising its format."""
    try:
        with open_text(path) as file:
            return file.read(chars)
    except NOT_TEXT as e:
        raise BadTrace(f"{path}: is not text, nor gzip of text: {e}") from e


@dataclass
class Skipped:
    """What an importer left out, by reason."""

    reasons: Counter[str] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)
    """Parts of rows that are otherwise kept, by reason."""
    bad: list[str] = field(default_factory=list)
    """The first bad rows in words, where they are skipped rather than refused."""

    def drop(self, reason: str, count: int) -> None:
        """Counts rows that are left out."""
        if count:
            self.reasons[reason] += count

    def __str__(self) -> str:
        total = sum(self.reasons.values())
        why = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.most_common())
        also = "".join(f", and {count:,} {reason}" for reason, count in self.parts.most_common())
        return (f"{total:,} skipped ({why})" if total else "none skipped") + also


SHOWN_BAD = 5
BAD_ROW = "bad rows"


class TraceTable:
    """A file's rows by column. `lenient`: a row with a bad value is skipped and counted instead of refused."""

    def __init__(
        self, path: Path, names: Sequence[str], rows: list[list[str]], lines: list[int], lenient: bool = False
    ) -> None:
        self.path, self.lines, self.lenient = path, np.array(lines, dtype=np.int64), lenient
        self.names = {name: i for i, name in enumerate(names)}
        self.columns = list(zip(*rows, strict=True)) if rows else [() for _ in names]
        self.good: Mask = np.ones(len(rows), dtype=bool)
        self.skipped = Skipped()

    @classmethod
    def read(
        cls, path: Path, names: Sequence[str] = (), delimiter: str = ",", lenient: bool = False, comment: str = ""
    ) -> TraceTable:
        """`names`: of the columns where the file has no header line; `comment`: begins lines that are no rows."""
        rows: list[list[str]] = []
        lines: list[int] = []
        wrong: list[tuple[int, int]] = []
        csv.field_size_limit(max(csv.field_size_limit(), FIELD_CHARS))
        try:
            with open_text(path) as file:
                tabs = delimiter == "\t"
                reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL)
                for row in reader:
                    if not row or (comment and row[0].startswith(comment)):
                        continue
                    if not names:
                        names = [name.strip() for name in row]
                    elif len(row) == len(names):
                        rows.append(row)
                        lines.append(reader.line_num)
                    else:
                        wrong.append((reader.line_num, len(row)))
        except (*NOT_TEXT, csv.Error) as e:
            raise BadTrace(f"{path}: line {lines[-1] + 1 if lines else 1}: cannot be read: {e}") from e
        table = cls(path, names, rows, lines, lenient)
        for line, count in wrong:
            table._refuse(f"{path}: line {line}: has {count} columns, expected {len(names)}")
        table.skipped.drop(BAD_ROW, len(wrong))
        return table

    def __len__(self) -> int:
        return len(self.lines)

    def _refuse(self, problem: str) -> None:
        if not self.lenient:
            raise BadTrace(f"{problem} (bad_rows=skip leaves such rows out)")
        if len(self.skipped.bad) < SHOWN_BAD:
            self.skipped.bad.append(problem)

    def _bad(self, name: str, i: int, expected: str) -> None:
        """This row's value in that column is refused, or the row is."""
        value = self.columns[self.names[name]][i]
        self._refuse(f"{self.path}: line {self.lines[i]}, column {name}: {value!r}, expected {expected}")
        if self.good[i]:
            self.skipped.drop(BAD_ROW, 1)
        self.good[i] = False

    def need(self, *names: str) -> None:
        """Raises where the file lacks one of these columns."""
        lacking = [name for name in names if name not in self.names]
        if lacking:
            raise BadTrace(f"{self.path}: line 1: no column {', '.join(lacking)}; it has {', '.join(self.names)}")

    def texts(self, name: str, default: str | None = None) -> tuple[str, ...]:
        """A column as it is; `default` where the file does not have it."""
        if default is not None and name not in self.names:
            return (default,) * len(self)
        self.need(name)
        return self.columns[self.names[name]]

    def parsed(self, name: str, parse: Callable[[str], float], expected: str, empty: float | None) -> Floats:
        """A column of what `parse` makes of it, which raises ValueError; `empty`: what an empty value means."""
        texts = self.texts(name)
        if empty is None:
            try:
                return np.array(texts, dtype=np.float64) if parse is float else np.array([parse(t) for t in texts])
            except ValueError:
                pass
        found = np.full(len(texts), np.nan)
        for i, text in enumerate(texts):
            if empty is not None and not text.strip():
                found[i] = empty
                continue
            try:
                found[i] = parse(text)
            except ValueError:
                self._bad(name, i, expected)
        return found

    def numbers(self, name: str, expected: str = "a number of at least 0", empty: float | None = None) -> Floats:
        """A column of numbers within its bounds, none below 0; `empty`: what an empty value means (None: bad)."""
        found = self.parsed(name, float, expected, empty)
        texts = self.texts(name)
        row = BOUNDS.get(name, BOUNDS["column"])
        for i in np.flatnonzero(~((found >= 0) & np.isfinite(found) & (found <= row.high)) & self.good).tolist():
            if empty is None or texts[i].strip():
                self._bad(name, i, expected if not found[i] > row.high else f"at most {row.high:g}")
        return found

    def counts(self, name: str, empty: float | None = None) -> Floats:
        """A column of whole numbers of at least 0."""
        expected = "a whole number of at least 0"
        found = self.numbers(name, expected, empty=empty)
        for i in np.flatnonzero((found != np.floor(found)) & self.good).tolist():
            self._bad(name, i, expected)
        return found

    def values(self, name: str, parse: Callable[[str], Value], expected: str) -> list[Value | None]:
        """A column of anything; `parse` raises ValueError or KeyError for a bad value, whose row gets None."""
        found: list[Value | None] = []
        for i, text in enumerate(self.texts(name)):
            try:
                found.append(parse(text))
            except (ValueError, KeyError):
                self._bad(name, i, expected)
                found.append(None)
        return found
