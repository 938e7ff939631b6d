"""All experiments by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping

from pycontrol.experiments.kit import Findings, Setup
from pycontrol.words import suggest

Experiment = Callable[[Setup], Findings]

EXPERIMENTS: Mapping[str, str] = {
    "default-policy": "pycontrol.experiments.default_policy.promise:default_policy",
    "default-policy-splits": "pycontrol.experiments.default_policy.splits:splits",
    "default-policy-unmanaged": "pycontrol.experiments.default_policy.unmanaged:unmanaged",
    "estimates": "pycontrol.experiments.outlook.estimates:estimates",
    "hived-fig2": "pycontrol.experiments.hived.example:fig2",
    "hived-fig6": "pycontrol.experiments.hived.sharing:fig6",
    "hived-fig7": "pycontrol.experiments.hived.sharing:fig7",
    "hived-excess": "pycontrol.experiments.hived.sharing:excess",
    "hived-fig8": "pycontrol.experiments.hived.cells:fig8",
    "hived-fig9": "pycontrol.experiments.hived.cells:fig9",
    "hived-profile": "pycontrol.experiments.hived.cells:profile",
    "hived-fig10": "pycontrol.experiments.hived.exchange:fig10",
    "hived-tables4-5": "pycontrol.experiments.hived.exchange:tables",
    "hived-fig11-12": "pycontrol.experiments.hived.exchange:figs",
    "hived-closed-loop": "pycontrol.experiments.hived.closed_loop:closed_loop",
    "hived-safety": "pycontrol.experiments.hived.safety:safety",
    "hived-philly": "pycontrol.experiments.hived.sharing:philly_tenants",
    "themis-facts": "pycontrol.experiments.themis.facts:facts",
    "themis-table1": "pycontrol.experiments.themis.tables:table1",
    "themis-table3": "pycontrol.experiments.themis.tables:table3",
    "themis-fig8": "pycontrol.experiments.themis.workloads:workloads",
    "themis-fig9-10": "pycontrol.experiments.themis.rho:fairness",
    "themis-fig11-12": "pycontrol.experiments.themis.rho:gpu_time",
    "themis-fig13": "pycontrol.experiments.themis.rho:placement",
    "themis-fig14": "pycontrol.experiments.themis.contention:contention",
    "themis-fig15-16": "pycontrol.experiments.themis.contention:network",
    "themis-fig17": "pycontrol.experiments.themis.sensitivity:errors",
    "themis-fig19": "pycontrol.experiments.themis.sensitivity:knobs",
    "themis-conventions": "pycontrol.experiments.themis.conventions:conventions",
    "themis-cached": "pycontrol.experiments.themis.cached:cached_tables",
    "themis-philly": "pycontrol.experiments.themis.workloads:philly",
    "themis-table5": "pycontrol.experiments.themis.tables:table5",
    "themis-fig18": "pycontrol.experiments.themis.lies:fig18",
    "themis-truth": "pycontrol.experiments.themis.lies:truth",
    "themis-overheads": "pycontrol.experiments.themis.facts:overheads",
    "typed-auctions": "pycontrol.experiments.themis.types:typed_auctions",
    "typed-lies": "pycontrol.experiments.themis.typed_lies:typed_lies",
    "oef-table1": "pycontrol.experiments.oef.fairness:table1",
    "oef-fig1-2": "pycontrol.experiments.oef.vectors:figures_1_and_2",
    "oef-fig4": "pycontrol.experiments.oef.fairness:figure4",
    "oef-fig5": "pycontrol.experiments.oef.fairness:figure5",
    "oef-fig6": "pycontrol.experiments.oef.fairness:figure6",
    "oef-fig7-8": "pycontrol.experiments.oef.throughput:throughput",
    "oef-fig9": "pycontrol.experiments.oef.throughput:figure9",
    "oef-fig10": "pycontrol.experiments.oef.overhead:figure10",
    "oef-stragglers": "pycontrol.experiments.oef.throughput:stragglers",
    "oef-vectors": "pycontrol.experiments.oef.vectors:vectors",
    "oef-map": "pycontrol.experiments.oef.overhead:conditions",
    "oef-golden": "pycontrol.experiments.oef.golden:golden",
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
        hint = suggest(name, names(), most=3, otherwise="`isonomy experiment list` names them all.")
        raise UnknownExperiment(f"there is no experiment {name}; {hint}")
    module, _, function = EXPERIMENTS[name].partition(":")
    experiment: Experiment = getattr(importlib.import_module(module), function)
    return experiment


def title(name: str) -> str:
    """What it is about, in one line."""
    return (load(name).__doc__ or name).partition("\n")[0].rstrip(".")
