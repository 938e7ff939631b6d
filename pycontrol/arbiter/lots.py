"""The agenda of a round where there are virtual clusters: first what is their own, then what they may borrow."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from pycontrol.arbiter import leases
from pycontrol.arbiter.facts import Lease
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply import Lot, Supply
from pycontrol.model.topology import Gpu

Ending = Mapping[str, Sequence[list[Lease]]]
"""App -> its gangs on offer."""


class Agenda:
    """Gives the lots of one round, one after the other, each made when its turn comes."""

    def __init__(self, s: State, wanting: Sequence[str], ending: Ending, now_s: float) -> None:
        self.s, self.ending, self.now_s = s, ending, now_s
        self._wanting: dict[str, list[str]] = {}
        for app_id in wanting if s.supply is not None else ():
            self._wanting.setdefault(s.durable.apps[app_id].vc, []).append(app_id)
        supply = s.supply
        self._whole = [Lot()] if supply is None else []
        self._own = deque(sorted(supply.virtual_clusters()) if supply is not None else ())
        self._borrowing: deque[tuple[str, int | None]] | None = None

    def next(self) -> Lot | None:
        """The next lot with something to share out; None when all have had their turn."""
        supply = self.s.supply
        if supply is None:
            return self._whole.pop() if self._whole else None
        while self._own:
            vc = self._own.popleft()
            ending = _gpus(self.ending_of(vc, True))
            if ending or vc in self._wanting:
                gpus = ending | {g for g in supply.guaranteed(vc) if self._leasable(g)}
                if gpus:
                    return Lot(vc, True, frozenset(gpus))
        if self._borrowing is None:
            self._borrowing = self._shares(supply)
        while self._borrowing:
            vc, share = self._borrowing.popleft()
            gpus = self._borrowed(vc, share)
            if gpus:
                return Lot(vc, False, frozenset(gpus))
        return None

    def ending_of(self, vc: str, guaranteed: bool) -> dict[str, list[list[Lease]]]:
        """The gangs on offer in a lot of this kind."""
        s, result = self.s, {}
        if s.supply is None:
            return {app_id: list(gangs) for app_id, gangs in self.ending.items()}
        for app_id, gangs in self.ending.items():
            if s.durable.apps[app_id].vc == vc:
                mine = [g for g in gangs if all(x.guaranteed for x in g) == guaranteed and leases.unchanged(s, g)]
                if mine:
                    result[app_id] = mine
        return result

    def _leasable(self, gpu: Gpu) -> bool:
        """Whether it can be promised: free, or held by a lease that can be taken back for a guarantee."""
        lease = self.s.durable.leases.get(gpu)
        return gpu in self.s.free if lease is None else gpu not in self.s.durable.next and not lease.guaranteed

    def _shares(self, supply: Supply) -> deque[tuple[str, int | None]]:
        """Who may borrow how much: those who must give some back first, so that the others find it; then the rest."""
        s = self.s
        wanted = {vc: sum(self._unmet(a) for a in apps) for vc, apps in self._wanting.items()}
        lent = {vc: len(_gpus(self.ending_of(vc, False))) for vc in {s.durable.apps[a].vc for a in self.ending}}
        for vc, gpus in lent.items():
            wanted[vc] = wanted.get(vc, 0) + gpus
        ending = {g for vc in lent for g in _gpus(self.ending_of(vc, False))}
        shares = supply.shares({vc: n for vc, n in wanted.items() if n > 0}, frozenset({*s.free, *ending}))
        order = sorted(shares, key=lambda vc: shares[vc] - lent.get(vc, 0))
        return deque([(vc, shares[vc]) for vc in order] + [(vc, None) for vc in shares if vc in self._wanting])

    def _unmet(self, app_id: str) -> int:
        agent = self.s.agents.get(app_id)
        return agent.demand.gpus - self.s.holding(app_id) if agent is not None else 1

    def _borrowed(self, vc: str, share: int | None) -> set[Gpu]:
        """Its own borrowed gangs that end, as far as its share goes, and idle GPUs up to it, whole machines first.

        Gangs beyond the share are taken back at once. Without a share (the second turn): whatever is idle.
        """
        s, gpus = self.s, set[Gpu]()
        idle = {g for g in (*s.free, *s.revoking) if g not in s.durable.next and g.host in s.node_at}
        if share is None:
            return idle
        for app_id, gangs in self.ending_of(vc, False).items():
            for gang in gangs:
                if len(gpus) < share:
                    gpus |= {x.gpu for x in gang}
                else:
                    deadline_s = max(min(x.end_s for x in gang), self.now_s + s.settings.lead)
                    leases.take_back(s, gang, self.now_s, deadline_s, f"{app_id} borrowed more than its share")
        hosts: dict[str, list[Gpu]] = {}
        for gpu in sorted(idle):
            hosts.setdefault(gpu.host, []).append(gpu)
        for here in sorted(hosts.values(), key=lambda g: (-len(g), g[0])):
            gpus.update(here[: max(0, share - len(gpus))])
        return gpus


def _gpus(ending: Ending) -> set[Gpu]:
    return {x.gpu for gangs in ending.values() for gang in gangs for x in gang}
