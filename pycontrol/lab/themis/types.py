"""The gain of auctions that see GPU types, over type-blind auctions and over OEF's shares alone."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from pycontrol.lab.kit import Claim, Findings, Setup, Table, shown
from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.runs import Interval, interval, metric_ratio, simulate, unfinished_note
from pycontrol.lab.themis.sweeps import DAYS, SHORTER
from pycontrol.lab.workloads import load
from pycontrol.model.auction import Bid, BidRow, Offer, Plan, Snapshot
from pycontrol.model.topology import Machine, Topology
from pycontrol.policies.oef import Oef
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.themis import Themis
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import Workload

SLOW, FAST = "K80", "V100"
GAINS = (1.2, 2.0, 3.5, 5.0)
"""Speeds on the fast type, equally frequent among the apps: from recurrent to convolutional networks."""
HOSTS, HOST_GPUS = 4, 4
"""Machines of each type, and GPUs per machine."""
APPS, QUICK_APPS = 24, 8
WHOLE_APPS = 85
"""Of the trace, in `DAYS`."""
TYPED, BLIND, OEF = "auctions that see types", "type-blind auctions", "OEF alone"
METRICS = {"completion_mean_s": "mean completion time", "rho_max": "max rho"}
NO_PAPER = "nobody has published it"
CONVENTIONS = (
    f"apps of W1 on {HOSTS} machines of {HOST_GPUS} {SLOW} and as many of {HOST_GPUS} {FAST}, two racks",
    f"on a {FAST} an app is {', '.join(f'{g:g}' for g in GAINS)} times as fast as on a {SLOW}, as many apps each; its "
    "Agent knows",
    "a type-blind auction has one row for each number of gangs, at the geometric mean of the app's rho on both "
    "types; it may put a gang on both, whose slowest GPU then sets the pace",
    "OEF alone: cooperative, each app a tenant, our placer",
)


@dataclass(frozen=True)
class TypeBlind:
    """Themis without GPU types: bids name no type, and all GPUs on offer are equal."""

    themis: Themis = dataclasses.field(default_factory=Themis)

    @property
    def name(self) -> str:
        """As Themis'."""
        return self.themis.name

    @property
    def asks_agents(self) -> bool:
        """As Themis does."""
        return True

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """As Themis'."""
        return self.themis.offer(snapshot)

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """Themis' plan for machines of one type."""
        machines = (dataclasses.replace(m, gpu_type="gpu") for m in snapshot.topology.machines.values())
        alike = dataclasses.replace(snapshot, topology=Topology.of(machines))
        types = {snapshot.topology.type_of(h) for h, n in snapshot.free.items() if n > 0}
        return self.themis.decide(alike, {a: blind(bid, len(types)) for a, bid in bids.items()}, rng)


def blind(bid: Bid, types: int) -> Bid:
    """The bid of an app that does not know which of `types` GPU types it would get.

    A type without a row is worth no more than no GPUs.
    """
    rhos: dict[BidRow, list[float]] = {}
    rows: list[BidRow] = []
    for row in bid.rows:
        if row.new_gangs and row.gpu_type:
            rhos.setdefault(dataclasses.replace(row, rho=0.0, gpu_type=""), []).append(row.rho)
        elif not row.mixes:
            rows.append(row)
    for row, found in rhos.items():
        logs = [math.log(r) for r in found] + [math.log(bid.rho_nothing)] * (types - len(found))
        rows.append(dataclasses.replace(row, rho=math.exp(sum(logs) / len(logs))))
    return dataclasses.replace(bid, rows=tuple(rows))


VARIANTS: Mapping[str, Policy] = {TYPED: Themis(), BLIND: TypeBlind(), OEF: Oef(tenant="app")}


def cluster() -> Topology:
    """The cluster: half of each rack has each type."""
    return Topology.of(
        Machine(f"{t.lower()}-{i}", f"rack{i % 2}", HOST_GPUS, t) for t in (SLOW, FAST) for i in range(HOSTS)
    )


def workload(seed: int, count: int) -> Workload:
    """`count` apps of W1 at the trace's density, with speeds by type."""
    options = {"count": count, "days": DAYS * count / WHOLE_APPS, "shorter": SHORTER}
    found = load("w1", seed, options)
    rng = random.Random(f"types {seed}")
    gains = [GAINS[i % len(GAINS)] for i in range(count)]
    rng.shuffle(gains)
    apps = (dataclasses.replace(a, speedups={SLOW: 1.0, FAST: g}) for a, g in zip(found.apps, gains, strict=True))
    return dataclasses.replace(found, apps=tuple(apps))


def _figures(job: tuple[str, int, int]) -> dict[str, float]:
    label, seed, count = job
    settings = SimulationSettings(arbiter=ARBITER)
    return metrics(simulate(workload(seed, count), cluster(), VARIANTS[label], settings, seed))


def typed_auctions(setup: Setup) -> Findings:
    """Auctions that see GPU types, beside type-blind ones and OEF alone: completion times and rho on two types."""
    seeds, count = setup.seeds_of(5, 2), QUICK_APPS if setup.quick else APPS
    jobs = [(label, seed, count) for label in VARIANTS for seed in seeds]
    setup.note(f"typed auctions: {len(jobs)} simulations")
    results = setup.each(_figures, jobs)
    found: dict[str, list[dict[str, float]]] = {label: [] for label in VARIANTS}
    for (label, _, _), figures in zip(jobs, results, strict=True):
        found[label].append(figures)
    ratios = {(m, other): metric_ratio(found[TYPED], found[other], m) for m in METRICS for other in (BLIND, OEF)}
    rows = tuple(
        (label, *(shown(interval([x[m] for x in runs])) for m in METRICS), int(sum(x["unfinished"] for x in runs)))
        for label, runs in found.items()
    )
    tables = (
        Table("Two GPU types", ("policy", *METRICS.values(), "unfinished"), rows),
        Table(
            "Auctions that see types / others, seed by seed",
            ("over", *METRICS.values()),
            tuple((other, *(shown(ratios[m, other]) for m in METRICS)) for other in (BLIND, OEF)),
        ),
    )
    values = {f"{m} {TYPED} / {other}": r.mean for (m, other), r in ratios.items()}
    note = unfinished_note(found)
    return Findings(
        _claims(ratios),
        tables,
        (),
        CONVENTIONS,
        len(seeds),
        (f"{count} apps, {2 * HOSTS * HOST_GPUS} GPUs, {len(seeds)} seeds.", *filter(None, [note])),
        values,
    )


def _claims(ratios: Mapping[tuple[str, str], Interval]) -> tuple[Claim, ...]:
    def claim(text: str, metric: str, other: str) -> Claim:
        r = ratios[metric, other]
        if math.isnan(r.mean):
            return Claim(text, NO_PAPER, "-", None, "Apps are unfinished.")
        return Claim(text, NO_PAPER, f"{shown(r)} x", r.mean < 1.0, sure=r.high < 1.0 or r.low > 1.0)

    return tuple(
        claim(f"Auctions that see types have a smaller {METRICS[m]} than {other}.", m, other)
        for other in (BLIND, OEF)
        for m in ("completion_mean_s", "rho_max")
    )
