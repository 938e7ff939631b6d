"""An app's answers in a round: its rho and its bid (Themis, sections 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from pycontrol.fairness.bidding import Bidder, OwnGang, rho_of
from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gang_rho import AppWork
from pycontrol.model.auction import Bid, gang_of
from pycontrol.model.topology import Gpu, Scope, Topology, count_by_host
from pycontrol.model.value import value

ALIKE: Mapping[str, float] = {}
"""Speedups of an app that is equally fast on all types."""


@value
class RunningGang:
    """A running gang: its GPUs and its slowdown there.

    `slowdown` is S over the app's speed on the GPUs' type, and for an elastic job also over its speed relative to the
    smallest gang. `known`: whether the Arbiter knew the gang when the round began.
    """

    gpus: tuple[Gpu, ...]
    slowdown: float
    known: bool = True


def rho(work: AppWork, gangs: Sequence[RunningGang], held: Collection[Gpu], ending: Set[Gpu], lease_s: float) -> float:
    """rho with only the gangs that have no ending GPUs; the projected rho if there are none."""
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
    """The app's bid for an offer.

    `open_jobs`: jobs that could run now, including running ones. `offered`: host -> GPUs. `slowdowns`: S for each scope
    that a gang may have. `speedups`: GPU type -> the app's speed, 1 if missing. `mixes`: whether a gang may mix GPU
    types. `elastic`: how its jobs scale, if they are elastic.
    """
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
