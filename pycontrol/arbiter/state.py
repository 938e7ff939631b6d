"""What the Arbiter knows, who holds which GPUs by that, and the clerk who alone writes it down and sends effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Container as Contains

from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.ledger.durable import Durable, Ledger
from pycontrol.arbiter.ledger.lease import REVOKING, Claim, Lease, Reservation, gpus_in, part
from pycontrol.arbiter.ledger.limits import LimitBook, places
from pycontrol.arbiter.supply.gpu_supply import Groups, Supply
from pycontrol.arbiter.views.agent_reports import AgentsView
from pycontrol.arbiter.views.cluster_view import ClusterView
from pycontrol.arbiter.views.gpu_index import GpuIndex, Limit, limit, pick
from pycontrol.arbiter.views.settings import RoundTimer, Settings
from pycontrol.arbiter.views.workers import PlannedWorker, WorkerPlans
from pycontrol.model import tags
from pycontrol.model.auction import Contention, Gang, as_gang, gang_of
from pycontrol.model.cluster import Container, Node
from pycontrol.model.events import Effect, Kill, SendHosts, SendRevoke
from pycontrol.model.grouping import grouped, summed
from pycontrol.model.reasons import Cause, Pending, Reason
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu, Topology

RECEIPTS_KEPT = 200
KILL_RETRY_S = 5.0
HOUR_S = 3600.0
PAUSED = "paused"
DRAINED = "drained:"
KILLED = "killed:"
CELLS = "cells"
SET_LIMITS, RESET_LIMITS = "budget-set", "budget-reset"
COPIED = "cluster", "agents", "gpus", "groups", "workers", "timer", "receipts"
"""The parts that a picture copies with their `copy()`."""
LOSES = frozenset({facts.LeaseEnded, facts.LeaseRevoking, facts.NextDropped})
"""Facts after which an app holds fewer GPUs."""
ENDS_OPEN = frozenset({facts.AppMoved, facts.LeaseBorrowed, facts.LimitsSet})
"""Facts after which open-ended leases get ends again, as a round may have to take what they hold."""


class Holdings:
    """The views, the ledger and the index, and what follows from them. It answers; the `Clerk` and owners change it."""

    def __init__(
        self, settings: Settings, durable: Durable, configured: Topology | None = None, supply: Supply | None = None
    ) -> None:
        self.settings, self.durable, self.ledger = settings, durable, Ledger(durable, settings.accounts)
        self.limits.partition_of, self.limits.labelled = self.partition_of, self.labelled
        self.lead_s = settings.lead
        """`Settings.lead`, cached."""
        self.supply: Supply = supply or Supply(self.pick)
        self.cluster, self.agents = ClusterView(configured), AgentsView()
        self.workers, self.groups = WorkerPlans(), Groups()
        self.gpus = GpuIndex(settings.grant_timeout_s, self.lead_s)
        self.timer = RoundTimer(settings.round_retry_s)
        self.receipts: deque[Receipt] = deque(maxlen=RECEIPTS_KEPT)
        self.event_s = 0.0
        """Time of the event that is being handled."""
        self.held = ""
        """Why no event is handled any more; empty while all is well."""

    def copy(self, durable: Durable) -> Holdings:
        """A copy for readers with this copy of the durable state."""
        other = Holdings(self.settings, durable, supply=self.supply)
        for name in COPIED:
            setattr(other, name, getattr(self, name).copy())
        other.event_s, other.held = self.event_s, self.held
        return other

    @property
    def limits(self) -> LimitBook:
        """The limits of accounts."""
        return self.ledger.limits

    def limit(self, lease: Lease) -> Limit | None:
        """When an unmanaged app's lease is revoked for its own sake, and why; None if it is not."""
        if lease.app_id not in self.agents.unmanaged_apps:
            return None
        node = self.cluster.node_at.get(lease.gpus[0].host)
        return limit(lease, self.cluster.apps.get(lease.app_id), node, self.settings.interactive_idle_s)

    def renews_itself(self, lease: Lease) -> bool:
        """Whether no round takes the lease from its app: one without an Agent whose containers may stay.

        On a machine that is drained they all stay, since nobody else could have their GPUs.
        """
        app_id, how = lease.app_id, self.settings.standin_revocable
        if app_id not in self.agents.unmanaged_apps:
            return False
        if all(self.drained(gpu.host) for gpu in lease.gpus):
            return True
        if self.over(app_id, self.event_s):
            return False
        container, app = self.cluster.containers.get(lease.container_id), self.durable.apps[app_id]
        if how is False or app.queue in self.settings.exempt_queues or (container is not None and container.is_master):
            return True
        if how == "auto" and not lease.guaranteed:
            return True  # its owner takes it back at once; a round would keep it for another borrower until its end
        recent = sum(at_s > lease.end_s - HOUR_S for at_s in app.preempted_s)
        return how == "auto" and recent >= self.settings.preemptions_per_hour

    def in_use(self, gpu: Gpu) -> bool:
        """Whether a container uses the GPU, or is being placed there."""
        return gpu in self.cluster.container_at or gpu in self.workers.placing

    def free_to_lease(self, gpu: Gpu) -> bool:
        """Whether a GPU without a lease may be leased now."""
        return gpu not in self.cluster.container_at and self.usable(gpu) and gpu.host not in self.cluster.closed

    def usable_on(self, node: Node | None) -> int:
        """How many GPUs of a node may be leased at all."""
        if node is None or self.drained(node.host) or node.host in self.cluster.closed:
            return 0
        return len(node.good_gpus)

    def usable(self, gpu: Gpu) -> bool:
        """Whether the GPU may be leased at all: its node is up and not drained, and it is in order."""
        return gpu.host in self.cluster.node_at and not self.cluster.bad(gpu) and not self.drained(gpu.host)

    @property
    def topology(self) -> Topology:
        """The machines that are up, without bad GPUs; racks and types as configured."""
        return self.cluster.machines.topology

    def drained(self, host: str) -> bool:
        """Whether the operator drains the host, or YARN decommissions it."""
        node = self.cluster.node_at.get(host)
        return DRAINED + host in self.durable.switches or (node is not None and node.decommissioning)

    @property
    def paused(self) -> bool:
        """Whether the operator paused rounds, which suspends leases."""
        return PAUSED in self.durable.switches

    def usable_gpus(self) -> Iterator[Gpu]:
        """The good GPUs of nodes that are up, not drained and take containers."""
        return (Gpu(n.host, i) for n in self.cluster.nodes.values() if self.usable_on(n) for i in n.good_gpus)

    def may_be_reserved(self, gpu: Gpu) -> bool:
        """Whether a GPU that is leased now may be promised to its next app."""
        return gpu not in self.durable.reservations and self.usable(gpu)

    def available_s(self, gpu: Gpu, now_s: float) -> float:
        """The latest time at which a GPU becomes free; 0: it is free."""
        present = self.durable.leases.get(gpu)
        return 0.0 if present is None else max(present.end_s, now_s)

    def pick(self, gang: Gang) -> list[Gpu]:
        """Free GPUs on the gang's hosts, then those that come free first; none if there are too few."""
        gpus: list[Gpu] = []
        for host, n in gang:
            machine, taken = self.topology.machines.get(host), self.gpus.revoking
            coming = [g for g in self.cluster.machines.on(host) if g in taken and self.may_be_reserved(g)]
            slot_gpus = machine.slot_gpus if machine is not None else 0
            at = sorted((self.available_s(gpu, self.event_s), gpu) for gpu in coming)
            here = pick(self.gpus.free.on(host), at, n, slot_gpus)
            if len(here) < n:
                return []
            gpus += here
        return gpus

    def boost_of(self, app_id: str) -> facts.Boosted | None:
        """The boost of an app, its own or its user's."""
        boosts = self.durable.boosts
        if not boosts:
            return None
        app = self.durable.apps.get(app_id) or self.cluster.apps.get(app_id)
        return boosts.get(facts.APP + app_id) or (boosts.get(facts.USER + app.user) if app is not None else None)

    def is_unmanaged(self, app_id: str) -> bool:
        """Whether YARN knows the app, and it neither has an Agent nor is expected to register one."""
        app = self.cluster.apps.get(app_id)
        return app is not None and app_id not in self.agents and not tags.expects_agent(app)

    def holding(self, app_id: str) -> int:
        """GPUs that the app holds or has reserved, less those being revoked."""
        return self.durable.held.get(app_id, 0)

    def gang_key(self, lease: Claim, gpu: Gpu) -> str:
        """The gang of a GPU: the job that uses it, else the lease's own gang, else the grant."""
        worker = self.workers.at.get(gpu)
        if worker is not None and worker.app_id == lease.app_id:
            return f"job {worker.plan.job_id}"
        if isinstance(lease, Lease) and lease.job_id:
            return f"job {lease.job_id}"
        return lease.gang or lease.grant_id

    def gangs_of(self, app_id: str) -> list[list[Lease]]:
        """The app's leases that are not being revoked, gang by gang; a lease with several jobs is in each's gang."""
        gangs: dict[str, list[Lease]] = {}
        for lease in self.durable.leases.of(app_id):
            if lease.state != REVOKING:
                mine = self._by_gang(lease)
                for key, gpus in mine.items():
                    gangs.setdefault(key, []).append(lease if len(mine) == 1 else part(lease, gpus))
        return list(gangs.values())

    def _by_gang(self, lease: Lease) -> dict[str, list[Gpu]]:
        """The GPUs of a lease by the keys of their gangs, several where the app plans several jobs on one grant."""
        at, first = self.workers.at, lease.gpus[0]
        worker = at.get(first)
        if len(lease.gpus) == 1 or all(at.get(gpu) is worker for gpu in lease.gpus):
            return {self.gang_key(lease, first): list(lease.gpus)}
        return grouped((self.gang_key(lease, gpu), gpu) for gpu in lease.gpus)

    def gang_at(self, gpu: Gpu) -> list[Lease]:
        """The leases of the gang that has the GPU; none if it has no lease, or one that is being revoked."""
        lease = self.durable.leases.get(gpu)
        gangs = self.gangs_of(lease.app_id) if lease is not None else []
        return next((gang for gang in gangs if gpu in gpus_in(gang)), [])

    def unsaved_s(self, gang: Iterable[Lease]) -> float:
        """Seconds that a gang would train again if it stopped now: since the newest checkpoint that its workers told,
        else since its launch.

        A checkpoint that is told only makes its gang a likelier victim, so it needs no proof.
        """
        seen = [0.0 if x.started_s is None else max(x.started_s, self._saved_s(x)) for x in gang]
        return max(0.0, self.event_s - max(seen)) if any(seen) else 0.0

    def unsaved_gpu_s(self, gang: Collection[Lease]) -> float:
        """The same in GPU-seconds."""
        return len(gpus_in(gang)) * self.unsaved_s(gang)

    def _saved_s(self, lease: Lease) -> float:
        worker = self.workers.at.get(lease.gpus[0])
        return worker.saved_s if worker is not None and worker.app_id == lease.app_id else 0.0

    def retained_gangs(self, app_id: str, ending: Contains[Gpu], private: bool = False) -> tuple[Gang, ...]:
        """The app's gangs that are not on offer: leased and reserved ones.

        `private`: only guaranteed gangs, counted on the virtual cluster's own machines.
        """
        gangs = [g for g in self.gangs_of(app_id) if not any(gpu in ending for x in g for gpu in x.gpus)]
        mine = self.durable.reservations.of(app_id)
        coming = grouped((x.gang or x.grant_id, x) for x in mine) if mine else {}
        claims: list[list[Lease] | list[Reservation]] = [*gangs, *coming.values()]
        return tuple(
            self.places(gpus_in(gang), private) for gang in claims if not private or all(x.guaranteed for x in gang)
        )

    def places(self, gpus: Iterable[Gpu], private: bool) -> Gang:
        """The GPUs counted by host, or if `private` by the virtual cluster's machine."""
        if not private:
            return as_gang(gpus)
        return gang_of(summed((self.supply.machine_of(gpu), 1) for gpu in gpus))

    def borrowing(self, app_id: str) -> int:
        """GPUs that the app borrows or will borrow, less those being revoked."""
        return self.durable.table.borrowed.get(app_id, 0)

    def contention(self, app_id: str, now_s: float) -> Contention:
        """What the app's Agent needs to compute rho."""
        app = self.durable.apps[app_id]
        n_avg = self.durable.n_avg(app_id, now_s)
        return Contention(self.gpus_of(app.vc), n_avg, now_s, app.submitted_s, self.lease_s_of(app.vc))

    def f_of(self, vc: str) -> float:
        """The fairness knob f of a virtual cluster."""
        own = self.supply.terms(vc).f
        return self.settings.f if own is None else own

    def lease_s_of(self, vc: str) -> float:
        """The lease length of a virtual cluster's apps, seconds."""
        own = self.supply.terms(vc).lease_s
        return self.settings.lease_s if own is None else own

    def gpus_of(self, vc: str) -> int:
        """R_C of a virtual cluster's apps; without virtual clusters, all GPUs of the cluster."""
        return self.supply.gpus_of(vc) or self.cluster.machines.gpus

    def speed_of(self, gpu: Gpu) -> float:
        """The GPUs of the reference type for which a GPU counts in budgets."""
        return self.settings.gpu_speeds.get(self.topology.type_of(gpu.host), 1.0) if self.settings.gpu_speeds else 1.0

    def labelled(self) -> bool:
        """Whether nodes have labels."""
        return any(self.cluster.machines.topology.gpus_in)

    def partition_of(self, app_id: str) -> str:
        """The partition that the app's GPUs are in, or would be."""
        if not self.labelled():
            return ""
        nodes = (self.cluster.node_at.get(x.gpus[0].host) for x in self.durable.leases.of(app_id))
        known = (x.partition for x in (*nodes, *self.cluster.asks.of(app_id).values()) if x is not None)
        return next((x for x in known if x is not None), self.cluster.default_partition(app_id))

    def queue_rooms(self, app_id: str) -> dict[str, int]:
        """Maximum of the app's queue or of one above, or limit of its user there -> GPUs that the app may still get.

        Those are in its partition. As in YARN, a user below the limit may exceed it, by one gang. A room is negative if
        the limit was lowered below what is held, or the app was moved.
        """
        app, found = self.durable.apps[app_id], dict[str, int]()
        queue = leaf = self.cluster.queues.get(app.queue)
        if leaf is None:
            return found
        partition = self.partition_of(app_id)
        *names, user = places(app.queue, app.user, partition)
        gpus = self.cluster.machines.topology.gpus_in.get(partition, 0)
        for name in names:
            if queue is None or (most := queue.share(partition).max_capacity) >= 1.0:
                break
            found[name] = int(most * gpus + 1e-9) - self.limits.held_in(name)
            queue = self.cluster.queues.get(queue.path.rpartition(".")[0])
        if 0 <= (most := leaf.user_limit_factor * leaf.share(partition).capacity) < 1.0:
            found[user] = int(most * gpus + 1e-9) + self._gang_gpus(app_id) - self.limits.held_in(user)
        return found

    def _gang_gpus(self, app_id: str) -> int:
        """GPUs that the app gets at once: a gang, or a container of one without an Agent."""
        agent = self.agents.get(app_id)
        asked = (x.gpus for x in self.cluster.asks.of(app_id).values())
        return agent.demand.gang_gpus if agent is not None else max(asked, default=0)

    def rooms(self, app_id: str, now_s: float) -> dict[str, int]:
        """Limit that the app counts for -> GPUs that it may still get."""
        limits = self.limits
        of_accounts = limits.rooms(self.durable.apps[app_id], now_s) if limits.in_force else {}
        return {**of_accounts, **self.queue_rooms(app_id)}

    def full(self, app_id: str, gpus: int, now_s: float) -> Reason | None:
        """Which limit keeps the app from so many more GPUs; None: none does."""
        for name, room in self.rooms(app_id, now_s).items():
            if room < max(1, gpus):
                left = f", {room} GPUs left for gangs of {gpus}" if room > 0 else ""
                if name not in self.limits.in_force:
                    return Reason(Pending.QUEUE_LIMIT, f"{name}{left}")
                return Reason(Pending.ACCOUNT_LIMIT, f"{self.limits.reached(name, now_s)}{left}")
        return None

    def over(self, app_id: str, now_s: float) -> Cause | None:
        """The limit of an account beyond which the app's gangs are not renewed; None: there is none."""
        return self.limits.over(self.durable.apps[app_id], now_s) if self.limits else None


