"""Leases without an end spare rounds and change nothing: the same GPUs start, end and are revoked at the same times."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.config import parse
from pycontrol.lab.clusters import uniform
from pycontrol.model.topology import Scope
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.simulation_settings import ARBITER, Fault, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.digests.workloads import CELLS, OWNERS

CHANGES = facts.LeaseGranted | facts.LeaseEnded | facts.LeaseRevoking | facts.LeaseBorrowed | facts.LeaseOwned


def workload(rng: random.Random) -> Workload:
    """Apps with and without Agents of four queues, some in phases, at a load that leaves GPUs free at times."""
    gap_s, at_s, apps = rng.choice((200.0, 500.0, 900.0)), 0.0, []
    for k in range(rng.choice((8, 16))):
        at_s += rng.expovariate(1 / gap_s)
        gang = rng.choice((1, 1, 2, 4, 8))
        phases = tuple(
            tuple(rng.expovariate(1 / 1500) * gang for _ in range(rng.choice((1, 2, 4))))
            for _ in range(rng.choice((1, 1, 2)))
        )
        scope, queue = rng.choice((Scope.MACHINE, Scope.CLUSTER)), f"root.{rng.choice('aabcd')}"
        user, bare = f"u{rng.randrange(3)}", rng.random() < 0.15
        apps.append(TraceApp(f"j{k}", at_s, gang, phases, queue, user, scope=scope, agentless=bare))
    return Workload("mixed", tuple(apps))


class Watched(Simulator):
    """Notes the changes of leases; no app waits while leases of its virtual cluster have no end and no round is due."""

    def __init__(self, seed: int, policy: str, cells: bool, open_leases: bool) -> None:
        rng, supply, chosen = random.Random(seed), None, make(policy)
        if cells:
            supply = CellSupply(layout(parse(CELLS + OWNERS, CellsFile, "cells.yaml"), name="cells.yaml"))
            chosen = ByVirtualCluster(chosen)
        # an arrival just before a round of renewals takes part in it: without that round it waits `settle_s` longer
        arbiter = dataclasses.replace(ARBITER, open_leases=open_leases, settle_s=0.0)
        lost = (Fault(3000.0, "r00m01"), Fault(4000.0, "r00m01", True)) if seed % 2 else ()
        settings = SimulationSettings(arbiter=arbiter, faults=lost)
        super().__init__(workload(rng), uniform(4, 8), chosen, settings, 1, supply=supply)
        self.log: list[tuple[object, ...]] = []
        self.opened = 0
        self.watchers.append(self._note)

    def _note(self, told: Iterable[facts.Fact]) -> None:
        for fact in told:
            if isinstance(fact, facts.LeaseExtended):
                self.opened += fact.end_s == math.inf
            elif isinstance(fact, CHANGES):
                whose = getattr(fact, "app_id", "")
                self.log.append((round(self.now, 3), type(fact).__name__, tuple(sorted(fact.gpus)), whose))

    def _step(self) -> bool:
        going, a = super()._step(), self.arbiter
        apps = a.durable.apps
        without_end = [x for x in a.durable.leases.each() if x.end_s == math.inf]
        assert all(x.guaranteed for x in without_end)
        waiting = Counter(apps[app_id].vc for app_id in a.rounds.candidates.wanting())
        if a.rounds.current is None and a.timer.wanted_s is None:
            assert not any(waiting[apps[x.app_id].vc] for x in without_end)
        return going


@pytest.mark.parametrize("policy", ["tiresias", "gandiva"])
@pytest.mark.parametrize("cells", [False, True], ids=["whole", "cells"])
@pytest.mark.parametrize("seed", [1, 4])
def test_the_same_gpus_start_and_end_and_fewer_rounds_are_held(policy: str, cells: bool, seed: int) -> None:
    """Under policies that remember nothing of their rounds."""
    plain, spared = (Watched(seed, policy, cells, open_leases) for open_leases in (False, True))
    expected, found = plain.run(), spared.run()
    assert spared.log == plain.log
    assert [(a.started_s, a.finished_s, a.restarts) for a in found.apps] == [
        (a.started_s, a.finished_s, a.restarts) for a in expected.apps
    ]
    assert spared.opened > 0 == plain.opened
    assert spared.rounds < plain.rounds
