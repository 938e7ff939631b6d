"""A gang that loses some of its GPUs gets free ones for them, and the rest keep their places."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pycontrol.arbiter.ledger.facts import LeaseEnded, LeaseMended, LeaseRevoking
from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.model import events as ev
from pycontrol.model.cluster import Queue
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu, Scope
from pycontrol.policies.registry import names
from tests.arbiter.test_controls import world
from tests.arbiter.world import World

EVER = 1e6
MACHINES = [("a1", "a", 2), ("a2", "a", 2), ("a3", "a", 2), ("b1", "b", 2)]


def running(policy: str = "isonomy", gang: int = 4, **wishes: Any) -> World:
    """A gang of four on a1 and a2."""
    w = World(policy, machines=MACHINES)
    w.add_app("wide", gang, 1, EVER, **wishes)
    w.wait(10)
    assert {h[0] for h in w.places("wide")} == {"a"}
    return w


def lose(w: World, how: str, host: str) -> None:
    """Loses a machine, or one GPU of it."""
    if how == "machine":
        w.lose_node(host)
    else:
        w.mark(host, 0)


def mended(w: World) -> list[LeaseMended]:
    return [fact for fact in w.journal if isinstance(fact, LeaseMended)]


@pytest.mark.parametrize("policy", names())
@pytest.mark.parametrize("how", ["machine", "gpu"])
def test_the_rest_of_a_gang_keeps_its_places(policy: str, how: str) -> None:
    w = running(policy)
    before = w.places("wide")
    kept, broken = sorted(before)
    grants = {x.grant_id for x in w.arbiter.durable.leases.of("wide")}
    w.add_app("other", 2, 1, EVER)
    w.wait(10)
    others = w.places("other")
    end_s = min(x.end_s for x in w.arbiter.durable.leases.of("wide"))
    lose(w, how, broken)
    (fact,) = mended(w)
    assert len(fact.gpus) == (2 if how == "machine" else 1)
    assert (fact.end_s, {fact.grant_id}) == (end_s, grants), "the same grant, until the same end"
    w.wait(9)
    after = w.places("wide")
    assert after[kept] == before[kept]
    assert sum(map(len, after.values())) == 4
    leases = [x for x in w.arbiter.durable.leases.of("wide") if x.state != REVOKING]
    assert {(x.grant_id, x.end_s) for x in leases} == {(fact.grant_id, end_s)}
    assert {x.job_id for x in leases} == {"j0"}, "it runs again, as one gang"
    assert len(w.arbiter.holdings.gangs_of("wide")) == 1
    assert w.places("other") == others
    lost = [
        f
        for f in w.journal
        if isinstance(f, LeaseRevoking | LeaseEnded) and f.cause in (EndReason.NODE_LOST, EndReason.BAD_GPU)
    ]
    assert {gpu for f in lost for gpu in f.gpus} <= {Gpu(broken, 0), Gpu(broken, 1)}
    w.wait(60)
    assert sum(map(len, w.places("wide").values())) == 4, "a round renews it whole"
    w.crash()
    w.wait(20)
    assert sum(map(len, w.places("wide").values())) == 4


@pytest.mark.parametrize("how", ["machine", "gpu"])
@pytest.mark.parametrize(("wishes", "taken"), [({"scope": Scope.RACK}, "a"), ({}, "ab")])
def test_without_free_gpus_that_suit_it_a_round_decides(how: str, wishes: dict[str, Any], taken: str) -> None:
    w = running(**wishes)
    on = sorted(w.places("wide"))
    for host in (m[0] for m in MACHINES if m[1] in taken and m[0] not in on):
        w.add_foreign(f"on-{host}", 2, 0)
        w.ask_more(f"on-{host}", 2, 1, (host,))
    w.wait(10)
    lose(w, how, on[-1])
    assert mended(w) == []
    w.wait(9)
    assert not w.places("wide"), "the rest is given back"


@pytest.mark.parametrize("how", ["machine", "gpu"])
@pytest.mark.parametrize(("most", "within"), [(3.0, False), (4.0, True)])
def test_a_gang_beyond_a_limit_that_was_lowered_gets_no_gpus_for_those_that_it_loses(
    how: str, most: float, within: bool
) -> None:
    w = running()
    w.submit(ev.OperatorCommand(SET_LIMITS, "queue root.q", "root", values={"gpus": most}))
    lose(w, how, sorted(w.places("wide"))[-1])
    assert bool(mended(w)) == within


def test_a_gang_is_not_mended_beyond_what_its_queue_may_have_of_the_machines_that_are_left() -> None:
    w = running()
    w.submit(dataclasses.replace(w.snapshot(), queues=(Queue("root.q", 0.5, 0.5),)))
    w.wait(10)
    w.lose_node(sorted(w.places("wide"))[-1])
    assert mended(w) == [], "half of six GPUs"


def test_segments_stay_whole() -> None:
    w = running(members=(2, 2))
    lose(w, "gpu", sorted(w.places("wide"))[-1])
    assert mended(w) == [], "its half on one machine would be on two"


def test_a_gang_of_own_cells_keeps_its_guarantee() -> None:
    w = world("{root.a: {node: 3}}", machines=tuple((f"n{k}", "a", 4) for k in range(1, 5)))
    w.add_app("wide", 8, 1, EVER, "root.a")
    w.wait(20)
    broken = sorted(w.places("wide"))[-1]
    w.lose_node(broken)
    assert len(mended(w)) == 1
    w.wait(20)
    on = w.places("wide")
    assert sum(map(len, on.values())) == 8
    assert all(x.guaranteed for x in w.arbiter.durable.leases.of("wide"))


@pytest.mark.parametrize("room", [True, False])
def test_a_gang_on_one_machine_is_spread_only_where_no_other_machine_has_room_for_all_of_it(room: bool) -> None:
    w = World("isonomy", machines=[("a1", "a", 4), ("a2", "a", 4 if room else 3)])
    w.add_app("whole", 4, 1, EVER)
    w.wait(10)
    lose(w, "gpu", "a1")
    assert bool(mended(w)) != room
    w.wait(9)
    assert {h: len(x) for h, x in w.places("whole").items()} == ({"a2": 4} if room else {"a1": 3, "a2": 1})


def test_a_lease_that_lasts_until_another_app_wants_gpus_is_mended_with_such_a_one() -> None:
    w = World("tiresias", machines=MACHINES, open_leases=True)
    w.add_app("wide", 4, 1, EVER)
    w.wait(150)
    assert w.arbiter.gpus.open, "nobody else wants GPUs"
    w.lose_node(sorted(w.places("wide"))[-1])
    assert len(mended(w)) == 1
    w.wait(100)
    assert sum(map(len, w.places("wide").values())) == 4
    w.crash()
    w.add_app("other", 4, 2, EVER)
    w.wait(200)
    assert len(w.arbiter.holdings.gangs_of("wide")) <= 1


def test_an_app_without_an_agent_asks_again() -> None:
    w = World("isonomy", machines=MACHINES)
    w.add_foreign("shell", 2, 2, tags=["isonomy.gang"])
    w.wait(10)
    w.lose_node(sorted(w.places("shell"))[-1])
    assert mended(w) == []


def test_an_agent_hears_of_the_loss_before_it_gets_the_gpus_that_mend_its_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    w, told = running(), list[str]()
    carry_out = w.carry_out
    monkeypatch.setattr(w, "carry_out", lambda e: (told.append(type(e).__name__), carry_out(e)))
    w.mark(sorted(w.places("wide"))[1], 0)
    sent = [name for name in told if name in ("SendGrant", "SendRevoke")]
    assert sent[:2] == ["SendRevoke", "SendGrant"], "else it would return GPUs for which none of its jobs waits"
