"""Spans of a journal's leases: equal to the Arbiter's own state, with times; also over several control planes."""

import pytest

from pycontrol.arbiter.ledger import facts as f
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.audit.accounting import accounted, of_facts
from pycontrol.model.reasons import EndReason
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.runtime.spans import NOT_TAKEN_OVER, OVERWRITTEN, Journal, LeaseInterval, SpanFold, changes_of
from tests.web.scene import Scene

A, B = Gpu("n1", 0), Gpu("n1", 1)


def rows(*facts: tuple[float, f.Fact]) -> list[tuple[int, float, f.Fact]]:
    return [(i, t, fact) for i, (t, fact) in enumerate(facts)]


def spans(*journals: Journal) -> list[LeaseInterval]:
    found = {}
    for _, _, changes in changes_of(SpanFold(), *journals):
        found.update({x.after.number: x.after for x in changes if x.after is not None})
    return list(found.values())


def test_open_spans_are_the_leases_of_the_arbiter_after_every_fact() -> None:
    scene, durable, fold, seen = Scene(run_s=200), Durable(), SpanFold(), 0
    for _, time_s, fact in scene.kept.facts:
        durable.apply(fact)
        fold.take(fact, time_s)
        assert {g: x.lease for g, x in fold.open.items()} == durable.leases
        seen += len(durable.leases)
    assert seen
    for span in fold.open.values():
        assert span.running_s == span.lease.started_s


def test_a_span_has_the_times_of_its_lease_and_the_first_cause_of_its_revocation() -> None:
    (span,) = spans(
        rows(
            (100, f.LeaseGranted((A,), "a", "g1", 102.0, 700.0)),
            (110, f.LeaseStarted((A,), "c1", "j1", 109.0, 700.0)),
            (200, f.LeaseRevoking((A,), 260.0, "lost round r1", EndReason.LOST_ROUND)),
            (210, f.LeaseRevoking((A,), 230.0, "guarantee", EndReason.GUARANTEE)),
            (221, f.LeaseIdle((A,), 220.0)),
            (223, f.LeaseEnded((A,), 222.0, "revoked", EndReason.LOST_ROUND)),
        )
    )
    assert (span.granted_s, span.started_s, span.running_s) == (100.0, 109.0, None)
    assert (span.revoking_s, span.reason, span.cause) == (200.0, "lost round r1", EndReason.LOST_ROUND)
    assert (span.idle_s, span.ended_s, span.stop_s, span.job_id) == (220.0, 222.0, 20.0, "j1")


def test_a_reservation_becomes_a_span_when_the_present_lease_ends_unless_cancelled() -> None:
    first = (
        (0, f.LeaseGranted((A,), "a", "g1", 0.0, 60.0)),
        (10, f.LeaseGranted((A,), "b", "g2", 20.0, 80.0, "", (A,))),
    )
    ended = (21, f.LeaseEnded((A,), 20.0, "revoked"))
    assert [(x.app_id, x.granted_s, x.ended_s) for x in spans(rows(*first, ended))] == [("a", 0, 20), ("b", 20, None)]
    fold = SpanFold()
    dropped = [fold.take(x, t) for t, x in (*first, (15, f.NextDropped((A,), "no longer wanted")))][-1][0]
    assert dropped.reservation is not None
    assert dropped.reservation.app_id == "b"
    assert [x.app_id for x in spans(rows(*first, (15, f.NextDropped((A,), "no longer wanted")), ended))] == ["a"]


def test_a_takeover_continues_the_leases_that_it_finds_and_ends_the_others() -> None:
    before = rows(
        *((0, f.LeaseGranted((g,), "a", "g1", 0.0, 60.0)) for g in (A, B)),
        *((5, f.LeaseStarted((g,), "c1", "j1", 5.0, 60.0)) for g in (A, B)),
    )
    after = rows(
        (30, f.LeaseGranted((A,), "a", "g1", 30.0, 90.0)),
        (30, f.LeaseStarted((A,), "c1", "", 30.0, 90.0)),
        (40, f.RoundHeld("r1", 40.0, Receipt.load({}))),
    )
    kept, lost = spans(before, after)
    assert (kept.granted_s, kept.started_s, kept.running_s, kept.job_id, kept.ended_s) == (0, 5, 5, "j1", None)
    assert (lost.gpu, lost.ended_s, lost.end_reason) == (B, 40, NOT_TAKEN_OVER)


def test_a_lease_that_is_granted_over_another_ends_it_and_says_so() -> None:
    first, second = spans(rows(*((t, f.LeaseGranted((A,), x, x, float(t), 60.0)) for t, x in ((0, "a"), (10, "b")))))
    assert (first.ended_s, first.end_reason, second.ended_s) == (10, OVERWRITTEN, None)


def test_facts_about_a_lease_that_was_never_granted_change_nothing() -> None:
    fold = SpanFold()
    assert fold.take(f.LeaseStarted((A,), "c", "j", 0.0, 1.0), 0.0) == []
    assert fold.take(f.LeaseEnded((A,), 1.0, "released"), 1.0) == []
    assert fold.open == {}


@pytest.mark.parametrize(
    ("changed", "borrowed_s"),
    [
        (f.LeaseOwned((A,), "g1"), 40.0),  # its own from then on
        (f.LeaseBorrowed((A,), "g2"), 100.0),  # that is said of the reservation
        (None, 100.0),
    ],
)
def test_usage_counts_a_lease_as_borrowed_while_it_was(changed: f.Fact | None, borrowed_s: float) -> None:
    facts: list[tuple[float, f.Fact]] = [
        (0, f.AppArrived("a", "a", "root.q", "ann", "job", 0.0, 0.0, "v")),
        (0, f.LeaseGranted((A,), "a", "g1", 0.0, 600.0, guaranteed=False)),
        (0, f.AppArrived("b", "b", "root.q", "bob", "job", 0.0, 0.0, "v")),
        (30, f.LeaseGranted((A,), "b", "g2", 100.0, 700.0, after=(A,))),
        *([(40.0, changed)] if changed is not None else []),
        (100, f.LeaseEnded((A,), 100.0, "released", EndReason.RELEASED)),
        (150, f.LeaseEnded((A,), 150.0, "released", EndReason.RELEASED)),
    ]
    found = {
        r["app"]: r["gpu_h_borrowed"] * 3600 for r in accounted(of_facts([rows(*facts)], 0.0, 1000.0), ["app"])["rows"]
    }
    assert found["a"] == pytest.approx(borrowed_s, abs=0.5)
    assert found["b"] == pytest.approx(50.0 if isinstance(changed, f.LeaseBorrowed) else 0.0, abs=0.5)


def test_usage_ends_the_leases_that_nobody_took_over() -> None:
    arrived = f.AppArrived("a", "a", "root.q", "ann", "job", 0.0, 0.0)
    granted, started = f.LeaseGranted((A,), "a", "g1", 0.0, 600.0), f.LeaseStarted((A,), "c", "j", 0.0, 600.0)
    before = rows((0, arrived), (0, granted), (0, started))
    after = rows((90, f.RoundHeld("r1", 90.0, Receipt.load({}))))
    total = accounted(of_facts([before, after], 0.0, 1000.0), ["app"])["total"]
    assert total["gpu_h_used"] * 3600 == pytest.approx(90.0, abs=0.5)
