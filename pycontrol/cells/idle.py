"""Shares of idle GPUs for virtual clusters: weighted max-min fairness (HiveD, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping


def max_min(capacity: int, demand: Mapping[str, int], weight: Mapping[str, float]) -> dict[str, int]:
    """Tenant -> whole GPUs: each GPU goes to the unsatisfied tenant with the fewest per weight."""
    share = dict.fromkeys(demand, 0)
    for _ in range(min(capacity, sum(demand.values()))):
        waiting = [t for t in demand if share[t] < demand[t]]
        poorest = min(waiting, key=lambda t: ((share[t] + 1) / weight.get(t, 1.0), t))
        share[poorest] += 1
    return share
