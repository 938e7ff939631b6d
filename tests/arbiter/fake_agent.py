"""The app of a `World`: jobs with work left, and an Agent that answers by a simple rule."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, BidRow, Contention, Demand, as_gang
from pycontrol.model.topology import Gpu, Scope


@dataclass
class FakeAgent:
    """An app of `jobs` jobs, each a gang of `gang_gpus` GPUs with `work` serial GPU-seconds left."""

    app_id: str
    gang_gpus: int
    work: dict[str, float]
    submitted_s: float
    total: float = 0.0
    running: dict[str, tuple[Gpu, ...]] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    held: set[Gpu] = field(default_factory=set)
    requests: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    launches: dict[str, int] = field(default_factory=dict)
    current: dict[str, set[int]] = field(default_factory=dict)
    """The requests of each job's newest launch."""
    plans: dict[str, ev.UsePlanned] = field(default_factory=dict)
    """Each job's newest value."""
    topologies: int = 0
    """How often it received the machines again."""
    silent: bool = False
    finished: bool = False

    wishes: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of its Demand."""

    def demand(self) -> Demand:
        left = sum(self.work.values())
        gangs = len(self.work)
        return Demand(self.gang_gpus, gangs, self.gang_gpus, left, self.total, self.total - left, **self.wishes)

    def rho(self, gangs: int, c: Contention) -> float:
        t_id = self.total / min(c.cluster_gpus, self.gang_gpus * 4) * c.n_avg
        elapsed = c.now_s - c.submitted_s
        left = sum(self.work.values())
        if gangs == 0:
            return (elapsed + c.lease_s + left / self.gang_gpus) / t_id
        return (elapsed + left / (gangs * self.gang_gpus)) / t_id

    def bid(self, e: ev.SendOffer) -> Bid:
        kept = len(self.held - set(e.ending)) // self.gang_gpus
        mine: dict[str, list[Gpu]] = {}
        for job, gpus in self.running.items():
            if set(gpus) <= set(e.ending):
                mine[job] = list(gpus)
        gangs = tuple(as_gang(g) for g in mine.values())
        room = max(0, len(self.work) - kept)
        rows = []
        for k in range(min(len(gangs), room) + 1):
            for q in range(room - k + 1):
                if k + q:
                    for scope in (Scope.MACHINE, Scope.CLUSTER):
                        rho = self.rho(kept + k + q, e.contention) * (1 + 0.01 * (scope - 1) * q)
                        rows.append(BidRow(rho, gangs[:k], q, self.gang_gpus, scope))
        return Bid(self.app_id, self.rho(kept, e.contention), tuple(rows))
