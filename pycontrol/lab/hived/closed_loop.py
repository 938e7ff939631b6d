"""Beyond HiveD: with its private schedule no job *ends* later than on its private cluster.

The schedule is one that the private cluster could have had: an app that only ever borrowed is not in it, and draws are
its own. So jobs are held against it, and beside it against a simulation of the private cluster alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from pycontrol.lab.hived.cases import (
    CONVENTIONS,
    PHILLY_FROM_DAY,
    CaseRuns,
    TraceSize,
    Wanted,
    made,
    on_nodes,
    size,
)
from pycontrol.lab.hived.safety import random_case
from pycontrol.lab.hived.sharing_experiments import FEWER_NODES, PHILLY, PHILLY_NODES, philly_case, philly_days
from pycontrol.lab.hived.simulated import LEASE_S
from pycontrol.lab.hived.trace_case import TraceCase
from pycontrol.lab.kit import Claim, Findings, Setup, Table
from pycontrol.policies.on_schedule import KEEPS

DAYS, PHILLY_DAYS = 1.0, 0.25
"""Days of HiveD's trace and, under the first policy, of Philly's, unless `--full` or `--quick`."""
ALLOWED_S = LEASE_S + 60.0
"""One lease and a minute, with the restarts of `RESTART_S` that the private cluster does not have."""
RESTART_S = 40.0
JOBS = 120
PHILLY_JOBS = "Philly"
WAYS = ("private", "hived", "on_schedule")


def _ends_later(run: CaseRuns, way: str, scheduled: bool = False) -> list[float]:
    """Seconds by which each job ends later than on its private cluster, or than in its private schedule."""
    ran = getattr(run, way)
    until_s = ran.private_s if scheduled else run.private.finished_s
    return [ran.finished_s[n] - end_s for n, end_s in until_s.items()]


def closed_loop(setup: Setup) -> Findings:
    """HiveD closed loop: jobs that end later than on their private cluster, with and without its private schedule."""
    here, claims, rows = _size(setup), list[Claim](), list[tuple[object, ...]]()
    all_ = [(policy, *found) for policy in KEEPS for found in _workloads(setup, here, policy)]
    made(setup, [one for _, _, wanted in all_ for one in wanted])  # at once, since they differ in length
    for policy, name, wanted in all_:
        runs = made(setup, wanted)
        late = {way: _late([x for r in runs for x in _ends_later(r, way)]) for way in WAYS[1:]}
        kept = _late([x for r in runs for x in _ends_later(r, "on_schedule", True)])
        jobs = sum(len(r.case.spec) for r in runs)
        waits = [_mean_delay(runs, way) for way in WAYS]
        rows.append((name, policy, jobs, *kept, *late["on_schedule"], *late["hived"], *waits))
        claims.append(_claim(policy, name, jobs, kept, late["hived"]))
    columns = (
        "jobs of",
        "policy",
        "jobs",
        "later than scheduled",
        "by at most min",
        "later than alone",
        "by at most min",
        "later without",
        "by at most min",
        "mean delay, private, min",
        "without",
        "with",
    )
    table = Table("Jobs that end over a lease and a minute later than on the private cluster", columns, tuple(rows))
    how = (
        "each tenant's private cluster is a simulation of its own",
        f"{_randoms(setup)} random cases of {JOBS} jobs: 2 to 4 tenants with three users each on 4 to 8 nodes",
        f"leases of {LEASE_S:g} s; a restart costs {RESTART_S:g} s, but not on private clusters",
    )
    ran = f"{_randoms(setup)} random cases; the trace: {here}"
    if any(name == PHILLY_JOBS for _, name, _ in all_):
        ran += f"; Philly: {_philly_days(setup):g} of 33 days, from day {PHILLY_FROM_DAY:g} on"
    return Findings(tuple(claims), (table,), (), CONVENTIONS[1:2] + CONVENTIONS[3:] + how, here.seeds, size=ran)


def _size(setup: Setup) -> TraceSize:
    here = size(setup)
    return here if setup.full or setup.quick else TraceSize(here.part, DAYS, here.seeds)


def _philly_days(setup: Setup) -> float:
    return philly_days(setup) if setup.full or setup.quick else PHILLY_DAYS


def _late(ends_later_s: Sequence[float]) -> tuple[int, float]:
    """(number of jobs that end too late, largest delay in minutes)."""
    return sum(x > ALLOWED_S for x in ends_later_s), max(0.0, *ends_later_s) / 60


def _claim(policy: str, name: str, jobs: int, kept: tuple[int, float], plain: tuple[int, float]) -> Claim:
    said = f"{kept[0]} of {jobs} jobs, by up to {kept[1]:.0f} min; without it {plain[0]}, by up to {plain[1]:.0f} min"
    text = f"{policy}, {name}: with the private schedule nobody ends over a lease later than scheduled."
    return Claim(text, "not promised", said, not kept[0])


def _mean_delay(runs: Sequence[CaseRuns], way: str) -> float:
    found: list[float] = [d for run in runs for d in getattr(run, way).delay_s.values()]
    return sum(found) / len(found) / 60


def _randoms(setup: Setup) -> int:
    return 2 if setup.quick else setup.seeds or 5


def random_of(seed: int) -> TraceCase:
    """A random case."""
    return dataclasses.replace(random_case(seed, JOBS), users=3)


def _workloads(setup: Setup, here: TraceSize, policy: str) -> list[tuple[str, list[Wanted]]]:
    each = [functools.partial(random_of, s) for s in range(_randoms(setup))]
    found = [("random cases", [Wanted(case, WAYS, policy, RESTART_S) for case in each])]
    if not setup.quick:
        trace = [Wanted(w.case, WAYS, policy, RESTART_S) for w in on_nodes(FEWER_NODES, here, WAYS)]
        found.append(("HiveD's trace, 200 nodes", trace))
    jobs, nodes = setup.trace(PHILLY), setup.trace(PHILLY_NODES)
    if jobs is not None and nodes is not None and (setup.full or policy == KEEPS[0]):
        case = functools.partial(philly_case, jobs, nodes, _philly_days(setup))
        found.append((PHILLY_JOBS, [Wanted(case, WAYS, policy, RESTART_S)]))
    return found