class Clerk:
    """Writes facts, keeps what follows from them up to date, sends effects and requests rounds: only it does."""

    def __init__(self, s: Holdings, epoch: int = 1, journal_id: str = "") -> None:
        self.s, self.epoch, self._journal_id = s, epoch, journal_id
        self.effects: list[Effect] = []
        self.kills_sent: dict[str, float] = {}
        self.taken_rounds: set[str] = set()
        """Ids of rounds that tags of adopted containers name (of a lost journal); they are not used again."""
        self.hosts_due_s: float | None = None
        """When to announce new machines to the Agents; None: there are none."""
        self.ends_open = False
        """Whether open-ended leases must get ends before the next round."""
        self._ids = 0

    def record(self, fact: facts.Fact) -> None:
        """Applies a fact, queues it for the journal, and updates what is derived from it."""
        step = self.s.ledger.write(fact)
        self.ends_open |= type(fact) in ENDS_OPEN
        if step is None:
            return
        for lease in (*step.after, *step.rest):
            self._index(lease)
        if isinstance(fact, facts.LeaseEnded):
            for gpu in fact.gpus:
                if gpu not in self.s.durable.leases:
                    self.s.gpus.unleased(gpu, self.s.free_to_lease(gpu))
        if isinstance(fact, facts.LeaseGranted):
            self.update_demand(fact.app_id)
        elif type(fact) in LOSES:
            for app_id in dict.fromkeys(x.app_id for x in step.all):
                self.update_demand(app_id)
            if self.s.cluster.seen:  # before the first snapshot, after which the supply is told of all groups
                held = [x for x in step.before if x.state != REVOKING]
                lost = step.reservations if isinstance(fact, facts.NextDropped) else held
                self.s.groups.note(lost, self.s.durable.grants, self.s.supply)

    def _index(self, lease: Lease) -> None:
        self.s.gpus.leased(lease, lease.app_id in self.s.agents.unmanaged_apps)
        if (limit := self.s.limit(lease)) is not None:
            self.s.gpus.look_at(lease.gpus[0], limit.at_s)

    def reindex(self, *gpus: Gpu) -> None:
        """Recomputes the index of GPUs, after their leases, containers or machines changed."""
        before: Lease | None = None
        for gpu in gpus:
            lease = self.s.durable.leases.get(gpu)
            if lease is None:
                self.s.gpus.unleased(gpu, self.s.free_to_lease(gpu))
            elif lease is not before:
                self._index(lease)
            before = lease

    def reindex_all(self) -> None:
        """Recomputes the index of all GPUs."""
        self.s.gpus.reset()
        up = {n.host: self._supplied(n) for n in self.s.cluster.nodes.values() if n.gpus and not self.s.drained(n.host)}
        self.s.supply.machines_changed(up)
        for node in self.s.cluster.node_at.values():
            self.s.gpus.host_changed(node.host, self.s.usable_on(node))
            self.reindex(*(Gpu(node.host, i) for i in range(node.gpus)))
        for lease in self.s.durable.leases.each():
            self._index(lease)

    def reindex_host(self, host: str) -> None:
        """Recomputes the index of a host's GPUs, after the host changed."""
        node = self.s.cluster.node_at.get(host)
        self.s.supply.machine_changed(host, self._supplied(node))
        self.s.gpus.host_changed(host, self.s.usable_on(node))
        self.reindex(*(Gpu(host, i) for i in range(node.gpus if node else 0)))

    def update_closed(self, host: str = "") -> None:
        """Recomputes which hosts (or whether this host) take no new container."""
        for each in self.s.cluster.close(host):
            self.reindex_host(each)

    def update_demand(self, app_id: str) -> None:
        """Notes whether the app's Agent could use more GPUs than it holds, after either changed."""
        live, known = app_id in self.s.durable.live, app_id in self.s.cluster.apps
        self.s.agents.update_demand(app_id, live, known, self.s.holding(app_id), self.s.event_s)

    def refresh_kind(self, app_id: str) -> None:
        """Decides again whether the stand-in bids for the app, and whether it wants more GPUs."""
        unmanaged, app = app_id in self.s.durable.live and self.s.is_unmanaged(app_id), self.s.cluster.apps.get(app_id)
        self.s.agents.unmanaged(app_id, unmanaged)
        user = app.user if app is not None and unmanaged and tags.is_interactive(app) else ""
        if self.s.agents.note_interactive(app_id, user):
            self.request_round(self.s.event_s + self.s.settings.settle_s)  # its user's others may have its room
        for lease in self.s.durable.leases.of(app_id):
            self._index(lease)
        self.update_demand(app_id)

    def occupied(self, container: Container) -> None:
        """Notes a container and the GPUs that it uses."""
        known = self.s.cluster.containers.get(container.container_id)
        self.s.cluster.container_up(container)
        self.reindex(*dict.fromkeys((*container.gpus, *(known.gpus if known is not None else ()))))
        for each in (known, container):
            if each is not None and each.plain:
                self.reindex_host(each.gpus[0].host)

    def vacate(self, gpus: Iterable[Gpu]) -> None:
        """Notes that no container uses these GPUs."""
        gpus = list(gpus)
        for gpu in gpus:
            self.s.cluster.vacate(gpu)
        self.reindex(*gpus)

    def emit(self, effect: Effect) -> None:
        """Queues an effect, to be carried out after the facts are journaled."""
        self.effects.append(effect)

    def new_id(self, kind: str) -> str:
        """An id that is unique across restarts and journals."""
        self._ids += 1
        return ".".join(filter(None, [f"{kind}{self._ids}", str(self.epoch), self._journal_id]))

    def request_round(self, at_s: float) -> None:
        """Requests a round no later than `at_s`."""
        self.s.timer.request(at_s)

    def machine_changed(self, host: str, now_s: float) -> None:
        """Schedules an announcement to the Agents, if the machine is new or changed, before the next round."""
        if self.hosts_due_s is None and self.s.cluster.machines.is_news(host):
            self.hosts_due_s = now_s + self.s.settings.settle_s

    def announce_hosts(self) -> None:
        """Announces new and changed machines to the connected Agents."""
        self.hosts_due_s = None
        if self.s.cluster.machines.announced():
            for app_id, agent in self.s.agents.items():
                if agent.connected:
                    self.emit(SendHosts(app_id))

    def revoke_notice(self, app_id: str, gpus: Iterable[Gpu], deadline_s: float, reason: str, now_s: float) -> None:
        """Sends the app's Agent notice of the GPUs that it loses by the deadline."""
        left_s = max(0.0, deadline_s - now_s)
        self.emit(SendRevoke(app_id, tuple(sorted(gpus)), deadline_s, left_s, reason))

    def kill_container(self, container_id: str, now_s: float, reason: str, again: bool = False) -> None:
        """Kills a container, unless a kill was sent less than KILL_RETRY_S ago; `again`: as in Kill."""
        if self.kills_sent.get(container_id, -1e9) + KILL_RETRY_S <= now_s:
            self.kills_sent[container_id] = now_s
            self.emit(Kill(self.new_id("k"), container_id, reason, again))

    def drop_worker(self, worker: PlannedWorker) -> None:
        """Drops a planned worker."""
        self.s.workers.drop(worker)
        self.reindex(*worker.plan.gpus)

    def _supplied(self, node: Node | None) -> Collection[int]:
        """The GPUs of a node that cells may count on."""
        if node is None or self.s.drained(node.host):
            return ()
        return [i for i in node.good_gpus if not self.s.cluster.plain(Gpu(node.host, i))]

    def take_effects(self) -> list[Effect]:
        """Returns the effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects
