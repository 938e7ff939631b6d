"""HiveD's experiments on tiny cases: replays end, cells keep their promise, a quota does not, exchange conserves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.experiments import catalogue
from pycontrol.experiments.hived import cases as hived_cases
from pycontrol.experiments.hived import cells as hived_cells
from pycontrol.experiments.hived import exchange as hived_exchange
from pycontrol.experiments.hived import safety as hived_safety
from pycontrol.experiments.hived.cases import Case, Runs, apportioned, by_level
from pycontrol.experiments.hived.places import Celled, Counted, Job
from pycontrol.experiments.hived.replay import REPLAYS, Replay
from pycontrol.experiments.hived.replay import Series as Hours
from pycontrol.experiments.kit import Setup

HOUR_S = 3600.0


def tiny() -> Case:
    """Two tenants on four nodes: many small jobs against gangs of a node."""
    spec = []
    for k in range(60):
        spec.append(("small", len(spec), (1, 2, 1, 4)[k % 4], 900.0 * k, 600.0 * (1 + 7 * k % 23)))
        if k % 5 == 0:
            spec.append(("large", len(spec), 8, 900.0 * k, 5400.0))
    return Case("tiny", 4, {"small": {"node": 2}, "large": {"node": 2}}, tuple(spec), 0, 54_000.0)


@pytest.mark.parametrize("policy", REPLAYS)
def test_every_job_runs_its_time_whatever_the_scheduler(policy: str) -> None:
    run = Runs(tiny(), policy)
    for replayed in (run.quota, run.hived, *run.private.values()):
        assert all(delay_s >= 0 for delay_s in replayed.delay_s.values())
        run_s = {n: r for _, n, _, _, r in run.case.spec}
        assert all(replayed.completed_s[n] >= run_s[n] - 1e-3 for n in replayed.completed_s)
        assert max(replayed.series.all_gpus) <= 32
    assert len(run.alone_s) == len(run.case.spec)


def test_alone_in_its_private_cluster_fifo_waits_as_by_hand() -> None:
    jobs = [Job(0, "t", 8, 0.0, 100.0), Job(1, "t", 4, 1.0, 10.0), Job(2, "t", 1, 2.0, 5.0), Job(3, "t", 8, 3.0, 1.0)]
    found = Replay(jobs, Celled(1, {"t": {"node": 1}}), {"t": 1.0}, opportunistic=False).run()
    assert found.delay_s == pytest.approx({0: 0.0, 1: 99.0, 2: 98.0, 3: 107.0})


def test_an_opportunistic_job_gives_way_and_keeps_its_progress() -> None:
    jobs = [Job(0, "a", 8, 0.0, 100.0), Job(1, "a", 8, 0.0, 100.0), Job(2, "b", 8, 40.0, 10.0)]
    for places in (Celled(2, {"a": {"node": 1}, "b": {"node": 1}}), Counted(2, {"a": 8, "b": 8})):
        fresh = [Job(j.number, j.tenant, j.gpus, j.submitted_s, j.run_s) for j in jobs]
        found = Replay(fresh, places, {"a": 1.0, "b": 1.0}).run()
        assert found.preemptions == [(40.0, 8)]
        assert found.delay_s == pytest.approx({0: 0.0, 1: 10.0, 2: 0.0})


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 20))
def test_cells_satisfy_what_the_private_cluster_satisfies(seed: int) -> None:
    _, refused, _, _ = hived_safety.random_trace(seed, 60)
    assert refused == 0


def test_a_quota_refuses_some_of_it() -> None:
    assert sum(hived_safety.random_trace(seed, 100)[2] for seed in range(40)) > 0


def test_figure_2_comes_out_as_in_the_paper() -> None:
    assert [c.holds for c in hived_safety.fig2(Setup()).claims] == [True, True, True]


def test_the_tables_nodes_are_the_papers_percentages() -> None:
    percent = {t: round(100 * n / 273, 2) for t, n in hived_cases.NODES.items()}
    assert (percent["res-a"], percent["res-f"], percent["prod-e"]) == (0.37, 28.57, 19.78)
    assert sum(hived_cases.NODES.values()) == 273
    fewer = apportioned(hived_cases.NODES, 200)
    assert (sum(fewer.values()), min(fewer.values())) == (200, 1)


def test_cells_of_every_level_are_as_many_gpus() -> None:
    case = tiny()
    finer = by_level(case)
    assert all(finer.gpus(t) == case.gpus(t) for t in case.owned)
    assert finer.owned["large"] == {"node": 2}
    assert finer.owned["small"].keys() > {"gpu"}


def test_what_is_lent_is_borrowed_and_only_what_is_returned_counts() -> None:
    hours = Hours(
        used=[{"a": 8, "b": 0}, {"a": 0, "b": 8}, {"a": 0, "b": 8}],
        lent=[{"a": 8, "b": 0}, {"a": 0, "b": 8}, {"a": 0, "b": 0}],
        held=[{"a": 1, "b": 0}, {"a": 0, "b": 1}, {"a": 0, "b": 1}],
    )  # fmt: skip
    found = hived_exchange.exchange(hours, {"a": 1, "b": 1})
    assert (found.gave, found.got) == ({"a": [0, 1, 0], "b": [1, 0, 0]}, {"a": [1, 0, 0], "b": [0, 1, 0]})
    assert found.gain("a") == pytest.approx(100.0)
    assert found.gain("b") == pytest.approx(50.0)


def test_stretches_are_marked_from_their_first_to_their_last_hour() -> None:
    busy = [bytes([b]) for b in (1, 0, 0, 0, 1, 0, 0, 1)]
    assert hived_exchange._idle_nodes(busy, 3) == [0, 100, 100, 100, 0, 0, 0, 0]


def test_a_profile_counts_every_request() -> None:
    found = hived_cells.costs(2, 16, 100).requests_s
    assert sum(map(len, found.values())) == 100


def test_all_are_in_the_catalogue() -> None:
    mine = [name for name in catalogue.names() if name.startswith("hived-")]
    assert len(mine) == 12
    assert all(catalogue.title(name).startswith("HiveD") for name in mine)
