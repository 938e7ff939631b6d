"""Victims by lost work under the default policy: what revocations cost, and whether hiding checkpoints pays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from pycontrol.lab.default_policy.equal_sharing import promise
from pycontrol.lab.default_policy.promise import ALLOWED_S, SIZE, FreshScene
from pycontrol.lab.kit import Claim, Findings, Setup, Table, shown
from pycontrol.lab.outlook.estimates import JOBS, PhillySizes
from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.runs import SimulationRun, metric_ratio, paired_ratio, run_many
from pycontrol.lab.themis.sweeps import Scene
from pycontrol.model.topology import Topology
from pycontrol.simulation.result import Result
from pycontrol.simulation.simulation_settings import Fault, Misreport, SimulationSettings

EVERY_MIN = (5, 20, 60)
FIRST = 3000
"""Seeds of `FreshScene` from here on were not used while the rule was made."""
LIARS = 4
HIDES = Misreport(saved=0.0)
FAILS_S, AWAY_S, ALL_S = 6 * 3600.0, 1800.0, 30 * 3600.0
"""A machine fails every six hours on average, for half an hour, in this time."""
UNTIL_S = 2 * ALL_S
"""A run ends here at the latest: gangs that lose all that they did since their last lease may never end."""


class PhillyDays(PhillySizes):
    """Jobs of up to a day, for which checkpoints an hour apart are few."""

    LONGEST_S = 86_400.0


def worlds(setup: Setup) -> dict[str, tuple[Scene, int, bool]]:
    """Name -> (apps and cluster, minutes between checkpoints, whether machines fail)."""
    w2 = FreshScene("w2", apps=14 if setup.quick else SIZE, faster=4.0)
    found: dict[str, tuple[Scene, int, bool]] = {f"{n} min": (w2, n, False) for n in EVERY_MIN}
    found["20 min, machines fail"] = w2, 20, True
    path = None if setup.quick else setup.trace(JOBS)
    if path is not None:
        philly = PhillyDays("philly", "4x8", apps=600, path=path)
        found |= {f"{n} min, Philly, machines fail": (philly, n, True) for n in EVERY_MIN}
    return found


def victims(setup: Setup) -> Findings:
    """W2 at 4x and Philly's jobs, saved every 5, 20 or 60 minutes: with and without regard to what victims lose."""
    seeds, tried, jobs = setup.seeds_of(5, 1), worlds(setup), []
    for scene, every_min, fails in tried.values():
        for seed in (FIRST + s for s in seeds):
            settings = SimulationSettings(
                saves=False,
                checkpoint_every_s=60.0 * every_min,
                until_s=UNTIL_S,
                faults=_faults(scene.topology(), seed) if fails else (),
            )
            run = SimulationRun(scene.load(seed), scene.topology(), "isonomy", settings=settings, seed=seed)
            jobs += [replace(run, options={"loss": 0.0}), run, *_lying(run)]
    results, claims, rows = list(run_many(jobs, setup.processes)), list[Claim](), list[tuple[object, ...]]()
    for k, name in enumerate(tried):
        n = len(seeds) * (LIARS + 2)
        mine = results[k * n : (k + 1) * n]
        before, now = mine[:: LIARS + 2], mine[1 :: LIARS + 2]
        lost = paired_ratio([_lost_gpu_s(x) for x in now], [_lost_gpu_s(x) for x in before])
        mean, worst = (
            metric_ratio([metrics(_ended(x)) for x in now], [metrics(_ended(x)) for x in before], m)
            for m in ("completion_mean_s", "rho_max")
        )
        hides = paired_ratio(*_lies(mine, jobs[k * n : (k + 1) * n]))
        kept = [sum(promise(x, ALLOWED_S).kept for x in runs) / len(runs) for runs in (before, now)]
        hours = [sum(map(_lost_gpu_s, runs)) / len(runs) / 3600 for runs in (before, now)]
        rows.append(
            (
                name,
                *(f"{h:.1f}" for h in hours),
                shown(lost),
                shown(mean),
                shown(worst),
                *(f"{x:.1%}" for x in kept),
                *(sum(map(_unfinished, runs)) for runs in (before, now)),
                shown(hides),
            )
        )
        claims += [
            Claim(
                f"Checkpoints each {name}: less work is lost.",
                "target: 30 % less at 60 min, elsewhere not more",
                f"{shown(lost)} x",
                lost.mean <= 0.7 if "60" in name else lost.low <= 1.0,
            ),
            Claim(
                f"Checkpoints each {name}: mean completion.",
                "target: at most 1.01 x",
                f"{shown(mean)} x",
                mean.mean <= 1.01,
            ),
            Claim(
                f"Checkpoints each {name}: the worst rho.",
                "target: at most 1.05 x",
                f"{shown(worst)} x",
                worst.mean <= 1.05,
            ),
            Claim(
                f"Checkpoints each {name}: who hides them ends no earlier.",
                "target: >= 0.99",
                f"{shown(hides)} x, {hides.n} apps",
                hides.mean >= 0.99,
            ),
        ]
    columns = (
        "checkpoints each",
        "GPU-h lost without",
        "with",
        "ratio",
        "mean completion",
        "worst rho",
        "not late without",
        "with",
        "unfinished without",
        "with",
        "hiding / telling",
    )
    where = " and ".join(dict.fromkeys(scene.label for scene, _, _ in tried.values()))
    return Findings(
        tuple(claims),
        (Table("What revocations cost, with and without regard to lost work", columns, tuple(rows)),),
        (),
        (
            f"{where}; jobs do not save when they are warned, so that each revocation costs what came after the newest "
            "periodic checkpoint; a change of allocation costs 40 s besides",
            f"a run ends after {UNTIL_S / 3600:.0f} h; an app that did not finish counts as if it had then",
            f"hiding: each of {LIARS} apps of all sizes tells of no checkpoint while all others do",
        ),
        len(seeds),
    )


