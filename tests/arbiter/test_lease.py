"""The states of a lease: the table, the code and the diagram in the docs agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    AppArrived,
    Fact,
    LeaseBorrowed,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseIdle,
    LeaseOwned,
    LeaseRevoking,
    LeaseStarted,
    NextDropped,
    from_json,
    to_json,
)
from pycontrol.arbiter.ledger.lease import TRANSITIONS, LeaseState
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu
from tests.arbiter.diagrams import transitions_drawn

GPU = Gpu("n1", 0)
ARRIVED = AppArrived("a", "a", "root.q", "u", "job", 0.0, 0.0)
GRANTED = LeaseGranted((GPU,), "a", "r1.0", 1.0, 601.0, "r1.0")
STARTED = LeaseStarted((GPU,), "c1", "j0", 2.0, 602.0, 1.1)
REVOKING = LeaseRevoking((GPU,), 90.0, "lost round r2", EndReason.LOST_ROUND)
INTO: dict[LeaseState, tuple[Fact, ...]] = {
    LeaseState.GRANTED: (GRANTED,),
    LeaseState.ACTIVE: (GRANTED, STARTED),
    LeaseState.REVOKING: (GRANTED, STARTED, REVOKING),
}
FACTS: dict[type[Any], Fact] = {
    LeaseGranted: GRANTED,
    LeaseStarted: LeaseStarted((GPU,), "c2", "j1", 50.0, 650.0),
    LeaseExtended: LeaseExtended((GPU,), 1200.0),
    LeaseIdle: LeaseIdle((GPU,), 60.0),
    LeaseRevoking: LeaseRevoking((GPU,), 80.0, "n1 is being drained", EndReason.DRAINED),
    LeaseEnded: LeaseEnded((GPU,), 70.0, "revoked", EndReason.LOST_ROUND),
}


def ledger(*facts: Fact) -> Durable:
    found = Durable()
    for fact in (ARRIVED, *facts):
        found.apply(fact)
    return found


@pytest.mark.parametrize(("state", "fact"), TRANSITIONS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_each_transition_of_the_table_is_what_the_ledger_does(state: LeaseState | None, fact: type[Any]) -> None:
    d = ledger(*(INTO[state] if state is not None else ()))
    d.apply(FACTS[fact])
    lease = d.leases.get(GPU)
    assert (lease.state if lease is not None else None) == TRANSITIONS[state, fact]


def test_the_diagram_in_the_docs_has_the_transitions_of_the_table() -> None:
    table = {(str(old or "[*]"), fact.__name__, str(new or "[*]")) for (old, fact), new in TRANSITIONS.items()}
    assert transitions_drawn("pycontrol/arbiter/ledger/lease.py") == table


@pytest.mark.parametrize("state", INTO)
def test_a_new_owner_of_the_cells_changes_the_guarantee_and_not_the_state(state: LeaseState) -> None:
    d = ledger(*INTO[state], LeaseBorrowed((GPU,), "r1.0"))
    assert (d.leases[GPU].state, d.leases[GPU].guaranteed) == (state, False)
    d.apply(LeaseOwned((GPU,), "other"))
    assert not d.leases[GPU].guaranteed
    d.apply(LeaseOwned((GPU,), "r1.0"))
    assert (d.leases[GPU].state, d.leases[GPU].guaranteed) == (state, True)


def test_a_lease_that_was_read_does_not_change() -> None:
    d = ledger(GRANTED)
    before = d.leases[GPU]
    d.apply(STARTED)
    d.apply(REVOKING)
    assert (before.state, before.container_id, before.end_s) == (LeaseState.GRANTED, "", 601.0)
    assert d.leases[GPU].lease_id == before.lease_id == "r1.0@n1:0"
    assert d.leases.by_app["a"][GPU] is d.leases[GPU]


def test_a_reservation_begins_when_the_lease_ends_and_lasts_as_long() -> None:
    later = LeaseGranted((GPU,), "a", "r2.0", 90.0, 600.0, "r2.0", after=(GPU,), guaranteed=False)
    d = ledger(GRANTED, STARTED, REVOKING, later)
    reservation = d.reservations[GPU]
    assert d.held == {"a": 1}
    d.apply(LeaseEnded((GPU,), 70.0, "revoked", EndReason.LOST_ROUND))
    begun = d.leases[GPU]
    assert (begun.lease_id, begun.granted_s, begun.end_s) == (reservation.lease_id, 70.0, 580.0)
    assert (begun.unused_since_s, begun.gang, begun.guaranteed) == (70.0, "r2.0", False)
    assert not d.reservations
    assert not d.reservations.by_app


def test_a_reservation_that_is_cancelled_leaves_the_lease() -> None:
    later = LeaseGranted((GPU,), "a", "r2.0", 90.0, 600.0, after=(GPU,))
    d = ledger(GRANTED, REVOKING, later, NextDropped((GPU,), "n1 is being drained"))
    assert (d.leases[GPU].state, d.reservations, d.held) == (LeaseState.REVOKING, {}, {})


def test_reservations_are_journaled_as_the_leases_that_they_become() -> None:
    d = ledger(GRANTED, REVOKING, LeaseGranted((GPU,), "a", "r2.0", 90.0, 600.0, "g", after=(GPU,)))
    data = json.loads(json.dumps(d.dump()))
    assert (data["next"][0]["state"], data["next"][0]["unused_since_s"]) == ("granted", 90.0)
    assert data["next"][0].keys() == data["leases"][0].keys()
    again = Durable.load(data)
    assert again.dump() == d.dump()
    assert again.reservations == d.reservations
    assert again.leases == d.leases


# ---- gangs


GANG = tuple(Gpu(host, k) for host in ("n1", "n2") for k in range(2))


def test_a_gang_is_one_lease_and_one_fact() -> None:
    d = ledger(LeaseGranted(GANG, "a", "r1.0", 1.0, 601.0))
    assert {id(d.leases[gpu]) for gpu in GANG} == {id(d.leases[GPU])}
    assert list(d.leases.each()) == d.leases.of("a") == [d.leases[GPU]]
    assert (d.held, d.grants, d.is_whole([d.leases[GPU]])) == ({"a": 4}, {"r1.0": 4}, True)
    fact = LeaseGranted(GANG, "a", "r1.0", 1.0, 601.0, after=GANG[3:])
    data = json.loads(json.dumps(to_json(fact)))
    assert data["gpus"] == [["n1", 0, 1], ["n2", 0, 1]]
    assert from_json("LeaseGranted", data) == fact


@pytest.mark.parametrize("lost", [GANG[:1], GANG[1:3], GANG[3:]])
def test_gpus_that_a_gang_loses_become_a_lease_of_their_own(lost: tuple[Gpu, ...]) -> None:
    granted = LeaseGranted(GANG, "a", "r1.0", 1.0, 601.0)
    d = ledger(granted, LeaseRevoking(lost, 90.0, "GPU n1:0 is bad", EndReason.BAD_GPU))
    left = tuple(gpu for gpu in GANG if gpu not in lost)
    gone, rest = d.leases[lost[0]], d.leases[left[0]]
    assert (gone.gpus, gone.state, gone.end_s) == (lost, LeaseState.REVOKING, 90.0)
    assert (rest.gpus, rest.state, rest.end_s) == (left, LeaseState.GRANTED, 601.0)
    assert gone.lease_id != rest.lease_id
    assert gone.grant_id == rest.grant_id
    assert {x.gpus for x in d.leases.of("a")} == {lost, left}
    assert (d.held, d.is_whole([rest]), d.is_whole([gone])) == ({"a": len(left)}, True, len(gone.gpus) == len(left))
    d.apply(LeaseEnded(lost, 95.0, "revoked", EndReason.BAD_GPU))
    assert (set(d.leases), d.leases.of("a")) == (set(left), [rest])
    assert Durable.load(json.loads(json.dumps(d.dump()))).leases == d.leases


def test_a_gang_whose_gpus_come_free_one_after_another() -> None:
    before = [LeaseGranted((gpu,), "a", f"r1.{k}", 1.0, 601.0) for k, gpu in enumerate(GANG[:3])]
    coming = LeaseGranted(GANG, "a", "r2.0", 90.0, 690.0, after=GANG[:3])
    d = ledger(*before, LeaseRevoking(GANG[:3], 90.0, "lost round r2", EndReason.LOST_ROUND), coming)
    assert d.leases[GANG[3]].gpus == GANG[3:]
    assert (d.reservations[GPU].gpus, d.grants) == (GANG[:3], {"r2.0": 4})
    d.apply(LeaseEnded(GANG[1:2], 70.0, "revoked"))
    assert (d.leases[GANG[1]].gpus, d.leases[GANG[1]].end_s) == (GANG[1:2], 670.0)
    assert {d.reservations[GPU].gpus, d.reservations[GANG[2]].gpus} == {(GANG[0], GANG[2])}
    d.apply(NextDropped(GANG[:1], "n1 is being drained"))
    d.apply(LeaseEnded((GANG[0], GANG[2]), 80.0, "revoked"))
    assert GPU not in d.leases
    assert (d.leases[GANG[2]].end_s, d.held, d.reservations) == (680.0, {"a": 3}, {})


def test_a_fact_about_a_gpu_without_a_lease_does_not_fit() -> None:
    d = ledger(GRANTED)
    with pytest.raises(KeyError):
        d.apply(LeaseExtended((GPU, Gpu("n9", 0)), 1200.0))
    assert d.leases[GPU].end_s == 601.0
