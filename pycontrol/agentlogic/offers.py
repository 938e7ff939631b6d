"""What an app answers when a round asks: its rho, and its one bid (Themis, sections 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from pycontrol.fairness.bidding import Bidder, OwnGang, rho_of
from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gangs import AppWork
from pycontrol.model.auction import Bid, gang_of
from pycontrol.model.topology import Gpu, Scope, Topology, count_by_host
from pycontrol.model.value import value

ALIKE: Mapping[str, float] = {}
"""Speedups where types do not matter."""


@value
class RunningGang:
    """A gang under way: its GPUs, and its slowdown there: S over the app's speed on their type, and of an elastic job
    over how many smallest gangs it is as fast as.

    `known`: the Arbiter knew it when the round began.
    """

    gpus: tuple[Gpu, ...]
    slowdown: float
    known: bool = True


def rho(work: AppWork, gangs: Sequence[RunningGang], held: Collection[Gpu], ending: Set[Gpu], lease_s: float) -> float:
    """rho with the gangs that stay whatever becomes of the GPUs that end; the projected one if there are none."""
    return rho_of(work, _staying(gangs, held, ending), lease_s)


def bid_for(
    app_id: str,
    work: AppWork,
    gangs: Sequence[RunningGang],
    held: Collection[Gpu],
    ending: Set[Gpu],
    open_jobs: int,
    offered: Mapping[str, int],
    slowdowns: Mapping[Scope, float],
    topology: Topology,
    restart_s: float,
    lease_s: float,
    speedups: Mapping[str, float] = ALIKE,
    mixes: bool = False,
    elastic: Elastic | None = None,
) -> Bid:
    """The one bid. `open_jobs`: jobs that could run now, those under way included; `offered`: GPUs by host;
    `slowdowns`: S of each scope within which a gang may lie; `speedups`: its speed by GPU type, 1 where it has none;
    `mixes`: a gang may have GPUs of several types; `elastic`: how its jobs run on more GPUs, where they may."""
    retained_gpus = sum(g not in ending for g in held)
    own = [OwnGang(gang_of(count_by_host(g.gpus)), g.slowdown) for g in gangs if g.known and ending >= set(g.gpus)]
    room_gangs = max(0, (open_jobs * work.gang_gpus - retained_gpus) // work.gang_gpus)
    staying = _staying(gangs, held, ending)
    if elastic is not None:  # a job with a gang that stays has no use for another one
        room_gangs = open_jobs - len(staying)
    bidder = Bidder(
        work, staying, own, offered, room_gangs, slowdowns, topology, restart_s, lease_s, speedups, mixes, elastic
    )
    return bidder.bid(app_id)


def _staying(gangs: Sequence[RunningGang], held: Collection[Gpu], ending: Set[Gpu]) -> list[float]:
    return [g.slowdown for g in gangs if all(gpu in held and gpu not in ending for gpu in g.gpus)]
