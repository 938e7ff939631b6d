"""What apps want and their rho at one moment; each is computed once, however many parts of a view need it."""

from __future__ import annotations

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.round import standin
from pycontrol.model.auction import Demand


class Demands:
    """Of the apps of one Arbiter at one moment, on one thread."""

    def __init__(self, a: Arbiter, now_s: float) -> None:
        self.a, self.now_s = a, now_s
        self._known: dict[str, Demand | None] = {}
        self._rho: dict[str, float | None] = {}

    def of(self, app_id: str) -> Demand | None:
        """The app's demand, from its Agent or the stand-in; None if neither knows it."""
        if app_id not in self._known:
            a, found = self.a, None
            if (agent := a.agents.get(app_id)) is not None:
                found = agent.demand
            elif app_id in a.durable.live and a.holdings.is_unmanaged(app_id):
                found = standin.demand(a.holdings, app_id, self.now_s)
            self._known[app_id] = found
        return self._known[app_id]

    def rho_of(self, app_id: str) -> float | None:
        """The app's rho, as last reported by its Agent or computed by the stand-in; None if unknown."""
        if app_id not in self._rho:
            a, found = self.a, None
            if (agent := a.agents.get(app_id)) is not None:
                found = agent.rho
            elif app_id in a.durable.apps and a.holdings.is_unmanaged(app_id):
                found = standin.rho(a.holdings, app_id, a.holdings.holding(app_id), self.now_s, self.of(app_id))
            self._rho[app_id] = found
        return self._rho[app_id]
