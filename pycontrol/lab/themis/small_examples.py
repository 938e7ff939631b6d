"""Themis' small examples: placement (Table 1, Figure 5), the worked bid (Table 3), a long and a short job (Table 5)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pycontrol.fairness.gang_rho import t_id
from pycontrol.lab.clusters import cluster, racks_of
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table, shown
from pycontrol.lab.measures import run_groups
from pycontrol.lab.policies.variants import make
from pycontrol.lab.runs import Interval, SimulationRun, interval, paired_ratio
from pycontrol.lab.solve.paper_rho import Halving
from pycontrol.model.topology import Topology
from pycontrol.policies import registry
from pycontrol.policies.filling import Filling
from pycontrol.simulation.result import Result
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

VGG16_S = 103.6 / 80.4
"""S of VGG16 across servers: images per second on one server over those on two (Table 1, 4 P100)."""
INCEPTION_S = 1.0
"""Table 1 has 242 images per second on one server and 243 on two; S is never below 1."""
VGG16 = (1.0, VGG16_S, VGG16_S)
INCEPTION = (1.0, INCEPTION_S, INCEPTION_S)
COSTS = "an allocation change costs 5 s (checkpoint) and 35 s (restart), a renewal nothing; leases of 600 s, aligned"
DEFAULTS = "themis: leftovers at random to apps outside the auction, unbiased rounding, projected rho_old, f = 0.8"

Items = Mapping[str, Any]

TESTBED = cluster("testbed-64")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A policy with its options and the fairness knob."""

    label: str
    policy: str
    options: Items = dataclasses.field(default_factory=dict)
    f: float = 0.8
    last_pass: bool = True

    def job(self, workload: Workload, cluster: Topology, seed: int, **world: Any) -> SimulationRun:
        """One simulation of this policy."""
        arbiter = dataclasses.replace(ARBITER, f=self.f, last_pass=self.last_pass)
        settings = SimulationSettings(arbiter=arbiter, **world)
        return SimulationRun(workload, cluster, self.policy, self.options, settings, seed, make=make)


THEMIS = Rule("themis", "themis")
WORST_FIRST = Rule("worst_first", "worst_first")
TIRESIAS = Rule("tiresias", "tiresias")


def over_seeds(
    setup: Setup, seeds: Sequence[int], jobs_of: Callable[[int], Sequence[SimulationRun]], what: str
) -> list[list[Result]]:
    """The results of `jobs_of(seed)`, seed by seed."""
    groups = [list(jobs_of(seed)) for seed in seeds]
    return run_groups(groups, setup.processes, lambda k, n: setup.note(f"{what}: {k} of {n} runs"))


# ---- Table 1 and Figure 5

HOURS = 2.0
BASELINES = ("gandiva", "tiresias", "optimus", "slaq", "srtf", "srsf", "drf", "yarn_cs", "max_min")


@dataclasses.dataclass(frozen=True)
class Figure5Case:
    """One of Figure 5's clusters and its two apps in order, each one job of four tasks."""

    label: str
    machines: tuple[int, ...]
    slowdowns: tuple[tuple[float, float, float], ...]

    def workload(self) -> Workload:
        """Both apps arrive at time 0; ties are broken by name."""
        works = ((4 * 3600.0 * HOURS,),)
        apps = (TraceApp(f"a{i}", 0.0, 4, works, slowdown=s) for i, s in enumerate(self.slowdowns))
        return Workload(self.label, tuple(apps))

    def on_one_machine(self, result: Result) -> float:
        """The share of its GPU time that the worst-off VGG16 app spent on one machine."""
        spread = 1 / VGG16_S
        vgg = [a.placement for a, s in zip(result.apps, self.slowdowns, strict=True) if s == VGG16]
        return min((p - spread) / (1 - spread) for p in vgg)

    def delay(self, result: Result) -> float:
        """The longest completion time as a multiple of that on a 4-GPU machine of its own."""
        return max(a.completion_s for a in result.apps) / (3600 * HOURS)


CASES = (
    Figure5Case("two VGG16 on 4+4", (4, 4), (VGG16, VGG16)),
    Figure5Case("Inception-v3 first, VGG16 on 4+2+2", (4, 2, 2), (INCEPTION, VGG16)),
    Figure5Case("VGG16 first, Inception-v3 on 4+2+2", (4, 2, 2), (VGG16, INCEPTION)),
)


def figure5_rules() -> list[Rule]:
    """All policies with packing; those with the option also without."""
    rules = [THEMIS, Rule("themis, f = 0", "themis", f=0.0), WORST_FIRST]
    rules += [Rule(p, p) for p in BASELINES if p in registry.names()]
    rules += [
        Rule(f"{p}, unpacked", p, {"packing": "random"}) for p in BASELINES if issubclass(registry.kind(p), Filling)
    ]
    return rules


