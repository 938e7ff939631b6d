"""Single GPUs that go bad: no app gets them, gangs on them leave in time, and repaired ones are used again."""

from __future__ import annotations

import dataclasses

import pytest

from pycontrol.arbiter.ledger.facts import LeaseRevoking
from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.model import events as ev
from pycontrol.model.topology import Gpu
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.world import World

BAD = Gpu("n1", 2)


def world(**changes: object) -> World:
    return World("themis", **{"lease_s": 300, "lead_s": 6, "f": 0.0, **changes})


def held_by(w: World, app_id: str) -> set[Gpu]:
    return {g for c in w.of(app_id) for g in c.gpus}


def test_nobody_gets_a_bad_gpu_until_it_is_repaired() -> None:
    w = world()
    w.mark(BAD.host, BAD.index)
    w.add_app("app1", 1, 12, 4000)
    w.run(20)
    assert len(held_by(w, "app1")) == 11
    assert w.arbiter.holdings.topology.gpus == 11
    assert all(r.bad_gpus == (BAD,) for r in w.arbiter.receipts)
    w.mark(BAD.host)
    w.run(30)
    assert len(held_by(w, "app1")) == 12


def test_a_gang_that_needs_the_bad_gpu_gets_the_reason() -> None:
    w = world()
    w.mark(BAD.host, BAD.index)
    w.add_app("wide", 12, 1, 100)
    w.run(10)
    why = reason(w.arbiter, "wide", w.now)
    assert (why.code, "has 11 and 1 bad ones" in why.sentence) == ("ExceedsClusterSize", True)


@pytest.mark.parametrize("revocable", [False, True])
def test_an_app_without_an_agent_has_the_same_grace(revocable: bool) -> None:
    w = world(standin_revocable=revocable)
    w.add_foreign("shell", 4, 1)
    w.run(10)
    bad = min(held_by(w, "shell"))
    w.mark(bad.host, bad.index)
    w.run(20)
    assert bad not in held_by(w, "shell")
    assert {f.end_s for f in w.journal if isinstance(f, LeaseRevoking)} == {1016.0}
    w.end_app("shell")
    w.add_app("app1", 1, 12, 4000)
    w.run(40)
    assert bad not in w.occupied


@pytest.mark.parametrize("policy", ["isonomy", "tiresias", "yarn_cs"])
def test_a_free_gpu_goes_to_an_app_one_of_whose_gpus_is_bad(policy: str) -> None:
    w = World(policy, lease_s=300, lead_s=6)
    w.add_foreign("shell", 1, 11)
    w.add_app("app1", 1, 1, 60)
    w.run(20)
    bad = min(held_by(w, "shell"))
    w.mark(bad.host, bad.index)
    w.run(100)
    assert bad not in held_by(w, "shell")
    w.ask_more("shell", 1, 1)
    w.run(200)
    assert len(held_by(w, "shell")) == 11
    assert not w.arbiter.gpus.free.count


def test_the_reservation_of_a_gpu_that_goes_bad_is_cancelled() -> None:
    w = world(lease_s=40)
    w.add_app("early", 4, 3, 4000)
    w.run(10)
    w.add_app("late", 4, 3, 4000)
    while not w.arbiter.durable.reservations:
        w.wait(0.1)
    promised = dict(w.arbiter.durable.reservations)
    bad, lease = min(promised.items())
    w.mark(bad.host, bad.index)
    mates = {g for g, x in promised.items() if x.grant_id == lease.grant_id}
    assert not mates & set(w.arbiter.durable.reservations), "what is left of the gang would be of no use"
    w.run(60)
    assert bad not in w.occupied
    assert len(w.occupied) == 8, "the other GPUs hold two gangs"


def test_a_gpu_known_to_be_bad_at_a_restart_is_vacated_after_the_recovery() -> None:
    w = world()
    app = w.add_app("app1", 4, 1, 600)
    w.run(10)
    bad = min(held_by(w, "app1"))
    w.mark(bad.host, bad.index)
    w.crash()
    assert w.arbiter.durable.leases[bad].state == REVOKING, "the journal knows the deadline"
    w.run(60)
    assert bad not in w.occupied
    again = min(held_by(w, "app1"))
    node = w.nodes[f"{again.host}:1"]
    w.nodes[node.node_id] = dataclasses.replace(node, bad_gpus=frozenset({again.index}))
    w.crash()
    assert w.arbiter.durable.leases[again].state != REVOKING
    w.run(90)
    assert again not in w.occupied
    w.run(400)
    assert app.finished


def test_a_machine_that_comes_back_smaller_has_lost_its_last_gpus() -> None:
    w = world()
    w.add_app("app1", 1, 12, 4000)
    w.run(20)
    w.submit(ev.NodeUp(dataclasses.replace(w.nodes["n1:1"], gpus=3)))
    w.run(40)
    assert len(held_by(w, "app1")) == 11
    assert Gpu("n1", 3) not in w.occupied


def test_an_agent_that_comes_while_a_machine_is_away_can_be_told_of_it() -> None:
    w = world()
    w.lose_node("n1")
    w.mark("n4", 0, 1)
    a = w.arbiter
    assert {m.host: (m.rack, m.gpus) for m in a.cluster.machines.known.machines.values()} == {
        "n1": ("a", 0),
        "n2": ("a", 4),
        "n3": ("b", 2),
        "n4": ("b", 0),
    }
    assert set(a.holdings.topology.machines) == {"n2", "n3"}
    w.node_back("n1")
    assert a.cluster.machines.known.machines["n1"].gpus == 4


def test_a_drained_machine_with_a_bad_gpu_comes_back_without_it() -> None:
    w = world()
    w.submit(ev.OperatorCommand("drain", "n1", "root"))
    w.mark("n1", 2)
    w.add_app("app1", 1, 12, 4000)
    w.run(20)
    assert len(held_by(w, "app1")) == 8
    w.submit(ev.OperatorCommand("undrain", "n1", "root"))
    w.run(40)
    assert len(held_by(w, "app1")) == 11
    assert BAD not in w.occupied
