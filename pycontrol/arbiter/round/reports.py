"""Holds what Agents report against what the control plane sees, and uses what was seen where they differ.

A worker reports its newest step and the time of an iteration; the Arbiter knows on which GPUs it runs, and relays how
far it is to train. From these follow S, the speed by GPU type, and the work left and done, once there are enough
samples. Bounded by job; after a restart of the control plane it is seen anew. Three checks, each with a tolerance that
an honest Agent stays within:

- S and speeds by type against the iteration times that the workers report, on the GPUs that the Arbiter leased;
- the work left, and the whole work, against the workers' steps and how far they were told to train;
- rho and each row of a bid against the range that the (checked) work, S, speeds and the GPUs held allow.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pycontrol.arbiter import apps
from pycontrol.arbiter.ledger.lease import ACTIVE, gpus_in
from pycontrol.arbiter.state import State
from pycontrol.fairness.bidding import mean_speed
from pycontrol.fairness.plausible import Standing, app_left, held_bid, rho_range, slowdowns_of, within
from pycontrol.fairness.slowdown import ENOUGH, Profiler
from pycontrol.model.auction import Bid, Demand, as_gang
from pycontrol.model.events import RhoReported, WorkerSteps
from pycontrol.model.topology import Gpu, Scope, Topology

TOLERANCE = 1.25
"""A figure within this factor of what was seen is taken as it is."""
JOBS_MAX = 2048
"""The most jobs of one app that are followed."""


STEPS_LEAST = 20
"""Near its end what is left of a job is not compared: the newest steps may not have reached its Agent."""


class Work(NamedTuple):
    """A job's serial GPU-seconds."""

    done: float
    """At least."""
    left: float | None
    """At most; None: not known."""


@dataclass(slots=True)
class JobSeen:
    """A job's newest step, the worker that told it, how far that is to train (0: not known), and its GPU types."""

    step: int = 0
    worker_id: str = ""
    until_step: int = 0
    types: dict[str, None] = field(default_factory=dict)


