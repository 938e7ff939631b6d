"""Cell exchange behind the Arbiter: deals move guarantees, end in time, survive crashes, and harm no third queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import ExchangeChanged, LeaseBorrowed
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.values import CellsError
from pycontrol.model import events as ev
from tests.arbiter.mixes import BAD_GPUS, SOMETIMES_S, Mix, mixes, plan
from tests.arbiter.test_cells import CELLS, guaranteed_gpus
from tests.arbiter.world import World
from tests.cells.files import layout_of, supply_of
from tests.cells.invariants import check

A, B = "root.a", "root.b"
SMALL = ("small", "small", 1)
PAIR = ("big", "pair", 1)
BIG = ("big", "big", 1)


class Trading(World):
    """A world with cells whose exchange is checked after every event."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__("tiresias", seed, supply=CELLS, lease_s=300, lead_s=6, f=0.0)

    @property
    def service(self):  # type: ignore[no-untyped-def]
        return self.arbiter.exchange_service

    def submit(self, event: ev.Event) -> None:
        before, facts = dict(self.service.exchange.deals), len(self.journal)
        super().submit(event)
        over = [d for d in before.values() if d.id not in self.service.exchange.deals]
        may = {d.tenant for d in over} | {d.owner for d in over if d.in_return}
        for fact in self.journal[facts:]:
            if isinstance(fact, LeaseBorrowed):
                lease = self.arbiter.durable.leases.get(fact.gpus[0]) or self.arbiter.durable.reservations[fact.gpus[0]]
                vc = self.arbiter.durable.apps[lease.app_id].vc
                assert vc in may, "a guarantee was lost though no deal of its virtual cluster ended"

    def post(
        self,
        verb: str,
        name: str,
        vc: str = "",
        lot: tuple[str, str, int] = SMALL,
        for_s: float = 100.0,
        in_return: tuple[str, str, int] | None = None,
    ) -> str:
        event = ev.ExchangePosted(verb, name, vc, lot, self.now + for_s, in_return)
        why: str = self.service.refusal(event, self.now)
        self.submit(event)
        return why

    def owned(self) -> Mapping[str, int]:
        return {vc: self.service.supply.gpus_of(vc) for vc in (A, B)}

    def check(self) -> None:
        super().check()
        if self.arbiter.cluster.ready:
            exchange = self.service.exchange
            assert sum(exchange.board.surplus.values()) == pytest.approx(0)
            assert sum(self.owned().values()) == sum(supply_of(CELLS).gpus_of(vc) for vc in (A, B))
            kept = self.arbiter.durable.exchange
            assert not kept or kept == exchange.dump(), "something changed and was not recorded"
            for space in exchange.cells.spaces:
                space.buddy.check()


def test_a_deal_lends_the_guarantee_and_the_end_gives_it_back() -> None:
    w = Trading()
    w.add_app("b", 2, 2, 4000, B)
    w.run(5)
    assert guaranteed_gpus(w, "b") == 4, "a pair and a small one"
    assert not w.post("offer", "o", A, for_s=200)
    assert not w.post("request", "r", B)
    assert w.owned() == {A: 4, B: 6}
    w.add_app("more", 2, 1, 4000, B)
    w.run(30)
    assert guaranteed_gpus(w, "b") + guaranteed_gpus(w, "more") == 6
    w.run(120)
    assert w.owned() == {A: 6, B: 4}
    assert guaranteed_gpus(w, "b") + guaranteed_gpus(w, "more") == 4
    assert not [k for k, _ in w.history if k in ("kill", "preempt", "revoke")], "who must give back runs on, borrowing"
    w.add_app("owner", 4, 1, 4000, A)
    w.add_app("owner2", 2, 1, 4000, A)
    w.run(160)
    assert guaranteed_gpus(w, "owner") + guaranteed_gpus(w, "owner2") == 6, "the owner has all its cells again"


def test_deals_board_and_accounts_survive_a_crash() -> None:
    w = Trading()
    w.post("offer", "o", A, BIG, for_s=500)
    w.post("offer", "o2", A, SMALL, for_s=500)
    w.post("request", "r", B, BIG, 400, in_return=PAIR)
    w.add_app("b", 4, 1, 4000, B)
    w.run(20)
    before, owned = w.service.exchange.dump(), w.owned()
    assert owned == {A: 4, B: 6}
    assert guaranteed_gpus(w, "b") == 4
    w.crash()
    w.run(40)
    assert w.service.exchange.dump() == before
    assert w.owned() == owned
    assert guaranteed_gpus(w, "b") == 4
    w.run(450)
    assert not w.service.exchange.deals
    assert w.owned() == {A: 6, B: 4}


