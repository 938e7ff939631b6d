"""The figures of `isonomy simulate --out`: CDFs over the apps of all seeds, one line a policy."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from pycontrol.lab.comparison import Comparison
from pycontrol.lab.measures import cdf

CURVES = (
    ("rho", "finish-time fairness rho"),
    ("placement", "placement score 1/S"),
    ("completion_s", "completion time, s"),
)
"""Figures to plot as CDFs over the apps of all seeds."""


def plot(comparison: Comparison, folder: Path) -> list[Path]:
    """One figure for each of CURVES, in this folder; returns the files."""
    files = []
    for field, label in CURVES:
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        for name in comparison.results:
            axes.step(*cdf(comparison.curve(name, field)), where="post", label=name)
        if field == "rho":
            axes.axvline(1.0, color="grey", linewidth=0.8, linestyle=":")
        axes.set_xlabel(label)
        axes.set_ylabel("share of apps")
        axes.set_ylim(0, 1)
        axes.legend()
        files.append(folder / f"{field}.png")
        figure.savefig(files[-1], dpi=150)
    return files
