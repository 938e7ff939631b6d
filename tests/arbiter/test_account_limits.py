"""Limits of accounts: GPUs at once, and budgets of GPU-hours, under every policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pycontrol.arbiter.ledger.facts import LeaseRevoking
from pycontrol.arbiter.round.reasons import reason
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.model import events as ev
from pycontrol.model.accounts import OTHERS, Account, Accounts
from pycontrol.model.reasons import EndReason, Pending
from pycontrol.policies import registry
from tests.arbiter.mini import SETTINGS, Mini

GROUP = Accounts(
    groups={"lab": Account(below={"u": Account(), "v": Account()}), OTHERS: Account()},
    users={"u": ("lab", "u"), "v": ("lab", "v")},
)
LEASE = dataclasses.replace(SETTINGS, lease_s=600)


def limited(
    account: str, accounts: Accounts = GROUP, nodes: Any = (("n1", 4),), policy: str = "isonomy", **limits: Any
) -> Mini:
    """A cluster in which an administrator limits an account."""
    m = Mini(policy, dataclasses.replace(SETTINGS, accounts=accounts), nodes)
    put(m, account, **limits)
    return m


def put(m: Mini, account: str, **limits: float) -> None:
    m.send(ev.OperatorCommand(SET_LIMITS, account, "root", limits))


def held(m: Mini) -> int:
    return sum(m.a.holding(x) for x in m.a.durable.live)


@pytest.mark.parametrize("account", ["user u", "group lab", "queue root.q", "queue root"])
@pytest.mark.parametrize("policy", sorted(registry.POLICIES))
def test_nothing_new_starts_beyond_a_limit_on_gpus(policy: str, account: str) -> None:
    m = limited(account, policy=policy, gpus=3)
    m.app("a", gang=2)
    m.app("b", gang=2)
    m.run(60)
    assert held(m) == 2
    (waits,) = [x for x in "ab" if not m.a.holding(x)]
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
    assert (m.a.holding("a"), m.a.holding("b")) == (1, 3)


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
    m.run(end_s - m.a.lead_s * 2 - m.now)
    assert held(m) == 4
    m.run(end_s - m.now + 1)
    gone = [x for x in m.facts if isinstance(x, LeaseRevoking)]
    assert [(x.cause, x.end_s, len(x.gpus)) for x in gone] == [(EndReason.LIMIT, end_s, 2)]
    assert held(m) == 2
