"""The simulated world around the production Arbiter: conservation, costs, and determinism."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pycontrol.lab.clusters import racks_of
from pycontrol.lab.policies.srtf import Srtf
from pycontrol.model.auction import gang_sizes
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies.isonomy import Isonomy
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.themis import Themis
from pycontrol.policies.tiresias import Tiresias
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.result import AppResult, Result
from pycontrol.simulation.simulated_jobs import RUNNING, SimApp
from pycontrol.simulation.simulation_settings import ARBITER, Fault, Misreport, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

CLUSTER = racks_of([[4, 2], [4, 2]])
SETTLE_S = ARBITER.settle_s
SHORT = dataclasses.replace(ARBITER, lease_s=100.0)


class Checked(Simulator):
    """A simulation that checks its invariants after each step."""

    def _step(self) -> bool:
        going = super()._step()
        used = [g for c in self.yarn.containers.values() for g in c.gpus]
        assert len(used) == len(set(used))
        assert set(used) == set(self.yarn.occupied)
        assert {c.node_id for c in self.yarn.containers.values()} <= set(self.yarn.up)
        active = 0
        for app in self.apps.values():
            for job in app.jobs:
                active += bool(job.gpus)
                if job.state == RUNNING:
                    own = [g for c in job.containers for g in self.yarn.containers[c].gpus]
                    assert sorted(own) == list(job.gpus)
                    assert len(own) in gang_sizes(app.trace.gang_gpus, app.trace.widest_gang_gpus)
                    assert self.topology.scope_of(g.host for g in own) <= app.trace.scope
        assert active == self.active
        return going


def app(name: str, at_s: float = 0.0, gang: int = 1, *phases: tuple[float, ...], **more: object) -> TraceApp:
    return TraceApp(name, at_s, gang, phases or ((1000.0,),), **more)  # type: ignore[arg-type]


def run(*apps: TraceApp, cluster: Topology = CLUSTER, policy: object = None, **given: object) -> dict[str, AppResult]:
    found = Checked(Workload("t", apps), cluster, policy or Themis(), SimulationSettings(**given), 1).run()  # type: ignore[arg-type]
    return {a.app_id: a for a in found.apps}


# ---- costs


def test_an_app_alone_runs_at_full_speed_and_renewals_cost_nothing() -> None:
    a = run(app("a", 0.0, 4, (20_000.0,)), arbiter=SHORT)["a"]
    assert a.completion_s == pytest.approx(SETTLE_S + 5000)
    assert (a.gpu_s, a.restarts, a.placement) == (pytest.approx(20_000), 0, 1.0)
    assert a.rho == pytest.approx(a.completion_s / 5000)


def test_the_phases_of_an_app_follow_each_other_and_later_ones_restart() -> None:
    a = run(app("a", 0.0, 2, (2000.0, 1000.0), (4000.0,)), restart_s=35.0)["a"]
    assert a.completion_s == pytest.approx(SETTLE_S + 1000 + 35 + 2000)
    assert (a.launches, a.restarts) == (3, 0)


def test_placement_slows_down_by_the_widest_distance() -> None:
    a = run(app("a", 0.0, 6, (6000.0,), slowdown=(1.0, 1.25, 2.0)))["a"]
    assert a.completion_s == pytest.approx(SETTLE_S + 1250)
    assert a.placement == pytest.approx(1 / 1.25)


def test_the_slowest_gpu_type_of_a_gang_sets_its_pace() -> None:
    fast = Topology.of([Machine("n1", "r", 2, "fast")])
    both = Topology.of([Machine("n1", "r", 1, "fast"), Machine("n2", "r", 1, "slow")])
    speeds = {"fast": 4.0, "slow": 1.0}
    alone = run(app("a", 0.0, 2, (8000.0,), speedups=speeds), cluster=fast)["a"]
    mixed = run(app("a", 0.0, 2, (8000.0,), speedups=speeds, slowdown=(1.0, 1.0, 1.0), mixes=True), cluster=both)["a"]
    assert alone.completion_s == pytest.approx(SETTLE_S + 1000)
    assert mixed.completion_s == pytest.approx(SETTLE_S + 4000)


def test_a_revoked_gang_keeps_its_work_and_pays_checkpoint_and_restart() -> None:
    one = racks_of([[1]])
    found = run(app("a", 0.0, 1, (3000.0,)), app("b", 1.0, 1, (3000.0,)), cluster=one, policy=Tiresias(), arbiter=SHORT)
    for a in found.values():
        assert a.restarts > 0
        assert a.lost_gpu_s == 0
        assert 3000 <= a.gpu_s <= 3000 + a.restarts * 40 + 1e-6


def test_jobs_that_do_not_save_when_warned_lose_the_work_since_their_last_checkpoint() -> None:
    one = racks_of([[1]])
    found = run(
        app("a", 0.0, 1, (3000.0,)),
        app("b", 1.0, 1, (3000.0,)),
        cluster=one,
        policy=Tiresias(),
        arbiter=SHORT,
        saves=False,
        checkpoint_every_s=50.0,
    )
    for a in found.values():
        assert 0 < a.lost_gpu_s <= a.restarts * 50
        assert a.gpu_s == pytest.approx(3000 + a.lost_gpu_s + a.restarts * 40, abs=a.restarts * 5 + 1)


def test_an_end_while_a_gang_writes_its_checkpoint_counts_its_work_once() -> None:
    two = app("a", 0.0, 1, (3000.0,)), app("b", 1.0, 1, (3000.0,))
    for until_s in range(70, 100, 3):
        found = run(*two, cluster=racks_of([[1]]), policy=Tiresias(), arbiter=SHORT, until_s=float(until_s))
        assert all(a.work_done_gpu_s <= a.gpu_s for a in found.values())


def test_a_lost_machine_costs_the_work_since_the_last_checkpoint() -> None:
    faults = (Fault(250.0, "r00m00"), Fault(300.0, "r00m00", up=True))
    a = run(app("a"), cluster=racks_of([[1]]), faults=faults, checkpoint_every_s=100.0)["a"]
    trained_s = 250 - SETTLE_S
    assert a.lost_gpu_s == pytest.approx(trained_s - 200)
    assert a.finished_s == pytest.approx(300 + SETTLE_S + 35 + 800, abs=1.0)
    assert a.restarts == 1


def test_a_gang_that_can_never_run_does_not_stop_the_others() -> None:
    found = run(app("big", 0.0, 64), app("a", 5.0), policy=Tiresias())
    assert found["big"].finished_s is None
    assert found["a"].finished_s is not None


def test_a_run_ends_with_the_last_app_that_could_run_not_when_the_others_are_given_up() -> None:
    found = Checked(Workload("t", (app("big", 0.0, 64), app("a", 5.0))), CLUSTER, Tiresias()).run()
    assert found.end_s == found.apps[1].finished_s


# ---- elastic jobs


@pytest.mark.parametrize("policy", [Isonomy(), Themis(), Tiresias()], ids=["order", "auction", "service"])
def test_an_elastic_job_alone_takes_its_maximum_at_its_first_launch(policy: object) -> None:
    a = run(app("a", 0.0, 1, (12_000.0,), job_gpus_max=8), policy=policy, arbiter=SHORT)["a"]
    flat = run(app("a", 0.0, 1, (12_000.0,)), policy=policy, arbiter=SHORT)["a"]
    assert flat.completion_s == pytest.approx(SETTLE_S + 12_000)
    assert a.completion_s == pytest.approx(SETTLE_S + 12_000 / 8 * 1.3), "across racks"
    assert a.work_done_gpu_s == pytest.approx(12_000)


def test_a_gang_shrinks_for_a_newcomer_and_grows_again_without_losing_work() -> None:
    old = app("old", 0.0, 1, (20_000.0,), job_gpus_max=4)
    new = app("new", 210.0, 2, (800.0,))
    found = run(old, new, cluster=racks_of([[4]]), policy=Isonomy(), arbiter=SHORT)
    assert found["new"].completion_s < 100 + 35 + 400 + 30, "at the end of a lease"
    assert found["old"].restarts == 2, "to 2 GPUs and back to 4"
    assert found["old"].lost_gpu_s == 0
    assert found["old"].completion_s < 5000 + 500 / 2 + 2 * 60


def test_a_gang_does_not_grow_if_it_would_not_regain_the_restart() -> None:
    """When GPUs become free 100 s are left; a restart costs 40 s and would save less than twice that."""
    first = app("first", 0.0, 2, (1000.0,))
    last = app("last", 1.0, 1, (1210.0,), job_gpus_max=4)
    a = run(first, last, cluster=racks_of([[4]]), policy=Isonomy(), arbiter=SHORT)["last"]
    assert a.restarts == 0


def test_gpus_that_add_too_little_are_not_requested() -> None:
    a = run(app("a", 0.0, 1, (8_000.0,), job_gpus_max=8, scaling=0.3), cluster=racks_of([[8]]), policy=Isonomy())["a"]
    assert a.gpu_s == pytest.approx(8000, rel=0.01), "2^0.3 = 1.23 of two GPUs is less than half a GPU more"


# ---- reports of apps


class ByName(Tiresias):
    """A policy of another distribution; like Tiresias it uses no progress."""

    name = "by_name"


@pytest.mark.parametrize(
    ("policy", "reports"), [(ByName(), False), (Tiresias(), False), (Srtf(), True), (Themis(), False)]
)
def test_progress_is_reported_only_to_policies_that_say_they_use_it(policy: Policy, reports: bool) -> None:
    assert Simulator(Workload("t", (app("a"),)), CLUSTER, policy).reports is reports


def test_lies_change_only_the_reports() -> None:
    honest, liar = (SimApp(app("a"), m) for m in (Misreport(), Misreport(work=3.0, slowdown=2.0)))
    for x in (honest, liar):
        x.next_phase()
    assert liar.demand(0.0).work_left_gpu_s == 3 * honest.demand(0.0).work_left_gpu_s
    assert liar.slowdown(Scope.CLUSTER) == 2 * honest.slowdown(Scope.CLUSTER)
    assert liar.slowdown(Scope.MACHINE) == honest.slowdown(Scope.MACHINE)
    assert liar.left_gpu_s(0.0) == honest.left_gpu_s(0.0)


def test_errors_of_estimates_are_drawn_by_seed_and_app() -> None:
    def reports(seed: int) -> list[Misreport]:
        return [SimulationSettings(error=0.2).misreport_of(name, seed) for name in "ab"]

    assert reports(1) == reports(1)
    assert reports(1) != reports(2)
    assert reports(1)[0] != reports(1)[1]
    assert all(0.8 <= m.work <= 1.2 and 0.8 <= m.slowdown <= 1.2 and m.rho == 1 for m in reports(3))


# ---- under any faults

JOBS = st.lists(st.floats(10, 900), min_size=1, max_size=3).map(tuple)
APPS = st.lists(
    st.tuples(
        st.floats(0, 2000),
        st.sampled_from([1, 1, 2, 3, 4]),
        st.lists(JOBS, min_size=1, max_size=2).map(tuple),
        st.sampled_from([Scope.MACHINE, Scope.CLUSTER]),
        st.sampled_from([0, 0, 2, 4]),
    ),
    min_size=1,
    max_size=6,
)
HOSTS = tuple(CLUSTER.machines)
LOSSES = st.lists(
    st.tuples(st.floats(10, 3000), st.sampled_from(HOSTS), st.floats(1, 500)), max_size=3, unique_by=lambda x: x[1]
)


def world(apps: list[tuple[float, int, tuple[tuple[float, ...], ...], Scope, int]]) -> Workload:
    """The last number is the maximum size of a job as a multiple of its gang; 0: fixed size."""
    traces = [
        TraceApp(f"a{i}", at, gang, work, scope=scope, job_gpus_max=times * gang)
        for i, (at, gang, work, scope, times) in enumerate(apps)
    ]
    return Workload("random", tuple(sorted(traces, key=lambda a: a.submitted_s)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    APPS,
    LOSSES,
    st.sampled_from([Themis(), Tiresias(), Isonomy()]),
    st.sampled_from(["aligned", "machine", "spread"]),
    st.booleans(),
    st.integers(0, 3),
)
def test_all_work_is_done_exactly_once_under_any_faults(
    apps: list,  # type: ignore[type-arg]
    losses: list,  # type: ignore[type-arg]
    policy: object,
    timing: str,
    open_leases: bool,
    seed: int,
) -> None:
    faults = [f for at, host, for_s in losses for f in (Fault(at, host), Fault(at + for_s, host, True))]
    arbiter = dataclasses.replace(SHORT, lease_timing=timing, open_leases=open_leases)
    free = SimulationSettings(
        arbiter=arbiter, checkpoint_s=0.0, restart_s=0.0, checkpoint_every_s=50.0, faults=tuple(faults)
    )
    result = Checked(world(apps), CLUSTER, policy, free, seed).run()  # type: ignore[arg-type]
    assert len(result.apps) == len(apps)
    for a in result.apps:
        assert a.finished_s is not None
        assert a.work_done_gpu_s == pytest.approx(a.work_gpu_s)
        # without costs of changes, each GPU-second in a container does 1/S of training
        assert a.gpu_s * a.placement == pytest.approx(a.work_gpu_s + a.lost_gpu_s, rel=1e-6, abs=0.5)


def contended(policy: object, seed: int) -> Result:
    apps = world([(60.0 * i, 1 + i % 4, ((400.0, 700.0), (500.0,)), Scope.CLUSTER, i % 3) for i in range(12)])
    faults = (Fault(500.0, HOSTS[0]), Fault(900.0, HOSTS[0], True))
    return Simulator(apps, CLUSTER, policy, SimulationSettings(arbiter=SHORT, error=0.2, faults=faults), seed).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [Themis(), Tiresias()], ids=["auction", "no bids"])
def test_the_same_seed_gives_the_same_result(policy: object) -> None:
    first = contended(policy, 4)
    assert contended(policy, 4) == first
    assert contended(policy, 5) != first


@pytest.mark.parametrize("policy", ["Themis()", "make('tiresias', ties='random')"])
def test_the_result_does_not_depend_on_the_order_of_sets(policy: str) -> None:
    code = (
        "from pycontrol.lab.policies.variants import make;"
        "from tests.simulation.test_engine import contended, Themis;"
        f"r = contended({policy}, 4); print(r.apps, r.counters.events)"
    )
    root = Path(__file__).parents[2]
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    )
    assert first == second
