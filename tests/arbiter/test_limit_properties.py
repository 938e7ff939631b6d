"""Limits under any policy, with and without virtual clusters, whatever apps come and crash, and whoever sets what."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    Fact,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseIdle,
    LeaseRevoking,
    LeaseStarted,
)
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.model import events as ev
from pycontrol.model.reasons import EndReason, Pending
from pycontrol.model.topology import Gpu
from pycontrol.policies import registry
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.world import World

QUEUES = ("root.a", "root.b")
CELLS = {
    "levels": {"node": 4},
    "hosts": ["n1", "n2"],
    "virtual_clusters": {"root.a": {"node": 1}, "root.b": {"node": 1}},
}
LEASE_S, LEAD_S = 30.0, 6.0


class Limited(World):
    """Counts by itself what queues hold and use, and checks each fact against the limits in force."""

    def __init__(self, policy: str, seed: int, cells: bool) -> None:
        self.shadow = Durable()
        self.most: dict[str, dict[str, float]] = {}
        """Queue -> its limits."""
        self.allowed: dict[str, int] = {}
        """Queue -> GPUs that it may hold: its limit, or what it held when that was lowered, until it held less."""
        self.used_gpu_s: dict[str, float] = {}
        self.running: dict[Gpu, tuple[str, float]] = {}
        self.told = 0
        self.ended_by_limit = 0
        machines = [("n1", "r", 4), ("n2", "r", 4)]
        super().__init__(
            policy, seed, supply=CELLS if cells else None, machines=machines, lease_s=LEASE_S, lead_s=LEAD_S
        )

    def submit(self, event: ev.Event) -> None:
        super().submit(event)
        self.read()

    def check(self) -> None:
        super().check()
        self.read()

    def read(self) -> None:
        """Checks the facts that are new, in order."""
        while self.told < len(self.journal):
            fact = self.journal[self.told]
            self.told += 1
            self.before(fact)
            self.shadow.apply(fact)
            if isinstance(fact, LeaseGranted):
                queue = self.shadow.apps[fact.app_id].queue
                assert self.held(queue) <= self.allowed.get(queue, 99), "more GPUs than the limit allows"
                assert fact.gang or not self.is_used_up(queue), "a start on a used-up budget"
            for queue, gpus in list(self.allowed.items()):
                self.allowed[queue] = max(int(self.most[queue].get("gpus", 99)), min(gpus, self.held(queue)))
                assert self.held(queue) <= self.allowed[queue]

    def before(self, fact: Fact) -> None:
        match fact:
            case LeaseStarted():
                for gpu in fact.gpus:
                    queue = self.shadow.apps[self.shadow.leases[gpu].app_id].queue
                    self.running.setdefault(gpu, (queue, fact.at_s))
            case LeaseIdle() | LeaseEnded():
                for gpu in fact.gpus:
                    queue, since_s = self.running.pop(gpu, ("", fact.at_s))
                    self.used_gpu_s[queue] = self.used_gpu_s.get(queue, 0.0) + fact.at_s - since_s
            case LeaseExtended() if fact.counted:
                for queue in {self.shadow.apps[self.shadow.leases[gpu].app_id].queue for gpu in fact.gpus}:
                    assert not self.is_used_up(queue), "a gang of a used-up budget is renewed"
            case LeaseRevoking() if fact.cause is EndReason.LIMIT:
                self.ended_by_limit += 1
                assert fact.end_s >= self.now + LEAD_S - 1e-6, "at once"
                assert fact.end_s >= min(x.end_s for x in self.shadow.leases.each()) - 1e-6

    def held(self, queue: str) -> int:
        return sum(n for app_id, n in self.shadow.held.items() if self.shadow.apps[app_id].queue == queue)

    def is_used_up(self, queue: str) -> bool:
        now = sum(self.now - since_s for its, since_s in self.running.values() if its == queue)
        most = self.most.get(queue, {}).get("gpu_hours_month")
        return most is not None and self.used_gpu_s.get(queue, 0.0) + now >= most * 3600 + 1e-3

    def limit(self, queue: str, **most: float) -> None:
        self.most[queue] = most
        self.allowed[queue] = max(int(most.get("gpus", 99)), self.held(queue))
        self.submit(ev.OperatorCommand(SET_LIMITS, f"queue {queue}", "root", values=most))


def play(seed: int, policy: str, cells: bool) -> Limited:
    rng, w = random.Random(seed), Limited(policy, seed, cells)
    for k in range(rng.randint(2, 5)):
        queue, gang, n = rng.choice(QUEUES), rng.choice((1, 1, 2, 4)), rng.randint(1, 3)
        if rng.random() < 0.3:
            w.at(rng.uniform(0, 60), lambda k=k, gang=gang, n=n, queue=queue: w.add_foreign(f"f{k}", gang, n, queue))
        else:
            work = rng.choice((60.0, 400.0, 1e6))
            w.at(
                rng.uniform(0, 60),
                lambda k=k, gang=gang, n=n, q=queue, x=work: w.add_app(f"a{k}", gang, n, x * gang, q),
            )
    for _ in range(rng.randint(1, 3)):
        queue = rng.choice(QUEUES)
        most = rng.choice(({"gpus": rng.randint(0, 5)}, {"gpu_hours_month": rng.choice((0, 0.02, 0.05, 0.1))}))
        w.at(rng.uniform(0, 120), lambda most=most, queue=queue: w.limit(queue, **most))
    if rng.random() < 0.3:
        w.at(rng.uniform(20, 120), w.crash)
    w.run(240)
    return w


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 20), st.sampled_from(sorted(registry.POLICIES)), st.booleans())
def test_limits_hold_and_only_they_leave_gpus_idle(seed: int, policy: str, cells: bool) -> None:
    w = play(seed, policy, cells)
    a = w.arbiter
    for app_id in a.agents.unmet:
        d, why = a.agents[app_id].demand, reason(a, app_id, w.now)
        fits = any(n >= d.gang_gpus for n in a.gpus.free.counts().values())
        if fits and not cells and w.now - a.agents.unmet_since_s[app_id] > 40:
            assert why.code is Pending.ACCOUNT_LIMIT, f"{app_id} waits beside free GPUs: {why.sentence}"


def test_the_worlds_of_the_property_have_gangs_that_end_by_limits() -> None:
    assert sum(play(seed, "isonomy", False).ended_by_limit for seed in range(12)) > 3
