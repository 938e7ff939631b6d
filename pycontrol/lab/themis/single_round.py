"""Single auctions: the gain of lies, envy, and Pareto efficiency."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pycontrol.auction.instance import Instance, Win
from pycontrol.auction.partial import AuctionOutcome, auction
from pycontrol.auction.winners import solve, winners
from pycontrol.fairness.bidding import Bidder, app_work, capacity, rho_of
from pycontrol.fairness.gang_rho import PhaseWork
from pycontrol.lab.policies.variants import Nothing, with_nothing
from pycontrol.model.auction import Bid, Gang, gang_gpus, gangs_by_host
from pycontrol.model.topology import Machine, Scope, Topology

LEASE_S, RESTART_S, BUDGET_S = 600.0, 40.0, 10.0
HOPELESS = 1e9
"""A rho so large that an app that bids it for nothing always wins a row."""


@dataclass(frozen=True)
class Private:
    """An app's private information. Work in serial GPU-seconds, times in seconds."""

    app_id: str
    jobs: tuple[float, ...]
    gang_gpus: int
    slowdown: tuple[float, float, float]
    elapsed_s: float
    done_gpu_s: float
    n_avg: float

    def slots(self, gangs: Sequence[Gang], topology: Topology) -> list[float]:
        """S of each gang at its placement."""
        return [self.slowdown[topology.scope_of(h for h, _ in g) - 1] for g in gangs]

    def rho(self, slots: Sequence[float], topology: Topology) -> float:
        """rho with one new gang per S; without any, the projected rho."""
        phases, jobs = (PhaseWork(self.jobs),), len(self.jobs)
        work = app_work(phases, self.gang_gpus, jobs, topology.gpus, self.n_avg, self.elapsed_s, self.done_gpu_s)
        restart = RESTART_S / work.t_id_s if slots else 0.0
        return rho_of(work, slots, LEASE_S) + restart

    def value(self, slots: Sequence[float], topology: Topology) -> float:
        """V = 1 / rho."""
        return 1.0 / self.rho(slots, topology)

    def bid(self, instance: Instance) -> Bid:
        """The Agent's bid, made by the Agent's code."""
        work = app_work(
            (PhaseWork(self.jobs),),
            self.gang_gpus,
            len(self.jobs),
            instance.topology.gpus,
            self.n_avg,
            self.elapsed_s,
            self.done_gpu_s,
        )
        slowdowns = dict(zip(Scope, self.slowdown, strict=True))
        return Bidder(
            work, [], [], instance.free, len(self.jobs), slowdowns, instance.topology, RESTART_S, LEASE_S
        ).bid(self.app_id)


def round_of(seed: int) -> tuple[list[Private], Instance]:
    """A random round: 3 to 5 apps of 1 to 6 jobs in gangs of 1, 2 or 4; 2 to 4 machines of 2 or 4 GPUs, two racks."""
    rng = random.Random(f"round {seed}")
    machines = [Machine(f"m{i}", f"r{i % 2}", rng.choice((2, 4, 4))) for i in range(rng.randint(2, 4))]
    topology = Topology.of(machines)
    apps = []
    for i in range(rng.randint(3, 5)):
        rack = rng.uniform(1.0, 1.5)
        jobs = tuple(rng.uniform(1800, 14_400) for _ in range(rng.randint(1, 6)))
        apps.append(
            Private(
                f"a{i}",
                jobs,
                rng.choice((1, 1, 2, 4)),
                (1.0, rack, rack * rng.uniform(1.0, 1.3)),
                rng.uniform(0, 3600),
                rng.uniform(0, 1) * sum(jobs),
                rng.uniform(3, 6),
            )
        )
    return apps, Instance(topology.gpus_by_host, topology)


class Draw(random.Random):
    """A generator that always draws the same: with 0 all is rounded up that may be, with 1 nothing is."""

    def __init__(self, drawn: float) -> None:
        super().__init__(0)
        self.drawn = drawn

    def random(self) -> float:
        """The number."""
        return self.drawn

    def getrandbits(self, k: int, /) -> int:
        """0."""
        return 0


@dataclass(frozen=True)
class Worth:
    """A round's expected value to one app by its true V, over the random rounding of payments."""

    fraction: float
    """c V(G), as in the theorem: the payment applies to all of V, including the value of no GPUs."""
    lottery: float
    """All of G with probability c, else no GPUs, at the projected V."""
    gangs: float
    """As implemented: c times k gangs, rounded without bias."""


def worth(app: Private, bids: Sequence[Bid], instance: Instance, seed: int) -> Worth:
    """The round's value by the app's true V; its bid, truthful or not, is among `bids`."""
    up = auction(bids, instance, Draw(0.0), BUDGET_S)
    down = auction(bids, instance, Draw(1.0), BUDGET_S)
    top, win, c = instance.topology, up.wins[app.app_id], up.c[app.app_id]
    nothing = app.value([], top)
    if win.row is None:
        return Worth(nothing, nothing, nothing)
    whole = app.value([app.slowdown[win.row.scope - 1]] * win.row.new_gangs, top)
    k = win.row.new_gangs
    chance = c * k - math.floor(c * k + 1e-9)
    more, less = (app.value(app.slots(o.kept[app.app_id], top), top) for o in (up, down))
    return Worth(c * whole, c * whole + (1 - c) * nothing, max(0.0, chance) * more + (1 - max(0.0, chance)) * less)


