"""Runs a policy without the apps that make it fail, so that the round continues."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TypeVar

from pycontrol.model.auction import Bid, Offer, Plan, Snapshot
from pycontrol.model.value import value
from pycontrol.policies.policy_port import Policy

T = TypeVar("T")
OFFENDERS_MAX = 8
"""At most this many apps are left out of a round; if it still fails, the policy is at fault."""


@value
class SalvagedPlan:
    """A plan without the apps that made the policy fail; `plan` is None if it failed anyway, and `problem` says how."""

    plan: Plan | None
    left_out: Mapping[str, str] = field(default_factory=dict)
    """App id -> the policy's failure with this app."""
    problem: str = ""


def decide(policy: Policy, snapshot: Snapshot, bids: Mapping[str, Bid], seed: int) -> SalvagedPlan:
    """The policy's plan without the apps that make it fail; does not raise."""

    def attempt(s: Snapshot) -> Plan:
        here = {v.app_id for v in s.apps}
        return policy.decide(s, {a: b for a, b in bids.items() if a in here}, random.Random(seed))

    try:
        plan, left_out = without_offenders(attempt, snapshot)
        return SalvagedPlan(plan, left_out)
    except Exception as e:
        return SalvagedPlan(None, {}, f"the policy failed: {e!r}")


def offer(policy: Policy, snapshot: Snapshot) -> tuple[Offer | None, Mapping[str, str]]:
    """(offer without the apps that make the policy fail, app -> failure); raises if that does not help."""
    return without_offenders(policy.offer, snapshot)


def without_offenders(attempt: Callable[[Snapshot], T], snapshot: Snapshot) -> tuple[T, dict[str, str]]:
    """(result of `attempt` without the apps that make it raise, app -> what it raised).

    Raises if the attempt fails without any app, or still fails without OFFENDERS_MAX apps.
    """
    left_out: dict[str, str] = {}
    while True:
        try:
            return attempt(snapshot), left_out
        except Exception as e:
            found = _offender(attempt, snapshot) if len(left_out) < OFFENDERS_MAX else None
            if found is None:
                raise
            left_out[found] = repr(e)
            snapshot = replace(snapshot, apps=tuple(v for v in snapshot.apps if v.app_id != found))


def _offender(attempt: Callable[[Snapshot], T], snapshot: Snapshot) -> str | None:
    """The first app that makes the attempt fail together with those before it, by bisection; None if it fails with no
    apps."""

    def fails(n: int) -> bool:
        try:
            attempt(replace(snapshot, apps=snapshot.apps[:n]))
        except Exception:
            return True
        return False

    if fails(0):
        return None
    good, bad = 0, len(snapshot.apps)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(middle) else (middle, bad)
    return snapshot.apps[good].app_id
