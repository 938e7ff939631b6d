"""A step beyond HiveD: nobody *ends* later than on the private cluster, by the shadow of its schedule."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pycontrol.experiments.hived.cases import CONVENTIONS, CaseRuns, TraceCase, TraceSize, Wanted, made, on_nodes, size
from pycontrol.experiments.hived.safety import random_case
from pycontrol.experiments.hived.sharing import FEWER_NODES, PHILLY, PHILLY_NODES, philly_case, philly_most
from pycontrol.experiments.hived.simulated import LEASE_S
from pycontrol.experiments.kit import Claim, Findings, Setup, Table

ALLOWED_S = LEASE_S + 60.0
"""One lease; a restart costs nothing here."""
WAYS = ("private", "hived", "shadowed")
TRIED = ("yarn_cs", "tiresias")
WHY = {
    "tiresias": "A job that its private cluster stops and takes up again waits here up to a lease each time, while "
    "others of its queue, which run here for what they borrowed less, hold their leases to the end.",
}


def _ends_later(run: CaseRuns, way: str) -> list[float]:
    """Seconds by which each job ends later than on its private cluster."""
    ended_s = getattr(run, way).finished_s
    return [ended_s[n] - run.private.finished_s[n] for n in ended_s]


def closed_loop(setup: Setup) -> Findings:
    """HiveD closed loop: jobs that end later than on their private cluster, with and without its shadow."""
    here, claims, rows = size(setup), list[Claim](), list[tuple[object, ...]]()
    for policy in TRIED:
        for name, wanted in _workloads(setup, here, policy):
            runs = made(setup, wanted)
            plain, shadowed = ([x for r in runs for x in _ends_later(r, way)] for way in WAYS[1:])
            late = [sum(x > ALLOWED_S for x in found) for found in (plain, shadowed)]
            most = [max(0.0, *found) / 60 for found in (plain, shadowed)]
            waits = [_mean_delay(runs, way) for way in WAYS]
            rows.append((name, policy, len(plain), late[0], most[0], late[1], most[1], *waits))
            claims.append(Claim(
                f"{policy}, {name}: with the shadow nobody ends over a lease later than privately.", "not promised",
                f"{late[1]} of {len(plain)} jobs, by up to {most[1]:.0f} min; without it {late[0]}, by up to "
                f"{most[0]:.0f} min", not late[1], WHY.get(policy, "") if late[1] else "",
            ))  # fmt: skip
    columns = ("jobs of", "policy", "jobs", "later without", "by at most min", "later with", "by at most min",
               "mean delay, private, min", "without", "with")  # fmt: skip
    table = Table("Jobs that end over a lease and a minute later than on the private cluster", columns, tuple(rows))
    how = (
        "each tenant's private cluster is a simulation of its own",
        f"{_randoms(setup)} random cases of 60 jobs: 2 to 4 tenants on 4 to 8 nodes",
    )
    return Findings(tuple(claims), (table,), (), CONVENTIONS[1:] + how, here.seeds, size=f"the trace: {here}")


def _mean_delay(runs: Sequence[CaseRuns], way: str) -> float:
    found: list[float] = [d for run in runs for d in getattr(run, way).delay_s.values()]
    return sum(found) / len(found) / 60


def _randoms(setup: Setup) -> int:
    return 6 if setup.quick else 40


def random_of(seed: int) -> TraceCase:
    """A random case of 60 jobs."""
    return random_case(seed, 60)


def _workloads(setup: Setup, here: TraceSize, policy: str) -> list[tuple[str, list[Wanted]]]:
    found = [("random cases", [Wanted(functools.partial(random_of, s), WAYS, policy) for s in range(_randoms(setup))])]
    if not setup.quick:
        trace = [Wanted(w.case, WAYS, policy) for w in on_nodes(FEWER_NODES, here, WAYS)]
        found.append(("HiveD's trace, 200 nodes", trace))
    jobs, nodes = setup.trace(PHILLY), setup.trace(PHILLY_NODES)
    if jobs is not None and nodes is not None:
        case = functools.partial(philly_case, jobs, nodes, philly_most(setup))
        found.append(("Philly", [Wanted(case, WAYS, policy)]))
    return found
