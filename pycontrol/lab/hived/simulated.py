"""Runs HiveD's cases in the simulator, with the Arbiter, its cells and the shipped policies, sampled hourly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.arbiter.ledger.facts import Fact, LeaseRevoking
from pycontrol.arbiter.ledger.lease import Lease
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.layout import Layout
from pycontrol.lab.hived.trace_case import TraceCase
from pycontrol.lab.runs import guaranteed_after, scheduled_ends
from pycontrol.model.cluster import Queue
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.on_schedule import KEEPS, OnSchedule
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.scene import own_policies
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

NODE_GPUS = 8
HOUR_S = 3600.0
LEASE_S = 3600.0
"""One hour: jobs run for days, and fewer renewals make a run six times as fast as with the default of ten minutes."""
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "yarn_cs": {},
    "gandiva": {"restart_s": 0.0},
    "tiresias": {"threshold_gpu_s": 3600.0},
}
"""The policies of Figure 6 with options; others have their defaults. Tiresias has two queues, split at a GPU-hour."""
RACK = "r"


@dataclass
class HourlySeries:
    """Hourly samples: GPUs of regular and of all jobs, and nodes without room for a regular 8-GPU job."""

    regular_gpus: list[int] = field(default_factory=list)
    all_gpus: list[int] = field(default_factory=list)
    broken_nodes: list[int] = field(default_factory=list)
    busy: list[bytes] = field(default_factory=list)
    """By node: whether a regular job is on it."""
    used: list[dict[str, int]] = field(default_factory=list)
    """Regular GPUs by tenant."""
    lent: list[dict[str, int]] = field(default_factory=list)
    """Opportunistic GPUs by tenant."""
    held: list[dict[str, int]] = field(default_factory=list)
    """Nodes with regular jobs, by tenant."""


@dataclass
class Ran:
    """The results of a simulation by job. `preemptions`: (time, borrowed GPUs taken back for a guarantee)."""

    delay_s: dict[int, float]
    finished_s: dict[int, float]
    """End of each job; for a job that outlasts the simulation, as if it continued to run."""
    started_s: dict[int, float]
    """Start of each job that started."""
    guaranteed_after_s: dict[int, float]
    """Delay until a job had its tenant's own GPUs; only for jobs that did."""
    series: HourlySeries
    preemptions: list[tuple[float, int]]
    private_s: dict[int, float] = field(default_factory=dict)
    """End of each job in its virtual cluster's private schedule."""
    cpu_s: float = 0.0


class Watch:
    """Samples the cluster every hour until a given time, and records the GPUs taken back for guarantees.

    A tenant's leases are regular if they are on its own cells or, by quota, if they are its oldest up to the quota.
    """

    def __init__(
        self, sim: Simulator, hosts: Iterable[str], quota: Mapping[str, int | None], cells: bool, until_s: float
    ) -> None:
        self.sim, self.quota, self.cells, self.until_s = sim, quota, cells, until_s
        self.node = {host: k for k, host in enumerate(hosts)}
        self.series = HourlySeries()
        self.preemptions: list[tuple[float, int]] = []
        self.private_s: dict[int, float] = {}
        sim.watchers.append(self._facts)
        sim.at(0.0, self._sample, None)

    def _facts(self, facts: Iterable[Fact]) -> None:
        self.private_s.update({int(n): ended_s for n, ended_s in scheduled_ends(facts).items()})
        taken = taken_back(facts)
        if taken:
            self.preemptions.append((self.sim.now, taken))

    def _sample(self, _: None, stamp: int) -> None:
        used, lent = dict.fromkeys(self.quota, 0), dict.fromkeys(self.quota, 0)
        nodes: dict[str, set[str]] = {t: set() for t in self.quota}
        regular: set[str] = set()
        durable = self.sim.arbiter.durable
        for lease, gpu in sorted(
            ((x, gpu) for x in durable.leases.each() for gpu in x.gpus), key=lambda y: (y[0].granted_s, y[0].app_id)
        ):
            tenant = durable.apps[lease.app_id].queue
            if self._is_regular(lease, tenant, used[tenant]):
                used[tenant] += 1
                nodes[tenant].add(gpu.host)
                regular.add(gpu.host)
            else:
                lent[tenant] += 1
        s = self.series
        s.regular_gpus.append(sum(used.values()))
        s.all_gpus.append(len(durable.leases))
        s.broken_nodes.append(len(regular))
        s.busy.append(bytes(host in regular for host in self.node))
        s.used.append(used)
        s.lent.append(lent)
        s.held.append({t: len(on) for t, on in nodes.items()})
        if self.sim.now + HOUR_S <= self.until_s:
            self.sim.at(self.sim.now + HOUR_S, self._sample, None)

    def _is_regular(self, lease: Lease, tenant: str, used: int) -> bool:
        most = self.quota[tenant]
        return lease.guaranteed if self.cells else most is None or used < most


def taken_back(facts: Iterable[Fact]) -> int:
    """The number of borrowed GPUs taken back for a guarantee."""
    return sum(len(f.gpus) for f in facts if isinstance(f, LeaseRevoking) and f.cause == EndReason.GUARANTEE)


