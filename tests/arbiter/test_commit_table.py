"""From a plan to leases, case by case: the leases before, the plan, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pycontrol.arbiter.ledger.facts import LeaseGranted
from pycontrol.arbiter.ledger.lease import Lease
from pycontrol.arbiter.round.commit import commit, note_of, outcome_of
from pycontrol.arbiter.round.parts import own_part
from pycontrol.arbiter.round.resolve import Work
from pycontrol.model import events as ev
from pycontrol.model.auction import Award, Plan, gang_of
from pycontrol.model.receipt import Outcome
from pycontrol.model.topology import Gpu
from tests.arbiter.mini import Mini

NODES = (("n1", 4), ("n2", 2))
N1, N2 = gang_of({"n1": 2}), gang_of({"n2": 2})
Awards = Sequence[Award]


def gpus(host: str, *indices: int) -> set[Gpu]:
    return {Gpu(host, i) for i in indices}


def idle() -> Mini:
    """Nothing is leased; nobody waits."""
    m = Mini(nodes=NODES)
    m.app("b", gang=2)
    m.app("c", gang=2)
    m.send(ev.OperatorCommand("pause"))  # no further round
    m.send(ev.GpusReleased("b", frozenset(m.held("b"))))
    m.send(ev.GpusReleased("c", frozenset(m.held("c"))))
    return m


def granted() -> Mini:
    """App a was granted two GPUs of n1 and uses none; b and c have nothing."""
    m = idle()
    m.app("a", gang=2)
    for gpu in sorted(gpus("n1", 0, 1)):
        m.a.clerk.record(LeaseGranted((gpu,), "a", "r1.1.0", m.now, m.now + 30, "r1.1.0"))
    return m


def running() -> Mini:
    """App a's containers run on its two GPUs."""
    m = granted()
    m.start("a")
    assert m.a.durable.leases.of("a")[0].container_id
    return m


@dataclass
class Case:
    """`ending`: whether a's gang is on offer. The expectations are GPUs, or parts of the note."""

    begins: Callable[[], Mini]
    awards: Awards
    ending: bool = True
    renewed: frozenset[Gpu] = frozenset()
    granted: Mapping[str, set[Gpu]] = ()  # type: ignore[assignment]
    revoked: frozenset[Gpu] = frozenset()
    refused: tuple[str, ...] = ()
    note: str = ""
    unused: Mapping[str, int] = ()  # type: ignore[assignment]
    effects: tuple[str, ...] = ()


CASES = {
    "a winner that has the gang keeps it, and nothing restarts": Case(
        running,
        [Award("a", (N1,))],
        renewed=frozenset(gpus("n1", 0, 1)),
        unused={"n1": 2, "n2": 2},
        effects=("SendGrant",),
    ),
    "what nobody renews is taken back, with notice to its container and its Agent": Case(
        running,
        [],
        revoked=frozenset(gpus("n1", 0, 1)),
        unused={"n1": 4, "n2": 2},
        effects=("Preempt", "SendRevoke"),
    ),
    "free GPUs are granted before those that somebody still holds": Case(
        running,
        [Award("b", (N1,))],
        granted={"b": gpus("n1", 2, 3)},
        revoked=frozenset(gpus("n1", 0, 1)),
        unused={"n1": 2, "n2": 2},
        effects=("Preempt", "SendRevoke", "SendGrant"),
    ),
    "a GPU that is being taken back is promised to its next owner": Case(
        running,
        [Award("b", (N1,)), Award("c", (N1,))],
        granted={"b": gpus("n1", 2, 3), "c": gpus("n1", 0, 1)},
        revoked=frozenset(gpus("n1", 0, 1)),
        unused={"n2": 2},
        effects=("Preempt", "SendRevoke", "SendGrant", "SendGrant"),
    ),
    "a grant that nobody uses ends at once, and its GPUs are another's at once": Case(
        granted,
        [Award("b", (N1, N1))],
        granted={"b": gpus("n1", 0, 1, 2, 3)},
        revoked=frozenset(gpus("n1", 0, 1)),
        unused={"n2": 2},
        effects=("SendRevoke", "SendGrant", "SendGrant"),
    ),
    "GPUs that are renewed are nobody else's": Case(
        running,
        [Award("b", (N1, N1)), Award("a", (N1,))],
        renewed=frozenset(gpus("n1", 0, 1)),
        granted={"b": gpus("n1", 2, 3)},
        refused=("b",),
        note="b: its gang {'n1': 2} is no longer there",
        unused={"n2": 2},
        effects=("SendGrant", "SendGrant"),
    ),
    "an app that moves gets the new gang and loses the old one": Case(
        running,
        [Award("a", (N2,))],
        granted={"a": gpus("n2", 0, 1)},
        revoked=frozenset(gpus("n1", 0, 1)),
        unused={"n1": 4},
        effects=("Preempt", "SendRevoke", "SendGrant"),
    ),
    "a gang that is not on offer is not touched": Case(
        running,
        [Award("b", (N2,))],
        ending=False,
        granted={"b": gpus("n2", 0, 1)},
        unused={"n1": 2},
        effects=("SendGrant",),
    ),
    "what is not on offer cannot be promised": Case(
        running,
        [Award("b", (N1, N1))],
        ending=False,
        granted={"b": gpus("n1", 2, 3)},
        refused=("b",),
        note="no longer there",
        unused={"n2": 2},
        effects=("SendGrant",),
    ),
    "an app that nobody knows gets nothing": Case(
        idle,
        [Award("z", (N1,))],
        ending=False,
        note="z ended during the round",
        unused={"n1": 4, "n2": 2},
    ),
    "an app that ended meanwhile gets nothing": Case(
        lambda: ended(running()),
        [Award("a", (N1,))],
        note="a ended during the round",
        unused={"n1": 4, "n2": 2},
    ),
    "a plan for more than there is is carried out as far as it goes": Case(
        idle,
        [Award("b", (N1, N1, N1))],
        ending=False,
        granted={"b": gpus("n1", 0, 1, 2, 3)},
        refused=("b",),
        note="no longer there",
        unused={"n2": 2},
        effects=("SendGrant", "SendGrant"),
    ),
}