def test_a_standby_control_plane_takes_over_deals_and_accounts() -> None:
    w = Trading()
    w.post("offer", "o", A)
    w.post("request", "r", B, for_s=50)
    supply = supply_of(CELLS)
    other = Arbiter(w.settings, w.policy, supply=supply)
    other.handle(ev.StandbyRestored(json.loads(json.dumps(w.arbiter.durable.kept()))), w.now)
    other.handle(w.snapshot(), w.now)
    assert supply.exchange.dump() == w.service.exchange.dump()
    assert (supply.gpus_of(A), supply.gpus_of(B)) == (4, 6)
    other.handle(ev.Tick(), w.now + 51)
    assert (supply.gpus_of(A), supply.gpus_of(B)) == (6, 4)


def test_a_posting_that_arrives_twice_is_carried_out_once() -> None:
    w = Trading()
    for _ in range(2):
        assert not w.post("offer", "o", A)
    assert not w.post("request", "r", B, for_s=50)
    assert not w.post("request", "r", B, for_s=50)
    assert w.owned() == {A: 4, B: 6}
    assert len(w.service.exchange.deals) == 1
    facts = sum(isinstance(f, ExchangeChanged) for f in w.journal)
    w.run(20)
    assert sum(isinstance(f, ExchangeChanged) for f in w.journal) == facts, "what does not change is not recorded"


@pytest.mark.parametrize(
    ("post", "why"),
    [
        (("offer", "x", A, ("small", "small", 2)), "owns 1 small cells now, it cannot offer 2"),
        (("offer", "x", B, BIG), "owns 0 big cells"),
        (("offer", "x", A, ("small", "pair", 1)), "no cell type pair"),
        (("request", "x", A, ("nowhere", "pair", 1)), "no cell type pair"),
        (("request", "x", A, PAIR, 50, ("small", "small", 2)), "cannot lend in return 2"),
        (("request", "x", A, ("big", "pair", 0)), "at least 1"),
        (("request", "x", A, PAIR, -1), "in the past"),
        (("withdraw", "x"), "no offer or request x"),
        (("withdraw", "deal1"), "in force until its end"),
        (("offer", "r", A, SMALL), "taken by root.b"),
    ],
)
def test_an_impossible_posting_is_refused_and_changes_nothing(post: tuple, why: str) -> None:  # type: ignore[type-arg]
    w = Trading()
    w.post("offer", "o", A, BIG)
    w.post("request", "r", B, BIG, 50, in_return=PAIR)
    before = w.arbiter.durable.dump()
    if post == ("offer", "x", A, ("small", "pair", 1)):
        assert w.owned() == {A: 4, B: 6}
    assert why in w.post(*post)
    assert w.arbiter.durable.dump() == before


def test_withdrawn_postings_are_off_the_board() -> None:
    w = Trading()
    w.post("offer", "o", A)
    assert not w.post("withdraw", "o")
    assert not w.post("withdraw", "o"), "twice is once"
    w.post("request", "r", B, for_s=50)
    w.run(20)
    assert not w.service.exchange.deals


def test_a_changed_assignment_keeps_the_deals_that_it_has_cells_for() -> None:
    w = Trading()
    w.post("offer", "o", A)
    w.post("request", "r", B, for_s=100)
    w.arbiter.reconfigure(layout_of(CELLS), w.now)
    assert w.owned() == {A: 4, B: 6}
    w.now += 50
    less = CELLS.replace("root.a: {big: 1, small: 1", "root.a: {big: 1")
    w.arbiter.reconfigure(layout_of(less), w.now)
    assert w.owned() == {A: 4, B: 4}
    assert w.service.exchange.board.surplus[A] == pytest.approx(2 * 50 / 3600), "for the time that it was lent"


