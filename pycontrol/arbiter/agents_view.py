"""What the Agents said of their apps, and which apps want more; rebuilt when they register again."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass

from pycontrol.model.auction import Demand
from pycontrol.model.events import JobProgress


@dataclass(slots=True)
class AgentState:
    """What an Agent last said of its app."""

    demand: Demand
    app_scheduler: str
    attempt_id: str = ""
    jobs: tuple[JobProgress, ...] = ()
    rho: float | None = None
    connected: bool = True
    links: tuple[tuple[str, str], ...] = ()


class AgentsView:
    """By app; changes by its methods alone, any part may read it."""

    def __init__(self) -> None:
        self._by_app: dict[str, AgentState] = {}
        self.unmet: dict[str, None] = {}
        """Apps whose Agents can use more GPUs than they hold, in the order in which that came about."""
        self.unmet_since_s: dict[str, float] = {}
        """Since when they could; no longer than leases have moved."""
        self.stale: set[str] = set()
        """Apps that a policy would see differently than in the round before."""
        self.unmanaged_apps: dict[str, None] = {}
        """Live apps for which the stand-in bids."""
        self.terminating: set[str] = set()
        """Apps without an Agent that the operator ended: their asks are not served."""

    def copy(self) -> AgentsView:
        """The same, apart; nothing is stale there."""
        other = AgentsView()
        other._by_app = {app_id: _copy(x) for app_id, x in self._by_app.items()}
        other.unmet, other.unmet_since_s = dict(self.unmet), dict(self.unmet_since_s)
        other.unmanaged_apps, other.terminating = dict(self.unmanaged_apps), set(self.terminating)
        return other

    # ---- reading

    def get(self, app_id: str) -> AgentState | None:
        """The Agent of an app; None if it has none, or none registered yet."""
        return self._by_app.get(app_id)

    def __getitem__(self, app_id: str) -> AgentState:
        return self._by_app[app_id]

    def __contains__(self, app_id: object) -> bool:
        return app_id in self._by_app

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_app)

    def __len__(self) -> int:
        return len(self._by_app)

    def values(self) -> ValuesView[AgentState]:
        """All Agents."""
        return self._by_app.values()

    def items(self) -> ItemsView[str, AgentState]:
        """(app, its Agent)."""
        return self._by_app.items()

    # ---- what they said

    def registered(self, app_id: str, demand: Demand, app_scheduler: str, attempt_id: str) -> None:
        """An Agent is there, perhaps again: jobs and rho of the one before hold until it says more."""
        before = self._by_app.get(app_id)
        jobs, rho = (before.jobs, before.rho) if before is not None else ((), None)
        self._by_app[app_id] = AgentState(demand, app_scheduler, attempt_id, jobs, rho)

    def disconnected(self, app_id: str) -> None:
        """Its stream ended."""
        agent = self._by_app.get(app_id)
        if agent is not None:
            agent.connected = False
            self.stale.add(app_id)

    def progressed(
        self, app_id: str, demand: Demand, jobs: tuple[JobProgress, ...], rho: float, links: tuple[tuple[str, str], ...]
    ) -> None:
        """A report; a rho of 0 is none."""
        agent = self._by_app[app_id]
        agent.demand, agent.jobs, agent.links = demand, jobs, links
        if rho > 0:
            agent.rho = rho

    def answered(self, app_id: str, demand: Demand, rho: float | None) -> bool:
        """Its rho, in a round; returns whether it is registered."""
        agent = self._by_app.get(app_id)
        if agent is not None:
            agent.demand, agent.rho = demand, rho
        return agent is not None

    def gone(self, app_id: str) -> None:
        """The application is gone from YARN."""
        self._by_app.pop(app_id, None)

    def forget(self, app_ids: Iterable[str]) -> None:
        """Nobody will ask for these apps again."""
        for app_id in app_ids:
            self._by_app.pop(app_id, None)
            self.stale.discard(app_id)
            self.terminating.discard(app_id)

    # ---- what follows

    def update_demand(self, app_id: str, live: bool, known: bool, holding: int, now_s: float) -> None:
        """What it holds or demands changed. `live`: it shares the cluster; `known`: to YARN; `holding`: GPUs."""
        if live or known:
            self.stale.add(app_id)
        agent = self._by_app.get(app_id)
        if live and agent is not None and agent.demand.gpus > holding:
            self.unmet[app_id] = None
            self.unmet_since_s.setdefault(app_id, now_s)
        else:
            self.unmet.pop(app_id, None)
            self.unmet_since_s.pop(app_id, None)

    def waits_from(self, now_s: float) -> None:
        """Leases stood still until now: nobody waited meanwhile."""
        self.unmet_since_s = dict.fromkeys(self.unmet_since_s, now_s)

    def unmanaged(self, app_id: str, yes: bool) -> None:
        """Whether the stand-in bids for it."""
        if yes:
            self.unmanaged_apps[app_id] = None
        else:
            self.unmanaged_apps.pop(app_id, None)

    def changed(self, app_ids: Iterable[str]) -> None:
        """Policies would see these apps differently now."""
        self.stale.update(app_ids)

    def seen(self) -> None:
        """Policies see all apps as they are now."""
        self.stale.clear()

    def no_longer_changed(self, app_id: str) -> None:
        """It is gone, or seen as it is now."""
        self.stale.discard(app_id)

    def end_by_operator(self, app_id: str) -> None:
        """Its asks are not served any more."""
        self.terminating.add(app_id)

    def pardon(self, app_id: str) -> None:
        """YARN does not know the app any more: what comes under its name is another life."""
        self.terminating.discard(app_id)

    def validate(self, live: Mapping[str, object], holding: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """(app, what is wrong). `holding`: GPUs by app."""
        for app_id, agent in self._by_app.items():
            wants = app_id in live and agent.demand.gpus > holding.get(app_id, 0)
            if (app_id in self.unmet) != wants:
                more = "more" if wants else "no more"
                yield app_id, f"it wants {more} GPUs, and the list of those that do says otherwise"
        for app_id in self.unmet.keys() - self._by_app.keys():
            yield app_id, "it has no Agent and is listed as one that wants more"
        if self.unmet.keys() != self.unmet_since_s.keys():
            for app_id in self.unmet.keys() ^ self.unmet_since_s.keys():
                yield app_id, "it wants more GPUs since nobody knows when"


def _copy(x: AgentState) -> AgentState:
    return AgentState(x.demand, x.app_scheduler, x.attempt_id, x.jobs, x.rho, x.connected)
