"""Applications: they arrive with their first demand, move between queues, end; and what their Agents say of them.

What Agents report is held against what the control plane sees: a worker reports its newest step and the time of an
iteration; the Arbiter knows on which GPUs it runs, and relays how far it is to train. From these follow S, the speed by
GPU type, and the work left and done, once there are enough samples. Bounded by job; after a restart of the control
plane it is seen anew. Three checks, each with a tolerance that an honest Agent stays within:

- S and speeds by type against the iteration times that the workers report, on the GPUs that the Arbiter leased;
- the work left, and the whole work, against the workers' steps and how far they were told to train;
- rho and each row of a bid against the range that the (checked) work, S, speeds and the GPUs held allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pycontrol.arbiter import leases
from pycontrol.arbiter import placements as workers
from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.ledger.durable import FOREIGN, AppRecord
from pycontrol.arbiter.ledger.lease import ACTIVE, REVOKING, Lease, gpus_in
from pycontrol.arbiter.round.parts import own_as_asked
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.views.workers import WAITING
from pycontrol.fairness.bidding import mean_speed
from pycontrol.fairness.plausible import Standing, app_left, held_bid, rho_range, slowdowns_of, within
from pycontrol.fairness.seen import TOLERANCE, AppSeen, differences, joined, overstated, totalled
from pycontrol.model import events as ev
from pycontrol.model import tags
from pycontrol.model.auction import Bid, Demand, HeldGrant, as_gang
from pycontrol.model.cluster import YarnApp
from pycontrol.model.events import JobProgress, RhoReported, WorkerSteps
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.topology import Gpu

ENDED_APPS_MAX = 10_000
"""Beyond this many records, the oldest are dropped before their time."""
ENDED_APPS_MIN_S = 600.0
"""No record is dropped sooner than this after the app's end."""
SINGLE = "single"
FINISHED = "FINISHED"
"""YARN's final state of an app that reported none to it."""


def arrive(s: Holdings, clerk: Clerk, app_id: str, now_s: float) -> None:
    """Makes the app active; called at its first demand for GPUs."""
    app = s.cluster.apps.get(app_id)
    if app is None or app_id in s.durable.apps:
        return
    agent = s.agents.get(app_id)
    kind = FOREIGN if not tags.expects_agent(app) else "job"
    if agent is not None and agent.app_scheduler != SINGLE:
        kind = agent.app_scheduler
    vc = s.supply.vc_of(app.queue)
    clerk.record(facts.AppArrived(app_id, app.name, app.queue, app.user, kind, app.submitted_s or now_s, now_s, vc))
    clerk.refresh_kind(app_id)
    clerk.request_round(now_s + s.settings.settle_s)


def note(s: Holdings, clerk: Clerk, app: YarnApp, now_s: float) -> bool:
    """Notes what YARN reports about an application; returns whether its virtual cluster changed."""
    s.cluster.app_known(app)
    record = s.durable.live.get(app.app_id)
    moved = record is not None and app.queue != record.queue
    other = record is not None and moved and s.supply.vc_of(app.queue) != record.vc
    if moved:
        clerk.record(facts.AppMoved(app.app_id, s.supply.vc_of(app.queue), now_s, app.queue))
        s.agents.changed(s.durable.live)  # the limits of both queues
        clerk.request_round(now_s + s.settings.settle_s)
    clerk.refresh_kind(app.app_id)
    return other


def boost(s: Holdings, clerk: Clerk, target: str, for_s: float, user: str, now_s: float) -> None:
    """Boosts `app ID` or `user NAME` from now on; ends its boost if `for_s` is 0.

    A boosted app has a priority above all of YARN's, which every policy honours. So limits hold, GPUs of other virtual
    clusters stay theirs, and what runs keeps its GPUs until its leases end.
    """
    clerk.record(facts.Boosted(target, now_s + for_s, user, now_s))
    s.agents.changed(a for a, app in s.durable.live.items() if target in (facts.APP + a, facts.USER + app.user))
    clerk.request_round(now_s + s.settings.settle_s)


def expire_boosts(s: Holdings, clerk: Clerk, now_s: float) -> None:
    """Ends boosts whose time has come."""
    for target in [b.target for b in s.durable.boosts.values() if b.until_s <= now_s]:
        boost(s, clerk, target, 0.0, "", now_s)


def end(s: Holdings, clerk: Clerk, app_id: str, final_state: str, now_s: float) -> None:
    """Ends an app: cancels its reservations and revokes its leases."""
    record = s.durable.apps.get(app_id)
    if record is None:
        return
    take_all(s, clerk, app_id, now_s)
    news = final_state and final_state != record.final_state and not (record.done and final_state == FINISHED)
    if record.finished_s is None or news:
        clerk.record(facts.AppEnded(app_id, final_state, now_s))
        _forget_ended(s, clerk, now_s)
        clerk.refresh_kind(app_id)


