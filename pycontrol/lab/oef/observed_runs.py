"""OEF's experiments that need whole gangs: the simulator with 5-minute leases, observed round by round."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pycontrol.lab.kit import Setup
from pycontrol.lab.oef.mixes import types_of
from pycontrol.lab.oef.placers import Placed, Placer
from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.policies.gandiva_fair import GandivaFair
from pycontrol.lab.policies.gavel import Gavel
from pycontrol.lab.runs import simulate
from pycontrol.lab.shares.simple import MaxMinShares
from pycontrol.model.auction import AppView, Bid, Offer, Plan, Snapshot, gang_gpus
from pycontrol.model.topology import Machine, Topology
from pycontrol.policies.oef import Oef
from pycontrol.policies.sharing import Sharing
from pycontrol.shares.problem import Scheme
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import Workload

LEASE_S = 300.0
"""The paper's round."""
HOSTS, HOST_GPUS = 2, 4
"""Of each type."""
PLACERS: Mapping[Placer, str] = {
    "whole": "our placer",
    "paper": "the paper's placer",
    "priority": "by priority",
    "unpacked": "by priority, unpacked",
}
PUBLISHED: tuple[Placer, ...] = ("unpacked", "priority")
"""How baselines are placed as published: nobody starves. The first packs nothing, the second as Gavel does."""
OURS: tuple[Placer, ...] = ("whole", "paper")
RUN_CONVENTIONS = (
    "leases of 300 s (the paper's round); a restart costs 5 s (checkpoint) and 35 s",
    "by priority (Gavel's rounds): the tenant whose share is the largest multiple of what it received lately is next, "
    "with the job that waited longest and fits in one type; what is left goes to the longest wait; packed on few "
    "hosts, or unpacked: hosts as they come",
    "what our placer leaves free is given out by the Arbiter's last pass; what the others leave is left, as published",
    "jobs of a tenant take turns, the longest wait first, in all variants",
)


@dataclass(frozen=True)
class EqualSplit(Sharing):
    """Max-min: each tenant alike on each type, with the same placers."""

    name: ClassVar[str] = "equal_split"

    def scheme(self) -> Scheme:
        """The equal split."""
        return MaxMinShares()


OEF, OEF_NONCOOPERATIVE, EQUAL = Oef(), Oef(mode="noncooperative"), EqualSplit()
BASELINES: Mapping[str, Sharing] = {"Gandiva_fair": GandivaFair(), "Gavel": Gavel()}


@dataclass(frozen=True)
class SpeedupLie:
    """From `at_s` on a tenant's speedups beyond the slowest type are said to be `factor` times as large."""

    user: str
    factor: float
    at_s: float = 0.0

    def told(self, view: AppView, now_s: float) -> AppView:
        """What the policy sees."""
        if view.user != self.user or now_s < self.at_s:
            return view
        slow = min(view.demand.speedups.values())
        said = {t: v * (self.factor if v > slow else 1.0) for t, v in view.demand.speedups.items()}
        return dataclasses.replace(view, demand=dataclasses.replace(view.demand, speedups=said))


@dataclass(frozen=True)
class Run:
    """One simulation. `penalty`: of a gang that spans hosts (S = 1 + penalty); None: as the workload has it."""

    policy: Sharing | Placed
    workload: Workload
    until_s: float = float("inf")
    penalty: float | None = None
    lie: SpeedupLie | None = None


@dataclass(frozen=True)
class OefOutcome:
    """What came of it. `workers`: GPUs given, lease by lease."""

    done: Mapping[str, float]
    """Work by tenant, GPU-seconds of the slowest type."""
    end_s: float
    workers: int
    mixed_workers: int
    """Of gangs on GPUs of several types."""
    spanning_workers: int
    """Of gangs on several hosts."""
    figures: Mapping[str, float]
    """`simulation.metrics`."""

    @property
    def throughput(self) -> float:
        """Of all, in GPUs of the slowest type."""
        return sum(self.done.values()) / self.end_s


class Observed:
    """A policy that counts what it gives, and is lied to."""

    def __init__(self, policy: Sharing | Placed, lie: SpeedupLie | None) -> None:
        self.policy, self.lie = policy, lie
        self.name, self.asks_agents = policy.name, policy.asks_agents
        self.count: Counter[str] = Counter()

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """As the policy's."""
        return self.policy.offer(snapshot)

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """As the policy's, of what it is told."""
        if self.lie is not None:
            apps = tuple(self.lie.told(v, snapshot.now_s) for v in snapshot.apps)
            snapshot = dataclasses.replace(snapshot, apps=apps)
        plan = self.policy.decide(snapshot, bids, rng)
        for award in plan.awards:
            for gang in award.gangs:
                n = gang_gpus(gang)
                self.count["workers"] += n
                self.count["mixed"] += n * (len({snapshot.topology.machines[h].gpu_type for h, _ in gang}) > 1)
                self.count["spanning"] += n * (len(gang) > 1)
        return plan


def testbed(types: Sequence[str]) -> Topology:
    """Two hosts of four GPUs for each type, one rack."""
    return Topology.of([Machine(f"h{k}{i}", "rack-a", HOST_GPUS, t) for k, t in enumerate(types) for i in range(HOSTS)])


def with_penalty(workload: Workload, penalty: float) -> Workload:
    """The same jobs with S = 1 + penalty wherever they span hosts."""
    apps = tuple(dataclasses.replace(a, slowdown=(1.0, 1 + penalty, 1 + penalty)) for a in workload.apps)
    return dataclasses.replace(workload, apps=apps)


def outcome(run: Run) -> OefOutcome:
    """Simulates it."""
    workload = run.workload if run.penalty is None else with_penalty(run.workload, run.penalty)
    policy = Observed(run.policy, run.lie)
    arbiter = dataclasses.replace(ARBITER, lease_s=LEASE_S, last_pass=getattr(run.policy, "placer", "whole") == "whole")
    settings = SimulationSettings(arbiter=arbiter, until_s=run.until_s)
    result = simulate(workload, testbed(types_of(workload)), policy, settings)
    done: dict[str, float] = {}
    for app in result.apps:
        done[app.user] = done.get(app.user, 0.0) + app.work_done_gpu_s
    return OefOutcome(
        done,
        max(result.end_s, 1e-9),
        policy.count["workers"],
        policy.count["mixed"],
        policy.count["spanning"],
        metrics(result),
    )


def measure(setup: Setup, runs: Sequence[Run], what: str) -> list[OefOutcome]:
    """The outcomes in the order of the runs, on as many processes as the setup allows."""
    results: list[OefOutcome] = []
    for found in setup.each(outcome, runs):
        results.append(found)
        setup.note(f"{what}: {len(results)} of {len(runs)}")
    return results
