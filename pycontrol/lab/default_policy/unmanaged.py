"""Apps without Agents under the default policy: what they cost the others, and whether it pays to have none."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pycontrol.lab import clusters
from pycontrol.lab.default_policy.equal_sharing import finish_s
from pycontrol.lab.default_policy.promise import ALLOWED_S
from pycontrol.lab.kit import Claim, Findings, Setup, Table, shown
from pycontrol.lab.runs import Interval, SimulationRun, paired_ratio, run_many
from pycontrol.simulation.result import Result
from pycontrol.simulation.trace_apps import TraceApp, Workload

CLUSTER, APPS, USERS = "4x8", 24, 12
FRESH = 7000
"""Seeds from here on were not used while the rule was made."""
LEAST = 0.99


def mixed(seed: int) -> Workload:
    """Apps of one to eight jobs on 1 to 8 GPUs each, of twelve users: more than fit at once."""
    rng, at_s, apps = random.Random(seed), 0.0, []
    for k in range(APPS):
        at_s += rng.expovariate(1 / 900)
        gang, jobs = rng.choice((1, 2, 4, 4, 8)), rng.choice((1, 1, 1, 2, 4, 8))
        job_s = math.exp(rng.uniform(math.log(1200), math.log(20000))) / max(1.0, jobs / 2)
        works = tuple(gang * job_s * rng.uniform(0.5, 1.5) for _ in range(jobs))
        apps.append(TraceApp(f"a{k:02d}", at_s, gang, (works,), "root.q", f"u{k % USERS:02d}"))
    return Workload("mixed", tuple(apps))


@dataclass(frozen=True)
class MixedSeed:
    """The runs of one seed."""

    honest: Result
    """All apps have Agents."""
    half: Result
    """Half of them have none."""
    without: frozenset[str]
    alone: Mapping[str, Result]
    """App -> the run in which only this one has no Agent."""


def unmanaged(setup: Setup) -> Findings:
    """Apps without Agents under the default policy: nobody is later for them, and it does not pay to have none."""
    seeds = [FRESH + s for s in setup.seeds_of(5, 2)]
    ran = _runs(setup, seeds)
    late = {name: [x for s in ran for x in _late_s(s, name)] for name in ("honest", "half")}
    newly = [b for a, b in zip(late["honest"], late["half"], strict=True) if b > 0 and a == 0]
    gain = paired_ratio(*_completions(ran))
    managed, theirs = (_half(ran, have) for have in (True, False))
    return Findings(
        (
            Claim(
                "No app with an Agent ends later than under equal sharing, but for a lease and a restart, because of "
                "one without.",
                "target: none",
                f"{len(newly)} of {len(late['half'])} apps, by {max(newly, default=0.0):.0f} s at most",
                not newly,
                "Gangs are whole, so any other order of apps makes other apps late: in all "
                f"{sum(x > 0 for x in late['half'])} are late, {sum(x > 0 for x in late['honest'])} where all have "
                "Agents.",
            ),
            Claim(
                "Who leaves the Agent out ends no earlier.",
                f"target: >= 1.00, its interval above {LEAST}",
                f"{shown(gain)} x, {gain.n} apps",
                gain.mean >= 1.0 and gain.low >= LEAST,
            ),
        ),
        (
            Table(
                "Completion times, without / with Agents",
                ("apps", "ratio", "number"),
                (
                    ("one has no Agent: that one", shown(gain), gain.n),
                    ("half have none: those with Agents", shown(managed), managed.n),
                    ("half have none: those without", shown(theirs), theirs.n),
                ),
            ),
        ),
        (),
        (
            f"{APPS} apps of {USERS} users on {CLUSTER} GPUs, leases of 600 s, a change of allocation costs 40 s",
            "an app without an Agent asks for one container for each job; its master saves the job's work when YARN "
            "announces the preemption, which is the best that it can do",
            "the half without Agents is drawn by seed",
        ),
        len(seeds),
        (),
        {"gain": gain.mean, "newly_late": len(newly)},
    )


def _runs(setup: Setup, seeds: Sequence[int]) -> list[MixedSeed]:
    cluster, jobs, halves = clusters.cluster(CLUSTER), list[SimulationRun](), list[frozenset[str]]()
    for seed in seeds:
        workload = mixed(seed)
        ids = [a.app_id for a in workload.apps]
        halves.append(frozenset(random.Random(f"half {seed}").sample(ids, APPS // 2)))
        for without in ((), halves[-1], *((a,) for a in ids)):
            apps = tuple(replace(a, agentless=a.app_id in without) for a in workload.apps)
            jobs.append(SimulationRun(replace(workload, apps=apps), cluster, "isonomy", seed=seed))
    results, each = list(run_many(jobs, setup.processes)), APPS + 2
    found = []
    for k, half in enumerate(halves):
        honest, mixture, *alone = results[k * each : (k + 1) * each]
        ids = [a.app_id for a in honest.apps]
        found.append(MixedSeed(honest, mixture, half, dict(zip(ids, alone, strict=True))))
    return found


def _late_s(seed: MixedSeed, name: str) -> list[float]:
    """By how much each app with an Agent ends later than under equal sharing and the allowance, seconds."""
    ideal = finish_s(seed.honest.apps)
    result: Result = getattr(seed, name)
    return [
        max(0.0, (math.inf if a.finished_s is None else a.finished_s) - ideal[a.app_id] - ALLOWED_S)
        for a in result.apps
        if a.app_id not in seed.without
    ]


def _completions(ran: Sequence[MixedSeed]) -> tuple[list[float], list[float]]:
    """(without, with an Agent) of each app, by itself the only one without."""
    pairs = [
        (next(x.completion_s for x in seed.alone[a.app_id].apps if x.app_id == a.app_id), a.completion_s)
        for seed in ran
        for a in seed.honest.apps
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _half(ran: Sequence[MixedSeed], have: bool) -> Interval:
    """Half without / all with Agents: of the apps that have one, or of the others."""
    pairs = [
        (b.completion_s, a.completion_s)
        for seed in ran
        for a, b in zip(seed.honest.apps, seed.half.apps, strict=True)
        if (a.app_id not in seed.without) is have
    ]
    return paired_ratio([b for b, _ in pairs], [a for _, a in pairs])
