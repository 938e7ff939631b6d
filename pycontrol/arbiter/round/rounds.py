"""One round: pool -> rho from all -> offer to the worst 1-f -> bids -> decide -> leases (Themis, Pseudocode 1).

A round is a state machine inside the Arbiter. Every wait has a deadline: a late app misses the round and delays no
other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from pycontrol.arbiter import leases
from pycontrol.arbiter.apps import Reports
from pycontrol.arbiter.ledger.facts import PolicyMemory, RoundHeld
from pycontrol.arbiter.ledger.lease import REVOKING, Lease, gpus_in, round_of
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.candidates import (
    NOT_CONNECTED,
    REMEMBERED_BY,
    Candidates,
    Round,
    RoundPhase,
    receipt,
    remembered,
)
from pycontrol.arbiter.round.commit import commit, naming, note_of, outcome_of, refused, relocate
from pycontrol.arbiter.round.eligibility import Eligibility, Openings
from pycontrol.arbiter.round.parts import RoundParts, borrowers
from pycontrol.arbiter.round.resolve import Work
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.supply.gpu_supply import RoundPart
from pycontrol.arbiter.views.gpu_index import End
from pycontrol.auction.bid_validation import as_demanded, validate_bid
from pycontrol.model.auction import Bid, BidRow, Gang, Plan, Snapshot, as_gang
from pycontrol.model.events import BidReceived, Decided, RhoReported, SendAskRho, SendOffer, Solve
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.receipt import Outcome, Receipt
from pycontrol.policies import salvage
from pycontrol.policies.by_vc import policy_for
from pycontrol.policies.last_pass import last_pass
from pycontrol.policies.on_schedule import one_type
from pycontrol.policies.policy_port import Policy

WENT_AWAY = Reason(Pending.AGENT_AWAY, "it went away during the round")
SOLVE_PATIENCE = 10.0
"""A round is given up when its solution has not come after this many solve deadlines."""


class Rounds:
    """Holds rounds, one at a time."""

    def __init__(self, s: Holdings, clerk: Clerk, policy: Policy) -> None:
        self.s, self.clerk = s, clerk
        self.policy = policy
        self.current: Round | None = None
        self._granted: tuple[str, frozenset[str]] = ("", frozenset())
        """(last round that granted GPUs, apps that got them)."""
        self.eligibility = Eligibility(s)
        self.candidates = Candidates(s)
        self.reports = Reports(s)
        self._named = False
        """Whether the round ids that leases name were collected."""
        self._parts: RoundParts | None = None
        self._looked_s = -math.inf
        """Until when the last round looked for leases that end, Unix seconds."""

    def _policy_of(self, vc: str) -> Policy:
        return policy_for(self.policy, vc)

    def typed(self, vc: str) -> bool:
        """Whether gangs get GPUs of one type, unless their app mixes types: so with policies that ask Agents."""
        return one_type(self._policy_of(vc))

    # ---- when

    def _ending(self, now_s: float) -> dict[str, list[list[Lease]]]:
        """App -> its gangs with leases that end within 1.5 leads; the extra half lets close ends share a round."""
        s, horizon_s = self.s, now_s + 1.5 * self.s.lead_s
        due = s.gpus.ends_by(horizon_s, self._goes_on_offer)
        app_ids = dict.fromkeys(s.durable.leases[gpu].app_id for gpu in due)
        gangs = ((a, g) for a in app_ids for g in s.gangs_of(a) if min(x.end_s for x in g) <= horizon_s)
        return grouped((a, g) for a, g in gangs if not all(map(s.renews_itself, g)))

    def _goes_on_offer(self, end: End) -> bool:
        """Whether the end is that of a present lease that goes on offer: not revoking, nor renewed without rounds."""
        lease = self.s.durable.leases.get(end[1])
        if lease is None or lease.end_s != end[0] or lease.state == REVOKING:
            return False
        return not self.s.renews_itself(lease)

    def _first_end_s(self) -> float | None:
        """When the next lease must go on offer; None if none must."""
        end_s = self.s.gpus.first_end_s(self._goes_on_offer)
        return end_s - self.s.lead_s if end_s is not None else None

    def due_s(self) -> float | None:
        """When the next round is due; None if none is."""
        return self.s.timer.due_s(self._first_end_s())

    def next_wake_s(self, now_s: float) -> float | None:
        """When tick() has something to do; None: not before the next event."""
        if self.current is not None:
            return self.current.deadline_s
        return None if leases.suspended(self.s, now_s) else self.due_s()

    def tick(self, now_s: float) -> None:
        """Starts a round that is due, or continues the current one after its deadline."""
        if self.current is not None:
            if leases.suspended(self.s, now_s):
                self._parts = None
                self._finish(self.current, None, "given up: leases are suspended", now_s)
            elif now_s >= self.current.deadline_s:
                self._run(now_s, late=True)
            return
        wanted_s = self.s.timer.wanted_s
        if (wanted_s is None or now_s < wanted_s) and not self.s.gpus.may_go_on_offer(now_s):
            return
        due_s = self.due_s()
        if leases.suspended(self.s, now_s) or due_s is None or now_s < due_s:
            return
        self._begin(now_s)

    # ---- the recipe

    def _run(self, now_s: float, late: bool = False) -> None:
        """Runs the current round, part by part, until it has to wait or the last part has ended.

        0. The round is divided into parts: the whole cluster, or what each virtual cluster shares out (`_begin`).
        1. The next part begins; Agents are asked for rho if its policy asks them (`_hold`).
        2. *It waits for rho.*
        3. The policy chooses the participants from what all apps want and hold; they are sent the offer (`_offer`).
        4. *It waits for their bids.*
        5. The policy decides, on another thread (`_solve`).
        6. *It waits for the plan.*
        7. Gangs that may not start where the plan puts them are moved, the last pass gives away what the plan leaves,
           what it changes is resolved on the present state, and the changes are applied (`_carry_out`, `commit`).
        8. The receipt is journaled (`_finish`), and the next part begins.

        `late`: the deadline of the present wait has passed.
        """
        while self._parts is not None:
            r = self.current
            if r is None:
                self._next_part(now_s)
            elif r.waiting and not late:
                return
            elif r.phase is RoundPhase.RHO:
                self._offer(r, now_s)
            elif r.phase is RoundPhase.BIDS:
                self._solve(r, now_s)
            elif late:
                self._finish(r, None, "the solver did not answer in time", now_s)
            else:
                return
            late = False

    def _next_part(self, now_s: float) -> None:
        """Holds the next part; without one, the parts are done, and loans that ended with none have receipts, too."""
        parts = self._parts
        assert parts is not None
        part = parts.next()
        if part is not None:
            self._hold(parts, part, now_s)
            return
        self._parts = None
        if self.s.gpus.open:
            wanting = (self.s.durable.apps[app_id].vc for app_id in self.candidates.wanting())
            leases.set_expiry(self.s, self.clerk, self._unseen_s(now_s), {*wanting, *borrowers(self.s)})
        for vc, lost in grouped((self.s.durable.apps[x[0].app_id].vc, x) for x in parts.ended).items():
            self._hand_out(Receipt(self._new_id(), now_s, self._policy_of(vc).name, False, vc, False,
                                   cluster_gpus=self.s.gpus_of(vc), outcome=naming(Outcome(), lost)))  # fmt: skip

    def _begin(self, now_s: float) -> None:
        """Divides the round into parts and runs it, unless it would achieve nothing."""
        s = self.s
        self.s.timer.begun()
        if self.clerk.hosts_due_s is not None:
            self.clerk.announce_hosts()
        parts, from_s = RoundParts(s, self.clerk, self.candidates.wanting(), now_s), self._unseen_s(now_s)
        self._looked_s = now_s + 1.5 * s.lead_s
        near = [vc for vc in parts.busy if leases.common_end_s(s, from_s, "", vc) <= self._looked_s]
        leases.set_expiry(s, self.clerk, from_s, near)
        parts.ending = self._ending(now_s)
        if not parts.ending and self._grants_unused(now_s):
            return
        if s.settings.open_leases and parts.ending:
            self._leave_open(parts, now_s)
        if parts.ending or parts.busy:
            self._parts = parts
            self._run(now_s)

    def _unseen_s(self, now_s: float) -> float:
        """The first time at which leases can end that no round has renewed."""
        return max(now_s + self.s.lead_s, math.nextafter(self._looked_s, math.inf))

    def _leave_open(self, parts: RoundParts, now_s: float) -> None:
        """Takes gangs that a round would only renew out of it: their leases have no end until their apps' virtual
        cluster is busy, as nobody else may have what it owns.

        A private schedule or a limit may end gangs though no app waits, and some policies move gangs that are spread.
        """
        s, rest, stay = self.s, dict[str, list[list[Lease]]](), list[list[Lease]]()
        for app_id, gangs in parts.ending.items():
            app = s.durable.apps[app_id]
            limited = s.limits.of(app.queue, app.user) or min(s.queue_rooms(app_id).values(), default=0) < 0
            quiet = app.vc not in parts.busy and not limited and not s.supply.terms(app.vc).private_schedule
            migrates = getattr(self._policy_of(app.vc), "migrates", False)
            for gang in gangs:
                moves = migrates and (len(s.places(gpus_in(gang), bool(app.vc))) > 1 or len(s.topology.types) > 1)
                if quiet and not moves and all(x.guaranteed for x in gang):
                    stay.append(gang)
                else:
                    rest.setdefault(app_id, []).append(gang)
        leases.extend(s, self.clerk, ((math.inf, gpus_in(gang)) for gang in stay))
        if stay:
            s.timer.held(now_s, moved=True, more_to_do=False, same_again=True)  # as by a round that renews them
        parts.ending = rest

    def _grants_unused(self, now_s: float) -> bool:
        """Whether to postpone the round, as apps return whatever they get (for its type, say) and would do so again."""
        s, (round_id, app_ids) = self.s, self._granted
        self._granted = ("", frozenset())
        if not app_ids:
            return False
        used = any(round_of(x.grant_id) == round_id for app_id in app_ids for x in s.durable.claims_of(app_id))
        return self.s.timer.grants_used(used, now_s)

    def _hold(self, parts: RoundParts, part: RoundPart, now_s: float) -> None:
        """Begins the round of a part, if there are GPUs on offer and apps that may want them."""
        s, ending = self.s, parts.ending_of(part.vc, part.guaranteed)
        policy, wanting = self._policy_of(part.vc), self._wanting(part)
        first = next(wanting, None)
        if not part.free or not (ending or first or parts.borrowers_of(part)):
            return
        ending_gpus = {gpu for gangs in ending.values() for gang in gangs for gpu in gpus_in(gang)}
        openings = Openings(self.eligibility, part, ending_gpus, one_type(policy))
        self.current = r = Round(self._new_id(), now_s, ending, part, parts, policy, openings)
        r.since_s = dict(s.agents.unmet_since_s)
        r.seed = s.settings.seed * 1_000_003 + s.durable.rounds
        r.deadline_s = now_s + s.settings.rho_s
        if policy.asks_agents:
            for app_id in dict.fromkeys([*ending, *filter(None, [first]), *wanting]):
                self._ask_rho(r, app_id, now_s)

    def _wanting(self, part: RoundPart) -> Iterator[str]:
        """The apps that may want GPUs of a part."""
        s = self.s
        for app_id in self.candidates.wanting():
            agent, mine = s.agents.get(app_id), s.durable.apps[app_id].vc == part.vc and app_id not in part.without
            if mine and (agent is None or part.admits(agent.demand)):
                yield app_id

    def _new_id(self) -> str:
        """The id of a new round, one that no lease names, not even one of a lost journal."""
        taken, number = self.clerk.taken_rounds, self.s.durable.rounds + 1
        if not self._named:
            self._named = True
            taken.update(round_of(x.grant_id) for x in self.s.durable.claims())
        if f"r{self.clerk.epoch}.{number}" not in taken:
            return f"r{self.clerk.epoch}.{number}"
        while f"r{self.clerk.epoch}.{number}" in taken:
            number += 1
        taken.add(f"r{self.clerk.epoch}.{number}")
        return f"r{self.clerk.epoch}.{number}"

    def _ask_rho(self, r: Round, app_id: str, now_s: float) -> None:
        """Asks an app's Agent for its rho, unless the app takes no part."""
        s, agent = self.s, self.s.agents.get(app_id)
        if self.candidates.left_out(r, app_id, now_s):
            return
        if app_id in s.agents.unmanaged_apps:
            self.candidates.stand_in(r, app_id, now_s)
        elif agent is None or not agent.connected:
            r.out[app_id] = NOT_CONNECTED
        else:
            r.waiting.add(app_id)
            self.clerk.emit(
                SendAskRho(app_id, r.round_id, s.contention(app_id, now_s), r.ending_gpus(app_id), r.deadline_s)
            )

    def rho_reported(self, e: RhoReported, now_s: float) -> None:
        """An Agent answered `SendAskRho`."""
        if e.app_id not in self.s.agents:
            return
        r = self.current
        asked = r is not None and r.phase is RoundPhase.RHO and r.round_id == e.round_id and e.app_id in r.waiting
        ending = frozenset(r.ending_gpus(e.app_id)) if r is not None and asked else frozenset()
        demand, rho, corrected = self.reports.rho(e, ending, now_s)
        self.s.agents.answered(e.app_id, demand, rho, e.phases)
        self.clerk.update_demand(e.app_id)
        if r is None or not asked:
            return
        r.waiting.discard(e.app_id)
        r.rho[e.app_id] = rho
        r.note_corrected(e.app_id, corrected)
        self._run(now_s)

    def _offer(self, r: Round, now_s: float) -> None:
        """The policy says who may bid; the stand-in bids immediately, Agents are sent the offer."""
        s = self.s
        r.late(Pending.LATE_RHO, f"no rho within {s.settings.rho_s:g} s")
        r.part = r.part.on(s.topology)  # some machines may be lost since the round began
        if r.policy.asks_agents:  # and leases may have ended while the Agents answered
            there = {a: [g for g in gangs if leases.in_force(s, g) is not None] for a, gangs in r.ending.items()}
            r.ending = {app_id: gangs for app_id, gangs in there.items() if gangs}
        r.views = self.candidates.views(r, now_s)
        r.snapshot = self._snapshot(r, now_s)
        offer, bad = salvage.offer(r.policy, r.snapshot)
        if bad:
            self.candidates.set_aside(r, bad, now_s)
            r.snapshot = dataclasses.replace(r.snapshot, apps=tuple(v for v in r.snapshot.apps if v.app_id not in bad))
        r.participants = offer.app_ids if offer else ()
        r.phase, r.offered_at_s, r.deadline_s = RoundPhase.BIDS, now_s, now_s + s.settings.bid_s
        for app_id in r.participants:
            if app_id not in s.agents:
                r.bids[app_id] = standin.bid(s, r.views[app_id], r.snapshot.free, now_s)
                r.bid_s[app_id] = 0.0
                continue
            r.waiting.add(app_id)
            offered, ending = r.part.by_host(r.snapshot.free), r.ending_gpus(app_id)
            contention = s.contention(app_id, now_s)
            self.clerk.emit(SendOffer(app_id, r.round_id, contention, offered, ending, r.deadline_s))

    def _snapshot(self, r: Round, now_s: float) -> Snapshot:
        """The snapshot for the policy."""
        s, part, private = self.s, r.part, r.part.owner is not None
        memory, present = remembered(s, r.memory_key, r.policy.name), self.candidates.present(part)
        return Snapshot(
            r.round_id, now_s, part.topology, part.free, tuple(r.views.values()), s.f_of(part.vc),
            s.lease_s_of(part.vc), {} if private else s.cluster.queues, part.vc, memory, present,
            self.candidates.ended(memory, present, now_s), s.gpus_of(part.vc), private, s.lead_s,
            s.settings.accounts,
        )  # fmt: skip

    def bid_received(self, e: BidReceived, now_s: float) -> None:
        """An Agent's bid, or what is wrong with it: then the app takes no part in the round."""
        r = self.current
        if r is None or r.phase is not RoundPhase.BIDS or r.round_id != e.round_id or e.app_id not in r.waiting:
            return
        assert r.snapshot is not None
        r.waiting.discard(e.app_id)
        r.bid_s[e.app_id] = now_s - r.offered_at_s
        bid = e.bid and self._of_machines(r, e.bid)
        problem = e.problem or (validate_bid(bid, r.snapshot, r.views[e.app_id]) if bid is not None else "empty")
        if problem or bid is None:
            r.out[e.app_id] = Reason(Pending.BAD_BID, problem)
        else:
            held, corrected = self.reports.bid(e.bid or bid)
            r.bids[e.app_id] = as_demanded(self._of_machines(r, held), r.views[e.app_id].demand)
            r.note_corrected(e.app_id, corrected)
        self._run(now_s)

    def cells_changed(self, now_s: float) -> None:
        """The cells were told of all leases again: abandons the round if it is about cells."""
        if self.current is not None and not self.s.supply.whole:
            self.abandon(now_s)

    def abandon(self, now_s: float) -> None:
        """Gives up the round, as the cells changed, and requests another."""
        r, self.current, self._parts = self.current, None, None
        if r is not None:
            self._hand_out(receipt(self.s, r, None, "the cells changed during the round"))
        self.clerk.request_round(now_s + self.s.settings.settle_s)

    def _of_machines(self, r: Round, bid: Bid) -> Bid:
        """The bid with kept gangs on the virtual cluster's machines instead of hosts: Agents know only hosts."""
        if not r.part.host_of:
            return bid
        ending = map(gpus_in, r.ending.get(bid.app_id, ()))
        names = grouped((as_gang(gpus), self.s.places(gpus, True)) for gpus in ending)

        def kept(row: BidRow) -> tuple[Gang, ...]:
            left = {gang: iter(found) for gang, found in names.items()}
            return tuple(next(left.get(gang, iter(())), gang) for gang in row.keep)

        return dataclasses.replace(bid, rows=tuple(dataclasses.replace(row, keep=kept(row)) for row in bid.rows))

    def app_gone(self, app_id: str, now_s: float) -> None:
        """An app ended or its Agent disconnected: the round does not wait for it."""
        r = self.current
        if r is None or app_id not in r.waiting:
            return
        r.waiting.discard(app_id)
        r.out[app_id] = WENT_AWAY
        self._run(now_s)

    def _solve(self, r: Round, now_s: float) -> None:
        """Sends the snapshot and the bids to the policy, on another thread."""
        assert r.snapshot is not None
        r.late(Pending.LATE_BID, f"no bid within {self.s.settings.bid_s:g} s")
        r.phase = RoundPhase.PLAN
        r.deadline_s = now_s + SOLVE_PATIENCE * self.s.settings.solve_s
        r.leave_out()
        self.clerk.emit(Solve(r.snapshot, dict(r.bids), r.seed))

    # ---- decision

    def decided(self, e: Decided, now_s: float) -> None:
        """The policy's plan, or its failure."""
        r = self.current
        self.candidates.set_aside(r, e.left_out, now_s)
        if r is not None and r.phase is RoundPhase.PLAN and r.round_id == e.round_id:
            self._finish(r, e.plan, e.problem, now_s)
            self._run(now_s)

    def _finish(self, r: Round, plan: Plan | None, problem: str, now_s: float) -> None:
        """Ends the round: carries out its plan, unless there is none or a problem."""
        self.current = None
        if leases.suspended(self.s, now_s):
            problem = problem or "given up: leases are suspended"
        if plan is None or problem:
            outcome, note = None, problem or "no plan"
            self.s.timer.failed(now_s)
        else:
            outcome, note = self._carry_out(r, plan, now_s)
        self._hand_out(receipt(self.s, r, outcome, note))

    def _carry_out(self, r: Round, plan: Plan, now_s: float) -> tuple[Outcome, str]:
        """Carries out the plan; returns its outcome and a note for the receipt."""
        s = self.s
        plan = self._amended(r, plan)
        if dict(plan.memory) != remembered(s, r.memory_key, r.policy.name):
            self.clerk.record(PolicyMemory({**plan.memory, REMEMBERED_BY: r.policy.name}, r.memory_key))
        borrowing = r.parts.borrowers_of(r.part)
        moving = r.parts.ending_of(r.part.vc, False) if borrowing else {}
        work = Work(r.round_id, r.part, r.ending, borrowing, moving, r.openings.closed_hosts)
        done = commit(s, self.clerk, work, plan, now_s)
        outcome = outcome_of(r.part, plan, done)
        r.out.update((x.app_id, x.why) for x in refused(done) if x.why is not None)
        self._prepare_next(r, outcome, now_s)
        return naming(outcome, r.parts.ended), note_of(plan, done)

    def _amended(self, r: Round, plan: Plan) -> Plan:
        """The plan with new gangs where they may start, and with what it leaves given to other apps."""
        kept_out = {a.app_id: r.openings.kept_out(a.app_id) for a in plan.awards}
        plan = relocate(plan, r.views, r.part.free, r.part.on(self.s.topology).topology, kept_out)
        r.leave_out()
        if not self.s.settings.last_pass or r.snapshot is None:
            return plan
        # what a plan leaves: ending leases do not count as free, as they may be renewed
        return last_pass(plan, r.snapshot, lambda app_id: r.openings.kept_out(app_id, ending=False))

    def _prepare_next(self, r: Round, outcome: Outcome, now_s: float) -> None:
        """Repeats the part if it has more to give at once, and requests the next round."""
        refused_gang = frozenset(outcome.refused)
        if refused_gang:  # cells may have no place for a gang that the machines' GPUs could hold
            if r.part.owner is not None and not refused_gang <= r.part.without:
                r.parts.again(r.part, refused_gang)
        elif not r.ending and self._more_sizes(outcome):
            r.parts.again(r.part)
        if outcome.granted:
            self._granted = (r.round_id, frozenset(x.app_id for x in outcome.granted))
        more_to_do = bool(outcome.unused_gpus) and any(self.candidates.wanting())
        self.s.timer.held(now_s, outcome.moved, more_to_do, same_again=bool(r.ending))

    def _more_sizes(self, outcome: Outcome) -> bool:
        """Whether an unmanaged app that was granted GPUs asks for more containers one by one."""
        served = {x.app_id for x in outcome.granted}
        return any(a in self.s.agents.unmanaged_apps and standin.sizes(self.s, a) for a in served)

    def _hand_out(self, x: Receipt) -> None:
        self.s.receipts.append(x)
        self.clerk.record(RoundHeld(x.round_id, x.at_s, x))
