"""Limits of accounts: GPUs at once, and budgets of GPU-hours, under every policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import BudgetSpent, LeaseExtended, LeaseRevoking, LimitsSet
from pycontrol.arbiter.state import RESET_LIMITS, SET_LIMITS
from pycontrol.model import events as ev
from pycontrol.model.accounts import OTHERS, Account, Accounts, Limits
from pycontrol.model.reasons import EndReason, Pending
from pycontrol.policies import registry
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.mini import SETTINGS, Mini

GROUP = Accounts(
    groups={"lab": Account(below={"u": Account(), "v": Account()}), OTHERS: Account()},
    users={"u": ("lab", "u"), "v": ("lab", "v")},
)


def limited(
    account: str, accounts: Accounts = GROUP, nodes: Any = (("n1", 4),), policy: str = "isonomy", **limits: Any
) -> Mini:
    """A cluster in which an administrator limits an account."""
    m = Mini(policy, dataclasses.replace(SETTINGS, accounts=accounts), nodes)
    put(m, account, **limits)
    return m


def put(m: Mini, account: str, **limits: float) -> None:
    m.send(ev.OperatorCommand(SET_LIMITS, account, "root", values=limits))


def held(m: Mini) -> int:
    return sum(m.a.holdings.holding(x) for x in m.a.durable.live)


@pytest.mark.parametrize("account", ["user u", "group lab", "queue root.q", "queue root"])
@pytest.mark.parametrize("policy", sorted(registry.POLICIES))
def test_nothing_new_starts_beyond_a_limit_on_gpus(policy: str, account: str) -> None:
    m = limited(account, policy=policy, gpus=3)
    m.app("a", gang=2)
    m.app("b", gang=2)
    m.run(60)
    assert held(m) == 2
    (waits,) = [x for x in "ab" if not m.a.holdings.holding(x)]
    why = reason(m.a, waits, m.now)
    assert why.code is Pending.ACCOUNT_LIMIT
    assert f"{account} has 2 of 3 GPUs" in why.detail
    put(m, account, gpus=4)
    m.run(10)
    assert held(m) == 4


def test_users_beside_the_limited_one_get_the_gpus() -> None:
    m = limited("user u", gpus=1)
    m.app("a", gangs=4)
    m.app("b", gangs=4, user="v")
    m.run(20)
    assert (m.a.holdings.holding("a"), m.a.holdings.holding("b")) == (1, 3)


@pytest.mark.parametrize("policy", sorted(registry.POLICIES))
def test_what_exceeds_a_lowered_limit_ends_at_its_leases_end_and_the_rest_is_renewed(policy: str) -> None:
    m = limited("user u", policy=policy, gpus=4)
    m.app("a", gang=2)
    m.app("b", gang=2)
    m.run(5)
    m.start("a"), m.start("b")
    put(m, "user u", gpus=3)
    ends = {x.end_s for x in m.a.durable.leases.each()}
    (end_s,) = ends
    m.run(end_s - m.a.holdings.lead_s * 2 - m.now)
    assert held(m) == 4
    m.run(end_s - m.now + 1)
    gone = [x for x in m.facts if isinstance(x, LeaseRevoking)]
    assert [(x.cause, x.end_s, len(x.gpus)) for x in gone] == [(EndReason.LIMIT, end_s, 2)]
    assert held(m) == 2


DAY_S = 86400.0


def busy(policy: str = "isonomy", settings: Any = SETTINGS, **limits: float) -> Mini:
    """An app that runs on 4 GPUs of user u, which has limits, since 1000 s before a day ends."""
    m = Mini(policy, dataclasses.replace(settings, accounts=GROUP))
    m.now = 30 * DAY_S - 1000.0
    m.send(ev.Tick())
    put(m, "user u", **limits)
    m.start_app("a", gang=4, after_s=5)
    return m


def used_h(m: Mini, period: int = 0, now_s: float | None = None) -> float:
    now_s = m.now if now_s is None else now_s
    return sum(use.seen(now_s)[period] for use in m.a.durable.uses.values()) / 3600


@pytest.mark.parametrize("policy", sorted(registry.POLICIES))
def test_gangs_of_a_used_up_budget_end_with_their_leases_and_start_again_in_the_next_period(policy: str) -> None:
    m = busy(policy, gpu_hours_day=0.2)  # 180 s on 4 GPUs
    (lease,) = m.a.durable.leases.each()
    m.run(lease.end_s - m.now - 2 * m.a.holdings.lead_s, step=5)
    assert m.a.holdings.holding("a") == 4, "never at once"
    assert [x.share for x in m.facts if isinstance(x, BudgetSpent)] == [0.8, 1.0]
    m.run(2 * m.a.holdings.lead_s - 1)
    (gone,) = [x for x in m.facts if isinstance(x, LeaseRevoking)]
    assert (gone.cause, gone.end_s) == (EndReason.LIMIT, lease.end_s)
    assert not any(isinstance(x, LeaseExtended) for x in m.facts)
    m.send(ev.ContainerGone(lease.container_id))
    m.run(20)
    assert not m.a.holdings.holding("a")
    why = reason(m.a, "a", m.now)
    assert why.code is Pending.ACCOUNT_LIMIT
    assert "of 0.2 GPU-hours of this day; it is free again at 1970-01-31 00:00 UTC" in why.detail
    m.run(30 * DAY_S - m.now + 5, step=5)
    assert m.a.holdings.holding("a") == 4
    assert [x.share for x in m.facts if isinstance(x, BudgetSpent)][-1] == 0.0


@pytest.mark.parametrize("revocable", [False, "auto"])
def test_an_app_without_an_agent_loses_its_gpus_when_its_budget_is_used_up(revocable: Any) -> None:
    m = Mini(settings=dataclasses.replace(SETTINGS, standin_revocable=revocable))
    put(m, "user u", gpu_hours_month=0.2)
    m.foreign("a", 2)
    m.run(5)
    m.up(m.places()[0])
    m.run(1190, step=1)
    assert [x.cause for x in m.facts if isinstance(x, LeaseRevoking)] == [EndReason.LIMIT]
    assert not m.a.holdings.holding("a")


def test_the_next_wake_is_when_a_budget_is_used_up() -> None:
    m = busy(gpu_hours_day=0.2)
    m.run(5)
    assert m.a.holdings.limits.look_s == pytest.approx(m.now - 5 + 0.16 * 3600 / 4, abs=1)
    wake_s = m.a.next_wake_s(m.now)
    assert wake_s is not None
    assert wake_s <= m.a.holdings.limits.look_s


def test_use_is_counted_by_periods_and_of_the_queue_in_which_it_was() -> None:
    m = busy()
    m.run(100)
    m.send(ev.AppUpdated(dataclasses.replace(m.a.cluster.apps["a"], queue="root.r")))
    m.run(900, step=10)
    m.run(50)
    midnight_s = 30 * DAY_S
    by_queue = {queue: use.seen(m.now) for (queue, _), use in m.a.durable.uses.items()}
    assert by_queue["root.q"][0] == 0, "of the day before"
    assert by_queue["root.q"][2] == pytest.approx(400, abs=8)
    assert by_queue["root.r"][0] == pytest.approx(4 * (m.now - midnight_s))

    week, month = (sum(x[k] for x in by_queue.values()) for k in (1, 2))
    assert week == month == pytest.approx(by_queue["root.r"][0] + 4 * 995, abs=8)
    assert used_h(m, 2) == pytest.approx(month / 3600)


def test_a_gpu_counts_by_the_speed_of_its_type() -> None:
    m = busy(settings=dataclasses.replace(SETTINGS, gpu_speeds={"gpu": 2.5}))
    m.run(100)
    assert used_h(m) == pytest.approx(4 * 2.5 * 100 / 3600, rel=0.02)
    m.send(ev.AppRemoved("a", "FINISHED"))
    for container_id in list(m.a.cluster.containers):
        m.send(ev.ContainerGone(container_id))
    after = used_h(m)
    m.run(100)
    assert used_h(m) == after


def test_limits_that_were_set_outlive_a_restart_and_a_failover_and_precede_the_file() -> None:
    file = dataclasses.replace(GROUP, queues={"root.q": Limits(gpus=2), "root.r": Limits(gpus=1)})
    settings = dataclasses.replace(SETTINGS, accounts=file)
    m = Mini(settings=settings)
    assert m.a.holdings.limits.in_force == {"queue root.q": Limits(gpus=2), "queue root.r": Limits(gpus=1)}
    put(m, "queue root.q", gpus=4)
    again = Durable()
    for fact in m.facts:
        again.apply(fact)
    other = Mini(settings=settings, durable=Durable())
    other.send(ev.StandbyRestored(m.a.durable.kept()))
    for a in (m.a, Mini(settings=settings, durable=again).a, other.a):
        assert a.holdings.limits.in_force == {"queue root.q": Limits(gpus=4), "queue root.r": Limits(gpus=1)}
        assert a.durable.limits["queue root.q"].user == "root"
    m.send(ev.OperatorCommand(RESET_LIMITS, "queue root.q", "root"))
    assert m.a.holdings.limits.in_force["queue root.q"] == Limits(gpus=2)
    assert [x.limits for x in m.facts if isinstance(x, LimitsSet)] == [{"gpus": 4}, None]


def test_a_takeover_continues_what_was_used() -> None:
    m = busy(gpu_hours_month=1.0)
    m.run(100)
    kept, before_h = m.a.durable.kept(), used_h(m, 2)
    other = Mini(settings=m.a.settings, durable=Durable())
    other.now = m.now
    other.send(ev.StandbyRestored(kept))
    assert used_h(other, 2) == pytest.approx(before_h)
    containers = tuple(m.a.cluster.containers.values())
    other.send(other.snapshot(m.a.cluster.apps.values(), containers))
    other.run(50), m.run(50)
    assert used_h(other, 2) == pytest.approx(used_h(m, 2), rel=0.02)