def take_all(s: Holdings, clerk: Clerk, app_id: str, now_s: float) -> None:
    """Takes all that an app has, as it ends: its leases, its reservations, and what is planned on them."""
    if coming := gpus_in(s.durable.reservations.of(app_id)):
        clerk.record(facts.NextDropped(tuple(coming), "app ended"))
    for worker in s.workers.of(app_id):
        if worker.state is WAITING:
            clerk.drop_worker(worker)
    leases.revoke(s, clerk, s.durable.leases.of(app_id), now_s, now_s, Cause(EndReason.APP_ENDED, "app ended"))


def _forget_ended(s: Holdings, clerk: Clerk, now_s: float) -> None:
    """Drops the records of the apps that ended first, at most 100, if they ended long ago or records are too many.

    Those of apps that YARN may know, or that have a lease or a reservation, stay.
    """
    d, gone = s.durable, list[str]()
    too_many = len(d.ended) - ENDED_APPS_MAX
    for app_id, app in islice(d.ended.items(), 100) if s.cluster.ready else ():
        age_s = now_s - (app.finished_s or now_s)
        if age_s < s.settings.ended_apps_s and (len(gone) >= too_many or age_s < ENDED_APPS_MIN_S):
            break
        if app_id not in s.cluster.apps and app_id not in d.leases.by_app and app_id not in d.reservations.by_app:
            gone.append(app_id)
    if gone:
        clerk.record(facts.AppsForgotten(tuple(gone)))
        s.agents.forget(gone)


def _held_grants(s: Holdings, app_id: str) -> tuple[HeldGrant, ...]:
    """The app's leases and reservations by grant, without those being revoked."""
    leases = grouped((x.grant_id, x) for x in s.durable.leases.of(app_id) if x.state != REVOKING)
    coming = grouped((x.grant_id, x) for x in s.durable.reservations.of(app_id))
    return (
        *(HeldGrant(g, tuple(sorted(gpus_in(xs))), min(x.end_s for x in xs)) for g, xs in leases.items()),
        *(
            HeldGrant(g, tuple(sorted(gpus_in(ys))), min(y.end_s for y in ys), max(y.granted_s for y in ys))
            for g, ys in coming.items()
        ),
    )


JOBS_KEPT = 4096
"""The most jobs of one app with counted launches."""
TOLD_AT_ONCE = 64
"""Changed counts in one fact; the others follow with the next report."""
MEASURED = -1


class Launches:
    """Launches of all active apps."""

    def __init__(self, live: Iterable[AppRecord]) -> None:
        self.seen = {a.app_id: {job: (n, MEASURED) for job, n in a.launches.items()} for a in live if a.launches}
        """App -> job -> (newest launch, step of its first report).

        MEASURED instead of a step: the launch was measured, or began before this control plane did.
        """

    def new(self, record: AppRecord, jobs: Iterable[JobProgress]) -> dict[str, int]:
        """Job -> launches, where the count differs from the record's; at most TOLD_AT_ONCE jobs."""
        room, changed = JOBS_KEPT - len(record.launches), dict[str, int]()
        for job in jobs:
            before = record.launches.get(job.job_id)
            if not job.launches or job.launches == before:
                continue
            if before is None:
                room -= 1
            if before is not None or room >= 0:
                changed[job.job_id] = job.launches
            if len(changed) == TOLD_AT_ONCE:
                break
        return changed

    def started(self, app_id: str, jobs: Sequence[JobProgress], leases: Iterable[Lease]) -> list[tuple[str, float]]:
        """(job, time of the grant) for each job that made its first step on a grant since the last report.

        Only the first launch on each grant counts.
        """
        if not jobs:
            return []
        by_job = grouped((x.job_id, x) for x in leases if x.job_id)
        seen, found = self.seen.setdefault(app_id, {}), []
        for job in jobs:
            if job.state != "running" or not job.launches:
                continue
            if self._first_step(seen, job, by_job):
                mine = by_job[job.job_id]
                if all(x.container_id == x.first_container for x in mine):
                    found.append((job.job_id, max(x.granted_s for x in mine)))
        return found

    @staticmethod
    def _first_step(seen: dict[str, tuple[int, int]], job: JobProgress, leases: Mapping[str, Sequence[Lease]]) -> bool:
        launch, base = seen.get(job.job_id, (0, MEASURED))
        if job.launches > launch:
            if launch or len(seen) < JOBS_KEPT:
                seen[job.job_id] = (job.launches, job.step)
            return False
        if job.launches < launch or base == MEASURED or job.step <= base or job.job_id not in leases:
            return False
        seen[job.job_id] = (launch, MEASURED)
        return True

    def forget(self, app_id: str) -> None:
        """Drops the launches of an app."""
        self.seen.pop(app_id, None)


