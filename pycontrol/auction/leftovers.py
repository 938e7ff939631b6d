"""Leftovers: GPUs left after payments go to apps gang by gang, so that none stay idle (Themis, Pseudocode 1)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Literal

from pycontrol.auction.handout import AtRandom, ByKey, Caps, Order, Taker, gangs_of, hand_out, taker
from pycontrol.auction.placing import FreeIndex
from pycontrol.model.auction import AppView, Award, Gang, Snapshot

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


def leftovers(
    room: FreeIndex,
    apps: Sequence[AppView],
    caps: Caps,
    kept: Mapping[str, Sequence[Gang]],
    ranking: Ranking,
) -> list[Award]:
    """Gives free GPUs to apps, gang by gang; returns the awards and takes their GPUs from `room`.

    An app keeps its own ending gangs in place, as far as they are free, before it gets new ones. No app gets more than
    it can use, or than its queue's limit leaves after the gangs that the auction gave (`kept`).
    """
    able = sorted((v for v in apps if caps.of(v) > 0), key=lambda v: v.app_id)
    takers = [taker(v, kept.get(v.app_id, ()), room.topology) for v in able]
    got: dict[str, list[Gang]] = {}
    for to, gang in hand_out(ranking.order(takers, caps), gangs_of(room, caps)):
        got.setdefault(to.view.app_id, []).append(gang)
    return [Award(app_id, tuple(gangs), leftover=True) for app_id, gangs in got.items()]
