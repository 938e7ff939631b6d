"""Whole simulations, round by round: no receipt leaves GPUs free that an app of its round wants and could use."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping

import pytest

from pycontrol.arbiter.ledger.facts import Fact, RoundHeld
from pycontrol.auction.placing import place_gang
from pycontrol.lab.oef.placers import Placed
from pycontrol.model.auction import AppView, Bid, Offer, Plan, Snapshot, gang_gpus
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies import registry
from pycontrol.policies.oef import Oef
from pycontrol.policies.policy_port import Policy
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

ALIKE = Topology.of(Machine(f"n{i}", "ab"[i % 2], (4, 2)[i // 2]) for i in range(4))
TYPED = Topology.of(Machine(f"n{i}", "ab"[i % 2], 4, ("K80", "V100")[i // 2]) for i in range(4))
POLICIES: dict[str, Policy] = {name: registry.make(name) for name in registry.names()} | {
    "oef-paper": Placed(Oef(), "paper")
}
UNTIL_S = 6 * 3600.0


class Seen:
    """A policy that records the apps of each round."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name, self.asks_agents = policy, policy.name, policy.asks_agents
        self.snapshots: dict[str, Snapshot] = {}

    def offer(self, snapshot: Snapshot) -> Offer | None:
        return self.policy.offer(snapshot)

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        self.snapshots[snapshot.round_id] = snapshot
        return self.policy.decide(snapshot, bids, rng)


def could_use(view: AppView, free: Mapping[str, int], r: Receipt, top: Topology) -> bool:
    """Whether the app, with the round's awards, wants one more gang that fits on GPUs of one type."""
    d = view.demand
    got = sum(gang_gpus(g) for a in r.done.awards if a.app_id == view.app_id for g in a.gangs)
    if not 0 < d.gang_gpus <= d.gpus - view.retained_gpus - got:
        return False
    rooms = ({h: n for h, n in free.items() if top.type_of(h) == t} for t in top.types)
    return any(place_gang(d.gang_gpus, d.scope, room, top) is not None for room in rooms)


def idle_and_wanted(r: Receipt, s: Snapshot) -> list[str]:
    """Apps that could use GPUs that a receipt leaves free and not held."""
    free = dict(r.done.unused_gpus)
    for host, n in (pair for hold in r.done.holds for pair in hold.gang):
        free[host] = free.get(host, 0) - n
    free = {h: n for h, n in free.items() if n > 0}
    return [v.app_id for v in s.apps if v.app_id not in r.out and could_use(v, free, r, s.topology)]


def workload(seed: int, typed: bool) -> Workload:
    """Twenty apps within 90 minutes, more than the cluster can hold at a time, with gangs up to half of it."""
    rng = random.Random(f"idle {seed}")
    apps, at_s = [], 0.0
    for k in range(20):
        gang = rng.choice((1, 1, 2, 2, 3, 4, 6))
        jobs = tuple(gang * rng.uniform(200.0, 3000.0) for _ in range(rng.randint(1, 4)))
        scope = Scope.MACHINE if gang <= 2 and rng.random() < 0.3 else Scope.CLUSTER
        fast = {"K80": 1.0, "V100": rng.uniform(1.0, 5.0)} if typed else {}
        apps.append(TraceApp(f"a{k}", at_s, gang, (jobs,), user=f"u{k % 5}", scope=scope, speedups=fast))
        at_s += rng.expovariate(1 / 270.0)
    return Workload("idle", tuple(apps))


def violations(policy: Policy, top: Topology, seed: int, last_pass: bool = True) -> tuple[list[str], int]:
    """The rounds that leave usable GPUs free, and the number of rounds checked."""
    seen, found, rounds = Seen(policy), list[str](), 0
    arbiter = dataclasses.replace(ARBITER, lease_s=300.0, f=0.5, last_pass=last_pass)
    sim = Simulator(
        workload(seed, len(top.types) > 1), top, seen, SimulationSettings(arbiter=arbiter, until_s=UNTIL_S), seed
    )

    def watch(facts: Iterable[Fact]) -> None:
        nonlocal rounds
        for fact in facts:
            if isinstance(fact, RoundHeld) and fact.receipt.outcome is not None:
                r, rounds = fact.receipt, rounds + 1
                left = idle_and_wanted(r, seen.snapshots[r.round_id])
                if left:
                    found.append(f"{r.round_id} leaves {dict(r.done.unused_gpus)}: {left}")

    sim.watchers.append(watch)
    sim.run()
    return found, rounds


@pytest.mark.parametrize("top", [ALIKE, TYPED], ids=["one type", "two types"])
@pytest.mark.parametrize("name", POLICIES)
def test_no_round_leaves_wanted_gpus_free(name: str, top: Topology) -> None:
    found, rounds = violations(POLICIES[name], top, 1)
    assert rounds > 20
    assert found == []


@pytest.mark.parametrize("name", ["oef-paper", "themis"])
def test_without_the_last_pass_rounds_leave_wanted_gpus_free(name: str) -> None:
    """This shows that the check above detects it."""
    assert violations(POLICIES[name], TYPED, 1, last_pass=False)[0]
