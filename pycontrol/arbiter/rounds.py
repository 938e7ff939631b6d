"""One round: pool -> rho from all -> offer to the worst 1-f -> bids -> decide -> leases (Themis, Pseudocode 1).

The round is a small state machine inside the Arbiter: every wait has a deadline, and whoever is late sits
this round out and delays nobody.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from pycontrol.arbiter import leases, standin
from pycontrol.arbiter.commit import commit
from pycontrol.arbiter.facts import ACTIVE, GRANTED, REVOKING, Lease, RoundHeld
from pycontrol.arbiter.state import State, as_gang, by_host
from pycontrol.auction.bids import validate_bid
from pycontrol.model.auction import AppView, Bid, Snapshot
from pycontrol.model.events import BidReceived, Decided, RhoReported, SendAskRho, SendOffer, Solve
from pycontrol.model.topology import Gpu
from pycontrol.policies.port import Policy

SOLVE_PATIENCE = 10.0
"""A round is given up when its solution has not come after this many solve deadlines."""


@dataclass
class Round:
    """A round under way."""

    round_id: str
    at_s: float
    pool: frozenset[Gpu]
    ending: dict[str, list[list[Lease]]]
    """App -> its gangs on offer."""
    phase: str = "rho"
    deadline_s: float = 0.0
    rho: dict[str, float | None] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    out: dict[str, str] = field(default_factory=dict)
    """App -> why it takes no part."""
    snapshot: Snapshot | None = None
    views: dict[str, AppView] = field(default_factory=dict)
    bids: dict[str, Bid] = field(default_factory=dict)
    offered_at_s: float = 0.0
    bid_s: dict[str, float] = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    seed: int = 0

    def ending_gpus(self, app_id: str) -> tuple[Gpu, ...]:
        """The app's GPUs on offer."""
        return tuple(sorted(x.gpu for gang in self.ending.get(app_id, ()) for x in gang))


