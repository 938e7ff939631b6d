"""HiveD's sharing safety, measured: replays the private clusters' requests on a shared one (section 5.2)."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.lab.hived import simulated
from pycontrol.lab.hived.cases import CONVENTIONS, made, on_nodes, size
from pycontrol.lab.hived.sharing_experiments import FEWER_NODES, NOTICED_S, REORDERED
from pycontrol.lab.hived.simulated import LEASE_S, NODE_GPUS, Ran
from pycontrol.lab.hived.trace_case import LEVELS, WIDTHS, TraceCase
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.runs import guaranteed_after
from pycontrol.model.cluster import Queue
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.result import Result
from pycontrol.simulation.simulated_jobs import DONE, PLANNED, RUNNING, STOPPING, SimApp
from pycontrol.simulation.trace_apps import TraceApp, Workload

POLICY = "yarn_cs"
"""A policy that never preempts, so that each job is one request and one release."""
STRANGERS = "strangers"
"""A queue without cells, with jobs that borrow all idle GPUs."""
ENDLESS_GPU_S = 1e12
REVOCATION_S = 70.0
"""The lead, plus the time until a round begins."""


@dataclass(frozen=True)
class Opened:
    """Results of the private clusters' requests on a shared cluster."""

    asked: int
    refused: int
    taken_back: int
    """GPUs taken back from borrowers."""