def machines(sizes: Iterable[int]) -> Topology:
    """Machines of these sizes in one rack."""
    return Topology.of([Machine(f"n{k:04d}", RACK, gpus) for k, gpus in enumerate(sizes)])


def cells_of(case: TraceCase, static: bool = False, private_schedule: bool = False) -> Layout:
    """The layout of the case's cells on its cluster."""
    file = CellsFile.model_validate(
        {
            "levels": {"switch": 2, "socket": 2, "node": 2},
            "hosts": list(machines([NODE_GPUS] * case.nodes).machines),
            "virtual_clusters": {
                t: {"cells": dict(cells), "private_schedule": private_schedule} for t, cells in case.owned.items()
            },
            "binding": "static" if static else "dynamic",
        }
    )
    return layout(file)


def workload(case: TraceCase, tenant: str | None = None) -> Workload:
    """The jobs of all tenants or of one; up to 8 GPUs run on one machine, larger gangs on as few as possible."""
    apps = tuple(
        TraceApp(
            str(n),
            at_s,
            gpus,
            ((gpus * run_s,),),
            t,
            t if case.users == 1 else f"{t}-{n % case.users}",
            slowdown=(1.0, 1.0, 1.0),
            scope=Scope.MACHINE if gpus <= NODE_GPUS else Scope.CLUSTER,
        )
        for t, n, gpus, at_s, run_s in case.spec
        if tenant in (None, t)
    )
    return Workload(case.name, apps)


def settings(ends_s: float = math.inf, restart_s: float = 0.0) -> SimulationSettings:
    """A preempted job keeps its progress and, as in the paper's simulations, loses no time but `restart_s`."""
    return SimulationSettings(
        checkpoint_s=0.0, restart_s=restart_s, until_s=ends_s, arbiter=dataclasses.replace(ARBITER, lease_s=LEASE_S)
    )


def policy_of(name: str) -> Policy:
    """One of `POLICIES`, with its options."""
    return make(name, **POLICIES.get(name, {}))


def private(case: TraceCase, policy: str) -> Ran:
    """Run each tenant alone on machines that correspond to its cells; each cell up to a node is one machine."""
    found = Ran({}, {}, {}, {}, HourlySeries(), [])
    alone = OnSchedule(policy_of(policy)).alone if policy in KEEPS else policy_of(policy)
    for tenant in case.owned:
        topology = machines(case.machines(tenant))
        sim = Simulator(workload(case, tenant), topology, alone, settings(case.ends_s))
        _add(case, sim, found)
    return found


def quota(case: TraceCase, policy: str) -> Ran:
    """All on one cluster by GPU quota: Gandiva's tenants end at theirs, YARN-CS' may use what is idle beyond it, and
    Tiresias knows no tenants (footnote 2)."""
    total = case.nodes * NODE_GPUS
    queues = tuple(
        Queue(t, case.gpus(t) / total, case.gpus(t) / total if policy == "gandiva" else 1.0) for t in case.owned
    )
    topology = machines([NODE_GPUS] * case.nodes)
    given = () if policy == "tiresias" else queues
    sim = Simulator(workload(case), topology, policy_of(policy), settings(case.ends_s), queues=given)
    limit = {t: None if policy == "tiresias" else case.gpus(t) for t in case.owned}
    return _watched(case, sim, limit, False)


def hived(
    case: TraceCase, policy: str, static: bool = False, private_schedule: bool = False, restart_s: float = 0.0
) -> Ran:
    """Run all tenants on one cluster by cells."""
    chosen = policy_of(policy)
    supply = CellSupply(cells_of(case, static, private_schedule))
    own = own_policies(supply, policy, POLICIES.get(policy, {}))
    topology = machines([NODE_GPUS] * case.nodes)
    how = settings(case.ends_s, restart_s)
    sim = Simulator(workload(case), topology, ByVirtualCluster(chosen, own), how, supply=supply)
    return _watched(case, sim, {t: case.gpus(t) for t in case.owned}, True)


def _watched(case: TraceCase, sim: Simulator, limit: Mapping[str, int | None], cells: bool) -> Ran:
    watch = Watch(sim, sim.topology.machines, limit, cells, case.until_s)
    found = Ran({}, {}, {}, {}, watch.series, watch.preemptions, watch.private_s)
    _add(case, sim, found)
    return found


def _add(case: TraceCase, sim: Simulator, to: Ran) -> None:
    if case.ends_s < math.inf:
        sim.at(case.ends_s, lambda _, stamp: None, None)  # so that the simulation reaches that time
    after_s = guaranteed_after(sim)
    result = sim.run()
    run_s = case.run_s
    for app in result.apps:
        n = int(app.app_id)
        finished_s = app.finished_s
        if finished_s is None:
            if case.ends_s == math.inf:
                raise ValueError(f"job {app.app_id} of {app.queue} never ran to its end")
            finished_s = sim.now + (app.work_gpu_s - app.work_done_gpu_s) / app.demand_gpus
        if app.started_s is not None:
            to.started_s[n] = app.started_s
        to.finished_s[n] = finished_s
        to.delay_s[n] = max(0.0, finished_s - app.submitted_s - run_s[n])
        if app.app_id in after_s:
            to.guaranteed_after_s[n] = after_s[app.app_id]
    to.cpu_s += result.counters.wall_s