AgentMessage = ev.UsePlanned | ev.GpusReleased | ev.ProgressReported | ev.AgentDone
EARLY_MAX = 64
"""Messages of one Agent that are queued until YARN reports its app."""


class AgentEvents:
    """Handles the messages of Agents.

    While YARN has not reported an Agent's app yet, its messages are queued in order behind its registration.
    """

    def __init__(self, s: Holdings, clerk: Clerk, reports: Reports, gone: Callable[[str, float], None]) -> None:
        """`gone`: called with an app whose Agent went away, and the time."""
        self.s, self.clerk, self.reports, self._gone = s, clerk, reports, gone
        self.launches = Launches(s.durable.live.values())
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
            self.clerk.emit(ev.SendFinish(e.app_id, f"the token is {e.user}'s, the app is {app.user}'s"))
            return
        s.agents.registered(e.app_id, self.reports.demand(e.app_id, e.demand), e.app_scheduler, e.attempt_id)
        arrive(s, self.clerk, e.app_id, now_s)
        self.clerk.refresh_kind(e.app_id)
        own_as_asked(s, self.clerk, e.app_id)
        s.ledger.note_demand(e.app_id, e.demand.gpus)
        if e.demand.job_demand_max > e.demand.gang_gpus:  # each time, as a journal may begin here
            self.clerk.record(facts.AppChanged(e.app_id, {"elastic": True}))
        self.clerk.emit(ev.SendRegistered(e.app_id, s.contention(e.app_id, now_s), _held_grants(s, e.app_id)))
        if e.app_id in s.agents.terminating:
            self.clerk.emit(ev.SendFinish(e.app_id, "ended by the operator"))
        self._want_if_unmet(e.app_id, now_s)

    def lost(self, e: ev.AgentLost, now_s: float) -> None:
        """Its stream ended."""
        early = self._early.pop(e.app_id, ())
        if e.app_id not in self.s.durable.ended and any(isinstance(x, ev.AgentDone) for x in early):
            self._early[e.app_id] = [*early, e]  # its result still counts
            return
        self.s.agents.disconnected(e.app_id)
        self._gone(e.app_id, now_s)

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
                workers.use_planned(self.s, self.clerk, e)
            case ev.GpusReleased():
                leases.released(self.s, self.clerk, e, now_s)
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
        self.reports.forget(app_id)
        self.launches.forget(app_id)
        self._early.pop(app_id, None)

    def _want_if_unmet(self, app_id: str, now_s: float) -> None:
        """Requests a round if the app wants more and GPUs are free or have no end, or its virtual cluster may recall
        lent ones."""
        s = self.s
        owner = app_id in s.durable.live and bool(s.durable.live[app_id].vc)
        if app_id in s.agents.unmet and s.timer.wanted_s is None and (s.gpus.free.count or s.gpus.open or owner):
            since_s = s.receipts[-1].at_s if s.receipts else 0.0
            self.clerk.request_round(max(now_s + s.settings.settle_s, since_s + s.settings.round_retry_s))

    def _progress(self, e: ev.ProgressReported, now_s: float) -> None:
        s = self.s
        record = s.durable.apps.get(e.app_id)
        if record is None:
            return
        grown = e.demand.gpus > s.agents[e.app_id].demand.gpus
        demand = self.reports.demand(e.app_id, e.demand, e.steps)
        s.agents.progressed(e, demand)
        self.clerk.update_demand(e.app_id)
        s.ledger.note_demand(e.app_id, e.demand.gpus)
        launched = self.launches.new(record, e.jobs)
        changes: dict[str, Any] = {"launched": launched} if launched else {}
        if e.demand.work_done_gpu_s > record.work_done_gpu_s * 1.05 + 1:
            changes["work_done_gpu_s"] = e.demand.work_done_gpu_s
        told = sorted((job for job in e.jobs if job.note), key=lambda job: not job.hangs)
        note = f"{told[0].job_id}: {told[0].note}" if told else ""
        new = not record.message or (told and told[0].hangs and record.message != note)
        if note and new:  # else the first one only: each is a fact, and some change with every step
            changes["message"] = note
        if changes:
            self.clerk.record(facts.AppChanged(e.app_id, changes))
        for job_id, granted_s in self.launches.started(e.app_id, e.jobs, s.durable.leases.of(e.app_id)):
            self.clerk.record(facts.AllocationChanged(e.app_id, job_id, now_s, max(0.0, now_s - granted_s)))
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
        self.clerk.record(facts.AppChanged(e.app_id, changes))
        end(self.s, self.clerk, e.app_id, "", now_s)