def _faults(cluster: Topology, seed: int) -> tuple[Fault, ...]:
    rng, at_s, found = random.Random(f"faults {seed}"), 0.0, list[Fault]()
    while (at_s := at_s + rng.expovariate(1 / FAILS_S)) < ALL_S:
        host = rng.choice(sorted(cluster.machines))
        found += [Fault(at_s, host), Fault(at_s + AWAY_S, host, up=True)]
        at_s += AWAY_S
    return tuple(found)


def _lying(run: SimulationRun) -> list[SimulationRun]:
    """Each of some apps, from the smallest to the largest, hides its checkpoints."""
    apps = sorted(run.workload.apps, key=lambda a: a.work_gpu_s)
    liars = [apps[(2 * k + 1) * len(apps) // (2 * LIARS)].app_id for k in range(LIARS)]
    return [replace(run, settings=replace(run.settings, lies={a: HIDES})) for a in liars]


def _lies(results: Sequence[Result], jobs: Sequence[SimulationRun]) -> tuple[list[float], list[float]]:
    """Completion times of the liars: (hiding, telling)."""
    pairs = []
    for k, (result, job) in enumerate(zip(results, jobs, strict=True)):
        for liar in job.settings.lies:
            honest = results[k - k % (LIARS + 2) + 1]
            pairs.append(tuple(next(a.completion_s for a in x.apps if a.app_id == liar) for x in (result, honest)))
    return [a for a, _ in pairs], [b for _, b in pairs]


def _unfinished(result: Result) -> int:
    return sum(a.finished_s is None for a in result.apps)


def _ended(result: Result) -> Result:
    """With the end of the run as that of each app that did not finish, for lower bounds of their times."""
    return replace(
        result, apps=tuple(a if a.finished_s is not None else replace(a, finished_s=result.end_s) for a in result.apps)
    )


def _lost_gpu_s(result: Result) -> float:
    return sum(a.lost_gpu_s for a in result.apps)
