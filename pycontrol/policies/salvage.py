"""A round that continues without the app whose numbers its policy cannot bear."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TypeVar

from pycontrol.model.auction import Bid, Offer, Plan, Snapshot
from pycontrol.model.value import value
from pycontrol.policies.port import Policy

T = TypeVar("T")
OFFENDERS_MAX = 8
"""A round that fails without so many apps is given up: its policy is at fault."""


@value
class SalvagedPlan:
    """`plan` is None where the policy failed for more than single apps; `problem` says how."""

    plan: Plan | None
    left_out: Mapping[str, str] = field(default_factory=dict)
    """App id -> how the policy failed with it."""
    problem: str = ""


def decide(policy: Policy, snapshot: Snapshot, bids: Mapping[str, Bid], seed: int) -> SalvagedPlan:
    """The policy's plan for the apps that it can bear."""

    def attempt(s: Snapshot) -> Plan:
        here = {v.app_id for v in s.apps}
        return policy.decide(s, {a: b for a, b in bids.items() if a in here}, random.Random(seed))

    try:
        plan, left_out = without_offenders(attempt, snapshot)
        return SalvagedPlan(plan, left_out)
    except Exception as e:
        return SalvagedPlan(None, {}, f"the policy failed: {e!r}")


def offer(policy: Policy, snapshot: Snapshot) -> tuple[Offer | None, Mapping[str, str]]:
    """The policy's offer to the apps that it can bear, and how it failed with the others."""
    return without_offenders(policy.offer, snapshot)


def without_offenders(attempt: Callable[[Snapshot], T], snapshot: Snapshot) -> tuple[T, dict[str, str]]:
    """What `attempt` gives without the apps that make it raise, and what it raised; raises where that is not enough."""
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
    """An app with which a set of apps fails that does well without it, by bisection; None if it fails with none."""

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
