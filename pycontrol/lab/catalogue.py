"""All experiments by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping

from pycontrol.lab.kit import Findings, Setup
from pycontrol.words import suggest

Experiment = Callable[[Setup], Findings]

EXPERIMENTS: Mapping[str, str] = {
    "beside-kueue": "pycontrol.lab.beside.kueue:kueue",
    "beside-shockwave": "pycontrol.lab.beside.shockwave:shockwave",
    "beside-sia": "pycontrol.lab.beside.sia:sia",
    "default-policy": "pycontrol.lab.default_policy.promise:default_policy",
    "default-policy-lies": "pycontrol.lab.default_policy.lie_gains:lies",
    "default-policy-loans": "pycontrol.lab.default_policy.loans:loans",
    "default-policy-splits": "pycontrol.lab.default_policy.splits:splits",
    "default-policy-unmanaged": "pycontrol.lab.default_policy.unmanaged:unmanaged",
    "default-policy-victims": "pycontrol.lab.default_policy.victims:victims",
    "estimates": "pycontrol.lab.outlook.estimates:estimates",
    "hived-fig2": "pycontrol.lab.hived.example:fig2",
    "hived-fig6": "pycontrol.lab.hived.sharing_experiments:fig6",
    "hived-fig7": "pycontrol.lab.hived.sharing_experiments:fig7",
    "hived-excess": "pycontrol.lab.hived.sharing_experiments:excess",
    "hived-fig8": "pycontrol.lab.hived.cell_experiments:fig8",
    "hived-fig9": "pycontrol.lab.hived.cell_experiments:fig9",
    "hived-profile": "pycontrol.lab.hived.cell_experiments:profile",
    "hived-fig10": "pycontrol.lab.hived.exchange_experiments:fig10",
    "hived-tables4-5": "pycontrol.lab.hived.exchange_experiments:tables",
    "hived-fig11-12": "pycontrol.lab.hived.exchange_experiments:figs",
    "hived-closed-loop": "pycontrol.lab.hived.closed_loop:closed_loop",
    "hived-safety": "pycontrol.lab.hived.safety:safety",
    "hived-philly": "pycontrol.lab.hived.sharing_experiments:philly_tenants",
    "themis-facts": "pycontrol.lab.themis.trace_facts:facts",
    "themis-table1": "pycontrol.lab.themis.small_examples:table1",
    "themis-table3": "pycontrol.lab.themis.small_examples:table3",
    "themis-fig8": "pycontrol.lab.themis.workloads:workloads",
    "themis-fig9-10": "pycontrol.lab.themis.rho:fairness",
    "themis-fig11-12": "pycontrol.lab.themis.rho:gpu_time",
    "themis-fig13": "pycontrol.lab.themis.rho:placement",
    "themis-fig14": "pycontrol.lab.themis.contention_experiments:contention",
    "themis-fig15-16": "pycontrol.lab.themis.contention_experiments:network",
    "themis-fig17": "pycontrol.lab.themis.sensitivity:errors",
    "themis-fig19": "pycontrol.lab.themis.sensitivity:knobs",
    "themis-conventions": "pycontrol.lab.themis.conventions:conventions",
    "themis-cached": "pycontrol.lab.themis.cached:cached_tables",
    "themis-philly": "pycontrol.lab.themis.workloads:philly",
    "themis-table5": "pycontrol.lab.themis.small_examples:table5",
    "themis-fig18": "pycontrol.lab.themis.lies:fig18",
    "themis-truth": "pycontrol.lab.themis.lies:truth",
    "themis-overheads": "pycontrol.lab.themis.trace_facts:overheads",
    "typed-auctions": "pycontrol.lab.themis.types:typed_auctions",
    "typed-lies": "pycontrol.lab.themis.typed_lies:typed_lies",
    "oef-table1": "pycontrol.lab.oef.fairness:table1",
    "oef-fig1-2": "pycontrol.lab.oef.vectors:figures_1_and_2",
    "oef-fig4": "pycontrol.lab.oef.fairness:figure4",
    "oef-fig5": "pycontrol.lab.oef.fairness:figure5",
    "oef-fig6": "pycontrol.lab.oef.fairness:figure6",
    "oef-fig7-8": "pycontrol.lab.oef.throughput:throughput",
    "oef-fig9": "pycontrol.lab.oef.throughput:figure9",
    "oef-fig10": "pycontrol.lab.oef.overhead:figure10",
    "oef-stragglers": "pycontrol.lab.oef.throughput:stragglers",
    "oef-vectors": "pycontrol.lab.oef.vectors:vectors",
    "oef-map": "pycontrol.lab.oef.overhead:conditions",
    "oef-golden": "pycontrol.lab.oef.golden:golden",
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
