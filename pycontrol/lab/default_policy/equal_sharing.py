"""References for simulated schedules: equal sharing of an ideal cluster, and a lower bound of completion times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from pycontrol.model.value import value
from pycontrol.policies.fluid import Fluid
from pycontrol.policies.hierarchy import VirtualApp, Weights
from pycontrol.simulation.result import AppResult, Result


def finish_s(apps: Sequence[AppResult]) -> dict[str, float]:
    """{app: when hierarchical equal sharing would have ended it} on a cluster that is divisible and without costs.

    No app ends before its longest path on whole gangs. An app without a user counts as its own user.
    """
    weights = Weights(max(1, max((a.cluster_gpus for a in apps), default=1)))
    fluid = Fluid(min((a.submitted_s for a in apps), default=0.0), weights)
    for a in sorted(apps, key=lambda a: (a.submitted_s, a.app_id)):
        width_gpus = max(1, min(weights.gpus, a.demand_gpus))
        app = VirtualApp(a.queue, a.user or a.app_id, a.work_gpu_s, width_gpus, a.work_gpu_s)
        fluid = fluid.at(a.submitted_s).joined_by([(a.submitted_s, a.app_id, app)])
    fluid = fluid.at(math.inf)
    return {a.app_id: max(fluid.apps[a.app_id].done_s or a.submitted_s, a.submitted_s + a.longest_path_s) for a in apps}


@value
class Promise:
    """How well a schedule keeps the promise that no app ends later than under equal sharing."""

    kept: float
    """Share of the apps that end no later than under equal sharing plus the allowance."""
    excess: float
    """The largest delay beyond that, as a share of the app's completion time under equal sharing."""
    apps: int


def promise(result: Result, allowance_s: float) -> Promise:
    """The promise over all apps; an unfinished app has an infinite excess. `allowance_s`: e.g. lease plus restart."""
    ideal = finish_s(result.apps)
    late = []
    for a in result.apps:
        over_s = (float("inf") if a.finished_s is None else a.finished_s) - ideal[a.app_id] - allowance_s
        late.append(max(0.0, over_s) / max(1e-9, ideal[a.app_id] - a.submitted_s))
    kept = sum(x == 0 for x in late) / len(late) if late else 1.0
    return Promise(kept, max(late, default=0.0), len(late))


def least_mean_completion_s(apps: Sequence[AppResult]) -> float:
    """A lower bound of the mean completion time of all schedules, seconds.

    The larger of two bounds: each app alone on the cluster, and shortest remaining processing time on
    one machine as fast as the cluster, which has the least sum of completion times (Schrage, 1968).
    """
    if not apps:
        return 0.0
    alone = sum(a.t_cluster_path_s for a in apps) / len(apps)
    gpus = max(1, max(a.cluster_gpus for a in apps))
    waiting: list[tuple[float, float]] = []
    """(work left, submission time) of each app in the system."""
    now_s, total_s = 0.0, 0.0
    todo = sorted((a.submitted_s, a.work_gpu_s) for a in apps)
    for k, (came_s, work) in enumerate(todo):
        now_s = max(now_s, came_s) if not waiting else now_s
        heappush(waiting, (work, came_s))
        until_s = todo[k + 1][0] if k + 1 < len(todo) else float("inf")
        while waiting and now_s < until_s:
            left, since_s = heappop(waiting)
            end_s = now_s + left / gpus
            if end_s > until_s:
                heappush(waiting, (left - (until_s - now_s) * gpus, since_s))
                now_s = until_s
                break
            now_s, total_s = end_s, total_s + end_s - since_s
        now_s = max(now_s, until_s) if until_s != float("inf") else now_s
    return max(alone, total_s / len(apps))
