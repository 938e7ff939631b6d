"""Conventions that papers leave open, as further options of built-in policies: experiments compare them.

`make` takes them beside a policy's own options. Themis: who gets leftovers, how payments are rounded, the rho of an app
with nothing, and tables of rho from app's last bids. Policies that order apps: packing, and ties.
"""

from __future__ import annotations

import bisect
import functools
import math
import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pycontrol.auction.handout import AtRandom, ByKey, Caps, Order, Taker, leftovers
from pycontrol.auction.placing import ELSE, FreeIndex
from pycontrol.model.auction import AppView, Award, Bid, Gang, Offer, Plan, Snapshot, gang_of
from pycontrol.model.topology import Scope, Topology
from pycontrol.policies import registry
from pycontrol.policies.filling import Filling
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.themis import Themis

HUGE = 1e6
"""With `rho_nothing` "huge": rho of an app with nothing, as a multiple of the worst rho in the auction."""
Nothing = Literal["projected", "twice_worst", "huge"]
Rank = Literal["random", "worst_first", "most_helped"]


class Ranking:
    """The order in which apps get the next gang.

    rho is that of the snapshot, scaled to the app's present GPUs: with k gangs of g GPUs, T_sh is elapsed + work left /
    (k g) seconds; with none, the app waits one lease and then runs one gang.
    """

    def __init__(self, rank: Rank, snapshot: Snapshot, rng: random.Random) -> None:
        self.rank, self.rng, self.snapshot = rank, rng, snapshot

    def order(self, takers: Sequence[Taker], caps: Caps) -> Order[Taker]:
        """The order of these apps; of equals, the one submitted first, then the last of `takers`, is next."""
        if self.rank == "random":
            return AtRandom(takers, self.rng)
        score = self.rho if self.rank == "worst_first" else self.help
        return ByKey(reversed(takers), lambda x: (-score(x.view, caps.gpus(x.view)), x.view.submitted_s))

    def rho(self, view: AppView, gpus: int) -> float:
        """The app's rho with `gpus` GPUs; -1 if its rho is not known, so that it comes last."""
        if view.rho is None:
            return -1.0
        return view.rho * self._left_s(view, gpus) / self._left_s(view, view.retained_gpus)

    def help(self, view: AppView, gpus: int) -> float:
        """The decrease of log rho by one more gang."""
        return math.log(self._left_s(view, gpus) / self._left_s(view, gpus + view.demand.gang_gpus))

    def _left_s(self, view: AppView, gpus: int) -> float:
        lease_s, gang = self.snapshot.lease_s, max(1, view.demand.gang_gpus)
        work = view.demand.work_left_gpu_s or max(view.attained_gpu_s, lease_s * gang)
        wait_s = 0.0 if gpus else lease_s
        return max(0.0, self.snapshot.now_s - view.submitted_s) + wait_s + work / max(gpus, gang)


class RoundsDown(random.Random):
    """Draws as usual, but no number that would round a payment up."""

    def random(self) -> float:
        """Always 1."""
        return 1.0

    def getrandbits(self, k: int, /) -> int:
        """As usual."""
        return super().getrandbits(k)


@dataclass(frozen=True)
class ThemisVariant(Themis):
    """Themis with other conventions."""

    leftovers: Rank = "random"
    """Order of apps for leftovers: random (the paper), the worst rho first, or the largest cut of log rho by a gang."""
    participants: bool = False
    """Whether bidders may get leftovers too, which returns payments to them."""
    rounding: Literal["unbiased", "floor"] = "unbiased"
    """How the part c of k gangs is rounded: by one more gang or not, so that the mean is c k, or always down."""
    rho_nothing: Nothing = "projected"
    """rho of an app that would hold nothing: as bid, twice the largest rho in the auction, or HUGE times it."""
    cached_tables: bool = False
    """Whether `offer` uses rho from an app's last bid instead of the rho that it reports."""
    ties: Literal["arrival", "random"] = "arrival"
    """Order of apps with equal rho."""

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """As Themis, of apps with the cached rho, and with submissions drawn where these break ties."""
        views = tuple(replace(v, rho=self._rho(v, snapshot)) for v in snapshot.apps)
        if self.ties == "random":
            drawn = (random.Random(f"{snapshot.round_id} {v.app_id}").random() for v in views)
            views = tuple(replace(v, submitted_s=at_s) for v, at_s in zip(views, drawn, strict=True))
        return super().offer(replace(snapshot, apps=views))

    def _rho(self, view: AppView, snapshot: Snapshot) -> float | None:
        table = snapshot.memory.get("tables", {}).get(view.app_id) if self.cached_tables else None
        if view.rho is None or not table:
            return view.rho
        known = bisect.bisect_right([gpus for gpus, _ in table], view.retained_gpus)
        return float(table[max(0, known - 1)][1])

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """As Themis, of bids with the rho of nothing by the convention; remembers tables."""
        holding = {v.app_id for v in snapshot.apps if v.retained_gpus}
        said = with_nothing(list(bids.values()), holding, self.rho_nothing)
        plan = super().decide(snapshot, {b.app_id: b for b in said}, rng)
        return replace(plan, memory=self._remember(snapshot, bids))

    def draws(self, seed: int) -> random.Random:
        """By the option `rounding`."""
        return RoundsDown(seed) if self.rounding == "floor" else super().draws(seed)

    def left_over(
        self,
        snapshot: Snapshot,
        bids: Mapping[str, Bid],
        free: FreeIndex,
        kept: Mapping[str, Sequence[Gang]],
        rng: random.Random,
    ) -> list[Award]:
        """By the options `leftovers` and `participants`."""
        open_ = [v for v in snapshot.apps if self.participants or v.app_id not in bids]
        order = Ranking(self.leftovers, snapshot, rng).order
        return leftovers(free, open_, Caps(snapshot.apps, kept), kept, order)

    def _remember(self, snapshot: Snapshot, bids: Mapping[str, Bid]) -> dict[str, Any]:
        """With `cached_tables`: app -> its last bid as a table of (GPUs held, rho)."""
        if not self.cached_tables:
            return {}
        tables = snapshot.memory.get("tables", {})
        views = {v.app_id: v for v in snapshot.apps}
        kept = {a: table for a, table in tables.items() if a in views}
        return {"tables": kept | {a: _table(bid, views[a].retained_gpus) for a, bid in bids.items() if a in views}}