ROUNDS = 8
"""Overstated work counts if it was overstated in one of this many rounds before: one message may cross a restart."""


@dataclass(slots=True)
class _App:
    seen: AppSeen = field(default_factory=AppSeen)
    overstated: deque[bool] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    standing: Standing | None = None
    """In the present round; None if its rho cannot be checked."""


class Reports:
    """The checks, by app. What was seen is not journaled: workers report it again."""

    def __init__(self, s: Holdings) -> None:
        self.s = s
        self._apps: dict[str, _App] = {}

    def forget(self, app_id: str) -> None:
        """Drops what was seen of an application that YARN has removed."""
        self._apps.pop(app_id, None)

    def demand(self, app_id: str, demand: Demand, steps: Sequence[WorkerSteps] = ()) -> Demand:
        """The demand to use, with the S and speeds that were seen; notes the steps first."""
        app = self._apps.get(app_id)
        if app is None:
            if not steps:
                return demand
            app = self._apps[app_id] = _App()
        self._note(app_id, app, demand, steps)
        return app.seen.held(demand)

    def _note(self, app_id: str, app: _App, demand: Demand, steps: Sequence[WorkerSteps]) -> None:
        workers = {w.plan.worker_id: w for w in (self.s.workers.of(app_id) if steps else ())}
        gangs = grouped((w.plan.job_id, gpu) for w in workers.values() for gpu in w.plan.gpus)
        for x in steps:
            if x.worker_id in workers:
                worker = workers[x.worker_id]
                worker.saved_s, job_id = max(worker.saved_s, x.saved_s), worker.plan.job_id
                app.seen.add(job_id, gangs[job_id], demand.gang_gpus, self.s.topology, x)

    # ---- a round

    def rho(self, e: RhoReported, ending: Container[Gpu], now_s: float) -> tuple[Demand, float, str]:
        """The demand and the rho to use, and what was corrected (empty: nothing); `ending`: its GPUs on offer."""
        demand = self.demand(e.app_id, e.demand, e.steps)
        what = differences(e.demand, demand)
        if e.phases is None or e.app_id not in self.s.durable.apps:
            return demand, e.rho, what
        app = self._apps.setdefault(e.app_id, _App())
        phases = e.phases
        work = app.seen.work(demand, {w.plan.worker_id for w in self.s.workers.of(e.app_id)})
        factor = overstated(phases, e.jobs, work)
        if factor > TOLERANCE and any(app.overstated):
            phases = tuple(tuple(x / factor for x in jobs) for jobs in phases)
            what = joined(what, f"work left / {factor:.3g}")
        app.overstated.append(factor > TOLERANCE)
        demand, understated = totalled(demand, phases, e.phases, sum(x.done for x in work.values()))
        what = joined(what, understated)
        app.standing = x = self._standing(e.app_id, demand, phases, ending, now_s)
        rho = within(e.rho, rho_range(x)) if e.rho > 0 else e.rho
        return demand, rho, joined(what, f"rho {e.rho:.4g} -> {rho:.4g}" if rho != e.rho else "")

    def bid(self, bid: Bid) -> tuple[Bid, str]:
        """The bid to use, and what was corrected; empty if nothing was. Its gangs are on hosts."""
        app = self._apps.get(bid.app_id)
        if app is None or app.standing is None:
            return bid, ""
        held = held_bid(app.standing, bid)
        if held is bid:
            return bid, ""
        rows = sum(a is not b for a, b in zip(bid.rows, held.rows, strict=True))
        return held, f"rho of {rows} of {len(bid.rows)} rows"

    def _standing(
        self, app_id: str, demand: Demand, phases: Sequence[Sequence[float]], ending: Container[Gpu], now_s: float
    ) -> Standing:
        s, c = self.s, self.s.contention(app_id, now_s)
        width = max(map(len, phases), default=0) * max(demand.gang_gpus, demand.job_demand_max)
        s.ledger.note_demand(app_id, max(demand.gpus, width))
        speed, most = mean_speed(demand.speedups, s.topology), s.durable.apps[app_id].demand_gpus
        work = app_left(phases, demand, c.cluster_gpus, c.n_avg, most, now_s - c.submitted_s, speed)
        staying = [g for g in s.gangs_of(app_id) if not any(gpu in ending for gpu in gpus_in(g))]
        train = [as_gang(gpus_in(g)) for g in staying if all(x.state is ACTIVE for x in g)]
        certain = [] if work.job_gpus_max else [slowdowns_of(g, demand, s.topology)[1] for g in train]
        possible = [slowdowns_of(g, demand, s.topology)[0] for g in s.retained_gangs(app_id, ending)]
        return Standing(work, demand, tuple(sorted(certain)), tuple(sorted(possible)), s.topology, c.lease_s)
