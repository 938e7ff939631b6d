"""Rows of a trace file, with errors that name file, line and column."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator
from pathlib import Path


class BadTrace(ValueError):
    """A file that is not what it should be; says where and what is expected."""


class Row:
    """One line of a table."""

    def __init__(self, path: Path, line: int, values: dict[str, str]) -> None:
        self.path, self.line, self.values = path, line, values

    def wrong(self, column: str, expected: str) -> BadTrace:
        """The error for a value."""
        found = self.values.get(column)
        said = "is missing" if found is None else f"is {found!r}"
        return BadTrace(f"{self.path}, line {self.line}, column {column}: {said}, expected {expected}")

    def text(self, column: str) -> str:
        """A value as it is."""
        value = self.values.get(column)
        if value is None:
            raise self.wrong(column, "some text")
        return value.strip()

    def number(self, column: str, least: float = 0.0) -> float:
        """A finite number of at least `least`."""
        try:
            value = float(self.values.get(column) or "")
        except ValueError:
            raise self.wrong(column, f"a number of at least {least:g}") from None
        if not math.isfinite(value) or value < least:
            raise self.wrong(column, f"a number of at least {least:g}")
        return value

    def count(self, column: str, least: int = 0) -> int:
        """A whole number of at least `least`."""
        value = self.number(column, least)
        if value != int(value):
            raise self.wrong(column, "a whole number")
        return int(value)


def opened(path: Path) -> io.TextIOBase:
    """A text file, unpacked if its name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def head(path: Path) -> str:
    """The first line."""
    with opened(path) as file:
        return file.readline().strip("\ufeff \r\n")


def rows(path: Path, delimiter: str = ",", names: list[str] | None = None) -> Iterator[Row]:
    """The lines of a table; `names` where it has no header."""
    with opened(path) as file:
        table = csv.DictReader(file, fieldnames=names, delimiter=delimiter)
        try:
            for values in table:
                clean = {k.strip(): v for k, v in values.items() if k is not None and v is not None}
                yield Row(path, table.line_num, clean)
        except csv.Error as error:
            raise BadTrace(f"{path}, line {table.line_num}: {error}") from error
