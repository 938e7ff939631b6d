"""All experiments by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Mapping

from pycontrol.experiments.kit import Findings, Setup

Experiment = Callable[[Setup], Findings]

EXPERIMENTS: Mapping[str, str] = {
    "themis-facts": "pycontrol.experiments.themis_small_facts:facts",
    "themis-table1": "pycontrol.experiments.themis_small:table1",
    "themis-table3": "pycontrol.experiments.themis_small:table3",
    "themis-fig8": "pycontrol.experiments.themis_workloads:workloads",
    "themis-fig9-10": "pycontrol.experiments.themis_rho:fairness",
    "themis-fig11-12": "pycontrol.experiments.themis_rho:gpu_time",
    "themis-fig13": "pycontrol.experiments.themis_rho:placement",
    "themis-fig14": "pycontrol.experiments.themis_contention:contention",
    "themis-fig15-16": "pycontrol.experiments.themis_contention:network",
    "themis-fig17": "pycontrol.experiments.themis_sensitivity:errors",
    "themis-fig19": "pycontrol.experiments.themis_sensitivity:knobs",
    "themis-conventions": "pycontrol.experiments.themis_conventions:conventions",
    "themis-philly": "pycontrol.experiments.themis_workloads:philly",
    "themis-table5": "pycontrol.experiments.themis_small:table5",
    "themis-fig18": "pycontrol.experiments.themis_small_lies:fig18",
    "themis-truth": "pycontrol.experiments.themis_small_lies:truth",
    "themis-overheads": "pycontrol.experiments.themis_small_facts:overheads",
}
"""Name -> module and function; its docstring's first line is the title."""


class UnknownExperiment(ValueError):
    """A name that no experiment has."""


def names() -> tuple[str, ...]:
    """The experiments whose modules are there."""
    return tuple(n for n, at in EXPERIMENTS.items() if importlib.util.find_spec(at.partition(":")[0]))


def load(name: str) -> Experiment:
    """An experiment by name; UnknownExperiment names the nearest."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`isonomy experiment list` names them all."
        raise UnknownExperiment(f"there is no experiment {name}; {hint}")
    module, _, function = EXPERIMENTS[name].partition(":")
    experiment: Experiment = getattr(importlib.import_module(module), function)
    return experiment


def title(name: str) -> str:
    """What it is about, in one line."""
    return (load(name).__doc__ or name).partition("\n")[0].rstrip(".")
