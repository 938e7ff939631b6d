"""The event-driven simulator: virtual time, YARN and Agents around the production Arbiter.

A run is a function of the workload, the topology, the policy, the settings and the seed, as long as
no solve exceeds its wall-clock budget (such rounds are counted as unproved).
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from mypy_extensions import mypyc_attr

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Ask, Queue
from pycontrol.model.topology import Gpu, Topology
from pycontrol.policies.by_vc import policies_in
from pycontrol.policies.policy_port import Policy
from pycontrol.simulation import agents
from pycontrol.simulation.result import Counters, Result
from pycontrol.simulation.simulated_jobs import DONE, IDLE, PLANNED, RUNNING, STOPPING, SimApp, SimJob, gang_rate
from pycontrol.simulation.simulation_settings import Fault, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from pycontrol.simulation.yarn import SimYarn

NAP_S = 0.02
"""Least time between two wake-ups for the same time, as in the production driver."""
SOON_S = 1e-6
"""A checkpoint is looked at this much earlier, as times are rounded."""
FRUITLESS = 200
"""Consecutive wake-ups without a running job or a future event after which the remaining apps can never run."""


@mypyc_attr(allow_interpreted_subclasses=True)  # tests override and observe steps
class Simulator:
    """One simulation; call `run` once."""

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        policy: Policy,
        settings: SimulationSettings | None = None,
        seed: int = 0,
        queues: tuple[Queue, ...] = (),
        supply: Supply | None = None,
    ) -> None:
        """`supply`: the cells behind virtual clusters, whose tenants are the apps' queues."""
        self.workload, self.topology, self.policy, self.seed = workload, topology, policy, seed
        self.settings = settings or SimulationSettings()
        self.change_s = self.settings.checkpoint_s + self.settings.restart_s
        """Seconds that a change of GPUs costs a gang."""
        self.now = self.moved_s = 0.0
        """`moved_s`: of the last step that was more than a wake-up."""
        self.inbox: deque[ev.Event] = deque()
        self.yarn = SimYarn(topology, queues, self.inbox.append)
        seeded = dataclasses.replace(self.settings.arbiter, seed=seed)
        self.arbiter = Arbiter(seeded, policy, topology=topology, supply=supply)
        self.supply = self.arbiter.supply
        self.watchers: list[Callable[[Iterable[Fact]], None]] = []
        """Called with the facts of each step."""
        self.heap: list[tuple[float, int, Callable[[Any, int], None], Any, int]] = []
        self.order = itertools.count()
        self.requests = itertools.count(1)
        self.apps: dict[str, SimApp] = {}
        """Apps in the system."""
        self.job_of: dict[str, SimJob] = {}
        """{container id: job}."""
        self.asked: dict[int, SimJob] = {}
        """{request id: job}."""
        self.dirty: dict[str, SimApp] = {}
        """Apps with idle GPUs to assign."""
        self.records: dict[str, Any] = {}
        self.active = 0
        """Jobs with a gang, planned or running."""
        self.reports = any(getattr(p, "by_progress", not p.asks_agents) for p in policies_in(policy))
        """Whether apps' progress is reported before each round; Agents that are asked tell it themselves."""
        self.tells_saved = any(getattr(p, "by_unsaved", False) for p in policies_in(policy)) and not self.reports
        """Whether, if not, the apps report then that wrote checkpoints."""
        self.saves: list[tuple[float, int, SimJob, int]] = []
        """If so: a heap of (when the job next has a checkpoint that it has not told, order, job, its stamp)."""
        self.events = self.steps = self.rounds = self.kills = self.unproved = self.fruitless = 0
        self.policy_s = self.bids_s = 0.0
        self.do: dict[type[Any], Callable[[Any], None]] = {
            # Nothing is held at registration, simulated Agents see the whole cluster, and there is no operator.
            **dict.fromkeys((ev.SendRegistered, ev.SendHosts, ev.SendFinish), lambda _: None),
            **dict.fromkeys((ev.SendAskRho, ev.SendOffer), self._answer),
            ev.SendGrant: self._grant,
            ev.SendRevoke: self._revoke,
            ev.SendUseReply: self._use_reply,
            ev.Place: self._place,
            ev.Preempt: self._preempt,
            ev.Kill: self._kill,
            ev.Solve: self._solve,
        }
        """What carries out each kind of effect."""

    # ---- time

    def at(self, at_s: float, what: Callable[[Any, int], None], subject: Any, stamp: int = 0) -> None:
        """Schedule the call `what(subject, stamp)` at that time."""
        heapq.heappush(self.heap, (at_s, next(self.order), what, subject, stamp))

    def run(self) -> Result:
        """Run to the end of the last app."""
        begin_s = time.perf_counter()
        for trace in self.workload.apps:
            self.at(trace.submitted_s, self.arrive, trace)
        for fault in self.settings.faults:
            self.at(fault.at_s, self._fault, fault)
        self.inbox.append(self.yarn.snapshot())
        self._drain()
        while len(self.records) < len(self.workload.apps) and self._step():
            pass
        return self._result(time.perf_counter() - begin_s)

    def _step(self) -> bool:
        """Advance to the next event's time and handle it; False if there is none."""
        heap = self.heap
        at_s = heap[0][0] if heap else math.inf
        wake_s = self.arbiter.next_wake_s(self.now)
        if wake_s is not None and wake_s < at_s:
            at_s = wake_s if wake_s > self.now else min(at_s, self.now + NAP_S)
        if at_s == math.inf or at_s > self.settings.until_s:
            return False
        if self.reports or self.tells_saved:
            self._report_before(at_s)
        self.now = now = max(self.now, at_s)
        self.steps += 1
        if heap and heap[0][0] <= now:
            self.fruitless, self.moved_s = 0, now
            while heap and heap[0][0] <= now:
                _, _, what, subject, stamp = heapq.heappop(heap)
                what(subject, stamp)
        elif heap or self.active or self.fruitless < FRUITLESS:
            self.fruitless += not (heap or self.active)
            self.inbox.append(ev.Tick())
        else:
            return False
        self._drain()
        return True

    def _drain(self) -> None:
        """Handle all waiting events and their effects at the present time."""
        inbox, do, arbiter = self.inbox, self.do, self.arbiter
        while inbox or self.dirty:
            while inbox:
                batch = tuple(inbox)
                inbox.clear()
                self.events += len(batch)
                for effect in arbiter.handle_all(batch, self.now):
                    do[type(effect)](effect)
            if self.dirty:
                dirty, self.dirty = self.dirty, {}
                for app in dirty.values():
                    self._assign(app)
        facts = arbiter.take_facts()  # nothing is journaled
        if facts:
            for watch in self.watchers:
                watch(facts)

    def _report_before(self, at_s: float) -> None:
        """Report progress just before a round without bids, as real Agents report once a second."""
        due_s = self.arbiter.rounds.due_s()
        if self.arbiter.rounds.current is not None or due_s is None or due_s > at_s:
            return
        self.now = max(self.now, due_s - 1e-3)
        if self.reports:
            for app in self.apps.values():
                if app.job_at:
                    self._tell(app)
        else:
            self._tell_saved()
        self._drain()

    def _tell_saved(self) -> None:
        """Report the progress of apps with checkpoints that they have not told."""
        due, every_s = list[SimJob](), self.settings.checkpoint_every_s
        while self.saves and self.saves[0][0] <= self.now + SOON_S:
            _, _, job, stamp = heapq.heappop(self.saves)
            if job.stamp == stamp:
                due.append(job)
        for app in dict.fromkeys(j.app for j in due if j.newly_saved_s(self.now, every_s)):
            self._tell(app)
        for job in due:
            self._note_saves(job)

    def _note_saves(self, job: SimJob) -> None:
        at_s = job.next_saved_s(self.now, self.settings.checkpoint_every_s)
        heapq.heappush(self.saves, (at_s, next(self.order), job, job.stamp))

    # ---- apps come and go

    def arrive(self, trace: TraceApp, _: int) -> None:
        """An app is submitted."""
        app = SimApp(trace, self.settings.misreport_of(trace.app_id, self.seed))
        app_id = trace.app_id
        if not app.next_phase():
            app.finished_s = app.started_s = self.now
            self._close(app)
            return
        self.apps[app_id] = app
        self.inbox.append(ev.AppAdded(app.in_yarn))
        if app.trace.agentless:
            self._ask(app)
        else:
            self.inbox.append(ev.AgentUp(app_id, app.attempt_id, app.scheduler, self._demand(app)))
            if trace.partition is not None:  # no job's: it tells the partition before any has GPUs
                self._ask_yarn(app, next(self.requests), trace.gang_gpus)

    def _ask(self, app: SimApp) -> None:
        """Ask for a container for each job of an app without an Agent that has none."""
        for job in app.jobs:
            if job.state == IDLE and not job.requests:
                job.requests = [next(self.requests)]
                self.asked[job.requests[0]] = job
                self._ask_yarn(app, job.requests[0], app.trace.gang_gpus)

    def _ask_yarn(self, app: SimApp, request_id: int, gpus: int) -> None:
        self.yarn.ask(Ask(app.attempt_id, app.trace.app_id, request_id, gpus, 1, partition=app.trace.partition))

    def _tell(self, app: SimApp) -> None:
        if app.trace.agentless:
            return
        steps = agents.steps(app, self.now, self.settings.checkpoint_every_s)
        self.inbox.append(ev.ProgressReported(app.trace.app_id, self._demand(app), (), steps=steps))

    def _finish(self, app: SimApp) -> None:
        app_id = app.trace.app_id
        app.finished_s = self.now
        if not app.trace.agentless:
            self.inbox.append(ev.AgentDone(app_id, True, work_done_gpu_s=app.total))
        self._drain()  # so that N_avg is read at the app's end, before other events of this time
        self.inbox.append(ev.AppRemoved(app_id, "FINISHED"))
        self._close(app)

    def _close(self, app: SimApp) -> None:
        app_id = app.trace.app_id
        n_avg = self.arbiter.durable.n_avg(app_id, self.now) if app_id in self.arbiter.durable.apps else 1.0
        cluster_gpus = self.supply.gpus_of(self.supply.vc_of(app.trace.queue)) or self.topology.gpus
        self.records[app_id] = app.record(n_avg, cluster_gpus, self.now)
        self.apps.pop(app_id, None)
        self.dirty.pop(app_id, None)

    # ---- jobs

    def _assign(self, app: SimApp) -> None:
        if app.finished_s is not None:
            return
        if app.trace.agentless:
            self._ask(app)
            return
        composed = agents.assign(app, self.now, self.topology, self.change_s)
        found = composed.allocation
        jobs = {j.job_id: j for j in app.jobs} if found.launches or composed.grow else {}
        for job_id, gpus in found.launches:
            self._launch(app, jobs[job_id], gpus)
        for job_id in composed.grow:
            self._stop(jobs[job_id], math.inf)
        if found.unused:
            for gpu in found.unused:
                del app.held[gpu]
            self.inbox.append(ev.GpusReleased(app.trace.app_id, frozenset(found.unused)))
        if app.trace.elastic:
            for job in app.jobs if found.unused else ():
                job.settled = job.state in (PLANNED, RUNNING)
            demand = self._demand(app)
            if demand.gangs != app.told_gangs:
                app.told_gangs = demand.gangs
                self.inbox.append(ev.ProgressReported(app.trace.app_id, demand, ()))

    def _demand(self, app: SimApp) -> Demand:
        return agents.demand(app, self.now, self.topology, self.change_s)

    def _launch(self, app: SimApp, job: SimJob, gpus: tuple[Gpu, ...]) -> None:
        job.state, job.gpus, job.launches, job.settled = PLANNED, gpus, job.launches + 1, False
        self.active += 1
        for gpu in gpus:
            app.job_at[gpu] = job
        use_id = f"{job.job_id}/{job.launches}"
        plans = []
        for host, here in itertools.groupby(gpus, key=lambda g: g.host):
            request_id = next(self.requests)
            plans.append(ev.WorkerPlan(f"{use_id}/{host}", job.job_id, tuple(here), request_id))
            self.asked[request_id] = job
        job.requests = [p.allocation_request_id for p in plans]
        job.worker_id, job.told_steps = plans[0].worker_id, 0
        self.inbox.append(ev.UsePlanned(app.trace.app_id, use_id, tuple(plans)))
        for plan in plans:
            self._ask_yarn(app, plan.allocation_request_id, len(plan.gpus))

    def _start(self, job: SimJob) -> None:
        """Start a job's training once all its containers run, and schedule its end."""
        app, settings = job.app, self.settings
        first = job.launches == 1 and app.phase == 0
        if app.started_s is None:
            app.started_s = self.now
        app.launches += 1
        app.restarts += job.launches > 1
        job.state, job.up_s = RUNNING, self.now
        job.rate, job.slowdown = gang_rate(app.trace, job.gpus, self.topology)
        job.since_s = self.now + (settings.start_s if first else settings.restart_s)
        self._train(job)

    def _train(self, job: SimJob) -> None:
        """Schedule the end of a job that trains from `since_s` on."""
        job.stamp += 1
        self.at(job.since_s + job.left / job.rate, self._job_ends, job, job.stamp)
        if self.tells_saved and not job.app.trace.agentless:
            self._note_saves(job)

    def _job_ends(self, job: SimJob, stamp: int) -> None:
        if job.stamp != stamp:
            return
        app = job.app
        job.left = 0.0
        self._end_gang(job, DONE)
        app.open -= 1
        if app.open == 0 and not app.next_phase():
            self._finish(app)
            return
        self._tell(app)
        self.dirty[app.trace.app_id] = app

    def _stop(self, job: SimJob, deadline_s: float) -> None:
        """Stop a job: with enough notice it checkpoints and returns its GPUs, else it ends here and loses work.

        One that is stopping ends here where it is killed: `deadline_s` is minus infinity then.
        """
        if job.state == PLANNED or (job.state == STOPPING and deadline_s == -math.inf):
            self._end_gang(job, IDLE)
        elif job.state == RUNNING:
            noticed = deadline_s - self.now >= self.settings.checkpoint_s
            lost = not (noticed and self.settings.saves)
            job.app.unsaved |= noticed and lost
            job.app.lost += job.settle(self.now, lost, self.settings.checkpoint_every_s)
            job.state = STOPPING
            job.stamp += 1
            if noticed:
                self.at(self.now + self.settings.checkpoint_s, self._stopped, job, job.stamp)
            else:
                self._end_gang(job, IDLE)
        self.dirty[job.app.trace.app_id] = job.app

    def _stopped(self, job: SimJob, stamp: int) -> None:
        if job.stamp == stamp:
            self._stop(job, -math.inf)

    def _end_gang(self, job: SimJob, state: int) -> None:
        """End a job's containers, withdraw its asks and free its GPUs."""
        app = job.app
        for request_id in job.requests:
            self.asked.pop(request_id, None)
            self.yarn.withdraw(request_id)
        if job.containers and job.state != PLANNED:
            gpu_s = len(job.gpus) * (self.now - job.up_s)
            app.gpu_s += gpu_s
            app.placed += gpu_s / job.slowdown
        for container_id in job.containers:
            self.job_of.pop(container_id, None)
            self.yarn.end(container_id)
        for gpu in job.gpus:
            app.job_at.pop(gpu, None)
        self.active -= 1
        job.requests, job.containers, job.gpus = [], [], ()
        job.state = state
        job.stamp += 1

    # ---- effects: to Agents

    def _with_agent(self, app_id: str) -> SimApp | None:
        """The app, if it is in the system and has an Agent."""
        app = self.apps.get(app_id)
        return None if app is None or app.trace.agentless else app

    def _answer(self, e: ev.SendAskRho | ev.SendOffer) -> None:
        app = self.apps.get(e.app_id)
        if app is not None:
            begin_s = time.perf_counter()
            self.inbox.append(agents.answer(app, e, self.now, self.topology, self.change_s))
            self.bids_s += time.perf_counter() - begin_s

    def _grant(self, e: ev.SendGrant) -> None:
        app = self._with_agent(e.app_id)
        if app is None or (e.renewal and not app.trace.elastic):
            return
        for gpu in e.grant.gpus:
            if not e.renewal:
                app.held[gpu] = e.grant.available_s
            elif gpu in app.job_at:
                app.job_at[gpu].settled = False
        self.dirty[e.app_id] = app

    def _revoke(self, e: ev.SendRevoke) -> None:
        app = self._with_agent(e.app_id)
        if app is None or app.finished_s is not None:
            return
        touched: dict[int, SimJob] = {}
        for gpu in e.gpus:
            app.held.pop(gpu, None)
            job = app.job_at.get(gpu)
            if job is not None:
                touched[id(job)] = job
        for job in touched.values():
            self._stop(job, e.deadline_s)
        self.dirty[e.app_id] = app

    def _use_reply(self, e: ev.SendUseReply) -> None:
        """Handle a refused plan, whose lease ended between the grant and the plan."""
        app = self.apps.get(e.app_id)
        if e.accepted or app is None:
            return
        job = next((j for j in app.jobs if j.state == PLANNED and f"{j.job_id}/{j.launches}" == e.use_id), None)
        if job is not None:
            gpus = job.gpus
            self._end_gang(job, IDLE)
            for gpu in gpus:
                app.held.pop(gpu, None)
            self.inbox.append(ev.GpusReleased(e.app_id, frozenset(gpus)))

    # ---- effects: to YARN

    def _place(self, e: ev.Place) -> None:
        request_id = e.ask.allocation_request_id
        job = self.asked.pop(request_id, None)
        container = self.yarn.place(e)
        if container is None and job is not None and job.app.trace.agentless:  # its master asks again
            job.requests = []
            self.dirty[job.app.trace.app_id] = job.app
        if container is None or job is None:
            return
        job.requests.remove(request_id)
        if job.state == IDLE:  # its app has no Agent, which would have planned it
            job.state, job.gpus, job.launches = PLANNED, e.gpus, job.launches + 1
            self.active += 1
        job.containers.append(container.container_id)
        self.job_of[container.container_id] = job
        if not job.requests:
            self._start(job)

    def _preempt(self, e: ev.Preempt) -> None:
        """YARN warns the master of an app without an Agent, which saves what the job has done; Agents get a Revoke."""
        job = self.job_of.get(e.container_id)
        if job is not None and job.app.trace.agentless:
            self._stop(job, e.deadline_s)

    def _kill(self, e: ev.Kill) -> None:
        """Kill a container, and its gang with it."""
        self.kills += 1
        job = self.job_of.get(e.container_id)
        if job is not None:
            self._stop(job, -math.inf)
        else:
            self.yarn.end(e.container_id)

    def _solve(self, e: ev.Solve) -> None:
        begin_s = time.perf_counter()
        plan = self.arbiter.rounds.policy.decide(e.snapshot, e.bids, random.Random(e.seed))
        self.policy_s += time.perf_counter() - begin_s
        self.rounds += 1
        self.unproved += not plan.proved_optimal
        self.inbox.append(ev.Decided(e.snapshot.round_id, plan))

    # ---- faults, and the end

    def _fault(self, fault: Fault, _: int) -> None:
        node_id = f"{fault.host}:1"
        if fault.up:
            self.yarn.restore(node_id)
            return
        for container_id in self.yarn.lose(node_id):
            job = self.job_of.get(container_id)
            if job is not None:
                self._stop(job, -math.inf)

    def _result(self, wall_s: float) -> Result:
        end_s = self.now if self.heap or self.active else self.moved_s
        for app in list(self.apps.values()):
            for job in app.jobs:
                if job.state == RUNNING:
                    job.settle(self.now, False, 1.0)
                if job.state in (RUNNING, STOPPING):
                    self._end_gang(job, IDLE)
            self._close(app)
        counts = self.events, self.steps, self.rounds, self.yarn.launched, self.kills, self.unproved
        counters = Counters(*counts, wall_s, self.policy_s, self.bids_s)
        apps = tuple(self.records[a.app_id] for a in self.workload.apps if a.app_id in self.records)
        return Result(self.workload.name, self.topology.gpus, self.policy.name, {}, self.seed, end_s, apps, counters)
