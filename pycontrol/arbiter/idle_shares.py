"""Shares of idle GPUs of several types that virtual clusters may borrow.

Cooperative OEF computes fractional shares from the apps' measured speeds and the virtual clusters' weights. They are
rounded to whole GPUs by largest remainder; GPUs that are left go to any virtual cluster that wants them.
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
    """The mean speed of a virtual cluster's apps on each type, weighted by the GPUs that each app wants.

    An app counts 1 on a type that was not measured, and 0 on a type that it does not take.
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
    """Virtual cluster -> type -> whole GPUs that it may borrow.

    `wanting`: virtual cluster -> (app, further GPUs that it could use). `wanted`: virtual cluster -> GPUs of the
    offer `gpus` that it could use.
    """
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
    """Rounds shares by largest remainder, within `gpus` and at most `most` each."""
    whole = {vc: min(math.floor(n + 1e-6), most[vc]) for vc, n in share.items()}
    left = min(gpus, round(sum(share.values()))) - sum(whole.values())
    for vc in sorted(share, key=lambda vc: (whole[vc] - share[vc], vc)):
        if left > 0 and share[vc] - whole[vc] > 1e-6 and whole[vc] < most[vc]:
            whole[vc] += 1
            left -= 1
    return whole
