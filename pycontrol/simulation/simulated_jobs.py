"""Apps and jobs in virtual time; progress is computed from rates, not stepped."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pycontrol.fairness.bidding import speed_of
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import YarnApp
from pycontrol.model.topology import Gpu, Scope, Topology
from pycontrol.simulation.result import AppResult
from pycontrol.simulation.simulation_settings import Misreport
from pycontrol.simulation.trace_apps import TraceApp

IDLE, PLANNED, RUNNING, STOPPING, DONE = range(5)
TINY = 1e-9


class SimJob:
    """One job, with its gang if it has one, and its serial GPU-seconds left (at `since_s` while it runs)."""

    __slots__ = (
        "app", "containers", "gpus", "index", "launches", "left", "rate", "requests", "saved_s", "settled", "since_s",
        "slowdown", "stamp", "state", "told_steps", "up_s", "work", "worker_id",
    )  # fmt: skip

    def __init__(self, app: SimApp, index: int, work_gpu_s: float) -> None:
        self.app, self.index, self.left = app, index, work_gpu_s
        self.work, self.worker_id, self.told_steps = work_gpu_s, "", 0
        """Its whole work; a worker of its gang, and the steps of this launch that the worker has reported."""
        self.state, self.launches, self.stamp = IDLE, 0, 0
        self.gpus: tuple[Gpu, ...] = ()
        self.requests: list[int] = []
        """Request ids of its workers without a container."""
        self.containers: list[str] = []
        self.rate = self.since_s = self.up_s = self.saved_s = 0.0
        self.slowdown = 1.0
        self.settled = False
        """Growing does not pay at present; it asks for no more GPUs until its lease is renewed."""

    @property
    def job_id(self) -> str:
        """Unique in its app."""
        return f"p{self.app.phase}j{self.index}"

    def left_at(self, now_s: float) -> float:
        """Serial GPU-seconds left."""
        if self.state != RUNNING or now_s <= self.since_s:
            return self.left
        return max(0.0, self.left - (now_s - self.since_s) * self.rate)

    def newly_saved_s(self, now_s: float, every_s: float) -> float:
        """When it wrote its newest periodic checkpoint, if its worker tells that and has not; else 0."""
        trained_s = max(0.0, now_s - self.since_s)
        at_s = self.since_s + trained_s - trained_s % self._told_every_s(every_s)
        return at_s if self.state == RUNNING and at_s > max(self.since_s, self.saved_s) else 0.0

    def next_saved_s(self, now_s: float, every_s: float) -> float:
        """When, while it runs, it has next a checkpoint that its worker has not told; the past if it has one."""
        period_s = self._told_every_s(every_s)
        untold = self.newly_saved_s(now_s, every_s)
        return untold or self.since_s + period_s * (1.0 + max(0.0, now_s - self.since_s) // period_s)

    def _told_every_s(self, every_s: float) -> float:
        return every_s / max(TINY, self.app.report.saved)

    def settle(self, now_s: float, lost: bool, every_s: float) -> float:
        """Stop training now, and return the work lost, GPU-seconds.

        `lost`: the job falls back to its newest periodic checkpoint, which it writes every `every_s`.
        """
        trained_s = max(0.0, now_s - self.since_s)
        kept_s = math.floor(trained_s / every_s) * every_s if lost else trained_s
        before, now_left = self.left, self.left_at(now_s)
        self.left = max(0.0, before - kept_s * self.rate)
        return self.left - now_left


class SimApp:
    """One app: its present phase's jobs, its GPUs, and its counters."""

    __slots__ = (
        "attempt_id", "finished_s", "future", "gpu_s", "held", "job_at", "jobs", "launches", "lost", "open",
        "phase", "placed", "report", "restarts", "started_s", "told_gangs", "total", "trace", "unsaved",
    )  # fmt: skip

    def __init__(self, trace: TraceApp, report: Misreport) -> None:
        self.trace, self.report = trace, report
        self.attempt_id = f"{trace.app_id}_1"
        self.total = trace.work_gpu_s
        self.future = self.total
        """Serial GPU-seconds of the later phases."""
        self.phase = -1
        self.jobs: list[SimJob] = []
        self.open = 0
        """Jobs of the phase that are not done."""
        self.held: dict[Gpu, float] = {}
        """{GPU leased or promised to it: when it becomes available}."""
        self.job_at: dict[Gpu, SimJob] = {}
        self.started_s: float | None = None
        self.finished_s: float | None = None
        self.gpu_s = self.placed = self.lost = 0.0
        self.launches = self.restarts = 0
        self.told_gangs = 0
        """Gangs in the demand that was last reported."""
        self.unsaved = False
        """Whether a job lost work although it was warned, which its Agent then tells."""

    @property
    def in_yarn(self) -> YarnApp:
        """The app as YARN knows it."""
        t = self.trace
        brand, tags = ("YARN", frozenset[str]()) if t.agentless else ("SUBMARINE", frozenset({"isonomy"}))
        return YarnApp(t.app_id, t.user, t.queue, t.app_id, brand, t.submitted_s, tags, self.attempt_id)

    @property
    def scheduler(self) -> str:
        """The app scheduler that it names; without rungs all jobs of its first phase train."""
        one = "single" if len(self.jobs) == 1 else "median"
        return one if len(self.trace.phases) == 1 else "successive_halving"

    def next_phase(self) -> bool:
        """Enter the next phase that has work; False if there is none."""
        while self.phase + 1 < len(self.trace.phases):
            self.phase += 1
            works = [w for w in self.trace.phases[self.phase] if w > 0]
            if works:
                self.jobs = [SimJob(self, i, w) for i, w in enumerate(works)]
                self.open = len(works)
                self.future -= sum(works)
                return True
        self.jobs, self.open = [], 0
        return False

    def left_gpu_s(self, now_s: float) -> float:
        """Serial GPU-seconds left in all phases."""
        left = max(0.0, self.future)
        for j in self.jobs:  # left_at inlined, for speed
            running = j.state == RUNNING and now_s > j.since_s
            left += max(0.0, j.left - (now_s - j.since_s) * j.rate) if running else j.left
        return left

    def phases_left(self, now_s: float) -> list[tuple[float, ...]]:
        """The work left per job as the app reports it: the present phase, then the later ones."""
        k = self.report.work
        now = tuple(j.left_at(now_s) * k for j in self.jobs if j.state != DONE)
        return [now, *(tuple(w * k for w in works) for works in self.trace.phases[self.phase + 1 :])]

    def slowdown(self, scope: Scope) -> float:
        """S as the app reports it."""
        s = self.trace.slowdown[scope - 1]
        return s if scope is Scope.MACHINE else max(1.0, s * self.report.slowdown)

    @property
    def speedups(self) -> Mapping[str, float]:
        """Its speed by GPU type as the app reports it."""
        speeds, k = self.trace.speedups, self.report.speed
        if k == 1.0 or not speeds:
            return speeds
        least = min(speeds.values())
        return {t: s if s == least else s * k for t, s in speeds.items()}

    def demand(self, now_s: float, gangs: int | None = None) -> Demand:
        """The present demand as the app reports it; `gangs`: default one per open job."""
        trace, left = self.trace, self.left_gpu_s(now_s)
        done, said = self.total - left, left * self.report.work
        gangs = self.open if gangs is None else gangs
        if self.report.width != 1.0 and gangs:
            gangs = max(1, round(gangs * self.report.width))
        k, total = trace.loss_decay, self.total
        return Demand(
            trace.gang_gpus, gangs, trace.widest_gang_gpus, said,
            (done + said) * self.report.total, done, trace.scope, False,
            (self.slowdown(Scope.MACHINE), self.slowdown(Scope.RACK), self.slowdown(Scope.CLUSTER)),
            self.report.loss * k / total * math.exp(-k * done / total), self.speedups, mixes=trace.mixes,
            unsaved=self.unsaved,
        )  # fmt: skip

    def record(self, n_avg: float, cluster_gpus: int, now_s: float) -> AppResult:
        """The app's result."""
        trace = self.trace
        return AppResult(
            app_id=trace.app_id,
            queue=trace.queue,
            user=trace.user,
            model=trace.model,
            submitted_s=trace.submitted_s,
            started_s=self.started_s,
            finished_s=self.finished_s,
            n_avg=n_avg,
            work_gpu_s=self.total,
            work_done_gpu_s=self.total - self.left_gpu_s(now_s),
            demand_gpus=trace.demand_gpus,
            longest_path_s=sum(max(works, default=0.0) for works in trace.phases)
            / (trace.widest_gang_gpus * trace.efficiency(trace.widest_gang_gpus)),
            cluster_gpus=cluster_gpus,
            gpu_s=self.gpu_s,
            placement=self.placed / self.gpu_s if self.gpu_s > TINY else 1.0,
            launches=self.launches,
            restarts=self.restarts,
            lost_gpu_s=self.lost,
        )


def gang_rate(trace: TraceApp, gpus: tuple[Gpu, ...], topology: Topology) -> tuple[float, float]:
    """(serial GPU-seconds per second, slowdown S) of a gang on these GPUs; the slowest GPU sets the speed."""
    hosts = {g.host for g in gpus}
    slowdown = trace.slowdown[topology.scope_of(hosts) - 1]
    known = (h for h in hosts if h in topology.machines)
    speed = speed_of(trace.speedups, known, topology) if trace.speedups else 1.0
    return len(gpus) * trace.efficiency(len(gpus)) * speed / slowdown, slowdown
