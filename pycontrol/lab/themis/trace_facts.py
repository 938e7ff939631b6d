"""Themis' trace facts (Figures 1-4) compared with public traces, and the overheads of section 6.2.3."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pycontrol.auction.instance import Instance
from pycontrol.auction.partial import auction
from pycontrol.auction.winners import engine_name
from pycontrol.fairness.bidding import Bidder
from pycontrol.fairness.gang_rho import AppWork, PhaseWork
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.measures import cdf
from pycontrol.lab.workloads import load, marginals
from pycontrol.model.auction import Bid
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.simulation.trace_apps import Workload

# ---- Figures 1-4

TRACES = {f"Philly, apps {k}": f"philly/themis_w1_apps_{k}.csv.gz" for k in "ABC"}
NEAR = 0.25
"""Relative difference up to which a public trace's figure agrees with the paper's."""
FACTS: Mapping[str, tuple[float, Callable[[Workload], float]]] = {
    "apps": (85, lambda w: len(w.apps)),
    "mean demand, GPUs": (50, lambda w: float(marginals.demand(w)[1].mean())),
    "apps of one job, %": (10, lambda w: 100 * float((marginals.jobs_per_app(w) == 1).mean())),
    "median jobs an app": (75, lambda w: float(np.median(marginals.jobs_per_app(w)))),
    "most jobs of an app": (100, lambda w: float(marginals.jobs_per_app(w).max())),
    "median app, GPU-days": (11.5, lambda w: float(np.median(marginals.app_gpu_days(w)))),
    "median task, GPU-hours": (3.75, lambda w: float(np.median(marginals.task_gpu_h(w)))),
}
"""The paper's facts about its trace (section 2.2), and how to compute them from a workload."""


def facts(setup: Setup) -> Findings:
    """Figures 1-4: the facts of the trace, in public traces and in the generated Workload 1."""
    seeds = setup.seeds_of(20, 3)
    found: dict[str, list[Workload]] = {"Workload 1, generated": [load("w1", seed) for seed in seeds]}
    for name, path in TRACES.items():
        setup.note(name)
        file = setup.trace(path)
        if file is not None:
            found[name] = [load(file)]
    table = {name: {f: [of(w) for w in ws] for f, (_, of) in FACTS.items()} for name, ws in found.items()}
    rows = [(f, paper, *(_spread(table[name][f]) for name in found)) for f, (paper, _) in FACTS.items()]
    public = [name for name in TRACES if name in found]
    claims = [_fact(f, paper, {n: table[n][f][0] for n in public}) for f, (paper, _) in FACTS.items()]
    return Findings(
        claims=tuple(claims[1:]),  # the number of apps is not a claim
        tables=(Table("The trace", ("", "paper", *found), tuple(rows)),),
        figures=_drawn({name: ws[0] for name, ws in found.items()}),
        conventions=(
            "the paper's 85 apps are not published; `Philly, apps A-C` are bursts of jobs of one virtual cluster and "
            "one GPU count in the public Philly jobs (A: gaps to 40 min, at least 20 jobs; B: 60 min, 18 jobs of a "
            "minute; C: 60 min, 18 jobs of 5 minutes, a week earlier), so apps of one job are left out and sizes "
            "depend on the rule",
            "demand: what would run on a cluster without limits; a task is one GPU of one job",
            f"a claim holds where all public traces agree within {NEAR:.0%}; the generated workload is drawn to the "
            "paper's figures and proves nothing",
        ),
        seeds=len(seeds),
        values=table,
    )


