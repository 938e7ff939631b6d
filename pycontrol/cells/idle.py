"""Shares of idle GPUs for virtual clusters: weighted max-min fairness (HiveD, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from pycontrol.cells.core import Cells


def max_min(capacity: int, demand: Mapping[str, int], weight: Mapping[str, float]) -> dict[str, int]:
    """Tenant -> whole GPUs: each GPU goes to the unsatisfied tenant with the fewest per weight."""
    share = dict.fromkeys(demand, 0)
    for _ in range(min(capacity, sum(demand.values()))):
        waiting = [t for t in demand if share[t] < demand[t]]
        poorest = min(waiting, key=lambda t: ((share[t] + 1) / weight.get(t, 1.0), t))
        share[poorest] += 1
    return share


def shares(cells: Cells, wanted: Mapping[str, int]) -> dict[str, int]:
    """Virtual cluster -> GPUs that it may borrow in total; `wanted`: GPUs beyond those that it borrows now."""
    used = in_use(cells)
    idle = sum(space.borrowable.free_gpus for space in cells.spaces)
    demand = {vc.name: used.get(vc.name, 0) + wanted.get(vc.name, 0) for vc in cells.layout.vcs}
    return max_min(idle + sum(used.values()), demand, {vc.name: vc.weight for vc in cells.layout.vcs})


def in_use(cells: Cells) -> dict[str, int]:
    """Virtual cluster -> GPUs of its opportunistic groups."""
    used: dict[str, int] = {}
    for group in cells.groups.values():
        if not group.guaranteed:
            gpus = sum(len(indices) for _, indices in group.workers)
            used[group.request.vc] = used.get(group.request.vc, 0) + gpus
    return used
