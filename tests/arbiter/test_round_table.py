"""The phases of a round: what it waits for, what ends the wait, and its receipt."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest

from pycontrol.arbiter.round.candidates import RoundPhase
from pycontrol.arbiter.round.rounds import SOLVE_PATIENCE
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, BidRow, Demand, Plan
from pycontrol.model.reasons import Pending
from pycontrol.model.topology import Scope
from tests.arbiter.mini import SETTINGS, Mini

EVERYBODY = dataclasses.replace(SETTINGS, f=0.0)
"""A policy that sends the offer to all apps."""
DEMAND = Demand(1, 1, 1, 1e6, 1e6, 0.0)


class Silent(Mini):
    """Agents and the solver send only what the test sends for them."""

    def send(self, event: ev.Event) -> None:
        for effect in self.a.handle(event, self.now):
            self.effects.append((self.now, effect))
        self.facts += self.a.take_facts()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.send(ev.Tick())

    @property
    def phase(self) -> RoundPhase | None:
        """What the round in progress waits for."""
        return self.a.rounds.current.phase if self.a.rounds.current is not None else None

    @property
    def round_id(self) -> str:
        assert self.a.rounds.current is not None
        return self.a.rounds.current.round_id


def asked() -> Silent:
    """An auction between a and b, who have been asked for rho."""
    m = Silent("themis", EVERYBODY)
    m.app("a")
    m.app("b")
    m.wait(1)
    assert m.phase is RoundPhase.RHO
    return m


def rho(m: Silent, *app_ids: str) -> None:
    for app_id in app_ids:
        m.send(ev.RhoReported(app_id, m.round_id, 2.0, DEMAND))


def offered() -> Silent:
    """Both have been sent the offer."""
    m = asked()
    rho(m, "a", "b")
    assert m.phase is RoundPhase.BIDS
    return m


def bid(m: Silent, *app_ids: str, rho: float = 1.0) -> None:
    for app_id in app_ids:
        row = BidRow(rho, (), 1, 1, Scope.CLUSTER)
        m.send(ev.BidReceived(app_id, m.round_id, Bid(app_id, 5.0, (row,))))


def solving() -> Silent:
    """The policy is deciding."""
    m = offered()
    bid(m, "a", "b")
    assert m.phase is RoundPhase.PLAN
    return m


def decided(m: Silent, problem: str = "") -> None:
    m.send(ev.Decided(m.round_id, None if problem else Plan(m.round_id, ()), problem))


Step = Callable[[Silent], None]
GOES_ON: dict[str, tuple[Callable[[], Silent], Step, RoundPhase | None, dict[str, Pending]]] = {
    "one rho of two": (asked, lambda m: rho(m, "a"), RoundPhase.RHO, {}),
    "every rho": (asked, lambda m: rho(m, "a", "b"), RoundPhase.BIDS, {}),
    "a rho of another round": (
        asked,
        lambda m: m.send(ev.RhoReported("a", "r0.0", 2.0, DEMAND)),
        RoundPhase.RHO,
        {},
    ),
    "an app that is not asked": (
        asked,
        lambda m: m.send(ev.RhoReported("z", m.round_id, 2.0, DEMAND)),
        RoundPhase.RHO,
        {},
    ),
    "time, but not enough": (asked, lambda m: m.wait(SETTINGS.rho_s - 0.01), RoundPhase.RHO, {}),
    "one rho, and the other is late": (
        asked,
        lambda m: (rho(m, "a"), m.wait(SETTINGS.rho_s))[1],
        RoundPhase.BIDS,
        {"b": Pending.LATE_RHO},
    ),
    "an Agent that goes away instead of its rho": (
        asked,
        lambda m: (rho(m, "a"), m.send(ev.AgentLost("b")))[1],
        RoundPhase.BIDS,
        {"b": Pending.AGENT_AWAY},
    ),
    "one bid of two": (offered, lambda m: bid(m, "a"), RoundPhase.BIDS, {}),
    "every bid": (offered, lambda m: bid(m, "a", "b"), RoundPhase.PLAN, {}),
    "a bid that cannot be": (
        offered,
        lambda m: (bid(m, "a"), bid(m, "b", rho=-1.0))[1],
        RoundPhase.PLAN,
        {"b": Pending.BAD_BID},
    ),
    "an Agent that cannot bid": (
        offered,
        lambda m: (bid(m, "a"), m.send(ev.BidReceived("b", m.round_id, None, "no")))[1],
        RoundPhase.PLAN,
        {"b": Pending.BAD_BID},
    ),
    "one bid, and the other is late": (
        offered,
        lambda m: (bid(m, "a"), m.wait(SETTINGS.bid_s))[1],
        RoundPhase.PLAN,
        {"b": Pending.LATE_BID},
    ),
    "an Agent that goes away instead of its bid": (
        offered,
        lambda m: (bid(m, "a"), m.send(ev.AgentLost("b")))[1],
        RoundPhase.PLAN,
        {"b": Pending.AGENT_AWAY},
    ),
    "an Agent that goes away after its bid": (solving, lambda m: m.send(ev.AgentLost("b")), RoundPhase.PLAN, {}),
    "a second bid, too late": (solving, lambda m: bid(m, "a"), RoundPhase.PLAN, {}),
    "a plan of another round": (solving, lambda m: m.send(ev.Decided("r0.0", Plan("r0.0", ()))), RoundPhase.PLAN, {}),
    "a plan": (solving, decided, None, {}),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_after_each_event_a_round_waits_for_this(name: str) -> None:
    begins, step, phase, out = GOES_ON[name]
    m = begins()
    before = m.a.rounds.current
    assert before is not None
    step(m)
    assert m.phase is phase
    assert {app_id: x.code for app_id, x in before.out.items()} == out


ENDS: dict[str, tuple[Step, str]] = {
    "the policy fails": (lambda m: decided(m, "it divided by zero"), "it divided by zero"),
    "the solver says nothing": (
        lambda m: m.wait(SOLVE_PATIENCE * SETTINGS.solve_s),
        "the solver did not answer in time",
    ),
    "leases stand still before the plan": (
        lambda m: m.send(ev.OperatorCommand("pause")),
        "given up: leases are suspended",
    ),
    "the ResourceManager is lost": (lambda m: m.send(ev.ClusterLost()), "given up: leases are suspended"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_round_without_a_plan_gives_the_reason_and_grants_nothing(name: str) -> None:
    step, note = ENDS[name]
    m = solving()
    step(m)
    assert m.phase is None
    receipt = m.a.receipts[-1]
    assert (receipt.note, receipt.outcome) == (note, None)
    assert not m.a.durable.leases


def test_after_a_failed_round_the_next_one_waits_a_little() -> None:
    m = solving()
    decided(m, "no")
    m.wait(SETTINGS.round_retry_s - 0.5)
    assert m.phase is None
    m.wait(0.5)
    assert m.phase is RoundPhase.RHO


def test_the_policy_decides_without_late_apps() -> None:
    m = offered()
    bid(m, "a")
    m.wait(SETTINGS.bid_s)
    (solve,) = m.of(ev.Solve)
    assert [v.app_id for v in solve.snapshot.apps] == ["a"]
    assert set(solve.bids) == {"a"}


def test_a_policy_that_asks_nobody_decides_immediately() -> None:
    m = Silent("isonomy")
    m.app("a")
    m.wait(1)
    assert m.phase is RoundPhase.PLAN
    assert not m.of(ev.SendAskRho)
    assert not m.of(ev.SendOffer)


def test_no_round_is_held_while_nobody_wants_gpus() -> None:
    m = Silent("themis")
    m.wait(1000)
    assert m.phase is None
    assert not m.a.receipts
    assert (m.a.next_wake_s(m.now) or math.inf) > m.now