class Ended(Simulator):
    """A simulation whose apps their users end at given times, whatever they have done by then."""

    def __init__(self, ends_s: Mapping[str, float], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ends_s = ends_s
        """App id -> when."""

    def arrive(self, trace: TraceApp, stamp: int) -> None:
        super().arrive(trace, stamp)
        self.at(self.ends_s[trace.app_id], self._give_up, self.apps[trace.app_id])

    def _give_up(self, app: SimApp, _: int) -> None:
        if app.finished_s is None:
            for job in app.jobs:
                if job.state in (PLANNED, RUNNING, STOPPING):
                    job.settle(self.now, False, 1.0)
                    self._end_gang(job, DONE)
            self._finish(app)


def open_loop(case: TraceCase, alone: Ran, cells: bool, most: int | None = None) -> Opened:
    """Replay each job's start and end on its private cluster as request and release on the shared one.

    Strangers borrow every idle GPU. A request counts as refused if it gets its GPUs later than one revocation; by
    quota, later than a lease and a minute, because GPUs are freed at the ends of leases.
    """
    rows = sorted((r for r in case.spec if r[1] in alone.started_s), key=lambda r: alone.started_s[r[1]])[:most]
    jobs = {int(app.app_id): app for app in simulated.workload(case).apps}
    asks = [
        dataclasses.replace(jobs[n], submitted_s=alone.started_s[n], phases=((ENDLESS_GPU_S,),)) for _, n, *_ in rows
    ]
    gpus = case.nodes * NODE_GPUS
    guests = TraceApp("guests", 0.0, 1, ((ENDLESS_GPU_S,) * gpus,), STRANGERS, STRANGERS)
    ends_s = {str(n): alone.finished_s[n] for _, n, *_ in rows}
    ends_s["guests"] = max(ends_s.values()) + 1.0
    work = Workload(case.name, tuple(sorted([guests, *asks], key=lambda app: app.submitted_s)))
    topology = simulated.machines([NODE_GPUS] * case.nodes)
    policy = simulated.policy_of(POLICY)
    if cells:
        supply = CellSupply(simulated.cells_of(case))
        sim = Ended(ends_s, work, topology, ByVirtualCluster(policy), simulated.settings(), supply=supply)
    else:
        queues = (*(Queue(t, case.gpus(t) / gpus) for t in case.owned), Queue(STRANGERS, 0.0))
        sim = Ended(ends_s, work, topology, policy, simulated.settings(), queues=queues)
    taken: list[int] = []
    sim.watchers.append(lambda facts: taken.append(simulated.taken_back(facts)))
    after_s = guaranteed_after(sim) if cells else None
    return Opened(len(rows), _refused(sim.run(), after_s), sum(taken))


def _refused(result: Result, after_s: Mapping[str, float] | None) -> int:
    found = 0
    for app in result.apps:
        if app.app_id == "guests":
            continue
        if after_s is not None:
            found += after_s.get(app.app_id, math.inf) > REVOCATION_S
        else:
            found += app.started_s is None or app.waited_s > LEASE_S + REVOCATION_S
    return found


LIKES = ((1, 2), (1, 2, 4), (1, 2, 4, 8), (1, 4, 8), (8,), (8, 16))
"""Possible sets of a tenant's gang sizes, in GPUs."""


def random_case(seed: int, jobs: int) -> TraceCase:
    """Two to four tenants on four to eight nodes own nodes (three cases of four) or cells of any level.

    Each job has one of its tenant's gang sizes that its private cluster can run.
    """
    rng = random.Random(seed)
    nodes, tenants = rng.randint(4, 8), [f"t{k}" for k in range(rng.randint(2, 4))]
    owned: dict[str, dict[str, int]] = {t: {} for t in tenants}
    small = rng.random() < 0.25
    for _ in range(nodes):
        level = rng.randrange(4) if small else len(LEVELS) - 1
        for _ in range(NODE_GPUS // WIDTHS[level]):
            mine = owned[rng.choice(tenants)]
            mine[LEVELS[level]] = mine.get(LEVELS[level], 0) + 1
    owned = {t: cells for t, cells in owned.items() if cells}
    case = TraceCase(f"random {seed}", nodes, owned, (), 0, 0.0)
    likes = {t: _possible(rng.choice(LIKES), case.machines(t)) for t in owned}
    spec: list[tuple[str, int, int, float, float]] = []
    at_s = 0.0
    for number in range(jobs):
        at_s += rng.expovariate(1 / 400.0)
        tenant = rng.choice(list(owned))
        spec.append((tenant, number, rng.choice(likes[tenant]), at_s, rng.uniform(60.0, 12_000.0)))
    return TraceCase(case.name, nodes, owned, tuple(spec), 0, at_s)


def _possible(sizes: tuple[int, ...], machines: list[int]) -> list[int]:
    """The sizes that can run: up to 8 GPUs on one machine, more on several."""
    fitting = [n for n in sizes if (n <= max(machines) if n <= NODE_GPUS else n <= sum(machines))]
    return fitting or [1]


def random_trace(seed: int, jobs: int) -> tuple[Opened, Opened]:
    """A random case open loop, by cells and by quota."""
    case = random_case(seed, jobs)
    alone = simulated.private(case, POLICY)
    return open_loop(case, alone, True), open_loop(case, alone, False)


def safety(setup: Setup) -> Findings:
    """HiveD sharing safety: the same requests as in the private clusters, on random traces and on the trace."""
    traces, jobs = (8, 30) if setup.quick else (100, 60)
    setup.note(f"{traces} random traces")
    found = [random_trace(seed, jobs) for seed in range(traces)]
    asked = sum(cells.asked for cells, _ in found)
    cells, by_quota = sum(c.refused for c, _ in found), sum(q.refused for _, q in found)
    here = size(setup)
    runs = made(setup, on_nodes(FEWER_NODES, here, ("private", "hived")))
    setup.note("the trace in open loop")
    most = 100 if setup.quick else None
    trace = [open_loop(run.case, run.private, True, most) for run in runs]
    refused, requests = sum(t.refused for t in trace), sum(t.asked for t in trace)
    excess_s = [x for run in runs for x in run.excess_s(run.hived)]
    late = [x for x in excess_s if x > NOTICED_S]
    claims = (
        Claim(
            "Random traces: what the private cluster satisfies, cells satisfy within one revocation.",
            "always",
            f"{cells} of {asked} refused ({traces} traces, {sum(c.taken_back for c, _ in found)} GPUs taken back)",
            cells == 0,
        ),
        Claim(
            "Random traces: a quota does not, within a lease.",
            "anomalies",
            f"{by_quota} of {asked} refused",
            by_quota > 0,
        ),
        Claim(
            f"The trace on {runs[0].case.nodes} nodes, open loop: cells satisfy all.",
            "always",
            f"{refused} of {requests} refused, {sum(t.taken_back for t in trace)} GPUs taken back",
            refused == 0,
        ),
        Claim(
            "Closed loop, where opportunistic progress counts: nobody waits longer than alone.",
            "none",
            f"{len(late)} of {len(excess_s)} jobs by over a lease, {sum(late) / 3600:.0f} h in all, against "
            f"{-sum(x for x in excess_s if x < 0) / 3600:.0f} h saved",
            not late,
            REORDERED if late else "",
        ),
    )
    rows = (("random traces", asked, cells, by_quota), ("trace, open loop", requests, refused, None))
    columns = ("sequence", "satisfied by the private cluster", "refused with cells", "refused by quota")
    bars = tuple(
        Series(label, [r[0] for r in rows], [100 * float(r[k] or 0) / max(1, r[1]) for r in rows])
        for label, k in (("cells", 2), ("quota", 3))
    )
    figure = Figure("refused", "Requests refused although the private cluster satisfies them", "", "%", bars, "bar")
    how = (
        "a request is made when the private cluster starts a job, and released when it ends there",
        "in open loop the jobs of a queue without cells borrow every idle GPU all the time",
        "the same policy alone and in the virtual cluster",
    )
    table = Table("Identical request sequences", columns, rows)
    return Findings(claims, (table,), (figure,), CONVENTIONS + how, here.seeds, size=f"the trace: {here}")
