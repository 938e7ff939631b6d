"""The oracles. After each event: safety. While time passes: bounds. After all faults: liveness."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycontrol.arbiter import leases as lease_rules
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    Fact,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseRevoking,
    RoundHeld,
    from_json,
    to_json,
)
from pycontrol.arbiter.ledger.lease import GRANTED, REVOKING, gpus_in, is_revoking
from pycontrol.arbiter.state import KILL_RETRY_S
from pycontrol.model import events as ev
from pycontrol.model.topology import Gpu
from tests.faults.agreement import Refused, left_of_apps, limits_over, queues_over, undone, view_differs
from tests.faults.clock import Violation
from tests.faults.nodes import NodeManager, Run

SLACK_S = 25.0
"""Time for heartbeats, repeated kills, and a NodeManager's SIGKILL."""
ROUND_SLACK_S = 3.0
VIEW_S = 20.0
"""For an Agent that hears and is heard to believe what is: as long as it repeats a plan that is refused."""
UNDONE_S = 8.0
"""For an answer to a plan, an ask, a launch: several times what they take where nobody is slow."""
BELIEVES_S = 10.0
"""After its ResourceManager is gone, at most, a control plane acts as before."""
WAKES_PER_S = 200
WAITING_BYTES = 64 << 10
"""For ended Agents, at the end: their workers' last messages."""


