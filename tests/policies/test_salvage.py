"""Rounds continue without the app that makes the policy fail, and find it in few trials."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import pytest

from pycontrol.model.auction import AppView, Bid, Demand, Offer, Plan, Snapshot
from pycontrol.model.topology import Topology
from pycontrol.policies import salvage


@dataclass
class Brittle:
    """A policy that raises if all apps of one of the sets take part."""

    bad: list[set[str]]
    trials: int = 0
    name: str = "brittle"
    asks_agents: bool = False
    seen: list[set[str]] = field(default_factory=list)

    def _try(self, apps: Set[str]) -> None:
        self.trials += 1
        if any(bad <= apps for bad in self.bad):
            raise ValueError("math domain error")

    def offer(self, snapshot: Snapshot) -> Offer | None:
        self._try({v.app_id for v in snapshot.apps})
        return Offer(tuple(v.app_id for v in snapshot.apps))

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        apps = {v.app_id for v in snapshot.apps}
        assert bids.keys() <= apps
        self._try(apps)
        return Plan(snapshot.round_id, (), seed=rng.randrange(100))


def snapshot(n: int) -> Snapshot:
    apps = tuple(AppView(f"a{k}", "root.q", 1.0, Demand(1, 1)) for k in range(n))
    return Snapshot("r", 0.0, Topology(), {}, apps)


@pytest.mark.parametrize(
    ("bad", "out"),
    [
        ([], 0),
        ([{"a0"}], 1),
        ([{"a99"}], 1),
        ([{"a50"}, {"a7"}], 2),
        ([{"a3", "a4"}], 1),
        ([{f"a{k}"} for k in range(salvage.OFFENDERS_MAX)], salvage.OFFENDERS_MAX),
    ],
)
def test_the_round_decides_on_the_other_apps(bad: list[set[str]], out: int) -> None:
    policy = Brittle(bad)
    bids = {"a0": Bid("a0", 1.0), "a99": Bid("a99", 1.0)}
    outcome = salvage.decide(policy, snapshot(100), bids, 7)
    assert outcome.plan is not None
    assert (len(outcome.left_out), outcome.problem) == (out, "")
    assert all(one & outcome.left_out.keys() for one in bad)
    assert policy.trials <= 1 + out * (2 + math.ceil(math.log2(101)))


def test_no_app_is_blamed_for_a_policy_that_always_fails() -> None:
    outcome = salvage.decide(Brittle([set()]), snapshot(100), {}, 7)
    assert (outcome.plan, outcome.left_out) == (None, {})
    assert "math domain error" in outcome.problem


def test_the_round_fails_if_too_many_apps_make_the_policy_fail() -> None:
    policy = Brittle([{f"a{k}"} for k in range(100)])
    assert salvage.decide(policy, snapshot(100), {}, 7).plan is None
    assert policy.trials < 100


def test_an_offer_goes_to_the_others() -> None:
    found, left_out = salvage.offer(Brittle([{"a1"}]), snapshot(3))
    assert found == Offer(("a0", "a2"))
    assert left_out.keys() == {"a1"}
