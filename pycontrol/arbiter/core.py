"""The Arbiter: a pure state machine between YARN, the Agents and the policy.

`handle(event, now_s)` returns the effects; the facts to journal before them are in `take_facts()`. It
reads no clock, does no I/O and logs nothing: the driver (cluster) and the simulator do that around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pycontrol.arbiter import causes, leases, workers
from pycontrol.arbiter.asks import Asks
from pycontrol.arbiter.causes import Cause
from pycontrol.arbiter.cells import CellSupply
from pycontrol.arbiter.durable import REVOKING, Durable, Lease
from pycontrol.arbiter.facts import (
    AllocationChanged,
    AppArrived,
    AppChanged,
    AppEnded,
    AppMoved,
    Fact,
    LeaseIdle,
    Restored,
    Switched,
)
from pycontrol.arbiter.launches import Launches
from pycontrol.arbiter.market import Market, downgrade
from pycontrol.arbiter.rounds import Rounds
from pycontrol.arbiter.state import DRAINED, PAUSED, AgentState, Settings, State
from pycontrol.arbiter.supply import Held, Supply
from pycontrol.cells.layout import Layout
from pycontrol.model import events as ev
from pycontrol.model.topology import Topology
from pycontrol.policies.port import Policy

SINGLE = "single"
UNSUCCESSFUL = {"FAILED", "KILLED"}


class Arbiter(State):
    """Shares the cluster's GPUs among apps by leases and rounds."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        durable: Durable | None = None,
        topology: Topology | None = None,
        epoch: int = 1,
        supply: Supply | None = None,
    ) -> None:
        super().__init__(settings, durable or Durable(), topology, policy.name)
        self.supply = supply
        self.market = Market(self, supply) if isinstance(supply, CellSupply) else None
        self.epoch = epoch
        self.rounds = Rounds(self, policy, epoch)
        self.launches = Launches(self.durable.live.values())
        self._early: dict[str, ev.AgentUp] = {}
        """Agents that registered before YARN told of their app, or of the containers that it may have."""
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            ev.ClusterSnapshot: self._snapshot,
            ev.NodeUp: self._node_up,
            ev.NodeDown: self._node_down,
            ev.AppAdded: self._app_added,
            ev.AppUpdated: self._app_updated,
            ev.AppRemoved: self._app_removed,
            ev.AttemptAdded: self._attempt_added,
            ev.AttemptRemoved: self._attempt_removed,
            ev.AskChanged: self._ask_changed,
            ev.ContainerUp: lambda e, now: leases.container_up(self, e.container, e.running, now),
            ev.ContainerGone: lambda e, now: leases.container_gone(self, e.container_id, now),
            ev.DirectiveDone: lambda e, now: workers.directive_done(self, e, now),
            ev.ClusterReady: self._ready,
            ev.ClusterLost: self._lost,
            ev.AgentUp: self._agent_up,
            ev.AgentLost: self._agent_lost,
            ev.RhoReported: self.rounds.rho_reported,
            ev.BidReceived: self.rounds.bid_received,
            ev.UsePlanned: lambda e, now: workers.use_planned(self, e),
            ev.GpusReleased: lambda e, now: leases.released(self, e, now),
            ev.ProgressReported: self._progress,
            ev.AgentDone: self._agent_done,
            ev.OperatorCommand: self._command,
            ev.ExchangePosted: self._exchange,
            ev.StateKept: self._restore,
            ev.Tick: lambda e, now: None,
            ev.Decided: self.rounds.decided,
        }

    def new_id(self, kind: str) -> str:
        """An id that no other life of the Arbiter gave."""
        return f"{super().new_id(kind)}.{self.epoch}"

    def handle(self, event: ev.Event, now_s: float) -> list[ev.Effect]:
        """Takes one event and returns what to do about it, in order."""
        return self.handle_all((event,), now_s)

    def handle_all(self, events: Iterable[ev.Event], now_s: float) -> list[ev.Effect]:
        """Takes the events of one moment, in order, and returns what to do about all of them."""
        for event in events:
            self._handlers[type(event)](event, now_s)
        if self.cells_stale:
            self._supply_anew(now_s)
        if self.recovering_until_s:
            self._settle_recovery(now_s)
        if len(self.refusals):
            self._try_again(now_s)
        if self.alarms.heap and self.alarms.heap[0][0] <= now_s:
            leases.expire(self, now_s)
        if self.workers.pending:
            workers.place_ready(self, now_s)
        if self.market is not None:
            self.market.tick(now_s)
        self.rounds.tick(now_s)
        effects, self.effects = self.effects, []
        return effects

    def take_facts(self) -> list[Fact]:
        """The facts since the last call, to be journaled before the effects are carried out."""
        facts, self.facts = self.facts, []
        return facts

    def next_wake_s(self, now_s: float) -> float | None:
        """When to send a Tick, if nothing else happens; None: not before the next event."""
        first_s = leases.next_wake_s(self, now_s)
        for at_s in (
            workers.next_wake_s(self) if self.workers.pending else None,
            self.rounds.next_wake_s(now_s),
            self.refusals.next_end_s(),
            self.market.next_wake_s() if self.market is not None else None,
        ):
            if at_s is not None and (first_s is None or at_s < first_s):
                first_s = at_s
        return first_s

    # ---- the cluster

    def _restore(self, e: ev.StateKept, now_s: float) -> None:
        """Taken over before the first snapshot of the cluster, by a control plane that knows nothing yet."""
        if self.durable.pristine:
            self.record(Restored(e.data))
            self.epoch = self.rounds.epoch = max(self.epoch, e.epoch)

    def _snapshot(self, e: ev.ClusterSnapshot, now_s: float) -> None:
        self.nodes = {n.node_id: n for n in e.nodes}
        self.down.clear()
        self.queues = {q.path: q for q in e.queues}
        self.yarn_apps = {a.app_id: a for a in e.apps}
        self.asks = Asks(e.asks)
        self.containers.clear()
        self.container_at.clear()
        self.kills_sent.clear()
        for container in e.containers:
            self.containers[container.container_id] = container
            for gpu in container.gpus:
                self.container_at[gpu] = container.container_id
        self.retopology()
        self.update_closed()
        self.stir_all()
        self._supply_anew(now_s)
        for app_id in self.in_system():
            self.recast(app_id)
        workers.forget_directives(self)
        self.ready = False
        if e.ready:
            self._ready(ev.ClusterReady(), now_s)
        self._admit_early(now_s)

    def _admit_early(self, now_s: float) -> None:
        for early in list(self._early.values()):
            self._early.pop(early.app_id)
            self._agent_up(early, now_s)

    def _ready(self, _: ev.ClusterReady, now_s: float) -> None:
        """The ResourceManager has recovered: reconcile leases with the containers that run."""
        if self.ready:
            return
        self.ready = True
        self.recovering_until_s = now_s + self.settings.recovery_s
        for app_id in list(self.in_system()):
            if app_id not in self.yarn_apps:
                self._end_app(app_id, "UNKNOWN", now_s)
        for app_id in self.asks.apps():
            self._arrive(app_id, now_s)
        for container in list(self.containers.values()):
            if container.gpus and not container.ending:
                self._arrive(container.app_id, now_s)
                leases.adopt(self, container, now_s)
        for lease in list(self.durable.leases.values()):
            if lease.container_id and lease.container_id not in self.containers:
                self.record(LeaseIdle(lease.gpu, now_s))
        self._admit_early(now_s)

    def _supply_anew(self, now_s: float) -> None:
        """Tells the cells of all leases that there are."""
        self.cells_stale = False
        if self.supply is None:
            return
        self._rehome(now_s)
        if self.market is not None:
            self.market.restore(now_s)
        self.taking_back = {g for g, x in self.durable.leases.items() if x.state == REVOKING}
        held: dict[str, list[Lease]] = {}
        for lease in (*self.durable.leases.values(), *self.durable.next.values()):
            if lease.state != REVOKING:
                held.setdefault(lease.grant_id, []).append(lease)
        self.groups = {group: len(gang) for group, gang in held.items()}
        downgraded = self.supply.recover(
            Held(group, self.durable.apps[gang[0].app_id].vc, gang[0].guaranteed, tuple(sorted(x.gpu for x in gang)))
            for group, gang in held.items()
        )
        downgrade(self, downgraded)

    def _rehome(self, now_s: float) -> None:
        """Apps whose queue is another virtual cluster than the cells knew, or none any more, go on in that one."""
        for app_id in list(self.in_system()):
            app = self.durable.apps[app_id]
            vc = self.supply.vc_of(app.queue) if self.supply is not None else ""
            if vc != app.vc:
                self.record(AppMoved(app_id, vc, now_s))
                self.recast(app_id)

    def reconfigure(self, layout: Layout, now_s: float) -> list[str]:
        """Another assignment of cells; what runs goes on. Returns the apps that now borrow what they owned."""
        if self.market is None:
            raise ValueError("there are no virtual clusters; name a cells file in isonomy.yaml and start again")
        groups = set(self.market.supply.reconfigure(layout, now_s))
        self.market.save()
        self._rehome(now_s)
        held = (*self.durable.leases.values(), *self.durable.next.values())
        apps = sorted({x.app_id for x in held if x.grant_id in groups})
        downgrade(self, groups)
        self.want_round(now_s + self.settings.settle_s)
        return apps

    def _settle_recovery(self, now_s: float) -> None:
        """Once the recovery time is over: leases on machines that did not come back end, the others go on."""
        if not self.ready or now_s < self.recovering_until_s:
            return
        self.recovering_until_s = 0.0
        hosts = {n.host for n in self.nodes.values()}
        for host in {g.host for g in self.durable.leases} - hosts:
            self._lose_host(host, now_s, "did not come back")
        leases.thaw(self, now_s)
        leases.leave_bad(self, now_s)
        for host in filter(self.drained, hosts):
            self._drain(host, now_s)
        self.want_round(now_s)

    def _try_again(self, now_s: float) -> None:
        """Machines that were avoided for long enough are tried again."""
        if self.refusals.lapse(now_s):
            self.update_closed()
            self.want_round(now_s)

    def _lost(self, _: ev.ClusterLost, now_s: float) -> None:
        self.ready = False

    def _node_up(self, e: ev.NodeUp, now_s: float) -> None:
        stale = [n for n in self.nodes.values() if n.host == e.node.host and n.node_id != e.node.node_id]
        for node in stale:
            self._node_down(ev.NodeDown(node.node_id, "replaced"), now_s)
        self.nodes[e.node.node_id] = e.node
        self.down.pop(e.node.node_id, None)
        self.refusals.forget(e.node.host)
        self.retopology()
        self.update_closed()
        self.stir_host(e.node.host)
        if self.ready and now_s >= self.recovering_until_s:
            leases.leave_bad(self, now_s)
            if e.node.decommissioning:
                self._drain(e.node.host, now_s)
        self.want_round(now_s + self.settings.settle_s)

    def _node_down(self, e: ev.NodeDown, now_s: float) -> None:
        node = self.nodes.pop(e.node_id, None)
        self.down[e.node_id] = e.reason
        self.retopology()
        if node is not None:
            self.refusals.forget(node.host)
            self.update_closed()
            self.stir_host(node.host)
        if node is not None and self.ready and now_s >= self.recovering_until_s:
            self._lose_host(node.host, now_s, e.reason or "lost")

    def _lose_host(self, host: str, now_s: float, reason: str) -> None:
        why = Cause(causes.NODE_LOST, f"node {host} {reason}")
        leases.lose_next(self, self.next_on(host), now_s, why)
        lost: dict[str, list[Any]] = {}
        for lease in list(self.durable.leases.values()):
            if lease.gpu.host == host:
                lost.setdefault(lease.app_id, []).append(lease.gpu)
        for app_id, gpus in lost.items():
            self.revoke_notice(app_id, gpus, now_s, why.text)
            for gpu in gpus:
                for worker in (self.workers.at.get(gpu), self.workers.placing.get(gpu)):
                    if worker is not None:
                        self.drop_worker(worker)
                leases.end(self, gpu, now_s, why)
        for container in [c for c in self.containers.values() if c.gpus and c.gpus[0].host == host]:
            leases.container_gone(self, container.container_id, now_s)

    # ---- apps and their asks

    def _arrive(self, app_id: str, now_s: float) -> None:
        """The app is in the system from its first demand for GPUs on."""
        app = self.yarn_apps.get(app_id)
        if app is None or app_id in self.durable.apps:
            return
        agent = self.agents.get(app_id)
        kind = "foreign" if not self.expects_agent(app) else "job"
        if agent is not None and agent.app_scheduler != SINGLE:
            kind = agent.app_scheduler
        vc = self.supply.vc_of(app.queue) if self.supply is not None else ""
        self.record(AppArrived(app_id, app.name, app.queue, app.user, kind, app.submitted_s or now_s, now_s, vc))
        self.recast(app_id)
        self.want_round(now_s + self.settings.settle_s)

    def _app_added(self, e: ev.AppAdded, now_s: float) -> None:
        known = self.yarn_apps.get(e.app.app_id)
        if known is None or e.app.attempt_id:
            self.yarn_apps[e.app.app_id] = e.app
            self.recast(e.app.app_id)
        early = self._early.pop(e.app.app_id, None)
        if early is not None:
            self._agent_up(early, now_s)

    def _app_updated(self, e: ev.AppUpdated, now_s: float) -> None:
        if e.app.app_id in self.yarn_apps:
            self.yarn_apps[e.app.app_id] = e.app
            self.recast(e.app.app_id)

    def _app_removed(self, e: ev.AppRemoved, now_s: float) -> None:
        self._end_app(e.app_id, e.final_state, now_s)
        self.yarn_apps.pop(e.app_id, None)
        self.agents.pop(e.app_id, None)
        self.rounds.app_gone(e.app_id, now_s)
        self.rounds.forget(e.app_id)
        self.asks.drop(e.app_id)
        self.refusals.forget_app(e.app_id)
        self.launches.forget(e.app_id)

    def _end_app(self, app_id: str, final_state: str, now_s: float) -> None:
        record = self.durable.apps.get(app_id)
        if record is None:
            return
        leases.drop_next(self, app_id, "app ended")
        for worker in self.workers.of(app_id):
            if not worker.directive_id:
                self.drop_worker(worker)
        leases.take_back(self, self.leases_of(app_id), now_s, now_s, Cause(causes.APP_ENDED, "app ended"))
        if record.finished_s is None or (final_state and final_state != record.final_state):
            self.record(AppEnded(app_id, final_state, now_s))
            self.recast(app_id)

    def _attempt_added(self, e: ev.AttemptAdded, now_s: float) -> None:
        app = self.yarn_apps.get(e.app_id)
        if app is not None:
            self.yarn_apps[e.app_id] = replace(app, attempt_id=e.attempt_id)

    def _attempt_removed(self, e: ev.AttemptRemoved, now_s: float) -> None:
        self.asks.drop(e.app_id, e.attempt_id)

    def _ask_changed(self, e: ev.AskChanged, now_s: float) -> None:
        self.asks.put(e.ask)
        if e.ask.count > 0:
            self._arrive(e.ask.app_id, now_s)
            if e.ask.app_id in self.foreign:
                self.want_round(now_s + self.settings.settle_s)

    # ---- Agents

    def _agent_up(self, e: ev.AgentUp, now_s: float) -> None:
        app = self.yarn_apps.get(e.app_id)
        unadopted = not self.ready and e.app_id not in self.durable.leases_by_app
        if app is None or unadopted:  # else it would be told that it has no GPUs, and stop what runs on them
            self._early[e.app_id] = e
            return
        if e.user and e.user != app.user:
            self.emit(ev.SendFinish(e.app_id, f"the token is {e.user}'s, the app is {app.user}'s"))
            return
        before = self.agents.get(e.app_id)
        self.agents[e.app_id] = AgentState(
            e.demand,
            e.app_scheduler,
            e.attempt_id,
            before.jobs if before else (),
            before.rho if before else None,
        )
        self._arrive(e.app_id, now_s)
        self.recast(e.app_id)
        self._note_demand(e.app_id, e.demand.gpus)
        contention = self.contention(e.app_id, now_s)
        self.emit(ev.SendRegistered(e.app_id, contention, self.held_grants(e.app_id)))
        self._want_if_unmet(e.app_id, now_s)

    def _agent_lost(self, e: ev.AgentLost, now_s: float) -> None:
        agent = self.agents.get(e.app_id)
        if agent is not None:
            agent.connected = False
            self.stale.add(e.app_id)
        self._early.pop(e.app_id, None)
        self.rounds.app_gone(e.app_id, now_s)

    def _note_demand(self, app_id: str, gpus: int) -> None:
        record = self.durable.apps.get(app_id)
        if record is not None and gpus > record.demand_gpus:
            self.record(AppChanged(app_id, {"demand_gpus": gpus}))

    def _want_if_unmet(self, app_id: str, now_s: float) -> None:
        if app_id in self.unmet and self.round_at_s is None and self.free.count:
            since_s = self.receipts[-1]["at_s"] if self.receipts else 0.0
            self.want_round(max(now_s + self.settings.settle_s, since_s + self.settings.round_retry_s))

    def _progress(self, e: ev.ProgressReported, now_s: float) -> None:
        agent = self.agents.get(e.app_id)
        record = self.durable.apps.get(e.app_id)
        if agent is None or record is None:
            return
        grown = e.demand.gpus > agent.demand.gpus
        agent.demand, agent.jobs = e.demand, e.jobs
        if e.rho > 0:
            agent.rho = e.rho
        self.reckon(e.app_id)
        self._note_demand(e.app_id, e.demand.gpus)
        launched = self.launches.new(record, e.jobs)
        changes: dict[str, Any] = {"launched": launched} if launched else {}
        if e.demand.work_done_gpu_s > record.work_done_gpu_s * 1.05 + 1:
            changes["work_done_gpu_s"] = e.demand.work_done_gpu_s
        if changes:
            self.record(AppChanged(e.app_id, changes))
        for job_id, granted_s in self.launches.started(e.app_id, e.jobs, self.leases_of(e.app_id)):
            self.record(AllocationChanged(e.app_id, job_id, now_s, now_s - granted_s))
        if grown:
            self._want_if_unmet(e.app_id, now_s)

    def _agent_done(self, e: ev.AgentDone, now_s: float) -> None:
        if e.app_id not in self.durable.apps or self.durable.apps[e.app_id].done:
            return
        best = {"configuration": dict(e.best_configuration), "accuracy": e.best_accuracy}
        changes: dict[str, Any] = {
            "done": True,
            "message": e.message,
            "best": best if e.best_job_id else None,
            "model_path": e.model_path,
            "work_done_gpu_s": e.work_done_gpu_s,
            "final_state": "SUCCEEDED" if e.succeeded else "FAILED",
        }
        self.record(AppChanged(e.app_id, changes))
        self._end_app(e.app_id, "", now_s)

    # ---- the operator

    def _command(self, e: ev.OperatorCommand, now_s: float) -> None:
        verb = e.verb
        if verb in ("pause", "resume"):
            if verb == "resume" and self.paused:
                leases.thaw(self, now_s)
                self.want_round(now_s)
            self.record(Switched(PAUSED, verb == "pause", e.user, now_s))
        elif verb in ("drain", "undrain"):
            self.record(Switched(DRAINED + e.target, verb == "drain", e.user, now_s))
            self.stir_host(e.target)
            if verb == "undrain":
                self.want_round(now_s)
            elif self.ready and now_s >= self.recovering_until_s:  # else when what runs there is known
                self._drain(e.target, now_s)
        elif verb == "kill":
            self._kill_app(e.target, e.user, now_s)
        else:
            raise ValueError(f"unknown verb {verb!r}")

    def _exchange(self, e: ev.ExchangePosted, now_s: float) -> None:
        if self.market is not None:
            self.market.posted(e, now_s)

    def _drain(self, host: str, now_s: float) -> None:
        node = self.node_of(host)
        doing = "decommissioned" if node is not None and node.decommissioning else "drained"
        why = Cause(causes.DRAINED, f"{host} is being {doing}")
        leases.lose_next(self, self.next_on(host), now_s, why)
        here = [x for x in self.durable.leases.values() if x.gpu.host == host and x.state != REVOKING]
        taken = [x for x in here if not self.is_foreign(x.app_id)]
        leases.take_back(self, taken, now_s, now_s + self.lead_s, why)

    def _kill_app(self, app_id: str, user: str, now_s: float) -> None:
        if app_id in self.agents:
            self.emit(ev.SendFinish(app_id, f"ended by {user or 'the operator'}"))
            return
        self.doomed.add(app_id)
        for container in self.containers.values():
            if container.app_id == app_id:
                self.kill_container(container.container_id, now_s, f"ended by {user or 'the operator'}")
