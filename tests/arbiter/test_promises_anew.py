"""A reservation that is cancelled and made again for the same app: the first one's plan is not the second one's."""

from __future__ import annotations

import pytest

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.facts import LeaseGranted
from pycontrol.arbiter.ledger.lease import Reservation
from pycontrol.arbiter.round import standin
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask
from pycontrol.model.reasons import Cause, EndReason
from tests.arbiter.mini import Mini

WHY = Cause(EndReason.GUARANTEE, "the cells of root.a need it")


def promised(agent: bool) -> tuple[Mini, Reservation]:
    """`holder` runs on GPU 0, which is being taken back; `next` has planned its container there."""
    m = Mini()
    m.start_app("holder", gang=1)
    (gpu,) = m.held("holder")
    ask = Ask("next_1", "next", 0, 1, 1)
    if agent:
        m.app("next", gang=4)
    else:
        m.foreign("next", 1)
    (held,) = m.a.durable.leases.of("holder")
    leases.revoke(m.a.holdings, m.a.clerk, [held], m.now, m.now + 60, WHY)
    give(m, "g1")
    if agent:
        m.send(ev.UsePlanned("next", "u1", (ev.WorkerPlan("w1", "j", (gpu,), 1),)))
    else:
        assert standin.assign(m.a.holdings, m.a.clerk, "next", [gpu], [ask])
    m.run(0.1)
    assert m.a.workers.at[gpu].app_id == "next"
    return m, m.a.durable.reservations[gpu]


def give(m: Mini, grant_id: str) -> None:
    (gpu,) = m.held("holder")
    m.a.clerk.record(
        LeaseGranted((gpu,), "next", grant_id, m.now + 60, m.now + 600, grant_id, after=(gpu,), guaranteed=True)
    )


@pytest.mark.parametrize("agent", [False, True])
def test_the_plan_of_the_first_reservation_is_dropped(agent: bool) -> None:
    m, promise = promised(agent)
    gpu, first = promise.gpus[0], m.a.workers.at[promise.gpus[0]]
    leases.cancel_reservations(m.a.holdings, m.a.clerk, [promise], m.now, WHY)
    give(m, "g2")
    m.a.validate(m.now)
    if agent:
        m.send(ev.UsePlanned("next", "u2", (ev.WorkerPlan("w2", "j", (gpu,), 2),)))
        (reply,) = [e for _, e in m.effects if isinstance(e, ev.SendUseReply) and e.use_id == "u2"]
        assert reply.accepted, reply.reason
    m.run(0.1)
    planned = [w for w in m.a.workers if gpu in w.plan.gpus and w.app_id == "next"]
    assert first not in planned
    assert [w.use_id for w in planned] == (["u2"] if agent else [])


def test_a_placement_in_progress_is_not_dropped() -> None:
    m, promise = promised(False)
    worker = m.a.workers.at[promise.gpus[0]]
    m.a.workers.sent(worker, "d1", m.now, m.now + 60)
    leases.cancel_reservations(m.a.holdings, m.a.clerk, [promise], m.now, WHY)
    assert not worker.void