def with_nothing(bids: Sequence[Bid], holding: Container[str], convention: Nothing) -> list[Bid]:
    """The bids with `rho_nothing` replaced by the convention, for apps that hold nothing."""
    known = [b.rho_nothing for b in bids if b.app_id in holding] + [r.rho for b in bids for r in b.rows]
    if convention == "projected" or not known:
        return list(bids)
    rho = max(known) * (2.0 if convention == "twice_worst" else HUGE)
    return [b if b.app_id in holding else replace(b, rho_nothing=rho) for b in bids]


def _table(bid: Bid, retained_gpus: int) -> list[list[float]]:
    best = {retained_gpus: bid.rho_nothing}
    for row in bid.rows:
        gpus = retained_gpus + row.gpus
        best[gpus] = min(row.rho, best.get(gpus, math.inf))
    return [[gpus, rho] for gpus, rho in sorted(best.items())]


class Unpacked(FreeIndex):
    """Gangs are not packed: they take the first free GPUs in an order of hosts (host -> rank), within their scope."""

    def __init__(self, free: Mapping[str, int], topology: Topology, order: Mapping[str, int]) -> None:
        super().__init__(free, topology)
        self.order = order

    def place(self, size: int, widest: Scope, gpu_type: str = "", members: Sequence[int] = ()) -> Gang | None:
        """As `FreeIndex.place`; gangs of members are packed."""
        if members or ELSE in gpu_type:
            return super().place(size, widest, gpu_type, members)
        type_of, rack_of = self.topology.type_of, self.topology.rack_of
        free = {h: n for h, n in self.left.items() if n > 0 and (not gpu_type or type_of(h) == gpu_type)}
        hosts = sorted(free, key=self.order.__getitem__)
        if widest is Scope.MACHINE:
            hosts = [h for h in hosts if free[h] >= size][:1]
        elif widest is Scope.RACK:
            in_rack: dict[str, int] = {}
            for h in hosts:
                in_rack[rack_of(h)] = in_rack.get(rack_of(h), 0) + free[h]
            first = next((rack_of(h) for h in hosts if in_rack[rack_of(h)] >= size), None)
            hosts = [h for h in hosts if rack_of(h) == first]
        gang: dict[str, int] = {}
        for h in hosts:
            if size:
                gang[h] = min(size, free[h])
                size -= gang[h]
        return None if size else gang_of(gang)


@dataclass(frozen=True)
class FillingVariant(Filling):
    """A policy that orders apps, with other conventions; to be mixed into one."""

    packing: Literal["tight", "first", "random"] = "tight"
    """How new gangs are placed: as close together as possible, or unpacked by host name or in a random order."""
    ties: Literal["fifo", "random"] = "fifo"
    """How ties are broken: by submission time, or by a draw for each gang."""

    def tie(self, view: AppView, rng: random.Random) -> float:
        """By the option `ties`."""
        return rng.random() if self.ties == "random" else super().tie(view, rng)

    def pool(self, snapshot: Snapshot, rng: random.Random) -> FreeIndex:
        """By the option `packing`."""
        hosts = sorted(snapshot.free)
        if self.packing == "tight":
            return super().pool(snapshot, rng)
        if self.packing == "random":
            rng.shuffle(hosts)
        return Unpacked(snapshot.free, snapshot.topology, {host: k for k, host in enumerate(hosts)})


@functools.cache
def kind(name: str) -> Any:
    """The class of a policy with the further options that are for it."""
    own = registry.kind(name)
    if own is Themis:
        return ThemisVariant
    if not issubclass(own, Filling):
        return own
    return dataclass(frozen=True)(type(own.__name__, (FillingVariant, own), {"__module__": __name__}))


def make(name: str, /, **given: Any) -> Policy:
    """As `registry.make`; a policy without further options is the built-in one."""
    own = {f.name for f in fields(registry.kind(name))}
    return registry.made(name, kind(name), given) if given.keys() - own else registry.make(name, **given)
