"""Cells: what a full request costs on large clusters, against the cluster's size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycontrol.lab.hived.cell_experiments import costs


def drive(pods: int, nodes: int, requests: int) -> dict[str, Any]:
    """The costs of requests on a number of pods of nodes of 8 GPUs."""
    found = costs(pods, nodes, requests)
    return {
        "gpus": found.gpus,
        "start_s": found.start_s,
        "memory_mb": found.peak_kb / 1024,
        "outcomes": dict(found.outcomes),
        "request": {name: spread_us(some) for name, some in found.requests_s.items()},
        "release": spread_us(found.releases_s),
    }


def spread_us(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, p99 and worst, microseconds."""
    ordered = sorted(values) or [0.0]
    return {
        "mean_us": 1e6 * sum(ordered) / len(ordered),
        "median_us": 1e6 * ordered[len(ordered) // 2],
        "p99_us": 1e6 * ordered[int(0.99 * (len(ordered) - 1))],
        "worst_us": 1e6 * ordered[-1],
        "n": len(ordered),
    }


def run(quick: bool) -> dict[str, Any]:
    """The two clusters of the profile, and smaller ones for the growth with size."""
    shapes = [(8, 32), (8, 256), (8, 1024)] if not quick else [(8, 32), (8, 64)]
    return {f"{pods} x {nodes} x 8": drive(pods, nodes, 10_000 if not quick else 1_000) for pods, nodes in shapes}
