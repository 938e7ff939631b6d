"""All experiments by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Mapping

from pycontrol.experiments.kit import Findings, Setup

Experiment = Callable[[Setup], Findings]

EXPERIMENTS: Mapping[str, str] = {
    "default-policy": "pycontrol.experiments.default_policy:default_policy",
    "default-policy-splits": "pycontrol.experiments.default_policy_splits:splits",
    "hived-fig2": "pycontrol.experiments.hived_safety:fig2",
    "hived-fig6": "pycontrol.experiments.hived_sharing:fig6",
    "hived-fig7": "pycontrol.experiments.hived_sharing:fig7",
    "hived-excess": "pycontrol.experiments.hived_sharing:excess",
    "hived-fig8": "pycontrol.experiments.hived_cells:fig8",
    "hived-fig9": "pycontrol.experiments.hived_cells:fig9",
    "hived-profile": "pycontrol.experiments.hived_cells:profile",
    "hived-fig10": "pycontrol.experiments.hived_exchange:fig10",
    "hived-tables4-5": "pycontrol.experiments.hived_exchange:tables",
    "hived-fig11-12": "pycontrol.experiments.hived_exchange:figs",
    "hived-safety": "pycontrol.experiments.hived_safety:safety",
    "hived-philly": "pycontrol.experiments.hived_sharing:philly_tenants",
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
    "oef-table1": "pycontrol.experiments.oef_fairness:table1",
    "oef-fig1-2": "pycontrol.experiments.oef_vectors:figures_1_and_2",
    "oef-fig4": "pycontrol.experiments.oef_fairness:figure4",
    "oef-fig5": "pycontrol.experiments.oef_fairness:figure5",
    "oef-fig6": "pycontrol.experiments.oef_fairness:figure6",
    "oef-fig7-8": "pycontrol.experiments.oef_throughput:throughput",
    "oef-fig9": "pycontrol.experiments.oef_throughput:figure9",
    "oef-fig10": "pycontrol.experiments.oef_overhead:figure10",
    "oef-stragglers": "pycontrol.experiments.oef_throughput:stragglers",
    "oef-vectors": "pycontrol.experiments.oef_vectors:vectors",
    "oef-map": "pycontrol.experiments.oef_overhead:conditions",
    "oef-golden": "pycontrol.experiments.oef_golden:golden",
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
