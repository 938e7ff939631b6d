"""Whole auctions: offer rows in, winners, payments, rounding and placement out; each engine beside PuLP + CBC."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pulp

from pycontrol.auction import native, reference
from pycontrol.auction.instance import Instance
from pycontrol.auction.partial import auction
from pycontrol.model.auction import Bid, BidRow, Gang
from pycontrol.model.topology import Machine, Scope, Topology

AVAILABILITY = (0.15, 0.5, 1.0)


@dataclass(frozen=True)
class Cell:
    """A size, and how often each engine solves it (the slow ones on the first seeds only)."""

    gpus: int
    bidders: int
    seeds: int
    highs_seeds: int
    cbc_seeds: int
    budget_s: float = 30.0


CELLS = (Cell(64, 20, 30, 30, 10), Cell(256, 50, 30, 10, 3), Cell(16_384, 200, 30, 0, 0))
QUICK = (Cell(64, 20, 5, 2, 1), Cell(256, 50, 3, 0, 0), Cell(16_384, 200, 1, 0, 0))


TYPES = ("K80", "V100")
TYPED_CELLS = (Cell(64, 20, 30, 10, 0), Cell(256, 50, 30, 3, 0), Cell(4096, 100, 10, 0, 0), Cell(16_384, 200, 3, 0, 0))
TYPED_QUICK = (Cell(64, 20, 5, 2, 0), Cell(256, 50, 3, 0, 0))


def instance(
    seed: int, gpus: int, bidders: int, availability: float, types: Sequence[str] = ("gpu",)
) -> tuple[list[Bid], Instance]:
    """Machines of 4 or 8 GPUs in racks of 8; gangs of 1 to 8; a third of the bidders hold gangs on offer.

    Machines are full of leases of 1 to 8 GPUs, each on offer with the given probability. Rows are as
    an Agent writes them: numbers of gangs in steps, each on machines, within racks and anywhere, with the app's
    own slowdowns. With several `types` racks take turns, and each of these rows is there once for each type, at the
    app's speed on it (1 on the first, up to 6 on the others); all else is drawn alike.
    """
    rng = random.Random(f"{seed} {gpus} {bidders} {availability}")
    machines: list[Machine] = []
    while (left := gpus - sum(m.gpus for m in machines)) > 0:
        n = len(machines)
        machines.append(
            Machine(f"n{n:04d}", f"rack{n // 8:03d}", min(left, rng.choice((4, 8, 8))), types[n // 8 % len(types)])
        )
    free = {m.host: _ending(m.gpus, rng, availability) for m in machines}
    spare, bids, homes = dict(free), [], {}
    for i in range(bidders):
        speeds = random.Random(f"speeds {seed} {i}")
        speed = {t: speeds.uniform(1.0, 6.0) if k else 1.0 for k, t in enumerate(types)}
        bid, home = _bid(f"app{i:03d}", rng, spare, sum(free.values()), 2 * gpus // bidders, speed)
        bids.append(bid)
        homes[bid.app_id] = home
    return bids, Instance(free, Topology.of(machines), (), homes)


def _ending(gpus: int, rng: random.Random, availability: float) -> int:
    """The GPUs of a machine whose leases end."""
    ending = 0
    while gpus:
        lease = min(gpus, rng.choice((1, 1, 2, 2, 4, 4, 8)))
        ending += lease * (rng.random() < availability)
        gpus -= lease
    return ending


def _bid(
    app_id: str, rng: random.Random, spare: dict[str, int], offered: int, most: int, speeds: Mapping[str, float]
) -> tuple[Bid, list[Gang]]:
    size = rng.choice((1, 1, 2, 2, 4, 4, 8))
    home: list[Gang] = []
    for host in rng.sample(sorted(spare), min(len(spare), 12)) if rng.random() < 1 / 3 else ():
        if spare[host] >= size and len(home) < 3:
            spare[host] -= size
            home.append(((host, size),))
    elapsed, work, ideal = rng.uniform(0, 3000), rng.expovariate(1 / 4000) * max(1, most // 8), rng.uniform(500, 4000)
    slow = rng.uniform(1.0, 1.3)
    slowdown = {Scope.MACHINE: 1.0, Scope.RACK: slow, Scope.CLUSTER: slow * rng.uniform(1.0, 1.3)}
    gangs = max(1, rng.randint(most // 4, most) // size)
    numbers = sorted({1, *(max(1, gangs * k // 5) for k in range(1, 6))})
    rows = []
    for kept in range(len(home) + 1):
        for new in (0, *numbers):
            for scope, gpu_type in itertools.product(Scope, speeds):
                if not new and gpu_type != next(iter(speeds)):
                    continue
                if 0 < new + kept <= gangs and new * size <= offered:
                    speed = (kept + new * speeds[gpu_type] / slowdown[scope]) * size
                    named = gpu_type if len(speeds) > 1 and new else ""
                    rows.append(
                        BidRow(
                            (elapsed + 40 * (new > 0) + work / speed) / ideal,
                            tuple(home[:kept]),
                            new,
                            size,
                            scope,
                            named,
                        )
                    )
    return Bid(app_id, (elapsed + 600 + work / size) / ideal, tuple(rows)), home


class Cbc(reference.IntegerProgram):
    """The reference's model, solved by CBC."""

    def solve(self, budget_s: float) -> float:
        """As the reference; the gap of what is not optimal is only bounded by the most that all could gain."""
        if self.rows:
            self.lp.solve(pulp.PULP_CBC_CMD(msg=False, gapRel=0.0, timeLimit=budget_s, threads=1))
        optimal = not self.rows or self.lp.sol_status == pulp.LpSolutionOptimal
        return 0.0 if optimal else max(1e-9, self.most_gained - (self.lp.objective.value() or 0.0))


