"""Compares policies by runs on the same seeds; writes files and plots."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pycontrol.lab.paper_metrics import METRICS, metrics
from pycontrol.lab.runs import Interval, interval, metric_ratio, unfinished_note
from pycontrol.simulation.result import AppResult, Result

APP_PROPERTIES = ("rho", "rho_path", "t_cluster_s", "t_cluster_path_s", "completion_s", "waited_s")


@dataclass(frozen=True)
class Comparison:
    """Results by the label of a policy, on the same seeds in the same order; the first is the reference."""

    results: Mapping[str, Sequence[Result]]

    @cached_property
    def figures(self) -> Mapping[str, Sequence[Mapping[str, float]]]:
        """{label: metrics of each seed}."""
        return {label: [metrics(r) for r in runs] for label, runs in self.results.items()}

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """{label: {metric: values, mean with 95 % interval, and the ratio to the reference, paired by seed}}.

        Metrics of finished apps have no ratio if an app of either run is unfinished.
        """
        reference = next(iter(self.figures))
        return {
            label: {
                m.name: {
                    "values": [_plain(f[m.name]) for f in found],
                    **_interval(interval([f[m.name] for f in found])),
                    "ratio": None
                    if label == reference
                    else _interval(metric_ratio(found, self.figures[reference], m.name)),
                }
                for m in METRICS
            }
            for label, found in self.figures.items()
        }

    def document(self) -> dict[str, Any]:
        """The whole comparison as JSON values."""
        first = next(iter(self.results.values()))
        return {
            "workload": first[0].workload,
            "apps": len(first[0].apps),
            "cluster_gpus": first[0].cluster_gpus,
            "seeds": [r.seed for r in first],
            "policies": {
                label: {"policy": runs[0].policy, "options": dict(runs[0].options)}
                for label, runs in self.results.items()
            },
            "metrics": self.summary(),
            "largest_excess_s": {label: _largest_excess(runs) for label, runs in self.results.items()},
            "note": unfinished_note(self.figures),
            "cost": {
                label: {
                    "events": sum(r.counters.events for r in runs),
                    "wall_s": sum(r.counters.wall_s for r in runs),
                    "policy_s": sum(r.counters.policy_s for r in runs),
                    "bids_s": sum(r.counters.bids_s for r in runs),
                }
                for label, runs in self.results.items()
            },
        }

    def curve(self, label: str, field: str) -> list[float]:
        """A figure of all finished apps of all seeds."""
        return [getattr(a, field) for r in self.results[label] for a in r.apps if a.finished_s is not None]


def _largest_excess(runs: Sequence[Result]) -> float | None:
    """The largest excess of an app's end over that on its private cluster, seconds; None without virtual clusters."""
    found = [excess_s for r in runs for a in r.apps if (excess_s := a.excess_s) is not None]
    return _plain(max(found)) if found else None


def _interval(found: Interval) -> dict[str, Any]:
    return {"mean": _plain(found.mean), "low": _plain(found.low), "high": _plain(found.high)}


def _plain(value: float) -> float | None:
    """The value, or None for NaN and infinity, which JSON lacks."""
    return value if math.isfinite(value) else None


# ---- files


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """summary.json, runs.csv (one row a run) and apps.csv (one row an app of a run); returns the files."""
    summary, runs, apps = (folder / name for name in ("summary.json", "runs.csv", "apps.csv"))
    summary.write_text(json.dumps(comparison.document(), indent=2) + "\n", encoding="utf-8")
    with runs.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["policy", "seed", *(m.name for m in METRICS)])
        for label, results in comparison.results.items():
            for r in results:
                found = metrics(r)
                table.writerow([label, r.seed, *(found[m.name] for m in METRICS)])
    fields = [f.name for f in dataclasses.fields(AppResult)]
    with apps.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["policy", "seed", *fields, *APP_PROPERTIES])
        for label, results in comparison.results.items():
            for r in results:
                for a in r.apps:
                    table.writerow([label, r.seed, *(getattr(a, n) for n in (*fields, *APP_PROPERTIES))])
    return [summary, runs, apps]