class Oracles:
    """Checks a world."""

    def __init__(self, world: Any) -> None:
        self.world, self.sim = world, world.sim
        self._shadows: dict[str, Durable] = {}
        self._since: dict[Any, float] = {}
        self._seen: set[Any] = set()
        self._deadlines: dict[Any, float] = {}
        """The first deadline of each lease that is being revoked."""
        self._steps_at: tuple[float, int] = (0.0, 0)
        self._refused = Refused()
        self._arrived: dict[str, float] = {}
        """The start of each app's fairness clock."""

    # ---- the journal

    @property
    def shadow(self) -> Durable:
        """The fold of what the active control plane journaled."""
        return self._of(self.world.plane)

    def _of(self, plane: Any) -> Durable:
        return self._shadows.setdefault(plane.name, Durable())

    def recovered(self, plane: Any, durable: Durable) -> None:
        """Checks that a life begins with exactly the journaled facts."""
        if plane.journal_cut:
            plane.journal_cut = False
            self._shadows[plane.name] = Durable.load(durable.dump())
        if durable.dump() != self._of(plane).dump():
            raise Violation(
                "journal",
                f"what is recovered is not what was journaled: {_difference(durable.dump(), self._of(plane).dump())}",
            )

    def journaled(self, plane: Any, facts: list[Fact]) -> None:
        """Notes facts that are now durable."""
        for fact in facts:
            copy = from_json(type(fact).__name__, to_json(fact))
            if isinstance(copy, LeaseGranted):
                self._granted(plane, copy)
            elif isinstance(copy, LeaseEnded):
                self._ended(plane, copy)
            self._of(plane).apply(copy)
            if isinstance(fact, RoundHeld):
                self._receipt(plane, fact, facts)
            elif not isinstance(fact, LeaseExtended):
                self._tell_fact(fact)

    # ---- fairness clocks

    def forget_arrivals(self) -> None:
        """Forgets arrivals: the journal was lost without a stored state, or HDFS kept no state of late."""
        self._arrived.clear()

    def took_over(self, plane: Any) -> None:
        """Forgets arrivals that the restored state of an empty journal does not have: those apps arrive again."""
        live = plane.arbiter.durable.live
        self._arrived = {k: v for k, v in self._arrived.items() if k in live}

    def _clocks(self, a: Any) -> None:
        """Checks that an app's clock runs from its arrival, through every crash and takeover."""
        for app_id, record in a.durable.live.items():
            since = self._arrived.setdefault(app_id, record.arrived_s)
            if since != record.arrived_s:
                raise Violation("clock", f"{app_id} arrived at {since:.3f}, now at {record.arrived_s:.3f}", app_id)

    # ---- virtual clusters

    def _used(self, a: Any, vc: str) -> int:
        """The virtual cluster's own GPUs that its apps hold or have reserved."""
        d = a.durable
        mine = [x for x in d.claims() if not is_revoking(x) and x.guaranteed and d.apps[x.app_id].vc == vc]
        return len(gpus_in(mine))

    def _guarantees(self, a: Any) -> None:
        """Checks that no virtual cluster has more guaranteed GPUs than it owns."""
        for vc in self.world.vc_policies:
            over = self._used(a, vc) - a.holdings.gpus_of(vc)
            if self._for(("owns", vc), over > 0, 2 * a.settings.lease_s + SLACK_S):
                raise Violation("guarantee", f"{vc} has {over} GPUs more as its own than it owns")

    def served(self, waiting: Iterable[tuple[str, int, bool]]) -> None:
        """In the quiet end: who waits while its virtual cluster has own GPUs left gets them, whoever borrows them."""
        a = self.world.plane.arbiter
        if not self.world.plane.up or self.world.rm is None or any(n.refuses for n in self.world.nms.values()):
            return
        limit_s = 2 * a.settings.lease_s + a.settings.grant_timeout_s + 60
        for app_id, gang, together in waiting:
            record = a.durable.live.get(app_id)
            vc = record.vc if record is not None else ""
            kept_off = any(app == app_id for app, _ in self.world.blacklist)
            owed = vc in self.world.vc_policies and not together and not kept_off
            owed = owed and a.holdings.gpus_of(vc) - self._used(a, vc) >= gang
            self._seen.add(("owed", app_id))
            if self._for(("owed", app_id), owed, limit_s):
                raise Violation("guarantee", f"{vc} uses {self._used(a, vc)} of {a.holdings.gpus_of(vc)} own GPUs, "
                                f"and {app_id} waits for {gang}", app_id)  # fmt: skip

    def _tell_fact(self, fact: Fact) -> None:
        gpus, app_id = getattr(fact, "gpus", ()), getattr(fact, "app_id", None)
        if not gpus and app_id is None:
            self.sim.tell("fact", str(fact)[:200])
            return
        text = type(fact).__name__
        more = {k: v for k, v in to_json(fact).items() if k not in ("gpus",)}
        for who in map(str, gpus or [app_id]):
            self.sim.tell(who, f"{text} {more}"[:300])

    def _ended(self, plane: Any, fact: LeaseEnded) -> None:
        """Not while its container is there, unless its machine is gone."""
        a = plane.arbiter
        for gpu in fact.gpus:
            lease = self._of(plane).leases.get(gpu)
            there = a.cluster.container_at.get(gpu, "") if gpu.host in a.cluster.node_at else ""
            if lease is not None and there and there == lease.container_id:
                raise Violation("ended in use", f"{gpu} of {lease.app_id}, where {there} is: {fact.reason}", str(gpu))

    def _granted(self, plane: Any, fact: LeaseGranted) -> None:
        for gpu in fact.gpus:
            present, coming = self._of(plane).leases.get(gpu), self._of(plane).reservations.get(gpu)
            if gpu not in fact.after and present is not None:
                raise Violation("two owners", f"{gpu} is granted to {fact.app_id}, {present.app_id} has it", str(gpu))
            if gpu in fact.after and (present is None or coming is not None):
                raise Violation("two owners", f"{gpu} is promised to {fact.app_id} beside {coming}", str(gpu))
            if plane.arbiter.cluster.bad(gpu) and not self._adopted(plane, fact, gpu):
                raise Violation("bad gpu", f"{gpu} is out of order and granted to {fact.app_id}", str(gpu))

    @staticmethod
    def _adopted(plane: Any, fact: LeaseGranted, gpu: Gpu) -> bool:
        """Whether it says of a container that runs there what a lost journal said of it, rather than to start one."""
        cluster = plane.arbiter.cluster
        there = cluster.containers.get(cluster.container_at.get(gpu, ""))
        return gpu not in fact.after and there is not None and there.app_id == fact.app_id

    def _receipt(self, plane: Any, fact: RoundHeld, facts: list[Fact]) -> None:
        r, arbiter = fact.receipt.dump(), plane.arbiter
        note = str(r.get("note", ""))
        if note.startswith("the policy failed"):
            raise Violation("round fails", f"{fact.round_id} of {r['policy']}: {note}")
        told = sorted(x["gpu"] for x in r.get("granted", ()))
        mine = (f for f in facts if isinstance(f, LeaseGranted) and f.grant_id.startswith(f"{fact.round_id}."))
        done = sorted(str(gpu) for f in mine for gpu in f.gpus)
        if told != done:
            raise Violation("receipt", f"{fact.round_id} says that it granted {told}, it granted {done}")
        revoked = {x["gpu"] for x in r.get("revoked", ())}
        ended = {str(gpu) for f in facts if isinstance(f, LeaseRevoking | LeaseEnded) for gpu in f.gpus}
        if not revoked <= ended:
            raise Violation("receipt", f"{fact.round_id} says that it revoked {revoked - ended}")
        extended = {str(gpu) for f in facts if isinstance(f, LeaseExtended) for gpu in f.gpus}
        if not set(r.get("renewed", ())) <= extended:
            raise Violation("receipt", f"{fact.round_id} says that it renewed {set(r['renewed']) - extended}")
        over = queues_over(arbiter, (x["app_id"] for x in r.get("granted", ())))
        if over:
            raise Violation("queue limit", f"{fact.round_id} granted {r['granted']}: {over}")
        kept = {x.app_id for gpu in fact.receipt.done.renewed if (x := arbiter.durable.leases.get(gpu)) is not None}
        over = limits_over(arbiter, {x["app_id"] for x in r.get("granted", ())}, kept)
        if over:
            raise Violation("account limit", f"{fact.round_id}: {over}")
        moved = told or revoked or r.get("renewed")
        if moved and (arbiter.holdings.paused or not arbiter.cluster.ready):
            raise Violation("frozen", f"{fact.round_id} moved {moved} while leases stand still")
        for x in r.get("granted", ()):
            app = self.world.store.get(x["app_id"])
            if app is not None and app.final and self.calm_s > 10 and app.app_id not in arbiter.durable.live:
                raise Violation("granted to the dead", f"{x['gpu']} to {x['app_id']}", x["gpu"])
        self.sim.tell("round", f"{fact.round_id} offered {r['offered']} granted {r.get('granted')} revoked "
                      f"{r.get('revoked')} renewed {r.get('renewed')} out {r['out']} note {note}"[:500])  # fmt: skip

    def effect(self, plane: Any, e: Any) -> None:
        """Checks before an effect is carried out that its facts are in the journal."""
        known_to = self._of(plane)
        acts = isinstance(e, ev.SendGrant | ev.SendRevoke | ev.Place | ev.Kill | ev.Preempt)
        over = self.world.rm is not None and self.sim.now > self.world.deposed_until_s and self.calm_s > BELIEVES_S
        if acts and plane is not self.world.plane and over:
            raise Violation("two control planes", f"{plane.name} acts, {self.world.plane.name} serves: {e}")
        if isinstance(e, ev.SendGrant):
            for gpu in e.grant.gpus:
                known = (known_to.leases.get(gpu), known_to.reservations.get(gpu))
                if not any(x is not None and x.app_id == e.app_id for x in known):
                    raise Violation("journal first", f"{gpu} is granted to {e.app_id}, the journal does not know",
                                    str(gpu))  # fmt: skip
        elif isinstance(e, ev.Place):
            for gpu in e.gpus:
                lease = known_to.leases.get(gpu)
                if lease is None or lease.app_id != e.ask.app_id:
                    raise Violation("placed without lease", f"{e.ask.app_id} on {gpu}", str(gpu))
        if not isinstance(e, ev.SendAskRho | ev.SendOffer | ev.SendHosts | ev.Solve):
            self.sim.tell(getattr(e, "app_id", "yarn"), str(e)[:260])

    # ---- YARN

    def placed(self, rm: Any, container: Any) -> None:
        """Checks that an allocated container's GPUs belong to no other."""
        if rm is not self.world.rm:
            return  # by one with which no AM communicates any more
        for gpu in container.gpus:
            at = Gpu(container.node_id.split(":")[0], gpu)
            lease = self.shadow.leases.get(at)
            if lease is not None and lease.app_id != container.app_id:
                held = rm.containers.values()
                if any(c.app_id == lease.app_id and gpu in c.gpus and c.node_id == container.node_id for c in held):
                    raise Violation("two owners", f"{at} of {lease.app_id} is {container.app_id}'s now", str(at))
        self.sim.tell(container.app_id, f"{container.container_id} on {container.node_id} {container.gpus}")

    def place_answered(self, rm: Any, app_id: str, host: str, refusal: str) -> None:
        """A placement was carried out, or refused: a machine that refuses an app again and again is left alone."""
        if rm is not self.world.rm:
            return
        if not refusal:
            self._refused.placed(app_id, host)
        elif self._refused.refused(app_id, host, self.sim.now, self.calm_s):
            raise Violation("refused", f"{host} goes on refusing {app_id}: {refusal}", app_id)

    def process_began(self, nm: NodeManager, run: Run) -> None:
        """Checks the GPUs of a process that begins."""
        nm.check()
        self.sim.tell(run.app_id, f"{run.container_id} runs on {nm.host} {run.gpus}")

    def process_ended(self, nm: NodeManager, run: Run) -> None:
        """Notes the end of a process."""
        self.sim.tell(run.app_id, f"{run.container_id} on {nm.host} {run.gpus} ends with {run.exit_code}")

    def gate_gave_up(self, nm: NodeManager, run: Run, before: str) -> None:
        """The gate waited in vain for an earlier container."""
        self.sim.tell(run.app_id, f"{run.container_id} waited in vain for {before} on {nm.host} {run.gpus}")

    def resumed(self, worker: Any, step: int) -> None:
        """A worker begins from a checkpoint."""
        self.sim.tell(worker.app_id, f"{worker.worker_id} trains from step {step}")

    def app_finished(self, master: Any, succeeded: bool, message: str) -> None:
        """An Agent's last word."""
        if not succeeded and not self.world.may_fail(master.app):
            raise Violation("app fails", f"{master.app.app_id}: {message}", master.app.app_id)

    # ---- while time passes

    @property
    def calm_s(self) -> float:
        """Seconds since the control plane, the RM or their connection was disturbed; 0 while it is blocked."""
        name = self.world.plane.name
        if not (self.world.net.open("rm", name) and self.world.net.open(name, "rm")):
            return 0.0
        return float(self.sim.now - self.world.calm_since)

    def _for(self, key: Any, holds: bool, limit_s: float) -> bool:
        """Whether a condition has held for longer than the limit without disturbance."""
        self._seen.add(key)
        if not holds:
            self._since.pop(key, None)
            return False
        since = self._since.setdefault(key, self.sim.now)
        return bool(min(self.sim.now - since, self.calm_s) > limit_s)

    def look(self) -> None:
        """Checks the bounds once a second."""
        for nm in self.world.nms.values():
            nm.check()
        plane = self.world.plane
        self._spin()
        if not plane.up or self.world.rm is None:
            return
        self._seen = set()
        if plane.endpoint.connected:
            self._consistent(plane.arbiter)
            self._clocks(plane.arbiter)
            self._guarantees(plane.arbiter)
        self._frozen(plane)
        self._containers(plane)
        self._leases(plane)
        self._queues(plane)
        self._rounds(plane.arbiter)
        self._agents(plane.arbiter)
        self._undone()
        self.world.relay.look(self.sim.now)
        self._since = {k: v for k, v in self._since.items() if k in self._seen}

    def _spin(self) -> None:
        at, steps = self._steps_at
        if self.sim.now - at >= 5.0:
            if at and (self.sim.steps - steps) / (self.sim.now - at) > WAKES_PER_S * (4 + len(self.world.store)):
                raise Violation("time", f"{self.sim.steps - steps} events in {self.sim.now - at:.1f} s")
            self._steps_at = (self.sim.now, self.sim.steps)

    def _consistent(self, a: Any) -> None:
        usable = {g for g in a.holdings.usable_gpus() if g not in a.durable.leases and g not in a.cluster.container_at}
        if set(a.gpus.free) != usable or a.gpus.free.count != len(usable):
            raise Violation("conservation", f"free are {sorted(map(str, set(a.gpus.free) ^ usable))} wrongly or not")
        if a.gpus.revoking != {g for g, x in a.durable.leases.items() if x.state == REVOKING}:
            raise Violation("conservation", "GPUs being revoked are not those that are known to be")
        for gpu, coming in a.durable.reservations.items():
            if a.durable.leases[gpu].state != REVOKING:
                raise Violation("two owners", f"{gpu} is promised to {coming.app_id} and not taken back", str(gpu))
        for app_id, mine in a.durable.leases.by_app.items():
            known = all(a.durable.leases.get(g) is x for x in mine.values() for g in x.gpus)
            if not known or app_id not in a.durable.apps:
                raise Violation("conservation", f"leases of {app_id} are not what they are", app_id)

    def _frozen(self, plane: Any) -> None:
        a = plane.arbiter
        frozen = (
            lease_rules.suspended(a.holdings, plane.driver.clock.now_s())
            and not a.holdings.paused
            and self.world.rm.ready
        )
        lossy = bool(self.world.net.loss)  # a snapshot that gets lost is sent again only after its patience
        if self._for("frozen", frozen and not lossy, a.settings.recovery_s + 20):
            raise Violation(
                "frozen", f"leases stand still, ready={a.cluster.ready}, for {self.calm_s:.0f} s without a reason"
            )

    def _containers(self, plane: Any) -> None:
        """What runs is leased to its app."""
        a = plane.arbiter
        for nm in self.world.nms.values():
            reached = nm.up and self.world.rm.knows(nm.node_id) and self.world.connected(nm.host)
            for run in nm.runs.values():
                for i in run.gpus:
                    gpu = Gpu(nm.host, i)
                    lease = a.durable.leases.get(gpu)
                    stray = run.state == "running" and reached and (lease is None or lease.app_id != run.app_id)
                    if self._for(("stray", run.container_id, gpu), stray and not a.holdings.paused, SLACK_S):
                        raise Violation("container without lease", f"{run.container_id} of {run.app_id} runs on {gpu}, "
                                        f"lease: {lease and lease.app_id}", str(gpu))  # fmt: skip

    def _revoked_late(self, lease: Any, now_s: float) -> bool:
        """Whether a lease is still being revoked at the deadline that it had at first, by its control plane's clock."""
        key = ("deadline", lease.gpus[0], lease.grant_id)
        if lease.state != REVOKING:
            self._deadlines.pop(key, None)
            return False
        return bool(now_s >= self._deadlines.setdefault(key, lease.end_s))

    def _leases(self, plane: Any) -> None:
        a, now_s = plane.arbiter, plane.driver.clock.now_s()
        lead_s = a.holdings.lead_s
        for gpu, lease in a.durable.leases.items():
            late = self._revoked_late(lease, now_s) and not a.holdings.paused
            reached = gpu.host in a.cluster.node_at and self.world.connected(gpu.host)
            if self._for(("revoking", gpu, lease.grant_id), late and reached, 2 * lead_s + 2 * KILL_RETRY_S + SLACK_S):
                raise Violation("overrun", f"{gpu} of {lease.app_id} is being revoked for too long", str(gpu))
            unused = lease.state == GRANTED and gpu not in a.cluster.container_at and not a.holdings.paused
            limit_s = a.settings.grant_timeout_s + SLACK_S
            if self._for(("unused", gpu, lease.grant_id, lease.unused_since_s), unused, limit_s):
                raise Violation("unused lease", f"{gpu} of {lease.app_id} has no container and does not lapse",
                                str(gpu))  # fmt: skip
            over = lease.end_s + SLACK_S < now_s and lease.state != REVOKING and not a.holdings.paused
            gone = gpu.host not in a.cluster.node_at
            if self._for(("over", gpu, lease.grant_id), over or gone, lead_s + SLACK_S):
                raise Violation("overrun", f"{gpu} of {lease.app_id} ended {now_s - lease.end_s:.0f} s ago, node "
                                f"{'gone' if gone else 'there'}", str(gpu))  # fmt: skip

    def _rounds(self, a: Any) -> None:
        """Checks that a round ends in time even if Agents are silent."""
        current, s = a.rounds.current, a.settings
        for round_id in [current.round_id] if current is not None else []:
            if self._for(("round", round_id), True, s.rho_s + s.bid_s + s.solve_s + ROUND_SLACK_S):
                raise Violation("round without end", f"{round_id} is held for more than {s.rho_s + s.bid_s:.0f} s")

    def _agents(self, a: Any) -> None:
        """Checks that a connected Agent's view of its GPUs is that of the Arbiter."""
        for app_id, master in self.world.masters.items():
            if getattr(master, "linked_s", None) is None or master.life.dead or master.brain.ending is not None:
                continue
            heard = self.world.net.quick(master.name, master.peer) and self.sim.now >= master.mute_until_s
            leases = {g: x for x in a.holdings.leases_of(app_id) for g in x.gpus}
            mine = {g for g, x in leases.items() if x.state != REVOKING}
            mine |= set(gpus_in(a.holdings.reservations_of(app_id)))
            wrong = set(master.brain.held) ^ mine
            for gpu in wrong - {g for g, x in leases.items() if x.state == REVOKING}:
                if self._for(("believes", master.attempt_id, gpu), heard, VIEW_S):
                    has = "holds" if gpu in mine else "does not hold"
                    raise Violation("agent's view", f"{app_id} {has} {gpu}, its Agent believes otherwise", app_id)

    def registered(self, app_id: str, granted: set[Gpu], believed: set[Gpu]) -> None:
        """Checks that an Agent that was told all its grants believes to hold nothing else."""
        if believed - granted:
            wrong = ", ".join(sorted(map(str, believed - granted)))
            raise Violation("agent's view", f"{app_id} believes to hold {wrong} and was just told otherwise", app_id)

    def _undone(self) -> None:
        for key, problem, app_id in undone(self.world):
            if self._for(("undone", *key), True, UNDONE_S):
                raise Violation("undone", f"{problem} for {UNDONE_S:.0f} s", app_id)

    def _queues(self, plane: Any) -> None:
        for app_id, record in plane.arbiter.durable.live.items():
            app = self.world.store.get(app_id)
            wrong = app is not None and not app.final and record.queue != app.queue
            if self._for(("queue", app_id), wrong, 15.0):
                raise Violation("queue", f"{app_id} is in {app.queue}, the Arbiter says {record.queue}", app_id)

    # ---- the quiet end

    def agree(self) -> None:
        """Checks that the Arbiter's view of YARN is right."""
        plane, rm = self.world.plane, self.world.rm
        if not plane.up or rm is None or not plane.endpoint.connected or rm.plugin.queue.events:
            return
        differs = view_differs(plane, rm)
        self._seen.add("view")
        if self._for("view", bool(differs), 20.0):
            raise Violation("view", differs)

    def idle(self, waiting: Iterable[tuple[str, int, bool]]) -> None:
        """Checks that no GPU is free for long while an app (gang, on one machine) could use it."""
        plane = self.world.plane
        if not plane.up or self.world.rm is None:
            return
        a = plane.arbiter
        free: dict[str, int] = {}
        for nm in self.world.nms.values():
            busy = {i for r in nm.runs.values() if r.state != "ended" for i in r.gpus}
            node = a.cluster.node_at.get(nm.host)
            good = node.good_gpus if node else ()
            free[nm.host] = (
                0 if nm.partition else sum(i not in busy and Gpu(nm.host, i) not in a.durable.leases for i in good)
            )
        limit_s = 2 * a.settings.lease_s + a.settings.grant_timeout_s + 60
        for app_id, gang, together in waiting:
            here = [n for host, n in free.items() if (app_id, host) not in self.world.blacklist]
            fits = max(here, default=0) >= gang if together else sum(here) >= gang
            fits = fits and (app_id not in a.durable.apps or a.holdings.full(app_id, gang, a.holdings.event_s) is None)
            self._seen.add(("idle", app_id))
            if self._for(("idle", app_id), fits, limit_s):
                raise Violation("idle gpus", f"{free} are free and {app_id} waits for {gang}", app_id)

    def at_rest(self) -> None:
        """Checks after the end of all apps that nothing is left of them."""
        plane = self.world.plane
        a, endpoint = plane.arbiter, plane.endpoint
        left: dict[str, Any] = {
            "leases": a.durable.leases, "promises": a.durable.reservations, "live apps": a.durable.live,
            "workers": list(a.workers), "asks": a.cluster.asks.apps(), "directives": endpoint._waiting,
            "processes": [r for n in self.world.nms.values() for r in n.runs.values()],
        }  # fmt: skip
        service = plane.agents.service
        parts = {"arbiter": a, "agents": service, "bridge": endpoint, "driver": plane.driver._inbox}
        for where, part in parts.items():  # whatever they remember by app, container or attempt
            for name, text in left_of_apps(part):
                left.setdefault(f"{where}.{name}", []).append(text)
        waiting = service.sessions.ledger.in_all
        if waiting > WAITING_BYTES:
            left["bytes that wait"] = waiting
        for what, rest in left.items():
            if rest:
                raise Violation("rest", f"{what} are left: {str(rest)[:300]}")
        if a.rounds.current is not None:
            raise Violation("rest", "a round is held though nobody is there")


def _difference(found: Any, expected: Any, at: str = "") -> str:
    """The differences between two dumps."""
    if isinstance(found, dict) and isinstance(expected, dict):
        parts = (_difference(found.get(k), expected.get(k), f"{at}.{k}") for k in {**found, **expected})
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        parts = (_difference(*pair, f"{at}[{k}]") for k, pair in enumerate(zip(found, expected, strict=True)))
    else:
        return "" if found == expected else f"{at} is {str(found)[:100]} in place of {str(expected)[:100]}"
    return "; ".join(filter(None, parts))[:600]