def table1(setup: Setup) -> Findings:
    """Table 1 and Figure 5: who gives a placement-sensitive app the machine that it needs."""
    rules, seeds = figure5_rules(), setup.seeds_of(20, 3)
    share: dict[tuple[str, int], Interval] = {}
    delay: dict[tuple[str, int], Interval] = {}
    for k, case in enumerate(CASES):
        work, cluster = case.workload(), racks_of([case.machines])
        groups = over_seeds(
            setup,
            seeds,
            lambda seed, w=work, c=cluster: [r.job(w, c, seed) for r in rules],  # type: ignore[misc]
            case.label,
        )
        for rule, results in zip(rules, zip(*groups, strict=True), strict=True):
            share[rule.label, k] = interval([case.on_one_machine(r) for r in results])
            delay[rule.label, k] = interval([case.delay(r) for r in results])
    heads = [c.label for c in CASES]
    rows = [
        (r.label, *(x for k in range(len(CASES)) for x in (_percent(share[r.label, k]), shown(delay[r.label, k]))))
        for r in rules
    ]
    columns = ("policy", *(x for h in heads for x in (f"{h}: on one machine", "slowest / alone")))
    bars = tuple(
        Series(h, [r.label for r in rules], [share[r.label, k].mean for r in rules]) for k, h in enumerate(heads)
    )
    tasks = task_by_task(1000)
    return Findings(
        claims=(
            _gets_it("Themis gives each of two VGG16 apps a machine of its own.", share, "themis", (0,), ""),
            _gets_it(
                "Themis gives VGG16 the 4-GPU machine, Inception-v3 the rest.",
                share,
                "themis",
                (1, 2),
                "With f = 0.8 one of two apps is asked: an insensitive one that is asked first may take the "
                "machine; with f = 0 both bid.",
            ),
            _gets_it("The same where both apps are in the auction (f = 0).", share, "themis, f = 0", (0, 1, 2), ""),
            Claim(
                "DRF and LAS ignore placement and spread the VGG16 apps over machines.",
                "a valid outcome of both",
                f"GPU by GPU onto random free GPUs, as both allow, {1 - tasks:.0%} of 1000 draws spread an app",
                tasks < 1,
                "Not here, where a job's tasks are placed together: on 4+4 neither does, packed ("
                + _said(share, ("drf", "tiresias"), 0)
                + ") nor unpacked ("
                + _said(share, ("drf, unpacked", "tiresias, unpacked"), 0)
                + " on one machine). On 4+2+2 they are "
                "blind: who comes first has the machine ("
                + _said(share, ("drf", "tiresias"), 1)
                + " for VGG16 if Inception-v3 does).",
            ),
            Claim(
                "VGG16 runs at 103.6 images/s on one server, 80.4 across two; Inception-v3 at 242 and 243.",
                "measured on 4 P100",
                "taken as given: S = 1.29 and 1",
                None,
                "It needs those GPUs.",
            ),
        ),
        tables=(Table(f"The worst VGG16's GPU time on one machine ({len(seeds)} seeds)", columns, tuple(rows)),),
        figures=(Figure("placement", "Worst VGG16's GPU time on one machine", "policy", "share", bars, "bar"),),
        conventions=(
            COSTS,
            DEFAULTS,
            "all machines in one rack; both apps come at once; two hours of work each",
            "unpacked: machines in random order, GPU by GPU",
        ),
        seeds=len(seeds),
        values={"on_one_machine": {f"{n} | {heads[k]}": v.mean for (n, k), v in share.items()}},
    )


def task_by_task(draws: int) -> float:
    """DRF or LAS on 4+4, one task at a time on a random free GPU: how often both apps end up on one machine each."""
    rng, whole = random.Random(0), 0
    for _ in range(draws):
        machine_of = [0] * 4 + [1] * 4
        rng.shuffle(machine_of)  # equal shares alternate: the even tasks are one app's, the odd ones the other's
        whole += len(set(machine_of[::2])) == 1
    return whole / draws


def _gets_it(claim: str, share: Mapping[tuple[str, int], Interval], who: str, cases: Sequence[int], why: str) -> Claim:
    said = ", ".join(f"{share[who, k].mean:.0%} ({CASES[k].label})" for k in cases)
    return Claim(claim, "always", f"share of GPU time: {said}", all(share[who, k].mean >= 0.99 for k in cases), why)


def _percent(share: Interval) -> str:
    return f"{share.mean:.0%}"


def _said(share: Mapping[tuple[str, int], Interval], who: Sequence[str], case: int) -> str:
    return ", ".join(f"{n} {share[n, case].mean:.0%}" for n in who)


# ---- Table 3

