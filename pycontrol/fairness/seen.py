"""What workers' reports say of an app's speed and work, and by how much its Agent's figures may differ from it."""

from __future__ import annotations

import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pycontrol.fairness.slowdown import ENOUGH, Profiler
from pycontrol.model.auction import Demand
from pycontrol.model.events import WorkerSteps
from pycontrol.model.grouping import grouped
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
            times = min(x.count, ENOUGH)  # more of the same would change no median
            self._profiler.add(_key(job_id, kind), x.iter_time_s, len(gpus), scope, times)

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
        found = grouped((kind, serial_s) for (_, kind), serial_s in self._serial().items())
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


ROUNDING = 1.01
"""An Agent's sum of its work done and left may differ by this factor."""


def totalled(
    demand: Demand, phases: Sequence[Sequence[float]], told: Sequence[Sequence[float]], seen_gpu_s: float
) -> tuple[Demand, str]:
    """The demand with the work left as used, and with a whole work of at least what is done and left."""
    left, was = sum(map(sum, phases)), sum(map(sum, told))
    total = demand.work_total_gpu_s - max(0.0, was - left)
    least = left + max(demand.work_done_gpu_s, seen_gpu_s / TOLERANCE)
    if total * ROUNDING < least:
        return replace(demand, work_left_gpu_s=left, work_total_gpu_s=least), "the whole work"
    return (demand, "") if left == was else (replace(demand, work_left_gpu_s=left, work_total_gpu_s=total), "")


def differences(told: Demand, used: Demand) -> str:
    slowdown = "S" if used.slowdown != told.slowdown else ""
    return joined(slowdown, "speeds" if used.speedups != told.speedups else "")


def joined(one: str, other: str) -> str:
    return f"{one}, {other}" if one and other else one or other
