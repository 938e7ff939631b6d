"""Many simulations: by policy and seed, on all cores, until the differences are known well enough."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from pycontrol.arbiter.ledger.facts import Fact, LeaseGranted, LeaseOwned, PolicyMemory
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.cells.layout import Layout, Terms
from pycontrol.lab.paper_metrics import OF_FINISHED
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Topology
from pycontrol.model.value import value
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.on_schedule import KEY, OnSchedule
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.result import Result
from pycontrol.simulation.scene import own_policies
from pycontrol.simulation.simulation_settings import SimulationSettings
from pycontrol.simulation.trace_apps import Workload

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class SimulationRun:
    """One simulation to run, as plain values that travel to another process."""

    workload: Workload
    cluster: Topology
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: SimulationSettings = field(default_factory=SimulationSettings)
    seed: int = 0
    queues: tuple[Queue, ...] = ()
    supply: Callable[[], Supply] | None = None
    """Makes the cells behind virtual clusters, in the process that runs it."""
    make: Callable[..., Policy] = make
    """Makes a policy of a name and options."""


def simulate(
    workload: Workload,
    cluster: Topology,
    policy: Policy | str,
    settings: SimulationSettings | None = None,
    seed: int = 0,
    queues: tuple[Queue, ...] = (),
    supply: Supply | None = None,
) -> Result:
    """One simulation of a policy, given by name or as it is."""
    chosen = make(policy) if isinstance(policy, str) else policy
    return Simulator(workload, cluster, chosen, settings, seed, queues, supply).run()


def run(job: SimulationRun) -> Result:
    """One job."""
    policy = job.make(job.policy, **job.options)
    supply, scheduled_s = job.supply() if job.supply else None, dict[str, float]()
    if supply is not None:
        policy = ByVirtualCluster(policy, own_policies(supply, job.policy, job.options, job.make))
    sim = Simulator(job.workload, job.cluster, policy, job.settings, job.seed, job.queues, supply)
    after_s = guaranteed_after(sim)
    if supply is not None:
        sim.watchers.append(lambda facts: scheduled_s.update(scheduled_ends(facts)))
    result = sim.run()
    if job.supply is not None:
        ends_s = private_ends(job, job.supply()) | scheduled_s
        told = ((a, after_s.get(a.app_id), ends_s.get(a.app_id)) for a in result.apps)
        apps = (dataclasses.replace(a, guaranteed_after_s=own, shadow_finished_s=ends) for a, own, ends in told)
        result = dataclasses.replace(result, apps=tuple(apps))
    return dataclasses.replace(result, policy=job.policy, options=dict(job.options))


def guaranteed_after(sim: Simulator) -> dict[str, float]:
    """App -> from its submission to its first GPUs of its virtual cluster's own cells, s; filled as it is simulated."""
    found: dict[str, float] = {}

    def note(facts: Iterable[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, LeaseGranted) and fact.guaranteed:
                app, at_s = sim.apps.get(fact.app_id), max(sim.now, fact.at_s)
            elif isinstance(fact, LeaseOwned):
                lease = sim.arbiter.durable.leases.get(fact.gpus[0])
                app, at_s = sim.apps.get(lease.app_id) if lease else None, sim.now
            else:
                continue
            if app is not None:
                found.setdefault(app.trace.app_id, at_s - app.trace.submitted_s)

    if not sim.supply.whole:
        sim.watchers.append(note)
    return found


def scheduled_ends(facts: Iterable[Fact]) -> dict[str, float]:
    """App -> when it ended in the private schedule of its virtual cluster, if these facts say so."""
    kept = [fact.values[KEY]["apps"] for fact in facts if isinstance(fact, PolicyMemory) and KEY in fact.values]
    return {a: row["ended_s"] for apps in kept for a, row in apps.items() if row["ended_s"] is not None}


def private_ends(job: SimulationRun, supply: Supply) -> dict[str, float]:
    """App -> when it ends on the private cluster of its virtual cluster: its machines, alone, under its policy."""
    default = job.make(job.policy, **job.options)
    own = own_policies(supply, job.policy, job.options, job.make)
    found: dict[str, float] = {}
    for vc in supply.virtual_clusters():
        apps = tuple(a for a in job.workload.apps if supply.vc_of(a.queue) == vc)
        if apps:
            workload = dataclasses.replace(job.workload, apps=apps)
            policy = own.get(vc, default)
            chosen = policy.alone if isinstance(policy, OnSchedule) else policy
            settings = _within(job.settings, supply.terms(vc))
            alone = simulate(workload, private_cluster(supply, vc, job.cluster), chosen, settings, job.seed)
            found |= {a.app_id: a.finished_s for a in alone.apps if a.finished_s is not None}
    return found


def private_cluster(supply: Supply, vc: str, cluster: Topology) -> Topology:
    """The machines that the cells of a virtual cluster are."""
    machines = []
    for m in supply.machines(vc):
        at = cluster.machines[m.host]
        machines.append(dataclasses.replace(at, host=m.name, gpus=m.gpus))
    return Topology.of(machines)


def _within(settings: SimulationSettings, terms: Terms) -> SimulationSettings:
    """The settings of a virtual cluster; faults are of machines that its private cluster does not have."""
    given: dict[str, Any] = {name: n for name, n in (("f", terms.f), ("lease_s", terms.lease_s)) if n is not None}
    return dataclasses.replace(settings, arbiter=dataclasses.replace(settings.arbiter, **given), faults=())


@dataclass(frozen=True)
class CellsOf:
    """Makes the cells of a layout; travels to another process."""

    layout: Layout

    def __call__(self) -> Supply:
        """New cells, with nobody on them."""
        return CellSupply(self.layout)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_many(
    jobs: Iterable[SimulationRun], processes: int | None = None, done: Callable[[SimulationRun], None] | None = None
) -> Iterator[Result]:
    """The results in the order of the jobs; `done` is called as each comes in."""
    return each(run, jobs, processes, done)


def each(
    of: Callable[[Job], Outcome],
    jobs: Iterable[Job],
    processes: int | None = None,
    done: Callable[[Job], None] | None = None,
) -> Iterator[Outcome]:
    """`of` each job, in the order of the jobs: on `processes` at once, or in this process if that is one."""
    todo = list(jobs)
    processes = min(cores() if processes is None else processes, len(todo))
    with ProcessPoolExecutor(processes) if processes > 1 else nullcontext() as pool:
        chunk = max(1, len(todo) // (16 * max(1, processes)))
        found = map(of, todo) if pool is None else pool.map(of, todo, chunksize=chunk)
        for job, outcome in zip(todo, found, strict=True):
            if done:
                done(job)
            yield outcome


# ---- what the seeds say


@value
class Interval:
    """A mean and its confidence interval; `n` seeds. Infinitely wide with fewer than two."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Of the mean, by Student's t."""
    n, mean = len(values), float(np.mean(values)) if len(values) else math.nan
    if n < 2:
        return Interval(mean, -math.inf, math.inf, n)
    from scipy.stats import t as student

    half = float(student.ppf((1 + level) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], level: float = 0.95) -> Interval:
    """Of ours / theirs, seed by seed: the geometric mean and its interval. NaN where a value is not positive."""
    if any(not v > 0 for v in (*ours, *theirs)):
        return Interval(math.nan, math.nan, math.nan, len(ours))
    logs = interval([math.log(a / b) for a, b in zip(ours, theirs, strict=True)], level)
    high = math.exp(logs.high) if logs.high < 700.0 else math.inf
    return Interval(math.exp(logs.mean), math.exp(logs.low), high, logs.n)


def metric_ratio(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]], metric: str) -> Interval:
    """Of a figure of runs' `metrics`, seed by seed, as `paired_ratio`. NaN, which people see as "-", where it is one of
    finished apps alone and some did not finish: `unfinished_note` says so."""
    if metric in OF_FINISHED and any(m["unfinished"] for m in (*ours, *theirs)):
        return Interval(math.nan, math.nan, math.nan, len(ours))
    return paired_ratio([m[metric] for m in ours], [m[metric] for m in theirs])


def unfinished_note(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Why there are no ratios of completion times or rho; empty where all apps of all runs finished."""
    left = {label: int(sum(m["unfinished"] for m in found)) for label, found in runs.items()}
    said = ", ".join(f"{n} under {label}" for label, n in left.items() if n)
    return f"No ratio (-) while apps are unfinished: {said}." if said else ""
