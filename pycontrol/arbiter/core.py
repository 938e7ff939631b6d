"""The Arbiter: a pure state machine between YARN, the Agents and the policy.

`handle(event, now_s)` returns the effects; `take_facts()` returns the facts, to be journaled before the effects are
carried out. The Arbiter reads no clock, does no I/O and logs nothing: its driver (or the simulator) does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pycontrol.arbiter import apps, leases
from pycontrol.arbiter import placements as workers
from pycontrol.arbiter.apps import AgentEvents
from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.arbiter.round.parts import own_as_asked
from pycontrol.arbiter.round.rounds import Rounds
from pycontrol.arbiter.state import CELLS, DRAINED, KILLED, PAUSED, RESET_LIMITS, SET_LIMITS, Clerk, Holdings
from pycontrol.arbiter.supply.cell_supply import ExchangeService, downgrade, regrade
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.arbiter.validate import Inconsistent, Story, contradicted, validate
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cells.layout import Layout
from pycontrol.model import events as ev
from pycontrol.model import tags
from pycontrol.model.cluster import Mode, YarnApp
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.topology import Topology
from pycontrol.policies.by_vc import ByVirtualCluster, policies_in
from pycontrol.policies.policy_port import Policy

WATCHED_EVERY_S = 300.0
"""How often it is recorded, for accounting, that each container is seen."""
BEHIND_STEP_S = 0.5
"""A change of the lag behind the cluster's clock is recorded if it is larger than this."""


