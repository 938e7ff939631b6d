"""One round: pool -> rho from all -> offer to the worst 1-f -> bids -> decide -> leases (Themis, Pseudocode 1).

The round is a small state machine inside the Arbiter: every wait has a deadline, and whoever is late sits
this round out and delays nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter import apps, leases, standin
from pycontrol.arbiter.audience import Waiting, demand_of, view
from pycontrol.arbiter.commit import Work, commit, round_of
from pycontrol.arbiter.eligibility import Eligibility
from pycontrol.arbiter.facts import RoundHeld
from pycontrol.arbiter.gpu_index import End
from pycontrol.arbiter.lease import REVOKING, Lease
from pycontrol.arbiter.lots import Agenda, borrowers
from pycontrol.arbiter.memory import remember, remembered
from pycontrol.arbiter.relocation import relocate
from pycontrol.arbiter.round import Round, receipt
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply import Lot
from pycontrol.auction.bids import as_demanded, validate_bid
from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Gang, Snapshot, as_gang
from pycontrol.model.events import BidReceived, Decided, RhoReported, SendAskRho, SendOffer, Solve
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.receipt import Outcome, Receipt
from pycontrol.policies import salvage
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.last_pass import last_pass
from pycontrol.policies.port import Policy

ASIDE_S = 300.0
"""For so long an app with whose numbers the policy failed takes no part."""
NOT_CONNECTED = Reason(Pending.AGENT_AWAY, "its Agent is not connected")
WENT_AWAY = Reason(Pending.AGENT_AWAY, "it went away during the round")
SOLVE_PATIENCE = 10.0
"""A round is given up when its solution has not come after this many solve deadlines."""


class Rounds:
    """Holds rounds, one at a time."""

    def __init__(self, state: State, policy: Policy, epoch: int) -> None:
        self.s = state
        self.policy = policy
        self.epoch = epoch
        self.current: Round | None = None
        self._granted: tuple[str, frozenset[str]] = ("", frozenset())
        """The last round that granted anything, and to which apps."""
        self._aside: dict[str, tuple[float, str]] = {}
        """Apps that take no part, until when and why."""
        self._waiting = Waiting(state)
        self._agenda: Agenda | None = None

    def _policy_of(self, vc: str) -> Policy:
        return self.policy.of(vc) if isinstance(self.policy, ByVirtualCluster) else self.policy

    def typed(self, vc: str) -> bool:
        """Whether a gang there has GPUs of one type, unless its app mixes them: auctions see types."""
        return self._policy_of(vc).asks_agents

    # ---- when

    def _ending(self, now_s: float) -> dict[str, list[list[Lease]]]:
        """Gangs whose leases end within the lead (and half a lead more, so that close ends meet), by app."""
        s, horizon_s = self.s, now_s + 1.5 * self.s.lead_s
        due = s.gpus.ends_by(horizon_s, self._goes_on_offer)
        app_ids = dict.fromkeys(s.durable.leases[gpu].app_id for gpu in due)
        return {a: [g for g in s.gangs_of(a) if min(x.end_s for x in g) <= horizon_s] for a in app_ids}

    def _goes_on_offer(self, end: End) -> bool:
        """Whether a lease ends then, and goes on offer before: not if it is being revoked, or renews itself."""
        lease = self.s.durable.leases.get(end[1])
        if lease is None or lease.end_s != end[0] or lease.state == REVOKING:
            return False
        return lease.app_id not in self.s.agents.foreign or self.s.settings.standin_revocable

    def _first_end_s(self) -> float | None:
        """When the next lease must go on offer."""
        end_s = self.s.gpus.first_end_s(self._goes_on_offer)
        return end_s - self.s.lead_s if end_s is not None else None

    def due_s(self) -> float | None:
        """When the next round is due, None if nothing calls for one."""
        return self.s.timer.due_s(self._first_end_s())

    def next_wake_s(self, now_s: float) -> float | None:
        """When tick() has something to do."""
        if self.current is not None:
            return self.current.deadline_s
        return None if leases.frozen(self.s, now_s) else self.due_s()

    def tick(self, now_s: float) -> None:
        """Starts a round that is due; moves one on whose deadline passed."""
        if self.current is not None:
            if leases.frozen(self.s, now_s):
                self._agenda = None
                self._finish(None, "given up: leases stand still", now_s)
            elif now_s >= self.current.deadline_s:
                self._deadline(now_s)
            return
        wanted_s = self.s.timer.wanted_s
        if (wanted_s is None or now_s < wanted_s) and not self.s.gpus.may_go_on_offer(now_s):
            return
        due_s = self.due_s()
        if leases.frozen(self.s, now_s) or due_s is None or now_s < due_s:
            return
        self._begin(now_s)

    def _on_offer(self, ending: dict[str, list[list[Lease]]]) -> dict[str, int]:
        s = self.s
        counts = s.gpus.free.counts()
        more = [x.gpu for gangs in ending.values() for gang in gangs for x in gang]
        for gpu in (*more, *(g for g in s.gpus.revoking if g not in s.durable.reservations)):
            if s.usable(gpu):
                counts[gpu.host] = counts.get(gpu.host, 0) + 1
        return counts

    def _wanting(self, now_s: float) -> list[str]:
        """Apps that could use more GPUs than they hold."""
        return [*self.s.agents.unmet, *(a for a in self.s.agents.foreign if standin.waits(self.s, a))]

    # ---- rho

    def _begin(self, now_s: float) -> None:
        s = self.s
        s.timer.begun()
        if s.hosts_due_s is not None:
            s.tell_hosts()
        wanting = self._wanting(now_s)
        ending = self._ending(now_s)
        if s.supply.whole and s.settings.open_leases and not (wanting and ending):
            if not wanting:
                leases.leave_open(s, ending)
                return
            if not s.gpus.free.count and not s.gpus.revoking:
                leases.close_open(s, now_s)
                return
        if not ending and self._grants_unused(now_s):
            return
        if ending or wanting or borrowers(s):
            self._agenda = Agenda(s, wanting, ending, now_s)
            self._go_on(now_s)

    def _grants_unused(self, now_s: float) -> bool:
        """Puts the round off where apps give back whatever they get, say, for its type: they would go on at once."""
        s, (round_id, app_ids) = self.s, self._granted
        self._granted = ("", frozenset())
        if not app_ids:
            return False
        used = any(round_of(x.grant_id) == round_id for app_id in app_ids for x in s.claims_of(app_id))
        return s.timer.grants_used(used, now_s)

    def _go_on(self, now_s: float) -> None:
        """Holds the agenda's rounds until one has to wait for answers, or none is left."""
        while self.current is None and self._agenda is not None:
            lot = self._agenda.next()
            if lot is None:
                self._agenda = None
            else:
                self._hold(lot, self._agenda.ending_of(lot.vc, lot.guaranteed), now_s)

    def _hold(self, lot: Lot, ending: dict[str, list[list[Lease]]], now_s: float) -> None:
        s = self.s
        wanting = [a for a in self._wanting(now_s) if lot.is_of(s.durable.apps[a].vc)]
        wanting = [a for a in wanting if a not in lot.without and lot.admits(demand_of(s, a, now_s))]
        offered = self._on_offer(ending) if lot.free is None else dict(lot.free)
        if not offered or not (ending or wanting or self._borrowers(lot)):
            return
        round_id = f"r{self.epoch}.{s.durable.rounds + 1}"
        self.current = r = Round(round_id, now_s, offered, ending, lot, self._policy_of(lot.vc))
        r.since_s = {a: s.agents.unmet_since_s[a] for a in wanting if a in s.agents.unmet_since_s}
        r.seed = s.settings.seed * 1_000_003 + s.durable.rounds
        r.deadline_s = now_s + s.settings.rho_s
        ending_gpus = {x.gpu for gangs in ending.values() for gang in gangs for x in gang}
        r.eligibility = Eligibility(s, lot, ending_gpus, r.policy.asks_agents)
        if not r.policy.asks_agents:
            self._offer(now_s)
            return
        for app_id in dict.fromkeys([*ending, *wanting]):
            agent = s.agents.get(app_id)
            if self._left_out(app_id, now_s):
                continue
            if app_id in s.agents.foreign:
                self._stand_in(app_id, now_s)
            elif agent is None or not agent.connected:
                r.out[app_id] = NOT_CONNECTED
            else:
                r.waiting.add(app_id)
                s.emit(SendAskRho(app_id, round_id, s.contention(app_id, now_s), r.ending_gpus(app_id), r.deadline_s))
        if not r.waiting:
            self._offer(now_s)

    def _set_aside(self, bad: Mapping[str, str], now_s: float) -> None:
        """Apps with whose numbers the policy failed take no part for a while: each trial costs many decisions."""
        for app_id, why in bad.items():
            if app_id in self.s.durable.live:
                self._aside[app_id] = (now_s + ASIDE_S, why)
            if self.current is not None:
                self.current.out[app_id] = Reason(Pending.BAD_REPORT, why)

    def _left_out(self, app_id: str, now_s: float) -> bool:
        """Whether an app that has nothing on offer could use none of it; notes why."""
        r = self.current
        assert r is not None
        assert r.eligibility is not None
        until_s, failure = self._aside.get(app_id, (0.0, ""))
        if now_s < until_s:
            r.out[app_id] = Reason(Pending.BAD_REPORT, failure)
            return True
        self._aside.pop(app_id, None)
        if app_id in r.ending:
            return False
        why = r.eligibility.why_out(app_id, self._demand(app_id, now_s), r.offered)
        if why is not None:
            r.out[app_id] = why
        return why is not None

    def _demand(self, app_id: str, now_s: float) -> Demand:
        """What an app takes part with."""
        r = self.current
        assert r is not None
        assert r.eligibility is not None
        return r.eligibility.demand(app_id, r.offered, now_s)

    def _borrowers(self, lot: Lot) -> list[str]:
        """Apps to which the machines of a lot are due for what they borrow."""
        mine = self._agenda.borrowers.get(lot.vc, []) if lot.private and self._agenda is not None else []
        return [a for a in mine if a in self.s.durable.live and a not in lot.without]

    def _stand_in(self, app_id: str, now_s: float) -> None:
        """The rho of an app without an Agent."""
        s, r = self.s, self.current
        assert r is not None
        apps.note_demand(s, app_id, demand_of(s, app_id, now_s).gpus)
        r.rho[app_id] = standin.rho(s, app_id, s.holding(app_id) - len(r.ending_gpus(app_id)), now_s)

    def rho_reported(self, e: RhoReported, now_s: float) -> None:
        """An Agent answered AskRho."""
        if self.s.agents.answered(e.app_id, e.demand, e.rho):
            self.s.reckon(e.app_id)
        r = self.current
        if r is None or r.phase != "rho" or r.round_id != e.round_id or e.app_id not in r.waiting:
            return
        r.waiting.discard(e.app_id)
        r.rho[e.app_id] = e.rho
        if not r.waiting:
            self._offer(now_s)

    # ---- offer and bids

    def _views(self, now_s: float) -> dict[str, AppView]:
        """The apps of the round; those whose rho was asked for and did not come are not among them."""
        s, r = self.s, self.current
        assert r is not None
        if r.policy.asks_agents:
            apps = [a for a in r.rho if a not in r.out and a in s.durable.live]
            return {a: view(s, a, r.rho[a], r.ending.get(a, ()), now_s, r.lot, self._demand(a, now_s)) for a in apps}
        views = {}
        for app_id, gangs in r.ending.items():
            agent = s.agents.get(app_id)
            if agent is not None and agent.connected:
                views[app_id] = view(s, app_id, agent.rho, gangs, now_s, r.lot)
            elif app_id not in s.agents.foreign:
                r.out[app_id] = NOT_CONNECTED
        views.update(self._waiting.views(r.lot, r.ending, now_s))
        borrowing = self._borrowers(r.lot)
        for app_id in borrowing:
            agent = s.agents.get(app_id)
            if agent is not None and agent.connected and app_id not in views:
                views[app_id] = view(s, app_id, agent.rho, (), now_s, r.lot)
        for app_id in s.agents.foreign:
            if not r.lot.is_of(s.durable.apps[app_id].vc):
                continue
            if app_id in r.ending or app_id in borrowing or standin.waits(s, app_id):
                self._stand_in(app_id, now_s)
                demand = self._demand(app_id, now_s)
                views[app_id] = view(s, app_id, r.rho[app_id], r.ending.get(app_id, ()), now_s, r.lot, demand)
        views = {a: v for a, v in views.items() if a in r.ending or (a not in r.lot.without and r.lot.admits(v.demand))}
        return {a: v for a, v in views.items() if not self._left_out(a, now_s)}

    def _present(self, lot: Lot) -> frozenset[str]:
        """The apps that share the lot."""
        live = self.s.durable.live
        return frozenset(live if lot.whole else (a for a, app in live.items() if lot.is_of(app.vc)))

    def _ended(self, memory: Mapping[str, Any], present: frozenset[str], now_s: float) -> dict[str, float]:
        """Service of the apps that the policy remembers and that are gone."""
        apps = self.s.durable.apps
        gone = (a for a in memory.get("apps", ()) if a not in present)
        return {a: self.s.attained_gpu_s(a, now_s) for a in gone if a in apps}

    def _offer(self, now_s: float) -> None:
        s, r = self.s, self.current
        assert r is not None
        for app_id in r.waiting:
            r.out[app_id] = Reason(Pending.LATE_RHO, f"no rho within {s.settings.rho_s:g} s")
        r.waiting.clear()
        r.views = self._views(now_s)
        memory, present = remembered(s, r.memory_key, r.policy.name), self._present(r.lot)
        r.snapshot = Snapshot(
            r.round_id, now_s, r.lot.topology or s.topology, r.offered, tuple(r.views.values()), s.f_of(r.lot.vc),
            s.lease_s_of(r.lot.vc), {} if r.lot.private else s.cluster.queues, r.lot.vc, memory, present,
            self._ended(memory, present, now_s), s.gpus_of(r.lot.vc),
            r.lot.private, s.lead_s,
        )  # fmt: skip
        offer, bad = salvage.offer(r.policy, r.snapshot)
        if bad:
            self._set_aside(bad, now_s)
            r.snapshot = dataclasses.replace(r.snapshot, apps=tuple(v for v in r.snapshot.apps if v.app_id not in bad))
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
                    app_id, r.round_id, s.contention(app_id, now_s), r.lot.by_host(r.snapshot.free),
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
        bid = e.bid and self._of_machines(e.bid)
        problem = e.problem or (validate_bid(bid, r.snapshot, r.views[e.app_id]) if bid is not None else "empty")
        if problem or bid is None:
            r.out[e.app_id] = Reason(Pending.BAD_BID, problem)
        else:
            r.bids[e.app_id] = as_demanded(bid, r.views[e.app_id].demand)
        if not r.waiting:
            self._solve(now_s)

    def forget(self, app_id: str) -> None:
        """The application is gone from YARN."""
        self._aside.pop(app_id, None)
        self._waiting.forget(app_id)

    def cells_changed(self, now_s: float) -> None:
        """The cells were told of all leases anew: a round about theirs is not about these any more."""
        if self.current is not None and not self.current.lot.whole:
            self.abandon(now_s)

    def abandon(self, now_s: float) -> None:
        """The cells are not those that the round under way is about any more: another one is held."""
        r, self.current, self._agenda = self.current, None, None
        if r is not None:
            self._hand_out(receipt(self.s, r, None, "the cells changed during the round"))
        self.s.want_round(now_s + self.s.settings.settle_s)

    def _of_machines(self, bid: Bid) -> Bid:
        """A bid, the gangs that it keeps as they are on the virtual cluster's machines: Agents know hosts."""
        r, s = self.current, self.s
        assert r is not None
        if not r.lot.private:
            return bid
        names: dict[Gang, list[Gang]] = {}
        for gang in r.ending.get(bid.app_id, ()):
            names.setdefault(as_gang(x.gpu for x in gang), []).append(s.places((x.gpu for x in gang), True))

        def kept(row: BidRow) -> tuple[Gang, ...]:
            left = {gang: iter(found) for gang, found in names.items()}
            return tuple(next(left.get(gang, iter(())), gang) for gang in row.keep)

        return dataclasses.replace(bid, rows=tuple(dataclasses.replace(row, keep=kept(row)) for row in bid.rows))

    def app_gone(self, app_id: str, now_s: float) -> None:
        """An app ended or its Agent went away: nobody waits for it."""
        r = self.current
        if r is None or app_id not in r.waiting:
            return
        r.waiting.discard(app_id)
        r.out[app_id] = WENT_AWAY
        if not r.waiting:
            (self._offer if r.phase == "rho" else self._solve)(now_s)

    def _deadline(self, now_s: float) -> None:
        r = self.current
        assert r is not None
        if r.phase == "rho":
            self._offer(now_s)
        elif r.phase == "bids":
            for app_id in r.waiting:
                r.out[app_id] = Reason(Pending.LATE_BID, f"no bid within {self.s.settings.bid_s:g} s")
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
        self._without_the_out(r)
        self.s.emit(Solve(r.snapshot, dict(r.bids), r.seed))

    def _without_the_out(self, r: Round) -> None:
        """An app that is out takes no part, neither as a bidder nor in leftovers nor in the last pass."""
        if r.out and r.snapshot is not None:
            apps = tuple(v for v in r.snapshot.apps if v.app_id not in r.out)
            r.snapshot = dataclasses.replace(r.snapshot, apps=apps)

    # ---- decision

    def decided(self, e: Decided, now_s: float) -> None:
        """The policy's plan, or its failure."""
        r = self.current
        self._set_aside(e.left_out, now_s)
        if r is not None and r.phase == "solve" and r.round_id == e.round_id:
            self._finish(e, e.problem, now_s)

    def _finish(self, e: Decided | None, problem: str, now_s: float) -> None:
        r, s = self.current, self.s
        assert r is not None
        self.current = None
        plan = e.plan if e is not None else None
        if leases.frozen(s, now_s):
            problem = problem or "given up: leases stand still"
        outcome: Outcome | None = None
        if plan is None or problem:
            note = problem or "no plan"
            s.timer.failed(now_s)
        else:
            assert r.eligibility is not None
            kept_out = {a.app_id: r.eligibility.kept_out(a.app_id) for a in plan.awards}
            plan = relocate(plan, r.views, r.offered, r.lot.topology or s.topology, kept_out)
            self._without_the_out(r)
            if s.settings.last_pass and r.snapshot is not None:
                plan = last_pass(plan, r.snapshot, r.eligibility.kept_out_of_rest)
            borrowing = self._borrowers(r.lot)
            moving = self._agenda.ending_of(r.lot.vc, False) if borrowing and self._agenda is not None else {}
            work = Work(r.round_id, r.lot, r.ending, borrowing, moving, r.eligibility.closed_hosts)
            remember(s, r.memory_key, r.policy.name, plan.memory)
            outcome, note = commit(s, work, plan, now_s)
            if outcome.refused and self._agenda is not None:
                self._agenda.again(r.lot, frozenset(outcome.refused))
            elif self._agenda is not None and not r.ending and self._more_sizes(outcome):
                self._agenda.once_more(r.lot)
            wanting = self._wanting(now_s)
            if wanting and s.gpus.open:
                leases.close_open(s, now_s)
            if outcome.granted:
                self._granted = (r.round_id, frozenset(x.app_id for x in outcome.granted))
            more_to_do = bool(outcome.unused_gpus and wanting)
            s.timer.held(now_s, outcome.moved, more_to_do, same_again=bool(r.ending))
        self._hand_out(receipt(self.s, r, outcome, note))
        self._go_on(now_s)

    def _more_sizes(self, outcome: Outcome) -> bool:
        """Whether an app that was served in this round asks for containers of another size, too."""
        served = {x.app_id for x in outcome.granted}
        return any(a in self.s.agents.foreign and standin.sizes(self.s, a) for a in served)

    def _hand_out(self, x: Receipt) -> None:
        self.s.receipts.append(x)
        self.s.record(RoundHeld(x.round_id, x.at_s, x))