EXAMPLE = Halving((80, 100, 100, 120), 8, ((2, 16), (1, 36)), 8, 1.0, 0.0)
"""Section 4.3.3: four jobs, phases of 4, 2 and 1 jobs with 8, 16 and 36 iterations."""
PRINTED = {1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5, 16: 0.34}


def table3(setup: Setup) -> Findings:
    """Table 3: the bid of the worked example."""
    t_id_s = t_id(10_000, 16, 32, 4)
    fluid = {g: EXAMPLE.fluid_on(g).t_sh_s / t_id_s for g in PRINTED}
    whole = {g: EXAMPLE.on(g).t_sh_s / t_id_s for g in PRINTED}
    two = EXAMPLE.on(2)
    survivors = Halving((120, 100), 16, ((1, 36),), 8, 1.0, two.phases_s[0]).on(2).phases_s
    winner_s = Halving((120,), 36, (), 8, 1.0, 0.0).on(2).t_sh_s
    rows = [(g, PRINTED[g], round(fluid[g], 4), round(whole[g], 4)) for g in PRINTED]
    same = all(round(fluid[g], 2) == PRINTED[g] for g in PRINTED)
    apart = ", ".join(f"{whole[g]:.3f} at {g}" for g in PRINTED if round(whole[g], 2) != PRINTED[g])
    return Findings(
        claims=(
            Claim("T_id = 2500 s.", "2500", f"{t_id_s:g}", t_id_s == 2500),
            Claim(
                "On 2 GPUs the phases end after 1600, 1600 and 1800 s and rho is 2.",
                "1600 + 1600 + 1800; 2",
                f"{' + '.join(f'{s:g}' for s in two.phases_s)}; {two.t_sh_s / t_id_s:g}",
                two.phases_s == (1600, 1600, 1800) and two.t_sh_s == 2 * t_id_s,
            ),
            Claim(
                "The bid table on 1, 2, 4, 8 and 16 GPUs, phases as divisible work.", _list(PRINTED), _list(fluid), same
            ),
            Claim(
                "The same by the paper's own rule for T_sh(i), whole GPUs and the last job's end.",
                _list(PRINTED),
                _list(whole),
                not apart,
                f"The rule gives {apart}: with one GPU a job, 120 s jobs end last. The table neglects it."
                if apart
                else "",
            ),
            Claim(
                "With survivors of 120 and 100 s, T_sh(2) = 120 x 16 = 3200 s.",
                "3200",
                f"{survivors[0]:g}",
                survivors[0] == 3200,
                "120 x 16 is 1920: a slip of the paper.",
            ),
            Claim(
                "... and T_sh(3) = 120 x 36 / 2 = 2160 s.",
                "2160",
                f"{survivors[1]:g}",
                survivors[1] == 2160,
                f"2160 takes it that the 120 s job wins (then ours is {winner_s:g}); the paper's median rule has "
                "110 s.",
            ),
        ),
        tables=(Table("rho by GPUs", ("GPUs", "paper", "divisible work", "whole GPUs"), tuple(rows)),),
        figures=(
            Figure(
                "bid",
                "rho of the worked example",
                "GPUs",
                "rho",
                (
                    *(
                        Series(name, list(t), list(t.values()))
                        for name, t in {"paper": PRINTED, "divisible work": fluid, "whole GPUs": whole}.items()
                    ),
                ),
                log_x=True,
                log_y=True,
            ),
        ),
        conventions=(
            "S = 1, nothing run yet, job_demand_max = 8 in every phase, N_avg = 4 on 16 GPUs",
            "later phases are made of the median job; divisible work spreads a phase's sum over its GPUs",
            "no chance in it: one run",
        ),
        values={"fluid": fluid, "whole": whole, "t_id_s": t_id_s},
    )


def _list(table: Mapping[int, float]) -> str:
    return ", ".join(f"{v:.3g}" for v in table.values())


# ---- Table 5

LONG = (580 * 60.0, 4)
SHORT = (83 * 60.0, 2)
"""(GPU-seconds, GPUs) of the short job."""
READINGS = {"single jobs": (1, 48), "apps of 16 such jobs": (16, 16)}
"""(jobs per app, apps per run) by reading."""


