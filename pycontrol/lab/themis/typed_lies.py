"""What a forged speed on a GPU type gains, over many rounds, under auctions and under OEF's shares."""

from __future__ import annotations

import dataclasses
import random

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table, shown
from pycontrol.lab.runs import Interval, SimulationRun, paired_ratio
from pycontrol.lab.themis.lies import CROWD, crowd, liars, never_pays
from pycontrol.lab.themis.small_examples import COSTS, THEMIS, Rule, over_seeds
from pycontrol.lab.themis.types import FAST, GAINS, HOST_GPUS, HOSTS, SLOW, cluster
from pycontrol.simulation.simulation_settings import Misreport
from pycontrol.simulation.trace_apps import Workload

RULES = (
    THEMIS,
    Rule("oef, cooperative", "oef", {"tenant": "app"}),
    Rule("oef, non-cooperative", "oef", {"tenant": "app", "mode": "noncooperative"}),
)
PAPER = {
    THEMIS.label: "strategy-proof (Theorem 3.3)",
    "oef, cooperative": "no claim",
    "oef, non-cooperative": "strategy-proof (OEF, Theorem 5.4)",
}
LIES = {
    "speed x 3": Misreport(speed=3.0),
    "speed x 1.5": Misreport(speed=1.5),
    "speed x 1/3": Misreport(speed=1 / 3),
}


def workload(seed: int) -> Workload:
    """`crowd` with speeds by type: as many apps of each of `GAINS`."""
    found, rng = crowd(seed), random.Random(f"types {seed}")
    gains = [GAINS[i % len(GAINS)] for i in range(CROWD)]
    rng.shuffle(gains)
    apps = (dataclasses.replace(a, speedups={SLOW: 1.0, FAST: g}) for a, g in zip(found.apps, gains, strict=True))
    return dataclasses.replace(found, apps=tuple(apps))


def typed_lies(setup: Setup) -> Findings:
    """Lies about speeds by GPU type: completion times of liars, under auctions and under OEF's shares."""
    seeds, width = setup.seeds_of(64, 4), 1 + len(LIES)

    def jobs_of(seed: int) -> list[SimulationRun]:
        work = workload(seed)
        liar = work.apps[liars(seed, 1)[0]].app_id
        told: list[dict[str, Misreport]] = [{}, *({liar: lie} for lie in LIES.values())]
        return [rule.job(work, cluster(), seed, lies=lies) for rule in RULES for lies in told]

    groups = over_seeds(setup, seeds, jobs_of, "lies about speeds")
    times = [[r.apps[liars(s, 1)[0]].completion_s for r in g] for g, s in zip(groups, seeds, strict=True)]
    found = {
        (rule.label, lie): paired_ratio([t[r * width + k] for t in times], [t[r * width] for t in times])
        for r, rule in enumerate(RULES)
        for k, lie in enumerate(LIES, 1)
    }
    rows = tuple((rule.label, *(shown(found[rule.label, lie]) for lie in LIES)) for rule in RULES)
    bars = tuple(Series(rule.label, list(LIES), [found[rule.label, lie].mean for lie in LIES]) for rule in RULES)
    return Findings(
        tuple(_claim(rule.label, {lie: found[rule.label, lie] for lie in LIES}) for rule in RULES),
        (Table(f"The liar's completion time / that of its honest run ({len(seeds)} seeds)", ("policy", *LIES), rows),),
        (Figure("speeds", "The liar's completion time / honest run", "lie", "ratio", bars, "bar", mark=1.0),),
        (
            COSTS,
            f"16 apps on {HOSTS} machines of {HOST_GPUS} {SLOW} and as many of {HOST_GPUS} {FAST}; on a {FAST} an "
            f"app is {', '.join(f'{g:g}' for g in GAINS)} times as fast, as many apps each; each app is a tenant of "
            "OEF; the lie is its speed there; reports are checked (docs/themis.md): once it ran on both types",
        ),
        len(seeds),
        (),
        {" | ".join(key): v.mean for key, v in found.items()},
    )


def _claim(rule: str, mine: dict[str, Interval]) -> Claim:
    best = min(mine, key=lambda lie: mine[lie].mean)
    holds, sure = never_pays(list(mine.values()))
    return Claim(
        f"Over many rounds a forged speed on a GPU type does not pay ({rule}).",
        PAPER[rule],
        f"best lie: {best}, the liar's completion time x {shown(mine[best])}",
        holds,
        "",
        sure,
    )