def ended(m: Mini) -> Mini:
    """App a has ended, its containers have not."""
    m.send(ev.AgentDone("a", True))
    return m


def carried_out(case: Case) -> tuple[Mini, Outcome, str]:
    m = case.begins()
    ending = {"a": m.a.holdings.gangs_of("a") or [[]]} if case.ending and m.a.durable.leases.of("a") else {}
    ending = {app_id: [g for g in gangs if g] for app_id, gangs in ending.items()}
    m.a.take_facts()
    m.a.clerk.effects.clear()
    return m, *committed(m, Plan("r9", tuple(case.awards)), ending)


def committed(m: Mini, plan: Plan, ending: Mapping[str, list[list[Lease]]]) -> tuple[Outcome, str]:
    part = own_part(m.a.holdings, "", ending)
    done = commit(m.a.holdings, m.a.clerk, Work("r9", part, ending), plan, m.now)
    return outcome_of(part, plan, done), note_of(plan, done)


@pytest.mark.parametrize("name", CASES)
def test_a_plan_becomes_these_leases(name: str) -> None:
    case = CASES[name]
    m, outcome, note = carried_out(case)
    got: dict[str, set[Gpu]] = {}
    for grant in outcome.granted:
        got.setdefault(grant.app_id, set()).add(grant.gpu)
    assert set(outcome.renewed) == case.renewed
    assert got == dict(case.granted)
    assert {x.gpu for x in outcome.revoked} == case.revoked
    assert outcome.refused == case.refused
    assert case.note in note
    assert bool(note) == bool(case.note)
    assert outcome.unused_gpus == dict(case.unused)
    assert tuple(type(e).__name__ for e in m.a.clerk.effects) == case.effects
    m.a.validate(m.now)


def test_a_renewal_counts_from_the_leases_previous_end() -> None:
    m, _, _ = carried_out(CASES["a winner that has the gang keeps it, and nothing restarts"])
    (grant,) = [e for e in m.a.clerk.effects if isinstance(e, ev.SendGrant)]
    assert grant.renewal
    ends = {x.end_s for x in m.a.durable.leases.of("a")}
    assert ends == {grant.grant.end_s}
    assert min(ends) > m.now + m.a.settings.lease_s / 2


def test_a_reservation_says_when_the_gpu_is_free_at_the_latest() -> None:
    m, outcome, _ = carried_out(CASES["a GPU that is being taken back is promised to its next owner"])
    told = {e.app_id: e.grant for e in m.a.clerk.effects if isinstance(e, ev.SendGrant)}
    deadlines = {x.deadline_s for x in outcome.revoked}
    assert {told["c"].available_s} == deadlines
    assert told["b"].available_s == 0.0
    assert {x.app_id for x in m.a.durable.reservations.values()} == {"c"}


def test_a_loan_ends_at_its_stated_time() -> None:
    m = idle()
    until_s = m.now + m.a.holdings.lead_s + 40
    committed(m, Plan("r9", (Award("b", (N1,), True, until_s),)), {})
    assert {x.end_s for x in m.a.durable.leases.of("b")} == {until_s}


def test_a_plan_for_a_gang_on_a_lost_host_is_dropped() -> None:
    m = idle()
    m.send(ev.NodeDown("n2:1", "lost"))
    outcome, note = committed(m, Plan("r9", (Award("b", (N2,)),)), {})
    assert not outcome.granted
    assert outcome.refused == ("b",)
    assert note == "b: its gang {'n2': 2} is no longer there"


def test_an_app_without_an_agent_gets_only_gpus_that_fit_one_of_its_asks() -> None:
    m = idle()
    m.foreign("f", 2)
    plan = Plan("r9", (Award("f", (gang_of({"n1": 1}),)), Award("f", (N1,))))
    outcome, note = committed(m, plan, {})
    assert {x.gpu for x in outcome.granted} == gpus("n1", 0, 1)
    assert "f: none of its asks fits {'n1': 1}" in note
    (worker,) = m.a.workers.of("f")
    assert set(worker.plan.gpus) == gpus("n1", 0, 1)
