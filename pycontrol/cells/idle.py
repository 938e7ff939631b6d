"""Idle GPUs among virtual clusters: weighted max-min fairness (HiveD, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from pycontrol.cells.core import Cells


def max_min(capacity: int, demand: Mapping[str, int], weight: Mapping[str, float]) -> dict[str, int]:
    """Whole GPUs by tenant: each next one goes to the unsatisfied tenant with the least per weight."""
    share = dict.fromkeys(demand, 0)
    for _ in range(min(capacity, sum(demand.values()))):
        waiting = [t for t in demand if share[t] < demand[t]]
        poorest = min(waiting, key=lambda t: ((share[t] + 1) / weight.get(t, 1.0), t))
        share[poorest] += 1
    return share


def shares(cells: Cells, wanted: Mapping[str, int]) -> dict[str, int]:
    """Opportunistic GPUs that each virtual cluster may have in all, if it wants so many more than it uses."""
    used = in_use(cells)
    idle = sum(space.borrowable.free_gpus for space in cells.spaces)
    demand = {vc.name: used.get(vc.name, 0) + wanted.get(vc.name, 0) for vc in cells.layout.vcs}
    return max_min(idle + sum(used.values()), demand, {vc.name: vc.weight for vc in cells.layout.vcs})


def in_use(cells: Cells) -> dict[str, int]:
    """GPUs of opportunistic groups by virtual cluster."""
    used: dict[str, int] = {}
    for group in cells.groups.values():
        if not group.guaranteed:
            gpus = sum(len(indices) for _, indices in group.workers)
            used[group.request.vc] = used.get(group.request.vc, 0) + gpus
    return used
