"""The experiment on estimates of starts: what it compares."""

from dataclasses import dataclass

import pytest

from pycontrol.lab.outlook.estimates import PhillySizes, WatchedWorld, _claims, _row
from pycontrol.lab.themis.sweeps import Scene
from pycontrol.simulation.calibration import Calibration
from pycontrol.simulation.trace_apps import TraceApp, Workload

pytestmark = pytest.mark.interpreted


@dataclass(frozen=True)
class Queue(Scene):
    """Jobs that run one after the other on four GPUs."""

    def load(self, seed: int) -> Workload:
        """Its apps."""
        apps = [TraceApp(f"j{i}", 70.0 * i, 4, ((4 * 900.0,),)) for i in range(self.apps)]
        return Workload("queue", tuple(apps))


def test_each_start_is_compared_with_the_first_estimate_made_while_the_app_waited() -> None:
    world = WatchedWorld(Queue("queue", "1x4", apps=6), 1, "isonomy", 3, Calibration())
    world.run()
    world.settle()
    assert len(world.found) >= 4
    starts = {world.records[a.app_id].started_s for a in world.workload.apps}
    for x in world.found:
        assert x.real_s in starts
        assert x.made_s < x.real_s, "nothing is foreseen that has happened"
        assert x.waited_s >= x.real_s - x.made_s
    assert _row("queue", world.found)[1] == len(world.found)
    assert _claims([])[0].holds is None


@dataclass(frozen=True)
class Halves(PhillySizes):
    """Jobs of two virtual clusters, which have a machine each and may borrow the other."""

    def load(self, seed: int) -> Workload:
        """Its apps."""
        apps = [TraceApp(f"j{i}", 70.0 * i, 4, ((4 * 900.0,),), self.QUEUES[i % 2]) for i in range(self.apps)]
        return Workload("halves", tuple(apps))


def test_starts_are_foreseen_where_virtual_clusters_own_cells() -> None:
    world = WatchedWorld(Halves("halves", "2x4", apps=6, cells=True), 1, "isonomy", 3, Calibration())
    assert world.supply is not None
    assert set(world.supply.virtual_clusters()) == set(Halves.QUEUES)
    world.run()
    world.settle()
    assert len(world.found) >= 3
    for x in world.found:
        assert x.raw[1] is not None
        assert x.made_s <= x.raw[1]