class AppSeen:
    """What was seen of one app."""

    def __init__(self) -> None:
        self._profiler = Profiler()
        self._jobs: dict[str, JobSeen] = {}
        self._types: set[str] = set()
        self._scopes: set[Scope] = set()

    def add(self, job_id: str, gpus: Sequence[Gpu], gang_gpus: int, topology: Topology, x: WorkerSteps) -> None:
        """Notes a worker's report; `gpus` are those of its whole gang, of which the smallest has `gang_gpus`."""
        job = self._jobs.get(job_id)
        if job is None:
            if len(self._jobs) >= JOBS_MAX:
                return
            job = self._jobs[job_id] = JobSeen()
        if x.worker_id != job.worker_id:
            job.worker_id, job.until_step = x.worker_id, 0
        job.step, job.until_step = x.step, x.until_step or job.until_step
        types = {topology.type_of(g.host) for g in gpus}
        if x.iter_time_s > 0 and len(types) == 1 and len(gpus) == gang_gpus:
            (kind,) = types
            job.types[kind] = None
            scope = topology.scope_of(g.host for g in gpus)
            self._types.add(kind)
            self._scopes.add(scope)
            for _ in range(min(x.count, ENOUGH)):  # more of the same would change no median
                self._profiler.add(_key(job_id, kind), x.iter_time_s, len(gpus), scope)

    # ---- S and speeds

    def held(self, demand: Demand) -> Demand:
        """The demand with the S and the speeds that were seen, where the reported ones are far from them."""
        if len(self._types) < 2 and len(self._scopes) < 2:
            return demand
        self._profiler.assume(demand.slowdown)
        slowdown, speedups = self._slowdown(demand.slowdown), self._speedups(demand.speedups)
        if slowdown == demand.slowdown and speedups == demand.speedups:
            return demand
        return replace(demand, slowdown=slowdown, speedups=speedups)

    def _slowdown(self, told: tuple[float, float, float]) -> tuple[float, float, float]:
        seen = self._profiler.measured()
        if len(seen) < 2:  # it ran in one scope only
            return told
        first, second, third = (
            seen[scope] if scope in seen and far(s, seen[scope]) else s for scope, s in zip(Scope, told, strict=True)
        )
        return first, max(first, second), max(first, second, third)

    def _speedups(self, told: Mapping[str, float]) -> Mapping[str, float]:
        """Speeds relative to the slowest type. Types on which the app did not run keep what it reports."""
        wrong = {t: float(f"{s:.2g}") for t, s in self._seen_speeds(told).items() if far(told[t], s)}
        return {**told, **wrong} if wrong else told

    def _seen_speeds(self, told: Mapping[str, float]) -> dict[str, float]:
        """The speeds of the types on which the app ran, if there are several; the slowest of them has the told one."""
        if len(self._types) < 2:
            return {}
        seen = self._serial_by_type()
        known = [t for t in seen if t in told]
        if len(known) < 2:
            return {}
        base = min(known, key=lambda t: told[t])
        return {t: told[base] * seen[base] / seen[t] for t in known}

    def _serial_by_type(self) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for (_, kind), serial_s in self._serial().items():
            found.setdefault(kind, []).append(serial_s)
        return {kind: statistics.median(times) for kind, times in found.items()}

    def _serial(self) -> dict[tuple[str, str], float]:
        """(job, type) -> GPU-seconds of an iteration on this type at S = 1."""
        known = self._profiler.serial_by_job()
        return {(j, t): known[_key(j, t)] for j, job in self._jobs.items() for t in job.types if _key(j, t) in known}

    # ---- work

    def work(self, demand: Demand, workers: Container[str]) -> dict[str, Work]:
        """The work of jobs with enough samples whose step is certain: a present one of `workers` told it, or it ended.

        A job that was killed repeats steps, and is left out until its next worker reports. S of its scope and the speed
        of its type may be wrong, too: between the told and the seen one, or by `TOLERANCE` where none was seen.
        """
        self._profiler.assume(demand.slowdown)
        speeds = self._seen_speeds(demand.speedups)
        scopes, scope_of = self._profiler.measured(), self._profiler.scope_by_job()
        found: dict[str, Work] = {}
        for (job_id, kind), serial_s in self._serial().items():
            job, told = self._jobs[job_id], demand.speedups.get(kind, 1.0)
            by = 1.0 if told == 1.0 else TOLERANCE
            least, most = sorted((told, speeds[kind])) if kind in speeds else (told / by, told * by)
            if scope_of[_key(job_id, kind)] not in scopes:
                least, most = least / TOLERANCE, most * TOLERANCE
            steps, present = job.until_step - job.step, job.worker_id in workers
            if present or 0 < job.until_step <= job.step:
                far_from_end = present and steps >= max(STEPS_LEAST, job.until_step // 10)
                left = steps * serial_s * most if far_from_end else None
                found[job_id] = Work(job.step * serial_s * least, left)
        return found


def overstated(phases: Sequence[Sequence[float]], jobs: Sequence[str], seen: Mapping[str, Work]) -> float:
    """By how much the work left is overstated: the median over the jobs whose work left was seen; at least 1.

    `phases`: serial GPU-seconds left by phase and job; `jobs`: the ids of the first phase's jobs, in its order.
    """
    if not phases or len(jobs) != len(phases[0]):
        return 1.0
    ratios = [told / work.left for told, j in zip(phases[0], jobs, strict=True) if (work := seen.get(j)) and work.left]
    return max(1.0, statistics.median(ratios)) if ratios else 1.0


def far(told: float, seen: float) -> bool:
    """Whether a reported figure is far from what was seen."""
    return not seen / TOLERANCE <= told <= seen * TOLERANCE


def _key(job_id: str, kind: str) -> str:
    return f"{job_id}\n{kind}"


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
