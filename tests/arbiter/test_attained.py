"""Attained service, and the part of it that the Arbiter's own choices cost."""

from __future__ import annotations

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import AppArrived, LeaseEnded, LeaseGranted, LeaseStarted
from pycontrol.lab.clusters import uniform
from pycontrol.model.topology import Gpu
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.trace_apps import TraceApp, Workload

GPU = Gpu("n1", 0)


def test_the_cost_of_a_slow_place_is_counted_while_it_runs_and_after_it_ended() -> None:
    d = Durable()
    for fact in (
        AppArrived("a", "a", "root.q", "ann", "job", 0.0, 0.0),
        LeaseGranted((GPU,), "a", "r1.1", 0.0, 600.0),
        LeaseStarted((GPU,), "c1", "j", 10.0, 610.0, slowdown=1.25),
    ):
        d.apply(fact)
    assert d.leases[GPU].attained_gpu_s(110.0) == pytest.approx(100.0)
    assert d.leases[GPU].slowed_gpu_s(110.0) == pytest.approx(20.0)
    d.apply(LeaseEnded((GPU,), 110.0, "released"))
    assert d.apps["a"].attained_gpu_s == pytest.approx(100.0)
    assert d.apps["a"].slowed_gpu_s == pytest.approx(20.0)


@pytest.mark.parametrize(("machines", "per_rack", "share"), [(1, 1, 0.0), (2, 2, 1 - 1 / 1.1), (2, 1, 1 - 1 / 1.3)])
def test_gangs_are_charged_for_the_place_that_they_got(machines: int, per_rack: int, share: float) -> None:
    """A gang of 4: on one machine, in one rack, over two racks."""
    workload = Workload("one", (TraceApp("a", 0.0, 4, ((4000.0,),)),))
    cluster = uniform(machines, 4 // machines, per_rack)
    simulator = Simulator(workload, cluster, make("isonomy"))
    simulator.run()
    app = simulator.arbiter.durable.apps["a"]
    assert app.slowed_gpu_s == pytest.approx(share * app.attained_gpu_s)
