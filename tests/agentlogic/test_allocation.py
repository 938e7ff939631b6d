"""The jobs that get an app's free GPUs; the Agent and the simulated one keep GPUs for the same jobs."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.agentlogic.allocation import allocate
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.simulation import agents
from pycontrol.simulation.simulated_jobs import STOPPING, SimApp
from pycontrol.simulation.simulation_settings import Misreport
from pycontrol.simulation.trace_apps import TraceApp

TOPOLOGY = Topology.of([Machine("n1", "r1", 4), Machine("n2", "r1", 4), Machine("n3", "r2", 4)])
N1, N2, N3 = ([Gpu(f"n{n}", i) for i in range(4)] for n in (1, 2, 3))


def held(*gpus: Gpu) -> dict[Gpu, float]:
    return dict.fromkeys(gpus, 0.0)


def test_the_longest_job_is_served_first_and_unusable_gpus_are_named() -> None:
    found = allocate(N1[:3], {"short": 1.0, "long": 9.0}, [], held(*N1), 2, Scope.CLUSTER, TOPOLOGY)
    assert found.launches == (("long", (N1[0], N1[1])),)
    assert found.unused == (N1[2],)


def test_a_gang_takes_the_gpus_that_are_free_soonest() -> None:
    soon = {N1[0]: 30.0, N1[1]: 0.0, N1[2]: 10.0}
    found = allocate(list(soon), {"j": 1.0}, [], soon, 2, Scope.MACHINE, TOPOLOGY)
    assert found.launches == (("j", (N1[1], N1[2])),)


def test_gpus_are_kept_for_a_stopping_job_that_retains_part_of_its_gang() -> None:
    """The job loses n1:0 of its gang of two and keeps n1:1: one more free GPU completes the gang again."""
    found = allocate([N1[2], N1[3]], {}, [[N1[0], N1[1]]], held(*N1[1:]), 2, Scope.CLUSTER, TOPOLOGY)
    assert (found.launches, found.unused) == ((), (N1[3],))


def test_a_gang_that_loses_nothing_is_no_reason_to_keep_gpus() -> None:
    assert allocate([N1[2]], {}, [[N1[0], N1[1]]], held(*N1), 2, Scope.CLUSTER, TOPOLOGY).unused == (N1[2],)


def test_no_gang_is_spread_wider_than_the_app_allows() -> None:
    apart = [N1[0], N3[0]]
    assert allocate(apart, {"j": 1.0}, [], held(*apart), 2, Scope.RACK, TOPOLOGY).unused == tuple(apart)
    assert allocate(apart, {"j": 1.0}, [], held(*apart), 2, Scope.CLUSTER, TOPOLOGY).launches


def test_the_simulated_agent_counts_the_gpus_that_its_ending_gang_does_not_lose() -> None:
    app = SimApp(TraceApp("a", 0.0, 2, ((5.0,),)), Misreport())
    app.next_phase()
    job = app.jobs[0]
    job.state, job.gpus = STOPPING, (N1[0], N1[1])
    app.held = held(N1[1], N1[2])
    app.job_at = {N1[0]: job, N1[1]: job}
    assert agents.assign(app, 0.0, TOPOLOGY, 40.0).allocation.unused == ()


@given(
    st.sets(st.sampled_from([*N1, *N2, *N3])),
    st.sets(st.sampled_from([*N1, *N2, *N3])),
    st.lists(st.integers(1, 9), max_size=4),
    st.integers(1, 5),
    st.sampled_from(Scope),
)
@settings(max_examples=150, deadline=None)
def test_gangs_are_whole_and_use_no_gpu_twice(
    mine: set[Gpu], used: set[Gpu], left: list[int], gang_gpus: int, scope: Scope
) -> None:
    idle = sorted(mine - used)
    waiting = {f"j{i}": float(n) for i, n in enumerate(left)}
    found = allocate(idle, waiting, [], held(*mine), gang_gpus, scope, TOPOLOGY)
    given_out = list(itertools.chain.from_iterable(gpus for _, gpus in found.launches))
    assert sorted([*given_out, *found.unused]) == idle
    for _, gpus in found.launches:
        assert len(gpus) == gang_gpus
        assert TOPOLOGY.scope_of(g.host for g in gpus) <= scope
    served = {job_id for job_id, _ in found.launches}
    assert all(waiting[a] >= waiting[b] for a in served for b in waiting if b not in served)