def _seconds(cell: Cell, availability: float, engine: str, seeds: int) -> Iterator[tuple[float, bool]]:
    for seed in range(seeds):
        bids, offer = instance(seed, cell.gpus, cell.bidders, availability)
        begin_s = time.perf_counter()
        with mock.patch.object(reference, "IntegerProgram", Cbc) if engine == "cbc" else nullcontext():
            named = "reference" if engine == "cbc" else engine
            outcome = auction(bids, offer, random.Random(seed), cell.budget_s, named)
        yield time.perf_counter() - begin_s, outcome.proved_optimal


def spread(values: list[float]) -> dict[str, float]:
    """Median, p95 and worst, milliseconds."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {
        "median_ms": 1e3 * ordered[len(ordered) // 2],
        "p95_ms": 1e3 * p95,
        "max_ms": 1e3 * ordered[-1],
        "n": len(ordered),
    }


def run(quick: bool) -> dict[str, Any]:
    """Times of whole auctions by size, availability and engine; the same auctions for each engine."""
    result: dict[str, Any] = {}
    for cell in QUICK if quick else CELLS:
        engines = {"compiled": cell.seeds * native.available(), "highs": cell.highs_seeds, "cbc": cell.cbc_seeds}
        for engine, seeds in engines.items():
            every: list[float] = []
            proved = 0
            name = f"{cell.gpus} GPUs x {cell.bidders} bidders, {engine}"
            for availability in AVAILABILITY if seeds else ():
                found = list(_seconds(cell, availability, engine, seeds))
                every += [s for s, _ in found]
                proved += sum(ok for _, ok in found)
                result[f"{name}, {availability:.0%} on offer"] = spread([s for s, _ in found])
            if every:
                result[name] = {**spread(every), "proved_optimal": proved}
    return result


def _cpu_seconds(cell: Cell, types: Sequence[str], engine: str, seeds: int) -> Iterator[tuple[float, bool]]:
    """CPU seconds of whole auctions with half of the GPUs on offer."""
    for seed in range(seeds):
        bids, offer = instance(seed, cell.gpus, cell.bidders, 0.5, types)
        begin_s = time.process_time()
        outcome = auction(bids, offer, random.Random(seed), cell.budget_s, engine)
        yield time.process_time() - begin_s, outcome.proved_optimal


def run_typed(quick: bool) -> dict[str, Any]:
    """CPU times of auctions on two GPU types, each beside the same one on a single type."""
    result: dict[str, Any] = {}
    for cell in TYPED_QUICK if quick else TYPED_CELLS:
        for engine, seeds in {"compiled": cell.seeds * native.available(), "highs": cell.highs_seeds}.items():
            if not seeds:
                continue
            typed, blind = (list(_cpu_seconds(cell, types, engine, seeds)) for types in (TYPES, TYPES[:1]))
            own, beside = spread([s for s, _ in typed]), spread([s for s, _ in blind])
            result[f"{cell.gpus} GPUs x {cell.bidders} bidders, two types, {engine}"] = {
                **own,
                "proved_optimal": sum(ok for _, ok in typed),
                "untyped": {**beside, "proved_optimal": sum(ok for _, ok in blind)},
                "ratio_to_untyped": own["median_ms"] / beside["median_ms"],
            }
    return result
