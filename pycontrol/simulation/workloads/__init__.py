"""Workloads by name or from a file: generators calibrated to the papers, and importers of public traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pycontrol.simulation.apps import Workload
from pycontrol.simulation.workloads import hived, themis, traces
from pycontrol.simulation.workloads.rows import BadTrace

GENERATORS: Mapping[str, Callable[..., Workload]] = {
    "w1": themis.w1,
    "w2": themis.w2,
    "hived": hived.hived,
}
"""Name -> generator; its keyword arguments are the options."""


def load(name: str | Path, seed: int = 0, **options: Any) -> Workload:
    """A workload by its generator's name, or read from a file, whose format is told by its header.

    ValueError for a name that is neither, or an option that does not exist; BadTrace (a ValueError) names the
    file, the line and the column; OSError where the file cannot be read.
    """
    if str(name) in GENERATORS:
        try:
            return GENERATORS[str(name)](seed=seed, **options)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from error
    path = Path(name)
    if path.exists():
        return traces.read(path, **options)
    raise ValueError(f"{name}: is none of {', '.join(GENERATORS)}, and there is no such file")


__all__ = ["GENERATORS", "BadTrace", "load"]