def lies(app: Private, instance: Instance, rng: random.Random, tries: int) -> Iterator[tuple[str, Bid]]:
    """Untruthful bids by kind: about work, slowdown, all rho, rho without GPUs, and single rows."""
    for k in (1 / 3, 0.7, 1.5, 3.0):
        yield "work", _of(app, instance, work=k)
        yield "slowdown", _of(app, instance, slowdown=k)
    honest = app.bid(instance)
    for k in (0.5, 2.0):
        rows = tuple(dataclasses.replace(r, rho=r.rho * k) for r in honest.rows)
        yield "rho", Bid(app.app_id, honest.rho_nothing * k, rows)
        yield "rho of nothing", dataclasses.replace(honest, rho_nothing=honest.rho_nothing * k)
    for row in honest.rows:
        yield "one row only", dataclasses.replace(honest, rows=(row,))
    for _ in range(tries):
        rows = tuple(dataclasses.replace(r, rho=r.rho * math.exp(rng.gauss(0, 0.5))) for r in honest.rows)
        yield "row by row", Bid(app.app_id, honest.rho_nothing * math.exp(rng.gauss(0, 0.5)), rows)


def _of(app: Private, instance: Instance, work: float = 1.0, slowdown: float = 1.0) -> Bid:
    s = app.slowdown
    said = dataclasses.replace(
        app,
        jobs=tuple(w * work for w in app.jobs),
        slowdown=(s[0], max(1.0, s[1] * slowdown), max(1.0, s[2] * slowdown)),
    )
    return said.bid(instance)


# ---- envy and efficiency


def best_value(app: Private, gpus: Mapping[str, int], topology: Topology) -> float:
    """V of these GPUs, arranged into gangs in the app's best way."""
    values = [app.value([], topology)]
    for scope in Scope:
        n = min(len(app.jobs), capacity(gpus, app.gang_gpus, scope, topology))
        values.append(app.value([app.slowdown[scope - 1]] * n, topology))
    return max(values)


def envy(apps: Sequence[Private], outcome: AuctionOutcome, topology: Topology, paid: bool) -> float:
    """The largest V_i(what j has) / V_i(what i has), less 1; `paid`: each bundle counts c times its V."""
    worst = 0.0
    for i in apps:
        own = best_value(i, gangs_by_host(outcome.wins[i.app_id].gangs), topology) * (
            outcome.c[i.app_id] if paid else 1.0
        )
        for j in apps:
            if i is not j and outcome.wins[j.app_id].gangs:
                other = best_value(i, gangs_by_host(outcome.wins[j.app_id].gangs), topology)
                worst = max(worst, other * (outcome.c[j.app_id] if paid else 1.0) / own - 1)
    return worst


def dominated(bids: Sequence[Bid], instance: Instance, wins: Mapping[str, Win]) -> bool:
    """Whether another choice of rows is better for one bidder and no worse for the others (searched per bidder).

    By these bids: who won nothing has its own rho of that, whatever it counted as in the auction.
    """
    for i in bids:
        wanted = []
        for bid in bids:
            win = wins[bid.app_id]
            rho = (bid.rho_nothing if win.row is None else win.rho) * (1 - 1e-6 if bid is i else 1 + 1e-12)
            rows = tuple(r for r in bid.rows if r.rho <= rho)
            wanted.append(Bid(bid.app_id, bid.rho_nothing if bid.rho_nothing <= rho else HOPELESS, rows))
        found = winners(solve(wanted, instance, 0, BUDGET_S, False), wanted, instance)
        if all(w.rho < HOPELESS for w in found.values()):
            return True
    return False


# ---- one round's measures


def measure(seed: int, tries: int, convention: Nothing = "projected") -> dict[str, Any]:
    """Measures of one random auction: the first app's best gain by kind of lie and reading, envy, efficiency."""
    apps, instance = round_of(seed)
    true = [a.bid(instance) for a in apps]
    bids = with_nothing(true, (), convention)
    liar, rng = apps[0], random.Random(f"lies {seed}")
    truth = dataclasses.asdict(worth(liar, bids, instance, seed))
    gain: dict[str, dict[str, float]] = {reading: {} for reading in truth}
    for kind, lie in lies(liar, instance, rng, tries):
        said = dataclasses.asdict(worth(liar, with_nothing([lie, *true[1:]], (), convention), instance, seed))
        for reading, honest in truth.items():
            gain[reading][kind] = max(gain[reading].get(kind, 0.0), said[reading] / honest - 1)
    outcome = auction(bids, instance, random.Random(seed), BUDGET_S)
    won = sum(gang_gpus(g) for w in outcome.wins.values() for g in w.gangs)
    paid = sum(gang_gpus(g) for gangs in outcome.paid.values() for g in gangs)
    return {
        "gain": gain,
        "envy": envy(apps, outcome, instance.topology, False),
        "envy_paid": envy(apps, outcome, instance.topology, True),
        "dominated": dominated(true, instance, outcome.wins),
        "paid_share": paid / won if won else 0.0,
        "proved": outcome.proved_optimal,
    }