class Rounds:
    """Holds rounds, one at a time."""

    def __init__(self, state: State, policy: Policy, epoch: int) -> None:
        self.s = state
        self.policy = policy
        self.epoch = epoch
        self.current: Round | None = None
        self._fruitless = 0
        """Rounds in a row that moved no GPU: the next one without a new event waits longer."""

    # ---- when

    def _ending(self, now_s: float) -> dict[str, list[list[Lease]]]:
        """Gangs whose leases end within the lead (and half a lead more, so that close ends meet), by app."""
        horizon_s = now_s + 1.5 * self.s.settings.lead
        result: dict[str, list[list[Lease]]] = {}
        for app_id in {x.app_id for x in self.s.durable.leases.values()}:
            if self.s.is_foreign(app_id) and not self.s.settings.standin_revocable:
                continue
            gangs = [g for g in self.s.gangs_of(app_id) if min(x.end_s for x in g) <= horizon_s]
            if gangs:
                result[app_id] = gangs
        return result

    def _first_end_s(self) -> float | None:
        """When the next lease must go on offer."""
        s = self.s
        ends = [
            x.end_s
            for x in s.durable.leases.values()
            if x.state in (ACTIVE, GRANTED) and (s.settings.standin_revocable or not s.is_foreign(x.app_id))
        ]
        return min(ends) - s.settings.lead if ends else None

    def due_s(self) -> float | None:
        """When the next round is due, None if nothing calls for one."""
        times = [t for t in (self.s.round_at_s, self._first_end_s()) if t is not None]
        return min(times, default=None)

    def next_wake_s(self, now_s: float) -> float | None:
        """When tick() has something to do."""
        if self.current is not None:
            return self.current.deadline_s
        return None if leases.frozen(self.s, now_s) else self.due_s()

    def tick(self, now_s: float) -> None:
        """Starts a round that is due; moves one on whose deadline passed."""
        if self.current is not None:
            if now_s >= self.current.deadline_s:
                self._deadline(now_s)
            return
        due_s = self.due_s()
        if leases.frozen(self.s, now_s) or due_s is None or now_s < due_s:
            return
        self._begin(now_s)

    def _pool(self, ending: dict[str, list[list[Lease]]]) -> frozenset[Gpu]:
        s = self.s
        usable = set(s.usable_gpus())
        pool = {g for g in s.free_gpus() if g not in s.durable.next}
        pool |= {x.gpu for gangs in ending.values() for gang in gangs for x in gang}
        pool |= {x.gpu for x in s.durable.leases.values() if x.state == REVOKING and x.gpu not in s.durable.next}
        return frozenset(pool & usable)

    # ---- rho

    def _begin(self, now_s: float) -> None:
        s = self.s
        s.round_at_s = None
        ending = self._ending(now_s)
        pool = self._pool(ending)
        if not pool or not (ending or any(self._wants(a, now_s) for a in s.in_system())):
            return
        round_id = f"r{self.epoch}.{s.durable.rounds + 1}"
        self.current = r = Round(round_id, now_s, pool, ending)
        r.seed = s.settings.seed * 1_000_003 + s.durable.rounds
        r.deadline_s = now_s + s.settings.rho_s
        for app_id in s.in_system():
            agent = s.agents.get(app_id)
            if s.is_foreign(app_id):
                kept = s.holding(app_id) - len(r.ending_gpus(app_id))
                r.rho[app_id] = standin.rho(s, app_id, kept, now_s)
            elif agent is None or not agent.connected:
                r.out[app_id] = "AgentAway: its Agent is not connected"
            elif not self.policy.asks_agents:
                r.rho[app_id] = agent.rho
            else:
                r.waiting.add(app_id)
                s.emit(
                    SendAskRho(app_id, round_id, s.contention(app_id, now_s), r.ending_gpus(app_id), r.deadline_s)
                )
        if not r.waiting:
            self._offer(now_s)

    def _wants(self, app_id: str, now_s: float) -> bool:
        s = self.s
        if s.is_foreign(app_id):
            return bool(standin.open_asks(s, app_id))
        agent = s.agents.get(app_id)
        return agent is not None and agent.demand.gpus > s.holding(app_id)

    def rho_reported(self, e: RhoReported, now_s: float) -> None:
        """An Agent answered AskRho."""
        agent = self.s.agents.get(e.app_id)
        if agent is not None:
            agent.demand, agent.rho = e.demand, e.rho
        r = self.current
        if r is None or r.phase != "rho" or r.round_id != e.round_id or e.app_id not in r.waiting:
            return
        r.waiting.discard(e.app_id)
        r.rho[e.app_id] = e.rho
        if not r.waiting:
            self._offer(now_s)

    # ---- offer and bids

    def _view(self, app_id: str, now_s: float) -> AppView:
        s, r = self.s, self.current
        assert r is not None
        agent = s.agents.get(app_id)
        ending = r.ending.get(app_id, [])
        app = s.durable.apps[app_id]
        ending_gpus = frozenset(r.ending_gpus(app_id))
        demand = agent.demand if agent is not None else standin.demand(s, app_id, now_s)
        return AppView(
            app_id=app_id,
            queue=app.queue,
            rho=r.rho.get(app_id),
            demand=demand,
            ending=ending_gpus,
            ending_gangs=tuple(as_gang(x.gpu for x in gang) for gang in ending),
            kept_gpus=s.holding(app_id) - len(ending_gpus),
            queue_room_gpus=s.queue_room(app.queue) + len(ending_gpus),
            submitted_s=app.submitted_s,
            user=app.user,
            attained_gpu_s=s.attained_gpu_s(app_id, now_s),
            kept_gangs=s.kept_gangs(app_id, ending_gpus),
        )

    def _offer(self, now_s: float) -> None:
        s, r = self.s, self.current
        assert r is not None
        for app_id in r.waiting:
            r.out[app_id] = f"LateRho: no rho within {s.settings.rho_s:g} s"
        r.waiting.clear()
        apps = [a for a in s.in_system() if a not in r.out and a in r.rho]
        r.views = {a: self._view(a, now_s) for a in apps}
        r.snapshot = Snapshot(
            r.round_id, now_s, s.topology, by_host(r.pool), tuple(r.views.values()), s.settings.f,
            s.settings.lease_s, dict(r.out), s.queues, s.durable.memory,
        )  # fmt: skip
        offer = self.policy.offer(r.snapshot)
        r.participants = offer.app_ids if offer else ()
        r.phase, r.offered_at_s, r.deadline_s = "bids", now_s, now_s + s.settings.bid_s
        for app_id in r.participants:
            if app_id not in s.agents:
                r.bids[app_id] = standin.bid(s, r.views[app_id], r.snapshot.free, now_s)
                r.bid_s[app_id] = 0.0
                continue
            r.waiting.add(app_id)
            s.emit(
                SendOffer(
                    app_id, r.round_id, s.contention(app_id, now_s), r.snapshot.free,
                    r.ending_gpus(app_id), r.deadline_s,
                )
            )  # fmt: skip
        if not r.waiting:
            self._solve(now_s)

    def bid_received(self, e: BidReceived, now_s: float) -> None:
        """An Agent's bid, or what was wrong with it: then the app sits this round out."""
        r = self.current
        if r is None or r.phase != "bids" or r.round_id != e.round_id or e.app_id not in r.waiting:
            return
        assert r.snapshot is not None
        r.waiting.discard(e.app_id)
        r.bid_s[e.app_id] = now_s - r.offered_at_s
        problem = e.problem or (
            validate_bid(e.bid, r.snapshot, r.views[e.app_id]) if e.bid is not None else "empty"
        )
        if problem or e.bid is None:
            r.out[e.app_id] = f"BadBid: {problem}"
        else:
            r.bids[e.app_id] = e.bid
        if not r.waiting:
            self._solve(now_s)

    def app_gone(self, app_id: str, now_s: float) -> None:
        """An app ended or its Agent went away: nobody waits for it."""
        r = self.current
        if r is None or app_id not in r.waiting:
            return
        r.waiting.discard(app_id)
        r.out[app_id] = "AgentAway: it went away during the round"
        if not r.waiting:
            (self._offer if r.phase == "rho" else self._solve)(now_s)

    def _deadline(self, now_s: float) -> None:
        r = self.current
        assert r is not None
        if r.phase == "rho":
            self._offer(now_s)
        elif r.phase == "bids":
            for app_id in r.waiting:
                r.out[app_id] = f"LateBid: no bid within {self.s.settings.bid_s:g} s"
            r.waiting.clear()
            self._solve(now_s)
        else:
            self._finish(None, "the solver did not answer in time", now_s)

    def _solve(self, now_s: float) -> None:
        r = self.current
        assert r is not None
        assert r.snapshot is not None
        r.phase = "solve"
        r.deadline_s = now_s + SOLVE_PATIENCE * self.s.settings.solve_s
        # An app whose bid failed takes no part, neither as a bidder nor in the leftovers.
        apps = tuple(v for v in r.snapshot.apps if v.app_id not in r.out)
        r.snapshot = dataclasses.replace(r.snapshot, apps=apps, fixed=dict(r.out))
        self.s.emit(Solve(r.snapshot, dict(r.bids), r.seed))

    # ---- decision

    def decided(self, e: Decided, now_s: float) -> None:
        """The policy's plan, or its failure."""
        r = self.current
        if r is not None and r.phase == "solve" and r.round_id == e.round_id:
            self._finish(e, e.problem, now_s)

    def _finish(self, e: Decided | None, problem: str, now_s: float) -> None:
        r, s = self.current, self.s
        assert r is not None
        self.current = None
        plan = e.plan if e is not None else None
        receipt = self._receipt(r)
        if plan is None or problem:
            receipt["note"] = problem or "no plan"
            s.want_round(now_s + s.settings.round_retry_s)
        else:
            unused = commit(s, r.round_id, r.pool, r.ending, plan, receipt, now_s)
            if unused and any(self._wants(a, now_s) for a in s.in_system()):
                s.want_round(now_s + s.settings.round_retry_s * 2**self._fruitless)
            moved = receipt["granted"] or receipt["renewed"] or receipt["revoked"]
            self._fruitless = 0 if moved else min(4, self._fruitless + 1)
        s.receipts.append(receipt)
        s.record(RoundHeld(r.round_id, r.at_s, receipt))

    def _receipt(self, r: Round) -> dict[str, Any]:
        return {
            "round_id": r.round_id,
            "at_s": r.at_s,
            "policy": self.policy.name,
            "offered": by_host(r.pool),
            "ending": {a: [str(g) for g in r.ending_gpus(a)] for a in r.ending},
            "rho": dict(r.rho),
            "participants": list(r.participants),
            "out": dict(r.out),
            "bid_s": dict(r.bid_s),
            "f": self.s.settings.f,
        }
