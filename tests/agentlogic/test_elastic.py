"""The use of an elastic app's GPUs: sizes of gangs, growth, and GPUs that are kept or returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.agentlogic.gang_sizes import Composition, Running, compose, wanted_gpus
from pycontrol.fairness.elastic import Elastic
from pycontrol.model.topology import Gpu, Machine, Scope, Topology

TOPOLOGY = Topology.of([Machine("n1", "r1", 4), Machine("n2", "r1", 4), Machine("n3", "r2", 4)])
N1, N2, N3 = ([Gpu(f"n{n}", i) for i in range(4)] for n in (1, 2, 3))
ALL = [*N1, *N2, *N3]
ELASTIC = Elastic(1, 8, (1.0, 1.1, 1.3), 40.0)
FAR = replace(ELASTIC, slowdown=(1.0, 3.0, 4.0))


def composed(
    idle: list[Gpu], waiting: Mapping[str, float], *running: Running, stopping: int = 0, elastic: Elastic = ELASTIC
) -> Composition:
    held = dict.fromkeys([*idle, *(g for r in running for g in r.gpus)], 0.0)
    return compose(idle, waiting, stopping, running, held, elastic, Scope.CLUSTER, TOPOLOGY)


def sizes(found: Composition) -> dict[str, int]:
    return {job: len(gpus) for job, gpus in found.allocation.launches}


def test_jobs_get_gpus_so_that_they_end_together() -> None:
    assert sizes(composed(ALL[:8], {"a": 400.0, "b": 190.0, "c": 190.0})) == {"a": 4, "b": 2, "c": 2}
    assert sizes(composed(N1, dict.fromkeys("abcdef", 1.0))) == dict.fromkeys("abcd", 1)
    assert sizes(composed(ALL, {"a": 1.0})) == {"a": 8}


def test_fewer_gpus_are_used_if_they_are_faster_because_they_are_close_together() -> None:
    found = composed([*N1, N3[0]], {"a": 1.0}, elastic=FAR)
    assert sizes(found) == {"a": 4}
    assert found.allocation.unused == (N3[0],)
    assert sizes(composed([*N1, *N2], {"a": 1.0}, elastic=FAR)) == {"a": 4}, "8 / 3 is slower than 4"


def test_a_gang_grows_if_it_regains_the_restart_twice() -> None:
    """From 2 GPUs to 4, 40 s a restart: left / 2 - left / 4 > 80."""

    def grows(left: float) -> tuple[str, ...]:
        return composed(N1[2:], {}, Running("a", tuple(N1[:2]), left)).grow

    assert grows(321.0) == ("a",)
    assert grows(319.0) == ()


def test_unused_gpus_are_returned_and_not_requested_again_before_the_lease_ends() -> None:
    settled = Running("a", tuple(N1[:2]), 1e6, settled=True)
    assert composed(N1[2:], {}, settled).allocation.unused == tuple(N1[2:])
    assert wanted_gpus(0, [settled], ELASTIC, TOPOLOGY) == 2
    assert wanted_gpus(1, [replace(settled, settled=False)], ELASTIC, TOPOLOGY) == 16
    assert wanted_gpus(0, [Running("a", tuple(N1[:2]), 100.0)], ELASTIC, TOPOLOGY) == 2


def test_free_gpus_are_kept_for_a_gang_that_is_stopping() -> None:
    assert composed(N1[2:], {}, stopping=1) == Composition(replace(composed([], {}).allocation))


def test_a_gang_that_loses_gpus_does_not_grow_on_them() -> None:
    running = Running("a", tuple(N1[:2]), 1e6)
    found = compose(N1[2:], {}, 0, [running], dict.fromkeys(N1[1:], 0.0), ELASTIC, Scope.CLUSTER, TOPOLOGY)
    assert found.grow == ()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_each_gpu_is_launched_on_kept_or_returned_exactly_once(data: st.DataObject) -> None:
    order = data.draw(st.permutations(ALL))
    at, running = 0, []
    for k, n in enumerate(data.draw(st.lists(st.sampled_from([1, 2, 4]), max_size=3))):
        running.append(
            Running(f"r{k}", tuple(sorted(order[at : at + n])), data.draw(st.floats(1, 1e5)), data.draw(st.booleans()))
        )
        at += n
    idle = list(order[at : at + data.draw(st.integers(0, 12))])
    waiting = {f"w{k}": w for k, w in enumerate(data.draw(st.lists(st.floats(0, 1e5), max_size=6)))}
    stopping = data.draw(st.integers(0, 1))
    found = composed(idle, waiting, *running, stopping=stopping)
    launched = [g for _, gpus in found.allocation.launches for g in gpus]
    assert len(set(launched)) == len(launched)
    assert set(launched) | set(found.allocation.unused) <= set(idle)
    assert not set(launched) & set(found.allocation.unused)
    assert all(len(gpus) in ELASTIC.sizes for _, gpus in found.allocation.launches)
    assert len(found.allocation.launches) == min(len(waiting), len(idle)), "no job waits beside free GPUs"
    assert set(found.grow) <= {r.job_id for r in running if not r.settled}
