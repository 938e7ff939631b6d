"""Output for people: aligned tables, durations and times that read well, wide where nobody looks at a screen."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 400
Data = Mapping[str, Any]


def emit(data: Data, output: str, draw: Callable[[Data], RenderableType]) -> None:
    """Prints JSON or what `draw` makes of it."""
    if output == "json":
        emit_json(data)
    else:
        out(draw(data))


def emit_json(data: Data | Sequence[Data]) -> None:
    """Prints JSON."""
    click.echo(json.dumps(data, indent=2))


def out(drawn: RenderableType) -> None:
    """Prints as wide as the terminal is; into a pipe or a file as wide as it is, without blanks at ends of lines."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(drawn)
        return
    wide = Console(highlight=False, width=PIPE_WIDTH, color_system=None)
    with wide.capture() as text:
        wide.print(drawn)
    click.echo("\n".join(line.rstrip() for line in text.get().splitlines()))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table; a column name that begins with > is aligned to the right."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        right = name.startswith(">")
        result.add_column(name.lstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        result.add_row(*(Text(show(value)) for value in row))
    return result


def fields(row: Data, names: str) -> Iterator[Any]:
    """The values of these keys, which stand with spaces between."""
    return (row[name] for name in names.split())


@dataclass(frozen=True)
class ByWidth:
    """`wide` where there are `least` columns, else `narrow`."""

    wide: RenderableType
    narrow: RenderableType
    least: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= self.least else self.narrow


def lines(*parts: RenderableType | None) -> Group:
    """Parts below each other; None is left out."""
    return Group(*(Text(p) if isinstance(p, str) else p for p in parts if p is not None))


def show(value: Any) -> str:
    """A cell's text."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if math.isfinite(value) else "inf"
    if isinstance(value, Mapping):
        return ", ".join(f"{show(k)}:{show(v)}" for k, v in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(show(v) for v in value) or "-"
    return printable(str(value))


def printable(text: str) -> str:
    """The text with control characters as escapes: a user's name for an app must not move a cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def clock(at_s: float | None) -> str:
    """Local time of day, with the date where that is not today's."""
    return "-" if at_s is None else moment(at_s).removeprefix(time.strftime("%Y-%m-%d "))


def moment(at_s: float) -> str:
    """Local date and time of day."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
