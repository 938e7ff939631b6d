"""What Agents reported about their apps, and which apps want more GPUs.

All is rebuilt when Agents register again. Memory and journal entries are bounded for each app, as an Agent may report
anything at any rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pycontrol.model.auction import Demand
from pycontrol.model.events import JobProgress, ProgressReported


@dataclass(slots=True)
class AgentState:
    """What an Agent last reported about its app."""

    demand: Demand
    app_scheduler: str
    attempt_id: str = ""
    jobs: tuple[JobProgress, ...] = ()
    rho: float | None = None
    connected: bool = True
    links: tuple[tuple[str, str], ...] = ()
    stepwise_left_gpu_s: float | None = None
    """The work left by its scripts' steps, for estimates alone; None: not known."""
    phases: tuple[tuple[float, ...], ...] | None = None
    """The work left by phase and job, as it answered in its last round; None: not known."""


class AgentsView(dict[str, AgentState]):
    """The Agents that have registered, by app. Only its methods change it; any part may read it."""

    def __init__(self) -> None:
        super().__init__()
        self.unmet: dict[str, None] = {}
        """Apps with Agents that can use more GPUs than they hold, in the order in which they began to."""
        self.unmet_since_s: dict[str, float] = {}
        """App -> since when it could, not counting time up to the end of the last suspension of leases."""
        self.stale: set[str] = set()
        """Apps that changed since the policies last looked at them."""
        self.unmanaged_apps: dict[str, None] = {}
        """Live apps for which the stand-in bids."""
        self.interactive: dict[str, dict[str, None]] = {}
        """User -> those of them that are interactive, oldest first."""
        self._interactive_user: dict[str, str] = {}
        self.terminating: set[str] = set()
        """Apps without an Agent that the operator ended: their asks are not served."""

    def copy(self) -> AgentsView:
        """An independent copy, without `stale`."""
        other = AgentsView()
        other.update((app_id, replace(x)) for app_id, x in self.items())
        other.unmet, other.unmet_since_s = dict(self.unmet), dict(self.unmet_since_s)
        other.unmanaged_apps, other.terminating = dict(self.unmanaged_apps), set(self.terminating)
        other.interactive = {user: dict(mine) for user, mine in self.interactive.items()}
        other._interactive_user = dict(self._interactive_user)
        return other

    # ---- what Agents reported

    def registered(self, app_id: str, demand: Demand, app_scheduler: str, attempt_id: str) -> None:
        """An Agent registered, perhaps again: the jobs and rho of its predecessor hold until it reports its own."""
        before = self.get(app_id)
        jobs, rho, phases = (before.jobs, before.rho, before.phases) if before is not None else ((), None, None)
        self[app_id] = AgentState(demand, app_scheduler, attempt_id, jobs, rho, phases=phases)

    def disconnected(self, app_id: str) -> None:
        """The Agent's stream ended."""
        agent = self.get(app_id)
        if agent is not None:
            agent.connected = False
            self.stale.add(app_id)

    def progressed(self, e: ProgressReported, demand: Demand) -> None:
        """A progress report, with the demand to use; a rho of 0 means that it has none."""
        agent = self[e.app_id]
        agent.demand, agent.jobs, agent.links = demand, e.jobs, e.links
        agent.stepwise_left_gpu_s = e.stepwise_left_gpu_s
        if e.rho > 0:
            agent.rho = e.rho

    def answered(
        self, app_id: str, demand: Demand, rho: float | None, phases: tuple[tuple[float, ...], ...] | None
    ) -> None:
        """The Agent's rho in a round, and the work left from which it follows."""
        agent = self[app_id]
        agent.demand, agent.rho, agent.phases = demand, rho, phases

    def gone(self, app_id: str) -> None:
        """YARN has removed the application; so it is forgotten that the operator ended it."""
        self.pop(app_id, None)
        self.terminating.discard(app_id)

    def forget(self, app_ids: Iterable[str]) -> None:
        """Drops everything about these apps."""
        for app_id in app_ids:
            self.gone(app_id)
            self.stale.discard(app_id)

    # ---- what is derived

    def update_demand(self, app_id: str, live: bool, known: bool, holding: int, now_s: float) -> None:
        """The app's GPUs or demand changed. `live`: it is active; `known`: YARN knows it; `holding`: its GPUs."""
        if live or known:
            self.stale.add(app_id)
        agent = self.get(app_id)
        if live and agent is not None and agent.demand.gpus > holding:
            self.unmet[app_id] = None
            self.unmet_since_s.setdefault(app_id, now_s)
        else:
            self.unmet.pop(app_id, None)
            self.unmet_since_s.pop(app_id, None)

    def restart_waits(self, now_s: float) -> None:
        """Leases were suspended until now: restarts the waiting times."""
        self.unmet_since_s = dict.fromkeys(self.unmet_since_s, now_s)

    def unmanaged(self, app_id: str, yes: bool) -> None:
        """Sets whether the stand-in bids for the app."""
        if yes:
            self.unmanaged_apps[app_id] = None
        else:
            self.unmanaged_apps.pop(app_id, None)

    def note_interactive(self, app_id: str, user: str) -> bool:
        """Counts the app among this user's interactive apps, empty: among nobody's; returns whether it was one."""
        before = self._interactive_user.get(app_id, "")
        if user == before:
            return False
        if before:
            del self.interactive[before][app_id], self._interactive_user[app_id]
            if not self.interactive[before]:
                del self.interactive[before]
        if user:
            self.interactive.setdefault(user, {})[app_id] = None
            self._interactive_user[app_id] = user
        return bool(before)

    def changed(self, app_ids: Iterable[str]) -> None:
        """Marks apps that policies must look at again."""
        self.stale.update(app_ids)

    def no_longer_changed(self, app_id: str) -> None:
        """The app is gone, or the policies' view of it is up to date."""
        self.stale.discard(app_id)

    def end_by_operator(self, app_id: str) -> None:
        """The operator ended the app: its asks are no longer served."""
        self.terminating.add(app_id)

    def validate(self, live: Mapping[str, object], holding: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yields (app, what is wrong). `holding`: GPUs by app."""
        for app_id, agent in self.items():
            wants = app_id in live and agent.demand.gpus > holding.get(app_id, 0)
            if (app_id in self.unmet) != wants:
                more = "more" if wants else "no more"
                yield app_id, f"it wants {more} GPUs, but the list of apps with unmet demand disagrees"
        for app_id in self.unmet.keys() - self.keys():
            yield app_id, "it has no Agent but is listed as wanting more"
        if self.unmet.keys() != self.unmet_since_s.keys():
            for app_id in self.unmet.keys() ^ self.unmet_since_s.keys():
                yield app_id, "it wants more GPUs, but since when is not recorded"