def long_and_short(seed: int, jobs: int, apps: int, load: float) -> Workload:
    """Long and short apps, half each, in random order, with arrivals at `load` times the capacity of 64 GPUs."""
    rng = random.Random(f"long and short {seed} {jobs}")
    kinds = [LONG, SHORT] * (apps // 2)
    rng.shuffle(kinds)
    gap_s = jobs * (LONG[0] + SHORT[0]) / 2 / (load * 64)
    at_s, found = 0.0, []
    for i, (work, gpus) in enumerate(kinds):
        at_s += rng.expovariate(1 / gap_s)
        kind = "long" if (work, gpus) == LONG else "short"
        found.append(TraceApp(f"a{i:03}", at_s, gpus, ((work,) * jobs,), model=kind))
    return Workload(f"long and short, {jobs} jobs", tuple(found), f"seed {seed}")


def table5(setup: Setup) -> Findings:
    """Table 5: a long and a short job under Themis and Tiresias."""
    rules = [THEMIS, TIRESIAS]
    if not setup.quick:
        rules += [WORST_FIRST, Rule("themis, leftovers worst first", "themis", {"leftovers": "worst_first"})]
    seeds, loads = setup.seeds_of(12, 3), (1.5,) if setup.quick else (1.0, 1.5, 2.0)
    rho: dict[tuple[str, float, str, str], list[float]] = {}
    for reading, (jobs, apps) in READINGS.items():
        for load in loads:
            groups = over_seeds(
                setup,
                seeds,
                lambda s, j=jobs, n=apps, x=load: [r.job(long_and_short(s, j, n, x), TESTBED, s) for r in rules],  # type: ignore[misc]
                f"{reading}, load {load:g}",
            )
            for rule, results in zip(rules, zip(*groups, strict=True), strict=True):
                for kind in ("long", "short"):
                    rho[reading, load, rule.label, kind] = [_mean_rho(r, kind) for r in results]
    cells = [(reading, load) for reading in READINGS for load in loads]

    def ratio(cell: tuple[str, float], label: str, kind: str) -> Interval:
        return paired_ratio(rho[(*cell, label, kind)], rho[(*cell, "themis", kind)])

    rows = [
        (
            *cell,
            rule.label,
            *(shown(interval(rho[(*cell, rule.label, k)])) for k in ("long", "short")),
            *("1" if rule is THEMIS else shown(ratio(cell, rule.label, k)) for k in ("long", "short")),
        )
        for cell in cells
        for rule in rules
    ]
    short, long = (
        {f"{r}, load {x:g}": ratio((r, x), "tiresias", kind) for r, x in cells} for kind in ("short", "long")
    )
    return Findings(
        claims=(
            Claim(
                "The short job does better under Themis than under Tiresias.",
                "rho 1.2 against 1.9 (x 1.58)",
                _each(short),
                all(v.low > 1 for v in short.values()),
                _where(short, lambda v: v.low > 1),
            ),
            Claim(
                "The long job gives way: it does worse under Themis.",
                "rho 1.0 against 0.9 (x 0.9)",
                _each(long),
                all(v.high < 1 for v in long.values()),
                _where(long, lambda v: v.high < 1),
            ),
        ),
        tables=(
            Table(
                "The paper's pair",
                ("job", "GPU-min", "GPUs", "rho, Themis", "rho, Tiresias"),
                (("long", 580, 4, 1.0, 0.9), ("short", 83, 2, 1.2, 1.9)),
            ),
            Table(
                f"Mean rho ({len(seeds)} seeds)",
                ("reading", "load", "policy", "long", "short", "long / themis'", "short / themis'"),
                tuple(rows),
            ),
        ),
        figures=(
            Figure(
                "rho",
                f"Mean rho, {cells[-1][0]}, load {cells[-1][1]:g}",
                "policy",
                "rho",
                tuple(
                    Series(k, [r.label for r in rules], [interval(rho[(*cells[-1], r.label, k)]).mean for r in rules])
                    for k in ("long", "short")
                ),
                "bar",
                mark=1.0,
            ),
        ),
        conventions=(
            COSTS,
            DEFAULTS,
            "testbed of 64 GPUs: 8 machines of 2, 12 of 4, in 4 racks; slowdowns 1, 1.1, 1.3",
            "the paper says nothing of the other apps; here they are long and short ones of the same kinds, "
            "half of each, arriving at random at the stated multiple of what the cluster can do",
            "two readings of `job`: apps of one such job, and apps of 16 (so that demand nears the cluster's)",
            "rho is averaged over all apps of a kind; N_avg x T_cluster makes rho of single small jobs small",
        ),
        seeds=len(seeds),
        values={" | ".join(map(str, k)): interval(v).mean for k, v in rho.items()},
    )


def _mean_rho(result: Result, kind: str) -> float:
    found = [a.rho for a in result.apps if a.model == kind]
    return sum(found) / len(found)


def _each(ratios: Mapping[str, Interval]) -> str:
    return "; ".join(f"tiresias / themis x {shown(v)} ({n})" for n, v in ratios.items())


def _where(ratios: Mapping[str, Interval], ok: Callable[[Interval], bool]) -> str:
    not_so = [n for n, v in ratios.items() if not ok(v)]
    return f"Not shown at 95 % with {'; '.join(not_so)}." if not_so else ""
