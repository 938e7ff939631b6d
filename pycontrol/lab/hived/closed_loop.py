"""Beyond HiveD: with its private schedule no job *ends* later than on its private cluster."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

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
from pycontrol.lab.hived.sharing import FEWER_NODES, PHILLY, PHILLY_NODES, philly_case, philly_days
from pycontrol.lab.hived.simulated import LEASE_S
from pycontrol.lab.hived.trace_case import TraceCase
from pycontrol.lab.kit import Claim, Findings, Setup, Table

DAYS, PHILLY_DAYS = 1.0, 0.25
"""Days of HiveD's trace and, under the first policy, of Philly's, unless `--full` or `--quick`."""
ALLOWED_S = LEASE_S + 60.0
"""One lease and a minute; a restart costs nothing here."""
PHILLY_JOBS = "Philly"
WAYS = ("private", "hived", "on_schedule")
TRIED = ("yarn_cs", "isonomy", "gandiva", "tiresias")
ASKING = ("themis", "worst_first")
"""Policies that need Agents' bids, which a private schedule lacks; they are measured without one."""
WHY = {
    "themis": "Refused with one: who wins depends on bids, and those on what each app borrowed.",
    "worst_first": "Refused with one: who comes first is who says the worst rho, and that counts what each app"
    " borrowed.",
}


def _ends_later(run: CaseRuns, way: str) -> list[float]:
    """Seconds by which each job ends later than on its private cluster."""
    ended_s = getattr(run, way).finished_s
    return [ended_s[n] - run.private.finished_s[n] for n in ended_s]


def closed_loop(setup: Setup) -> Findings:
    """HiveD closed loop: jobs that end later than on their private cluster, with and without its private schedule."""
    here, claims, rows = _size(setup), list[Claim](), list[tuple[object, ...]]()
    all_ = [(policy, *found) for policy in (*TRIED, *ASKING) for found in _workloads(setup, here, policy)]
    made(setup, [one for _, _, wanted in all_ for one in wanted])  # at once, since they differ in length
    for policy, name, wanted in all_:
        runs = made(setup, wanted)
        ways = wanted[0].ways
        late = {way: _late([x for r in runs for x in _ends_later(r, way)]) for way in ways[1:]}
        jobs = sum(len(r.case.spec) for r in runs)
        cells = [late.get(way, ("-", "-")) for way in WAYS[1:]]
        waits = [_mean_delay(runs, way) if way in ways else "-" for way in WAYS]
        rows.append((name, policy, jobs, *cells[0], *cells[1], *waits))
        claims.append(_claim(policy, name, jobs, late))
    columns = (
        "jobs of",
        "policy",
        "jobs",
        "later without",
        "by at most min",
        "later with",
        "by at most min",
        "mean delay, private, min",
        "without",
        "with",
    )
    table = Table("Jobs that end over a lease and a minute later than on the private cluster", columns, tuple(rows))
    how = (
        "each tenant's private cluster is a simulation of its own",
        f"{_randoms(setup)} random cases of 60 jobs: 2 to 4 tenants on 4 to 8 nodes",
    )
    ran = f"{_randoms(setup)} random cases; the trace: {here}"
    if any(name == PHILLY_JOBS for _, name, _ in all_):
        ran += f"; Philly: {_philly_days(setup):g} of 33 days, from day {PHILLY_FROM_DAY:g} on"
    return Findings(tuple(claims), (table,), (), CONVENTIONS[1:] + how, here.seeds, size=ran)


def _size(setup: Setup) -> TraceSize:
    here = size(setup)
    return here if setup.full or setup.quick else TraceSize(here.part, DAYS, here.seeds)


def _philly_days(setup: Setup) -> float:
    return philly_days(setup) if setup.full or setup.quick else PHILLY_DAYS


def _late(ends_later_s: Sequence[float]) -> tuple[int, float]:
    """(number of jobs that end too late, largest delay in minutes)."""
    return sum(x > ALLOWED_S for x in ends_later_s), max(0.0, *ends_later_s) / 60


def _claim(policy: str, name: str, jobs: int, late: Mapping[str, tuple[int, float]]) -> Claim:
    plain = late["hived"]
    if "on_schedule" not in late:
        said = f"{plain[0]} of {jobs} jobs, by up to {plain[1]:.0f} min"
        text = f"{policy}, {name}: nobody ends over a lease later than privately."
        return Claim(text, "not promised", said, not plain[0], WHY[policy] if plain[0] else "")
    count, most = late["on_schedule"]
    said = f"{count} of {jobs} jobs, by up to {most:.0f} min; without it {plain[0]}, by up to {plain[1]:.0f} min"
    text = f"{policy}, {name}: with the private schedule nobody ends over a lease later than privately."
    return Claim(text, "not promised", said, not count)


def _mean_delay(runs: Sequence[CaseRuns], way: str) -> float:
    found: list[float] = [d for run in runs for d in getattr(run, way).delay_s.values()]
    return sum(found) / len(found) / 60


def _randoms(setup: Setup) -> int:
    return 6 if setup.quick else 8 * _size(setup).seeds


def random_of(seed: int) -> TraceCase:
    """A random case of 60 jobs."""
    return random_case(seed, 60)


def _workloads(setup: Setup, here: TraceSize, policy: str) -> list[tuple[str, list[Wanted]]]:
    ways = WAYS if policy in TRIED else WAYS[:2]
    found = [("random cases", [Wanted(functools.partial(random_of, s), ways, policy) for s in range(_randoms(setup))])]
    if not setup.quick:
        trace = [Wanted(w.case, ways, policy) for w in on_nodes(FEWER_NODES, here, ways)]
        found.append(("HiveD's trace, 200 nodes", trace))
    jobs, nodes = setup.trace(PHILLY), setup.trace(PHILLY_NODES)
    if jobs is not None and nodes is not None and (setup.full or policy == TRIED[0]):
        case = functools.partial(philly_case, jobs, nodes, _philly_days(setup))
        found.append((PHILLY_JOBS, [Wanted(case, ways, policy)]))
    return found
