"""Holds what Agents report against what the control plane sees, and uses what was seen where they differ.

Three checks, each with a tolerance that an honest Agent stays within:

- S and speeds by type against the iteration times that the workers report, on the GPUs that the Arbiter leased;
- the work left, and the whole work, against the workers' steps and how far they were told to train;
- rho and each row of a bid against the range that the (checked) work, S, speeds and the GPUs held allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from pycontrol.arbiter import apps
from pycontrol.arbiter.lease import ACTIVE, gpus_in
from pycontrol.arbiter.seen import TOLERANCE, AppSeen, overstated
from pycontrol.arbiter.state import State
from pycontrol.fairness.bidding import mean_speed
from pycontrol.fairness.plausible import Standing, app_left, held_bid, rho_range, slowdowns_of, within
from pycontrol.model.auction import Bid, Demand, as_gang
from pycontrol.model.events import RhoReported, WorkerSteps
from pycontrol.model.topology import Gpu

ROUNDS = 8
"""Overstated work counts if it was overstated in one of this many rounds before: one message may cross a restart."""

ROUNDING = 1.01
"""An Agent's sum of its work done and left may differ by this factor."""


@dataclass(slots=True)
class _App:
    seen: AppSeen = field(default_factory=AppSeen)
    overstated: deque[bool] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    standing: Standing | None = None
    """In the present round; None if its rho cannot be checked."""


class Reports:
    """The checks, by app. What was seen is not journaled: workers report it again."""

    def __init__(self, state: State) -> None:
        self.s = state
        self._apps: dict[str, _App] = {}

    def forget(self, app_id: str) -> None:
        """Drops what was seen of an application that YARN has removed."""
        self._apps.pop(app_id, None)

    def demand(self, app_id: str, demand: Demand, steps: Sequence[WorkerSteps] = ()) -> Demand:
        """The demand to use, with the S and speeds that were seen; notes the steps first."""
        app = self._apps.get(app_id)
        if app is None:
            if not steps:
                return demand
            app = self._apps[app_id] = _App()
        self._note(app_id, app, demand, steps)
        return app.seen.held(demand)

    def _note(self, app_id: str, app: _App, demand: Demand, steps: Sequence[WorkerSteps]) -> None:
        job_of: dict[str, str] = {}
        gangs: dict[str, list[Gpu]] = {}
        for w in self.s.workers.of(app_id) if steps else ():
            job_of[w.plan.worker_id] = w.plan.job_id
            gangs.setdefault(w.plan.job_id, []).extend(w.plan.gpus)
        for x in steps:
            if x.worker_id in job_of:
                job_id = job_of[x.worker_id]
                app.seen.add(job_id, gangs[job_id], demand.gang_gpus, self.s.topology, x)

    # ---- a round

    def rho(self, e: RhoReported, ending: Container[Gpu], now_s: float) -> tuple[Demand, float, str]:
        """The demand and the rho to use, and what was corrected (empty: nothing); `ending`: its GPUs on offer."""
        demand = self.demand(e.app_id, e.demand, e.steps)
        what = _differences(e.demand, demand)
        if e.phases is None or e.app_id not in self.s.durable.apps:
            return demand, e.rho, what
        app = self._apps.setdefault(e.app_id, _App())
        phases = e.phases
        work = app.seen.work(demand, {w.plan.worker_id for w in self.s.workers.of(e.app_id)})
        factor = overstated(phases, e.jobs, work)
        if factor > TOLERANCE and any(app.overstated):
            phases = tuple(tuple(x / factor for x in jobs) for jobs in phases)
            what = _and(what, f"work left / {factor:.3g}")
        app.overstated.append(factor > TOLERANCE)
        demand, understated = _totalled(demand, phases, e.phases, sum(x.done for x in work.values()))
        what = _and(what, understated)
        app.standing = x = self._standing(e.app_id, demand, phases, ending, now_s)
        rho = within(e.rho, rho_range(x)) if e.rho > 0 else e.rho
        return demand, rho, _and(what, f"rho {e.rho:.4g} -> {rho:.4g}" if rho != e.rho else "")

    def bid(self, bid: Bid) -> tuple[Bid, str]:
        """The bid to use, and what was corrected; empty if nothing was. Its gangs are on hosts."""
        app = self._apps.get(bid.app_id)
        if app is None or app.standing is None:
            return bid, ""
        held = held_bid(app.standing, bid)
        if held is bid:
            return bid, ""
        rows = sum(a is not b for a, b in zip(bid.rows, held.rows, strict=True))
        return held, f"rho of {rows} of {len(bid.rows)} rows"

    def _standing(
        self, app_id: str, demand: Demand, phases: Sequence[Sequence[float]], ending: Container[Gpu], now_s: float
    ) -> Standing:
        s, c = self.s, self.s.contention(app_id, now_s)
        width = max(map(len, phases), default=0) * max(demand.gang_gpus, demand.job_demand_max)
        apps.note_demand(s, app_id, max(demand.gpus, width))
        speed, most = mean_speed(demand.speedups, s.topology), s.durable.apps[app_id].demand_gpus
        work = app_left(phases, demand, c.cluster_gpus, c.n_avg, most, now_s - c.submitted_s, speed)
        staying = [g for g in s.gangs_of(app_id) if not any(gpu in ending for gpu in gpus_in(g))]
        train = [as_gang(gpus_in(g)) for g in staying if all(x.state is ACTIVE for x in g)]
        certain = [] if work.job_gpus_max else [slowdowns_of(g, demand, s.topology)[1] for g in train]
        possible = [slowdowns_of(g, demand, s.topology)[0] for g in s.retained_gangs(app_id, ending)]
        return Standing(work, demand, tuple(sorted(certain)), tuple(sorted(possible)), s.topology, c.lease_s)


def _totalled(
    demand: Demand, phases: Sequence[Sequence[float]], told: Sequence[Sequence[float]], seen_gpu_s: float
) -> tuple[Demand, str]:
    """The demand with the work left as used, and with a whole work of at least what is done and left."""
    left, was = sum(map(sum, phases)), sum(map(sum, told))
    total = demand.work_total_gpu_s - max(0.0, was - left)
    least = left + max(demand.work_done_gpu_s, seen_gpu_s / TOLERANCE)
    if total * ROUNDING < least:
        return replace(demand, work_left_gpu_s=left, work_total_gpu_s=least), "the whole work"
    return (demand, "") if left == was else (replace(demand, work_left_gpu_s=left, work_total_gpu_s=total), "")


def _differences(told: Demand, used: Demand) -> str:
    slowdown = "S" if used.slowdown != told.slowdown else ""
    return _and(slowdown, "speeds" if used.speedups != told.speedups else "")


def _and(one: str, other: str) -> str:
    return f"{one}, {other}" if one and other else one or other
