"""What workers report: S, speeds and work left are used where an Agent's figures are far from them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.fairness.seen import STEPS_LEAST, TOLERANCE, AppSeen, overstated
from pycontrol.model.auction import Demand
from pycontrol.model.events import WorkerSteps
from pycontrol.model.topology import Gpu, Machine, Topology

CLUSTER = Topology.of([Machine(f"{t}{k}", f"r{k}", 4, t) for t in ("old", "new") for k in range(3)])
SLOWDOWN, SPEED = (1.0, 1.4, 1.8), {"old": 1.0, "new": 3.0}


def _gpus(*hosts: str) -> list[Gpu]:
    return [Gpu(h, i) for h in hosts for i in range(4 // len(hosts))]


def _train(
    seen: AppSeen, job: str, hosts: list[str], noise: random.Random, serial_s: float = 8.0, reports: int = 12
) -> None:
    gpus = _gpus(*hosts)
    s = SLOWDOWN[CLUSTER.scope_of(hosts) - 1] / SPEED[CLUSTER.type_of(hosts[0])]
    for k in range(reports):
        time_s = serial_s * s / len(gpus) * noise.uniform(0.9, 1.1)
        seen.add(job, gpus, 4, CLUSTER, WorkerSteps(f"{job}/{hosts}", 100 + k, time_s, 1000))


def _app(seed: int) -> AppSeen:
    seen, noise = AppSeen(), random.Random(seed)
    for k, job in enumerate(("a", "b", "c")):
        for hosts in (["old0"], ["old0", "old1"], ["new0"]):
            _train(seen, job, hosts, noise, 8.0 + k)
    return seen


@given(st.integers(0, 999), st.floats(0.9, 1.1), st.floats(0.9, 1.1))
def test_an_honest_demand_with_noise_is_used_as_it_is(seed: int, s_error: float, speed_error: float) -> None:
    slowdown = (1.0, max(1.0, 1.4 * s_error), max(1.4, 1.8 * s_error))
    demand = Demand(4, 3, slowdown=slowdown, speedups={"old": 1.0, "new": 3.0 * speed_error})
    assert _app(seed).held(demand) is demand


def test_forged_slowdowns_and_speeds_are_replaced_by_those_seen() -> None:
    demand = Demand(4, 3, slowdown=(1.0, 3.0, 9.0), speedups={"old": 1.0, "new": 30.0, "newest": 7.0})
    held = _app(1).held(demand)
    assert held.slowdown == pytest.approx((1.0, 3.0, 3.0), rel=0.5)
    assert held.slowdown[2] == pytest.approx(max(held.slowdown[1], 1.8), rel=0.1)
    assert held.speedups["new"] == pytest.approx(3.0, rel=0.1)
    assert held.speedups["newest"] == 7.0, "it never ran there"


def test_what_was_not_seen_is_believed() -> None:
    seen, noise = AppSeen(), random.Random(0)
    demand = Demand(4, 3, slowdown=(1.0, 5.0, 9.0), speedups={"old": 1.0, "new": 30.0})
    assert seen.held(demand) is demand
    _train(seen, "a", ["old0"], noise, reports=40)
    assert seen.held(demand) is demand, "one scope on one type says nothing about others"
    _train(seen, "a", ["new0"], noise, reports=3)
    assert seen.held(demand) is demand, "too few samples"


@given(st.integers(0, 999), st.floats(0.85, 1.18))  # what is seen of these apps is up to 5.6 % too small
def test_honest_work_left_is_never_overstated(seed: int, error: float) -> None:
    seen, demand = _app(seed), Demand(4, 3, slowdown=SLOWDOWN, speedups=SPEED)
    workers = {f"{j}/['new0']" for j in "abc"}
    left = tuple((8.0 + k) * (1000 - 111) * error for k in range(3))
    assert overstated((left, (7e5,)), ("a", "b", "c"), seen.work(demand, workers)) <= TOLERANCE


def test_overstated_work_is_told_by_its_factor() -> None:
    seen, demand = _app(3), Demand(4, 3, slowdown=SLOWDOWN, speedups=SPEED)
    left = tuple(3 * (8.0 + k) * (1000 - 111) for k in range(3))
    workers = {f"{j}/['new0']" for j in "abc"}
    assert overstated((left,), ("a", "b", "c"), seen.work(demand, workers)) == pytest.approx(3.0, rel=0.1)
    assert overstated((left,), ("a", "b"), seen.work(demand, workers)) == 1.0, "the ids do not name the jobs"
    assert overstated((left,), ("a", "b", "c"), seen.work(demand, ())) == 1.0, "its workers are gone: it may restart"
    assert seen.work(demand, ()) == {}
    assert seen.work(demand, workers)["a"].done == pytest.approx(8.0 * 111, rel=0.1)
    gpus = _gpus("new0")
    for step in (400, 1000):
        seen.add("a", gpus, 4, CLUSTER, WorkerSteps("a/['new0']", step, 8.0 / 12, 1000))
    assert seen.work(demand, ())["a"].done == pytest.approx(8000.0, rel=0.1), "it has ended"


def test_a_slowdown_and_a_speed_that_were_only_told_may_be_wrong_too() -> None:
    """Work 20 % too large, S of the only scope and the speed of the only type 20 % off: nothing is a lie."""
    for hosts, s_error, speed_error in ((["old0", "old1"], 1.2, 1.0), (["new0"], 1.0, 1 / 1.2), (["old0"], 1.0, 1.0)):
        seen = AppSeen()
        _train(seen, "a", hosts, random.Random(0))
        told = Demand(
            4, 1, slowdown=(1.0, 1.4 * s_error, 1.8 * s_error), speedups={"old": 1.0, "new": 3.0 * speed_error}
        )
        work = seen.work(told, {f"a/{hosts}"})
        assert overstated(((8.0 * (1000 - 111) * 1.2,),), ("a",), work) <= TOLERANCE
        assert overstated(((8.0 * (1000 - 111) * 2.0,),), ("a",), work) > TOLERANCE, "twice is too much anywhere"
        assert work["a"].done / TOLERANCE <= 8.0 * 111 / 1.2


def test_a_jobs_last_steps_are_not_compared() -> None:
    seen, gpus = AppSeen(), _gpus("old0")
    for _ in range(9):
        seen.add("a", gpus, 4, CLUSTER, WorkerSteps("w", 101 - STEPS_LEAST, 2.0, 100))
    assert seen.work(Demand(4, 1), {"w"})["a"].left is None
