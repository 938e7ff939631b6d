"""Messages from Agents: registration, plans, releases, progress, the end."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter import apps, leases
from pycontrol.arbiter import placements as workers
from pycontrol.arbiter.ledger.facts import AllocationChanged, AppChanged
from pycontrol.arbiter.round.parts import own_as_asked
from pycontrol.arbiter.round.rounds import Rounds
from pycontrol.arbiter.state import State
from pycontrol.arbiter.views.agents import Launches
from pycontrol.model import events as ev

AgentMessage = ev.UsePlanned | ev.GpusReleased | ev.ProgressReported | ev.AgentDone
EARLY_MAX = 64
"""Messages of one Agent that are queued until YARN reports its app."""


class AgentEvents:
    """Handles the messages of Agents.

    While YARN has not reported an Agent's app yet, its messages are queued in order behind its registration.
    """

    def __init__(self, state: State, rounds: Rounds) -> None:
        self.s, self.rounds = state, rounds
        self.launches = Launches(state.durable.live.values())
        self._early: dict[str, list[ev.AgentUp | ev.AgentLost | AgentMessage]] = {}
        """App -> queued messages of an Agent that registered before YARN reported its app or the app's containers."""

    def up(self, e: ev.AgentUp, now_s: float) -> None:
        """An Agent registers."""
        s, app = self.s, self.s.cluster.apps.get(e.app_id)
        unadopted = not s.cluster.ready and e.app_id not in s.durable.leases.by_app
        if app is None or unadopted or not s.cluster.seen:
            # otherwise the Agent would hear that it has no GPUs, and would stop what runs on them
            self._early[e.app_id] = [e, *(x for x in self._early.get(e.app_id, ()) if not isinstance(x, ev.AgentUp))]
            return
        if e.user and e.user != app.user:
            s.emit(ev.SendFinish(e.app_id, f"the token is {e.user}'s, the app is {app.user}'s"))
            return
        s.agents.registered(e.app_id, self.rounds.reports.demand(e.app_id, e.demand), e.app_scheduler, e.attempt_id)
        apps.arrive(s, e.app_id, now_s)
        s.refresh_kind(e.app_id)
        own_as_asked(s, e.app_id)
        apps.note_demand(s, e.app_id, e.demand.gpus)
        s.emit(ev.SendRegistered(e.app_id, s.contention(e.app_id, now_s), s.held_grants(e.app_id)))
        if e.app_id in s.agents.terminating:
            s.emit(ev.SendFinish(e.app_id, "ended by the operator"))
        self._want_if_unmet(e.app_id, now_s)

    def lost(self, e: ev.AgentLost, now_s: float) -> None:
        """Its stream ended."""
        early = self._early.get(e.app_id)
        if early is not None and any(isinstance(x, ev.AgentDone) for x in early):
            early.append(e)  # its result still counts
            return
        self._early.pop(e.app_id, None)
        self.s.agents.disconnected(e.app_id)
        self.rounds.app_gone(e.app_id, now_s)

    def message(self, e: AgentMessage, now_s: float) -> None:
        """Takes a message of a registered Agent and queues one of an Agent that waits; ignores all others."""
        early = self._early.get(e.app_id)
        if early is not None:
            if len(early) < EARLY_MAX or isinstance(e, ev.AgentDone):
                early[:] = [x for x in early if not isinstance(x, type(e)) or isinstance(e, ev.GpusReleased)]
                early.append(e)
        elif e.app_id in self.s.agents:
            self._take(e, now_s)

    def _take(self, e: AgentMessage, now_s: float) -> None:
        match e:
            case ev.UsePlanned():
                workers.use_planned(self.s, e)
            case ev.GpusReleased():
                leases.released(self.s, e, now_s)
            case ev.ProgressReported():
                self._progress(e, now_s)
            case ev.AgentDone():
                self._done(e, now_s)

    def admit(self, app_id: str, now_s: float) -> None:
        """YARN reported the app: handles the queued messages of its Agent."""
        for e in self._early.pop(app_id, ()):
            if isinstance(e, ev.AgentUp):
                self.up(e, now_s)
            elif isinstance(e, ev.AgentLost):
                self.lost(e, now_s)
            else:
                self.message(e, now_s)

    def admit_all(self, now_s: float) -> None:
        """Handles the queued messages of all Agents."""
        for app_id in list(self._early):
            self.admit(app_id, now_s)

    def forget(self, app_id: str) -> None:
        """Drops what is known of an application that YARN has removed."""
        self.s.agents.gone(app_id)
        self.rounds.reports.forget(app_id)
        self.launches.forget(app_id)
        self._early.pop(app_id, None)

    def _want_if_unmet(self, app_id: str, now_s: float) -> None:
        """Requests a round if the app wants more and GPUs are free, or its virtual cluster may recall lent ones."""
        s = self.s
        owner = app_id in s.durable.live and bool(s.durable.live[app_id].vc)
        if app_id in s.agents.unmet and s.timer.wanted_s is None and (s.gpus.free.count or owner):
            since_s = s.receipts[-1].at_s if s.receipts else 0.0
            s.request_round(max(now_s + s.settings.settle_s, since_s + s.settings.round_retry_s))

    def _progress(self, e: ev.ProgressReported, now_s: float) -> None:
        s = self.s
        record = s.durable.apps.get(e.app_id)
        if record is None:
            return
        grown = e.demand.gpus > s.agents[e.app_id].demand.gpus
        demand = self.rounds.reports.demand(e.app_id, e.demand, e.steps)
        s.agents.progressed(e, demand)
        s.update_demand(e.app_id)
        apps.note_demand(s, e.app_id, e.demand.gpus)
        launched = self.launches.new(record, e.jobs)
        changes: dict[str, Any] = {"launched": launched} if launched else {}
        if e.demand.work_done_gpu_s > record.work_done_gpu_s * 1.05 + 1:
            changes["work_done_gpu_s"] = e.demand.work_done_gpu_s
        note = next((f"{job.job_id}: {job.note}" for job in e.jobs if job.note), "")
        if note and not record.message:  # the first one only: each is a fact, and some change with every step
            changes["message"] = note
        if changes:
            s.record(AppChanged(e.app_id, changes))
        for job_id, granted_s in self.launches.started(e.app_id, e.jobs, s.leases_of(e.app_id)):
            s.record(AllocationChanged(e.app_id, job_id, now_s, max(0.0, now_s - granted_s)))
        if grown:
            self._want_if_unmet(e.app_id, now_s)

    def _done(self, e: ev.AgentDone, now_s: float) -> None:
        record = self.s.durable.apps.get(e.app_id)
        if record is None or record.done:
            return
        best: dict[str, Any] = {"configuration": dict(e.best_configuration), "accuracy": e.best_accuracy}
        if e.best_metric is not None:
            best |= {"metric": e.metric, "value": e.best_metric}
        changes: dict[str, Any] = {
            "done": True,
            "message": e.message,
            "best": best if e.best_job_id else None,
            "model_path": e.model_path,
            "work_done_gpu_s": e.work_done_gpu_s,
            "final_state": "SUCCEEDED" if e.succeeded else "FAILED",
        }
        self.s.record(AppChanged(e.app_id, changes))
        apps.end(self.s, e.app_id, "", now_s)