class Arbiter:
    """Shares the cluster's GPUs among apps by leases and rounds."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        durable: Durable | None = None,
        topology: Topology | None = None,
        epoch: int = 1,
        supply: Supply | None = None,
        journal_id: str = "",
        holdings: Holdings | None = None,
    ) -> None:
        """`journal_id` and `epoch` (how often the journal was opened) make the ids of directives unique.

        `holdings`: a copy, for readers (`Holdings.copy`), with its own durable state and supply.
        """
        self.holdings = s = holdings or Holdings(settings, durable or Durable(), topology, supply)
        self.clerk = Clerk(s, epoch, journal_id)
        self.settings, self.supply, self.policy_name = s.settings, s.supply, policy.name
        self.ledger, self.durable, self.timer, self.receipts = s.ledger, s.durable, s.timer, s.receipts
        self.cluster, self.agents, self.workers, self.gpus = s.cluster, s.agents, s.workers, s.gpus
        self.exchange_service = ExchangeService(s, self.clerk)
        self.story = Story()
        self.rounds = Rounds(s, self.clerk, policy)
        self.agent_events = AgentEvents(s, self.clerk, self.rounds.reports, self.rounds.app_gone)
        self.handlers: dict[type[Any], Callable[[Any, float], None]] = {
            ev.ClusterSnapshot: self._snapshot,
            ev.NodeUp: self._node_up,
            ev.NodeDown: self._node_down,
            ev.ClusterChanged: self._changed,
            ev.AppAdded: self._app_added,
            ev.AppUpdated: self._app_updated,
            ev.AppRemoved: self._app_removed,
            ev.AttemptAdded: lambda e, now: self.cluster.attempt_began(e.app_id, e.attempt_id),
            ev.AttemptRemoved: lambda e, now: self.cluster.attempt_ended(e.app_id, e.attempt_id),
            ev.AskChanged: self._ask_changed,
            ev.ContainerUp: lambda e, now: leases.container_up(self.holdings, self.clerk, e.container, e.running, now),
            ev.ContainerGone: lambda e, now: leases.container_gone(self.holdings, self.clerk, e.container_id, now),
            ev.DirectiveDone: lambda e, now: workers.directive_done(self.holdings, self.clerk, e, now),
            ev.ClusterReady: self._ready,
            ev.ClusterLost: self._lost,
            ev.AgentUp: self.agent_events.up,
            ev.AgentLost: self.agent_events.lost,
            ev.RhoReported: self.rounds.rho_reported,
            ev.BidReceived: self.rounds.bid_received,
            ev.UsePlanned: self.agent_events.message,
            ev.GpusReleased: self.agent_events.message,
            ev.ProgressReported: self.agent_events.message,
            ev.AgentDone: self.agent_events.message,
            ev.OperatorCommand: self._command,
            ev.ExchangePosted: self.exchange_service.posted,
            ev.StandbyRestored: self._restore,
            ev.Tick: lambda e, now: None,
            ev.ClockStepped: self._clock_stepped,
            ev.ClusterTime: self._cluster_time,
            ev.Decided: self.rounds.decided,
        }

    def handle(self, event: ev.Event, now_s: float) -> list[ev.Effect]:
        """Handles one event; returns the effects in order."""
        return self.handle_all((event,), now_s)

    def handle_all(self, events: Iterable[ev.Event], now_s: float) -> list[ev.Effect]:
        """Handles the events of one moment in order; returns all their effects in order."""
        self.holdings.event_s, before = now_s, len(self.ledger.facts)
        effects = self._cycle(events, now_s)
        for thing in (*self.ledger.facts[before:], *effects):
            self.story.tell(thing)
        if self.settings.validate:
            self.validate(now_s)
        return effects

    def check(self, told: Sequence[facts.Fact], effects: Sequence[ev.Effect]) -> None:
        """Raises `Inconsistent`, with the story, if facts (`told`) and effects that were taken contradict the state."""
        for gpu, problem in contradicted(self.holdings, told, effects) if told or effects else ():
            raise Inconsistent(problem, gpu, self.story)

    def validate(self, now_s: float) -> None:
        """Raises `Inconsistent`, with the story, if parts of the state contradict each other."""
        rounds = self.rounds
        validate(self.holdings, now_s, self.story, rounds.eligibility.validate(), rounds.candidates.validate())

    def _cycle(self, events: Iterable[ev.Event], now_s: float) -> list[ev.Effect]:
        """Handles the events of one moment, in these steps.

        1. The events update the views of the cluster, the apps and the Agents.
        2. If containers were adopted, the cells are told of all leases again.
        3. Recovery ends when its time has passed; machines that were avoided long enough are tried again.
        4. Due leases end, lapse or are renewed; boosts end.
        5. Gangs whose asks have arrived and whose GPUs are free are placed.
        6. The cells learn which grants lost some of their GPUs; exchange deals end and are made; new machines are
           announced to Agents; open-ended leases get ends, if some may have to.
        7. A round begins or continues (`Rounds`).
        8. It is told which budgets of accounts are nearly used, used up, or free again, and for accounting, on how
           many GPUs containers run whose GPUs nobody leases.
        """
        tell = self.story.tell
        tell(now_s)
        for event in events:
            tell(event)
            self.handlers[type(event)](event, now_s)
        if self.holdings.groups.outdated:
            self._resync_cells(now_s)
            for app_id in self.agents.unmanaged_apps:
                own_as_asked(self.holdings, self.clerk, app_id)
        if self.cluster.recovering_until_s:
            self._end_recovery(now_s)
        if self.cluster.refusals.lapse(now_s):
            self.clerk.update_closed()
            self.clerk.request_round(now_s)
        look_s = self.gpus.next_look_s()
        if look_s is not None and look_s <= now_s:
            leases.expire(self.holdings, self.clerk, now_s)
        if self.durable.boosts:
            apps.expire_boosts(self.holdings, self.clerk, now_s)
        if self.workers.pending:
            workers.place_ready(self.holdings, self.clerk, now_s)
        if self.holdings.groups.shrunk:
            downgrade(self.holdings, self.clerk, self.holdings.groups.tell_shrunk(self.durable, self.supply))
        self.exchange_service.tick(now_s)
        if self.clerk.hosts_due_s is not None and self.clerk.hosts_due_s <= now_s:
            self.clerk.announce_hosts()
        if self.clerk.ends_open:
            self.clerk.ends_open = False
            leases.set_expiry(self.holdings, self.clerk, now_s + self.holdings.lead_s)
        self.rounds.tick(now_s)
        if (limits := self.holdings.ledger.limits).in_force and limits.look_s <= now_s:
            self._watch_budgets(now_s)
        if self.cluster.unleased_changed:
            self._count_unleased(now_s)
        return self.clerk.take_effects()

    def take_facts(self) -> list[facts.Fact]:
        """Returns the facts since the last call, to be journaled before the effects are carried out."""
        return self.ledger.take()

    def next_wake_s(self, now_s: float) -> float | None:
        """When to send a `Tick` if no event comes earlier; None: no Tick is needed."""
        first_s = leases.next_wake_s(self.holdings, now_s)
        for at_s in (
            workers.next_wake_s(self.holdings) if self.workers.pending else None,
            self.rounds.next_wake_s(now_s),
            self.cluster.refusals.next_end_s(),
            self.clerk.hosts_due_s,
            min((b.until_s for b in self.durable.boosts.values()), default=None),
            self.exchange_service.next_wake_s(),
            self.holdings.limits.look_s if math.isfinite(self.holdings.limits.look_s) else None,
        ):
            if at_s is not None and (first_s is None or at_s < first_s):
                first_s = at_s
        return first_s

    # ---- the cluster

    def _restore(self, e: ev.StandbyRestored, now_s: float) -> None:
        """Imports the state of another control plane, if this one's is empty and the data can be read."""
        if self.durable.is_empty and _readable(e.data):
            self.clerk.record(facts.Restored(e.data, now_s))
            self.clerk.epoch = max(self.clerk.epoch, e.epoch)

    def _snapshot(self, e: ev.ClusterSnapshot, now_s: float) -> None:
        self._tell_watched(now_s)
        resumed = self.cluster.replaced(e, now_s, self.settings.recovery_s + self.settings.lease_s)
        self.clerk.kills_sent.clear()
        for gpu in self.durable.leases:
            self.cluster.machines.note(gpu)
        self.clerk.announce_hosts()
        self.clerk.update_closed()
        self.clerk.reindex_all()
        self.clerk.ends_open = True
        self._resync_cells(now_s)
        for app in e.apps:
            self._note_app(app, now_s)
        for app_id in self.durable.live:
            self.clerk.refresh_kind(app_id)
        workers.forget_directives(self.holdings, self.clerk)
        if e.ready:
            self._reconcile(now_s, resumed)
        self.agent_events.admit_all(now_s)

    def _ready(self, _: ev.ClusterReady, now_s: float) -> None:
        """The ResourceManager has recovered: reconciles leases with the running containers."""
        if self.cluster.seen and not self.cluster.ready:
            self._reconcile(now_s, resumed=False)

    def _reconcile(self, now_s: float, resumed: bool) -> None:
        """Reconciles leases with the running containers, and drops apps that YARN no longer knows.

        `resumed`: the ResourceManager did not restart, so Agents and nodes need no time to come back.
        """
        self.cluster.became_ready()
        if not resumed:
            self.cluster.recovers_until(now_s + self.settings.recovery_s)
        heard_of = {*self.durable.live, *self.agents, *self.agents.terminating, *self.cluster.asks.apps()}
        for app_id in sorted(heard_of - self.cluster.apps.keys()):
            apps.end(self.holdings, self.clerk, app_id, "UNKNOWN", now_s)
            self._forget(app_id, now_s)
        for app_id in self.cluster.asks.apps():
            apps.arrive(self.holdings, self.clerk, app_id, now_s)
        for container in list(self.cluster.containers.values()):
            if container.plain:
                leases.give_way(self.holdings, self.clerk, container, now_s)
            elif container.gpus and not container.ending:
                apps.arrive(self.holdings, self.clerk, container.app_id, now_s)
                leases.adopt(self.holdings, self.clerk, container, now_s)
            if container.app_id in self.agents.terminating:
                self.clerk.kill_container(container.container_id, now_s, "ended by the operator")
        workers.forget_lost(self.holdings, self.clerk)
        leases.drop_unplanned(self.holdings, self.clerk)
        for lease in list(self.durable.leases.each()):
            if lease.container_id and lease.container_id not in self.cluster.containers:
                self.clerk.record(facts.LeaseIdle(lease.gpus, now_s))
        self.agent_events.admit_all(now_s)
        if resumed and not self.cluster.recovering_until_s:
            self._check_hosts(now_s)

    def _resync_cells(self, now_s: float) -> None:
        """Tells the cells of all leases again."""
        self.rounds.cells_changed(now_s)
        self._update_virtual_clusters(now_s)
        self.exchange_service.restore(now_s)
        regrade(self.holdings, self.clerk, self.holdings.groups.tell_all(self.durable, self.supply))

    def _update_virtual_clusters(self, now_s: float) -> None:
        """Moves apps in queues that now belong to another virtual cluster, or to none."""
        for app_id, app in list(self.durable.live.items()):
            if (vc := self.supply.vc_of(app.queue)) != app.vc:
                self.clerk.record(facts.AppMoved(app_id, vc, now_s))
                self.clerk.refresh_kind(app_id)

    def reconfigure(
        self, layout: Layout, now_s: float, policies: Mapping[str, Policy] | None = None, user: str = ""
    ) -> list[str]:
        """Changes the assignment of cells and the policies of virtual clusters; running containers continue.

        Returns the apps with guaranteed GPUs that are now borrowed. Raises ValueError without virtual clusters.
        """
        self.rounds.abandon(now_s)
        former = self.supply.layout
        try:
            self.supply.reconfigure(layout, now_s)
            if not self.cluster.seen:  # else deals that the first snapshot will restore would pass for ended
                self.exchange_service.restore(now_s)
            self._update_virtual_clusters(now_s)
            groups = self.holdings.groups.tell_all(self.durable, self.supply)
        except Exception:
            if former is not None:
                self.supply.reconfigure(former, now_s)
            self._resync_cells(now_s)
            raise
        if policies is not None:
            self.rounds.policy = ByVirtualCluster(policies_in(self.rounds.policy)[0], policies)
        self.exchange_service.save()
        borrowing = sorted({x.app_id for x in self.durable.claims() if x.guaranteed and x.grant_id in groups})
        regrade(self.holdings, self.clerk, groups)
        self.clerk.record(facts.Switched(CELLS, False, user, now_s))
        return borrowing

    def _clock_stepped(self, _: ev.ClockStepped, now_s: float) -> None:
        """The clock jumped forward: no lease ends before two leads have passed, as apps could not use the time."""
        if not leases.suspended(self.holdings, now_s):
            leases.extend_after_pause(self.holdings, self.clerk, now_s)

    def _cluster_time(self, e: ev.ClusterTime, now_s: float) -> None:
        """Records for the audit how far this clock is behind: a message from the future proves that it is."""
        behind_s = max(0.0, e.at_s - now_s)
        if abs(behind_s - self.durable.behind_s) > BEHIND_STEP_S:
            self.clerk.record(facts.ClockBehind(behind_s))
        self._tell_watched(now_s, WATCHED_EVERY_S)

    def _tell_watched(self, now_s: float, least_s: float = 0.0) -> None:
        """Records since when each container was seen, if that is longer than so many seconds."""
        since_s = self.cluster.watched_since_s
        if since_s is not None and now_s - since_s > least_s:
            self.clerk.record(facts.Watched(since_s, now_s))
            self.cluster.told_watched(now_s)

    def _count_unleased(self, now_s: float) -> None:
        """Records for each user and queue on how many GPUs containers run whose GPUs nobody leases, if it changed."""
        kind = "watched" if self.cluster.switch.mode is Mode.SHADOW else "plain"
        running = Counter[tuple[str, str, str, str]]()
        for x in self.cluster.unleased.values():
            app, node = self.cluster.apps.get(x.app_id), self.cluster.nodes.get(x.node_id)
            gpu_type = self.holdings.topology.type_of(node.host) if node is not None else ""
            of = ("", "") if app is None else (app.user, app.queue)
            running[(*of, kind, gpu_type)] += x.unleased_gpus
        for key in sorted(running.keys() | self.durable.plain.keys()):
            if running[key] != self.durable.plain.get(key, 0):
                self.clerk.record(facts.PlainUse(*key, running[key], now_s))
        self.cluster.told_unleased()

    def _end_recovery(self, now_s: float) -> None:
        """When the recovery time has passed: leases on machines that did not come back end, the others continue."""
        if not self.cluster.settled(now_s):
            return
        self.cluster.recovers_until(0.0)
        leases.extend_after_pause(self.holdings, self.clerk, now_s)
        self._check_hosts(now_s)

    def _check_hosts(self, now_s: float) -> None:
        """Ends or revokes leases on machines that are gone, bad or drained."""
        for host in {g.host for g in self.durable.leases} - self.cluster.node_at.keys():
            self._lose_host(host, now_s, "did not come back")
        self.cluster.forget_gone()
        leases.evacuate_bad_gpus(self.holdings, self.clerk, now_s, self.rounds.eligibility.closed_hosts)
        for host in filter(self.holdings.drained, list(self.cluster.node_at)):
            self._drain(host, now_s)
        self.clerk.request_round(now_s)

    def _lost(self, _: ev.ClusterLost, now_s: float) -> None:
        self._tell_watched(now_s)
        self.cluster.lost()

    def _node_up(self, e: ev.NodeUp, now_s: float) -> None:
        for node in self.cluster.machines.others(e.node):
            self._node_down(ev.NodeDown(node.node_id, "replaced"), now_s)
        self.cluster.node_up(e.node)
        self.clerk.machine_changed(e.node.host, now_s)
        self.clerk.update_closed(e.node.host)
        self.clerk.reindex_host(e.node.host)
        if self.cluster.settled(now_s):
            on = self.cluster.machines.on(e.node.host)
            leases.evacuate_bad_gpus(self.holdings, self.clerk, now_s, self.rounds.eligibility.closed_hosts, on)
            if e.node.decommissioning:
                self._drain(e.node.host, now_s)
        self.clerk.request_round(now_s + self.settings.settle_s)

    def _node_down(self, e: ev.NodeDown, now_s: float) -> None:
        node = self.cluster.node_down(e.node_id, e.reason)
        if node is not None:
            self.clerk.update_closed(node.host)
            self.clerk.reindex_host(node.host)
        if node is not None and self.cluster.settled(now_s):
            self._lose_host(node.host, now_s, e.reason or "lost")
            self.cluster.machines.forget({node.host} - self.cluster.down.keys())

    def _changed(self, e: ev.ClusterChanged, now_s: float) -> None:
        self.cluster.changed(e.queues, e.down)
        if self.cluster.settled(now_s):
            self.cluster.forget_gone()
        self.agents.changed(self.durable.live)  # their limits
        self.clerk.request_round(now_s + self.settings.settle_s)

    def _lose_host(self, host: str, now_s: float, reason: str) -> None:
        why = Cause(EndReason.NODE_LOST, f"node {host} {reason}")
        on = self.cluster.machines.on(host)
        leases.cancel_reservations(self.holdings, self.clerk, self.durable.reservations.parts(on), now_s, why)
        lost = grouped((lease.app_id, gpu) for lease in self.durable.leases.parts(on) for gpu in lease.gpus)
        for app_id, gpus in lost.items():
            gangs = [gang for gang in self.holdings.gangs_of(app_id) if not set(gpus).isdisjoint(gpus_in(gang))]
            self.clerk.revoke_notice(app_id, gpus, now_s, why.text, now_s)
            for gpu in gpus:
                for worker in (self.workers.at.get(gpu), self.workers.placing.get(gpu)):
                    if worker is not None:
                        self.clerk.drop_worker(worker)
            leases.end(self.holdings, self.clerk, gpus, now_s, why)
            for gang in gangs:
                grant = leases.mend(self.holdings, self.clerk, gang, gpus, now_s, self.rounds.eligibility.closed_hosts)
                if grant:
                    self.clerk.emit(grant)
        for container_id in self.cluster.containers_on(host):
            leases.container_gone(self.holdings, self.clerk, container_id, now_s)

    # ---- apps and their asks

    def _app_added(self, e: ev.AppAdded, now_s: float) -> None:
        if e.app.app_id not in self.cluster.apps or e.app.attempt_id:
            self._note_app(e.app, now_s)
        self.agent_events.admit(e.app.app_id, now_s)

    def _note_app(self, app: YarnApp, now_s: float) -> None:
        if apps.note(self.holdings, self.clerk, app, now_s):
            self._resync_cells(now_s)

    def _app_updated(self, e: ev.AppUpdated, now_s: float) -> None:
        if e.app.app_id in self.cluster.apps:
            self._note_app(e.app, now_s)

    def _app_removed(self, e: ev.AppRemoved, now_s: float) -> None:
        apps.end(self.holdings, self.clerk, e.app_id, e.final_state, now_s)
        self._forget(e.app_id, now_s)

    def _forget(self, app_id: str, now_s: float) -> None:
        """YARN has removed the application: only its record and its leases remain."""
        self.cluster.app_gone(app_id)
        self.agent_events.forget(app_id)
        self.rounds.app_gone(app_id, now_s)
        self.clerk.refresh_kind(app_id)
        self.rounds.candidates.forget(app_id)

    def _ask_changed(self, e: ev.AskChanged, now_s: float) -> None:
        app_id, more = e.ask.app_id, e.ask.count > 0
        self.cluster.asked(e.ask, now_s)
        if more:
            apps.arrive(self.holdings, self.clerk, app_id, now_s)
        frees = tags.is_interactive(self.cluster.apps.get(app_id))  # its user's other apps may have what it leaves
        if app_id in self.agents.unmanaged_apps and (more or frees):
            self.clerk.request_round(now_s + self.settings.settle_s)

    # ---- the operator

    def _command(self, e: ev.OperatorCommand, now_s: float) -> None:
        verb = e.verb
        if verb in ("pause", "resume"):
            if verb == "resume" and self.holdings.paused:
                leases.extend_after_pause(self.holdings, self.clerk, now_s)
                self.clerk.request_round(now_s)
            self.clerk.record(facts.Switched(PAUSED, verb == "pause", e.user, now_s))
        elif verb in ("drain", "undrain"):
            self.clerk.record(facts.Switched(DRAINED + e.target, verb == "drain", e.user, now_s))
            self.clerk.reindex_host(e.target)
            if verb == "undrain":
                self.clerk.request_round(now_s)
            elif self.cluster.settled(now_s):  # else in `_check_hosts`
                self._drain(e.target, now_s)
        elif verb in (SET_LIMITS, RESET_LIMITS):
            self.clerk.record(facts.LimitsSet(e.target, e.values if verb == SET_LIMITS else None, e.user, now_s))
            self.agents.changed(self.durable.live)
            self.clerk.request_round(now_s)
        elif verb == "boost":
            apps.boost(self.holdings, self.clerk, e.target, e.for_s, e.user, now_s)
        elif verb == "kill":
            self.clerk.record(facts.Switched(KILLED + e.target, False, e.user, now_s))
            self._kill_app(e.target, e.user, now_s)

    def _watch_budgets(self, now_s: float) -> None:
        """Tells what is used of budgets; a budget that is free again lets apps start."""
        news, look_s = list(self.holdings.limits.news(now_s)), self.holdings.limits.look_s
        for spent in news:
            self.clerk.record(spent)
            if not spent.share:
                self.clerk.request_round(now_s)
        self.holdings.limits.look_s = look_s

    def _drain(self, host: str, now_s: float) -> None:
        node = self.cluster.node_at.get(host)
        doing = "decommissioned" if node is not None and node.decommissioning else "drained"
        why = Cause(EndReason.DRAINED, f"{host} is being {doing}")
        on = self.cluster.machines.on(host)
        leases.cancel_reservations(self.holdings, self.clerk, self.durable.reservations.parts(on), now_s, why)
        here = [x for x in self.durable.leases.parts(on) if x.state != REVOKING]
        s = self.holdings
        taken = [x for x in here if not s.is_unmanaged(x.app_id) or not any(map(s.in_use, x.gpus))]
        leases.revoke(self.holdings, self.clerk, taken, now_s, now_s + self.holdings.lead_s, why)

    def _kill_app(self, app_id: str, user: str, now_s: float) -> None:
        if app_id in self.agents:
            self.clerk.emit(ev.SendFinish(app_id, f"ended by {user or 'the operator'}"))
            return
        self.agents.end_by_operator(app_id)
        apps.take_all(self.holdings, self.clerk, app_id, now_s)
        self.clerk.request_round(now_s + self.settings.settle_s)
        for container in self.cluster.containers.values():
            if container.app_id == app_id:
                self.clerk.kill_container(container.container_id, now_s, f"ended by {user or 'the operator'}")


def _readable(data: Mapping[str, Any]) -> bool:
    """Whether the data has the form of `Durable.kept`."""
    try:
        Durable.load(data)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return True
