"""The input and the findings of an experiment, as plain values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycontrol.lab.runs import Interval, Job, Outcome, cores, each

DATA = "ISONOMY_DATA"
"""Environment variable with the folder of the public traces; default ../shared/data next to the checkout."""
UNTRIED = "not tried"


@dataclass(frozen=True)
class Setup:
    """How an experiment runs. `quick`: fewer seeds and smaller workloads, for minutes instead of hours."""

    quick: bool = False
    seeds: int | None = None
    """The most seeds; None: the experiment's own number."""
    processes: int = field(default_factory=cores)
    data: Path | None = None
    full: bool = False
    """HiveD's: one seed on all of the paper's nodes, which can take hours."""
    note: Callable[[str], None] = lambda text: None
    """Called with progress messages."""
    runs: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was simulated, as several figures are drawn from the same runs; the setups of a command share it."""

    lacking: set[str] = field(default_factory=set, repr=False, compare=False)
    """The public traces that were looked for in vain."""

    def seeds_of(self, usual: int, quick: int) -> range:
        """The seeds to run."""
        return range(self.seeds if self.seeds is not None else quick if self.quick else usual)

    def each(self, of: Callable[[Job], Outcome], jobs: Sequence[Job]) -> Iterator[Outcome]:
        """`of` each job, in the order of the jobs, on `processes` at once."""
        return each(of, jobs, self.processes)

    def trace(self, path: str) -> Path | None:
        """A file of the public traces; None if it does not exist."""
        root = self.data or Path(os.environ.get(DATA, "../shared/data"))
        if not (root / path).exists():
            self.lacking.add(path)
            return None
        return root / path


@dataclass(frozen=True)
class Table:
    """A table of numbers and texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Series:
    """One line, one group of bars, or one row of a map."""

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Figure:
    """A drawing: `kind` is line, step (a CDF), bar or scatter."""

    name: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    kind: str = "line"
    log_x: bool = False
    log_y: bool = False
    mark: float | None = None
    """A horizontal line, as at rho = 1."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the result here. `holds` None: it cannot be tested here; `why` explains."""

    claim: str
    paper: str
    ours: str
    holds: bool | None
    why: str = ""
    sure: bool = True
    """Whether the result is significant at 95 %; else it rests on the means."""

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        if self.holds is None:
            return UNTRIED
        return ("holds" if self.holds else "does not hold") + ("" if self.sure else " on average")


@dataclass(frozen=True)
class Findings:
    """The findings of one experiment."""

    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    conventions: tuple[str, ...] = ()
    """Assumptions where the paper leaves something open."""
    seeds: int = 0
    notes: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """Numbers for other programs."""
    size: str = ""
    """The part of the paper's set-up that was run, if not all."""


def shown(value: Interval, digits: int = 3) -> str:
    """A mean with its 95 % confidence interval; "-" if there is none."""
    if math.isnan(value.mean):
        return "-"
    if value.n < 2:
        return f"{value.mean:.{digits}g}"
    return f"{value.mean:.{digits}g} [{value.low:.{digits}g}, {value.high:.{digits}g}]"