def _spread(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{np.mean(values):.3g} ({low} to {high})"


def _fact(name: str, paper: float, ours: Mapping[str, float]) -> Claim:
    said = "; ".join(f"{v:.3g} ({n})" for n, v in ours.items()) or "the public traces are not here"
    if name == "apps of one job, %" or not ours:
        why = "The grouping leaves apps of one job out." if ours else ""
        return Claim(f"{name}: {paper:g}.", f"{paper:g}", said, None, why)
    return Claim(f"{name}: {paper:g}.", f"{paper:g}", said, all(abs(v - paper) <= NEAR * paper for v in ours.values()))


def _drawn(workloads: Mapping[str, Workload]) -> tuple[Figure, ...]:
    def curves(values: Callable[[Workload], Any]) -> tuple[Series, ...]:
        return tuple(_thin(name, *cdf(values(w))) for name, w in workloads.items())

    demand = {name: marginals.demand(w) for name, w in workloads.items()}
    return (
        Figure(
            "demand",
            "GPU demand over time (Figure 1)",
            "days",
            "GPUs",
            tuple(_thin(n, (at - at[0]) / 86_400, gpus) for n, (at, gpus) in demand.items()),
        ),
        Figure("jobs", "Jobs an app (Figure 2)", "jobs", "share of apps", curves(marginals.jobs_per_app), "step"),
        Figure(
            "app-time",
            "App size (Figure 3)",
            "GPU-days",
            "share of apps",
            curves(marginals.app_gpu_days),
            "step",
            log_x=True,
        ),
        Figure(
            "task-time",
            "Task length (Figure 4)",
            "GPU-hours",
            "share of tasks",
            curves(marginals.task_gpu_h),
            "step",
            log_x=True,
        ),
    )


def _thin(label: str, x: Any, y: Any, points: int = 400) -> Series:
    keep = np.unique(np.linspace(0, len(x) - 1, min(points, len(x))).astype(int))
    return Series(label, [float(v) for v in np.asarray(x)[keep]], [float(v) for v in np.asarray(y)[keep]])


# ---- section 6.2.3

DEMO = Path("build/demo/report.json")
CELLS = {(64, 20): (30, 4), (256, 50): (30, 2)}
"""{(GPUs, bidders): (rounds, rounds if quick) at each availability}."""
AVAILABILITY = (0.15, 0.5, 1.0)
PAPER = {"bid_s": (0.029, 0.334), "auction_solve_s": (0.354, 1.398), "allocation_change_s": (35.0, 50.0)}
"""Median and 95th percentile, seconds."""
WORDS = {"bid_s": "An Agent's bid", "auction_solve_s": "The auction", "allocation_change_s": "A change of allocation"}


def one_round(seed: int, gpus: int, bidders: int, availability: float) -> tuple[list[float], float, bool]:
    """Seconds of each bid and of the whole auction of a random round, and whether that was proved optimal.

    Machines of four GPUs, eight to a rack, each GPU on offer with that probability; apps of 1 to 100 jobs by
    successive halving, in gangs of 1, 2 or 4, that hold up to four gangs which are not on offer.
    """
    rng = random.Random(f"{seed} {gpus} {bidders} {availability}")
    topology = Topology.of(Machine(f"m{k:03}", f"r{k // 8}", 4) for k in range(gpus // 4))
    free = {h: n for h in topology.machines if (n := sum(rng.random() < availability for _ in range(4)))}
    bid_s: list[float] = []
    bids: list[Bid] = []
    for i in range(bidders):
        jobs, gang = rng.randint(1, 100), rng.choice((1, 1, 2, 4))
        now = PhaseWork(tuple(rng.uniform(200.0, 20_000.0) for _ in range(jobs)))
        later = tuple(PhaseWork((5000.0,) * (jobs >> k)) for k in range(1, 7) if jobs >> k)
        rack = rng.uniform(1.0, 1.3)
        slowdowns = {Scope.MACHINE: 1.0, Scope.RACK: rack, Scope.CLUSTER: rack * rng.uniform(1.0, 1.3)}
        app = AppWork((now, *later), gang, rng.uniform(0, 7200), rng.uniform(3600, 36_000))
        begin_s = time.perf_counter()
        bidder = Bidder(app, [1.0] * rng.randrange(5), [], free, jobs, slowdowns, topology, 40.0, 600.0)
        bids.append(bidder.bid(f"app{i}"))
        bid_s.append(time.perf_counter() - begin_s)
    begin_s = time.perf_counter()
    outcome = auction(bids, Instance(free, topology), random.Random(seed), 30.0)
    return bid_s, time.perf_counter() - begin_s, outcome.proved_optimal


def overheads(setup: Setup) -> Findings:
    """Section 6.2.3: what bids, auctions and changes of allocation cost."""
    rows: list[tuple[Any, ...]] = []
    claims: list[Claim] = []
    every: dict[str, list[float]] = {"bid_s": [], "auction_solve_s": []}
    unproved = 0
    for (gpus, bidders), (usual, quick) in CELLS.items():
        bid_s: list[float] = []
        solve_s: list[float] = []
        for seed in setup.seeds_of(usual, quick):
            setup.note(f"{gpus} GPUs x {bidders} bidders, round {seed + 1}")
            for availability in AVAILABILITY:
                bids, solve, proved = one_round(seed, gpus, bidders, availability)
                bid_s, unproved = bid_s + bids, unproved + (not proved)
                solve_s.append(solve)
        for what, values in (("bid_s", bid_s), ("auction_solve_s", solve_s)):
            every[what] += values
            rows.append(_cost(what, f"{gpus} GPUs x {bidders} bidders, here", quantiles(values), len(values)))
    for what, values in every.items():
        claims.append(_cheaper(what, quantiles(values), "generated rounds, measured on this machine"))
    demo = json.loads(DEMO.read_text()) if DEMO.exists() else {}
    for what in PAPER:
        seen = demo.get(what) or {}
        if seen.get("n"):
            rows.append(_cost(what, "the demo's cluster", (seen["median"], seen["p95"]), seen["n"]))
            if what == "allocation_change_s":
                claims.append(_cheaper(what, (seen["median"], seen["p95"]), f"{seen['n']} changes in `make demo`"))
    if len(claims) == len(every):
        claims.append(
            Claim(
                f"{WORDS['allocation_change_s']} takes 35 (50) s.",
                "35 s (50 s)",
                "no demo's report",
                None,
                f"`make demo` writes {DEMO}.",
            )
        )
    told, saved = "no demo's report", demo.get("checkpoint_s") or {}
    if saved.get("n"):
        told = f"{saved['median']:.2g} s ({saved['p95']:.2g} s)"
        rows.append(("A checkpoint", "the demo's cluster", "5 to 10", saved["median"], saved["p95"], saved["n"]))
    claims.append(
        Claim("A checkpoint takes 5 to 10 s.", "5-10 s", told, None, "It depends on the model; the demo's are small.")
    )
    return Findings(
        claims=tuple(claims),
        tables=(Table("Seconds", ("what", "where", "paper, median (p95)", "median", "p95", "n"), tuple(rows)),),
        conventions=(
            f"auctions by the engine {engine_name()}; the paper's are solved by Gurobi on another machine",
            "the demo's cluster: all daemons and workers share one machine, so a change waits for JVM starts",
            f"GPUs on offer with probability {', '.join(f'{a:g}' for a in AVAILABILITY)}",
        ),
        notes=(f"{unproved} auctions were not proved optimal.",) if unproved else (),
        values={"here": {what: quantiles(v) for what, v in every.items()}, "demo": {k: demo.get(k) for k in PAPER}},
    )


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile."""
    return float(np.median(values)), float(np.quantile(values, 0.95))


def _cost(what: str, where: str, ours: tuple[float, float], n: int) -> tuple[Any, ...]:
    return (WORDS[what], where, f"{PAPER[what][0]:g} ({PAPER[what][1]:g})", *ours, n)


def _cheaper(what: str, ours: tuple[float, float], where: str) -> Claim:
    median, p95 = PAPER[what]
    return Claim(
        f"{WORDS[what]} takes no longer than {median:g} s at the median, {p95:g} s at the 95th percentile.",
        f"{median:g} s ({p95:g} s)",
        f"{ours[0]:.3g} s ({ours[1]:.3g} s)",
        ours[0] <= median and ours[1] <= p95,
        f"{where[0].upper()}{where[1:]}.",
    )
