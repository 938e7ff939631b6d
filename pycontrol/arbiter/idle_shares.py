"""Idle GPUs of several types, shared among virtual clusters: OEF's shares by their apps' measured speeds and by weight.

What virtual clusters own is theirs by their cells; this is about what they may borrow. A share is a fraction; whole
GPUs are given by largest remainder, and what is then left goes to whoever wants it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pycontrol.arbiter.state import State
from pycontrol.model.auction import Demand
from pycontrol.shares.capped import within_demand
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.problem import ShareProblem

ByType = Mapping[str, int]
"""GPUs by type."""


def speed_vector(demands: Sequence[tuple[Demand, int]], types: Sequence[str]) -> list[float]:
    """The mean speed by type of a virtual cluster's apps, each with the GPUs that it wants as its weight.

    1 where nothing was measured, 0 for a type that nobody there takes.
    """
    total = sum(gpus for _, gpus in demands) or 1
    return [sum(_speed(d, t) * gpus for d, gpus in demands) / total for t in types]


def _speed(demand: Demand, gpu_type: str) -> float:
    if demand.gpu_type and demand.gpu_type != gpu_type:
        return 0.0
    return demand.speedups.get(gpu_type, 1.0)


def shares_by_type(
    s: State,
    wanting: Mapping[str, Sequence[tuple[str, int]]],
    wanted: Mapping[str, int],
    gpus: ByType,
    weights: Mapping[str, float],
) -> dict[str, dict[str, int]]:
    """Whole GPUs by virtual cluster and type. `wanting`: its apps with the GPUs that each could use more; `wanted`:
    GPUs that it could use of those on offer, `gpus`."""
    vcs, types = sorted(wanted), sorted(t for t, n in gpus.items() if n > 0)
    if not vcs or not types:
        return {vc: {} for vc in vcs}
    rows = []
    for vc in vcs:
        known = [(s.agents[a].demand, n) for a, n in wanting.get(vc, ()) if a in s.agents and n > 0]
        rows.append(speed_vector(known, types) if known else [1.0] * len(types))
    problem = ShareProblem.of(
        rows, [float(gpus[t]) for t in types], [weights.get(vc, 1.0) or 1.0 for vc in vcs],
        [float(wanted[vc]) for vc in vcs],
    )  # fmt: skip
    x = within_demand(OefCooperative(), problem)
    found: dict[str, dict[str, int]] = {vc: {} for vc in vcs}
    for j, gpu_type in enumerate(types):
        column = {vc: float(x[i, j]) for i, vc in enumerate(vcs)}
        for vc, n in _whole(column, gpus[gpu_type], {vc: wanted[vc] - sum(found[vc].values()) for vc in vcs}).items():
            if n:
                found[vc][gpu_type] = n
    return found


def _whole(share: Mapping[str, float], gpus: int, most: Mapping[str, int]) -> dict[str, int]:
    """Floors, then one more for the largest remainders, within what is there and what each wants."""
    whole = {vc: min(math.floor(n + 1e-6), most[vc]) for vc, n in share.items()}
    left = min(gpus, round(sum(share.values()))) - sum(whole.values())
    for vc in sorted(share, key=lambda vc: (whole[vc] - share[vc], vc)):
        if left > 0 and share[vc] - whole[vc] > 1e-6 and whole[vc] < most[vc]:
            whole[vc] += 1
            left -= 1
    return whole