def test_an_assignment_that_changes_before_the_first_snapshot_keeps_deals_that_only_it_has_cells_for() -> None:
    w = Trading()
    assert w.post("offer", "o", A) == ""
    assert w.post("request", "r", B) == ""
    w.run(10)
    kept = w.arbiter.durable.exchange
    assert kept["deals"]
    less = layout_of(CELLS.replace("root.a: {big: 1, small: 1", "root.a: {big: 1"))
    a = Arbiter(w.arbiter.settings, w.arbiter.rounds.policy, w.arbiter.durable, supply=CellSupply(less))
    a.reconfigure(layout_of(CELLS), w.now)
    assert a.durable.exchange == kept


@pytest.mark.parametrize("restart", [False, True])
def test_a_queue_that_the_file_names_with_or_without_root_keeps_its_deals_and_postings(restart: bool) -> None:
    w = Trading()
    w.post("offer", "o", A)
    w.post("request", "r", B, for_s=100)
    w.post("request", "waits", B, BIG)
    w.add_app("b", 2, 3, 4000, B)
    w.run(5)
    assert guaranteed_gpus(w, "b") == 6
    surplus, file = dict(w.service.exchange.board.surplus), CELLS.replace("root.", "")
    if restart:
        a = Arbiter(w.settings, w.policy, Durable.load(w.arbiter.durable.dump()), supply=supply_of(file))
        a.handle(w.snapshot(), w.now)
    else:
        a = w.arbiter
        a.reconfigure(layout_of(file), w.now)
    exchange = a.exchange_service.exchange
    assert [(d.owner, d.tenant) for d in exchange.deals.values()] == [("a", "b")]
    assert [r.tenant for r in exchange.board.requests.values()] == ["b"]
    assert exchange.board.surplus == {vc.removeprefix("root."): hours for vc, hours in surplus.items()}
    assert sum(len(x.gpus) for x in a.durable.leases.each() if x.guaranteed) == 6
    assert exchange.posted == {"o": "a", "r": "b", "waits": "b"}


def test_an_assignment_that_fails_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Trading()
    w.add_app("b", 2, 2, 400, B)
    w.post("offer", "o", A)
    w.post("request", "r", B, for_s=100)
    w.run(5)
    before, deals = guaranteed_gpus(w, "b"), dict(w.service.exchange.deals)
    assert deals

    def fails(*_: object) -> None:
        monkeypatch.undo()
        raise CellsError("no")

    monkeypatch.setattr("pycontrol.arbiter.supply.cell_supply.adopt_all", fails)
    with pytest.raises(CellsError):
        w.arbiter.reconfigure(layout_of(CELLS.replace("root.a: {big: 1, small: 1", "root.a: {big: 1")), w.now)
    assert guaranteed_gpus(w, "b") == before
    assert w.service.exchange.deals == deals
    assert w.owned() == {A: 4, B: 6}
    w.run(400)
    assert w.agents["b"].finished


POSTS = st.tuples(
    st.integers(1, 150),
    st.sampled_from(["offer", "request"]),
    st.sampled_from([A, B]),
    st.sampled_from([SMALL, PAIR, BIG]),
    st.integers(5, 120),
    st.sampled_from([None, SMALL, PAIR]),
)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    posts=st.lists(POSTS, max_size=8),
    apps=mixes(120),
    crashes=st.lists(st.integers(5, 200), max_size=2),
    lost_s=SOMETIMES_S,
    bad=BAD_GPUS,
)
def test_any_trade_conserves_surplus_and_ends_where_it_began(
    seed: int,
    posts: list[Any],
    apps: Mix,
    crashes: list[int],
    lost_s: int | None,
    bad: list[tuple[int, str, int]],
) -> None:
    w = Trading(seed)
    for i, (at, verb, vc, lot, for_s, back) in enumerate(posts):
        back = back if verb == "request" else None
        w.at(at, lambda i=i, v=verb, q=vc, x=lot, f=for_s, r=back: w.post(v, f"p{i}", q, x, f, r))
    plan(w, apps, None, lost_s)
    for crash_s in crashes:
        w.at(crash_s, w.crash)
    w.marks(bad)
    w.run(600)
    assert not w.service.exchange.deals
    assert w.owned() == {A: 6, B: 4}
    check(w.service.exchange.cells)
    w.run(2500)
    assert not [a.app_id for a in w.agents.values() if not a.finished], w.history[-40:]
    w.add_app("own-a", 4, 1, 100, A)
    w.add_app("own-b", 2, 2, 100, B)
    w.run(2520)
    assert (guaranteed_gpus(w, "own-a"), guaranteed_gpus(w, "own-b")) == (4, 4), "everybody has its own again"
