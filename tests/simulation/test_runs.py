"""Clusters, metrics, and runs over seeds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pycontrol.config import ConfigError
from pycontrol.lab import clusters
from pycontrol.lab.hived import simulated
from pycontrol.lab.hived.closed_loop import ALLOWED_S
from pycontrol.lab.hived.safety import random_case
from pycontrol.lab.measures import cdf, known, run_until
from pycontrol.lab.paper_metrics import METRICS, jain, metrics
from pycontrol.lab.runs import CellsOf, SimulationRun, interval, paired_ratio, run, run_many
from pycontrol.policies.on_schedule import KEEPS
from pycontrol.simulation.result import AppResult, Counters, Result
from pycontrol.simulation.trace_apps import TraceApp, Workload


def sizes(name: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for machine in clusters.cluster(name).machines.values():
        found[machine.gpus] = found.get(machine.gpus, 0) + 1
    return found


def test_the_papers_clusters() -> None:
    assert (sizes("testbed-64"), clusters.cluster("testbed-64").gpus) == ({2: 8, 4: 12}, 64)
    assert (sizes("paper-168"), clusters.cluster("paper-168").gpus) == ({8: 16, 4: 6, 1: 16}, 168)
    assert clusters.cluster("paper-256").gpus == 256
    assert sizes("16x8") == {8: 16}
    assert len(clusters.cluster("16x8/4").racks) == 4


def test_contention_by_fewer_machines_or_faster_arrivals() -> None:
    half = clusters.shrunk(clusters.cluster("testbed-64"), 2)
    assert half.gpus == 32
    assert len(half.racks) == 4
    assert clusters.shrunk(clusters.cluster("testbed-64"), 4).gpus == 16
    load = Workload("w", (TraceApp("a", 10.0, 1, ((1.0,),)), TraceApp("b", 20.0, 1, ((1.0,),))))
    assert [a.submitted_s for a in clusters.denser(load, 2).apps] == [5.0, 10.0]


def test_a_cluster_from_a_topology_file_and_clear_errors(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("racks: [{name: a, machines: [{host: h1, gpus: 4, type: v100}]}]")
    assert clusters.cluster(str(file)).machines["h1"].gpu_type == "v100"
    file.write_text("racks: [{name: a, machines: [{host: h1, gpu: 4}]}]")
    with pytest.raises(ConfigError, match="gpu"):
        clusters.cluster(str(file))
    with pytest.raises(clusters.UnknownCluster, match="testbed-64"):
        clusters.cluster("nowhere")


def result(*apps: tuple[float, float | None, float]) -> Result:
    records = tuple(
        AppResult(f"a{i}", "q", "u", "", at, at + 1, end, n, 100.0, 100.0, 4, 50.0, 8, 120.0, 0.5, 1, 0, 0.0)
        for i, (at, end, n) in enumerate(apps)
    )
    return Result("w", 8, "p", {}, 0, 300.0, records, Counters(rounds=3))


def test_metrics_of_a_small_run() -> None:
    found = metrics(result((0.0, 50.0, 1.0), (10.0, 210.0, 4.0)))
    assert set(found) == {m.name for m in METRICS}
    assert found["rho_max"] == 2.0  # 50 s where 100 GPU-seconds on 4 GPUs take 25
    assert found["rho_path_max"] == 1.0  # its longest job takes 50 s
    assert found["si_share"] == 0.0
    assert (found["makespan_s"], found["wait_mean_s"]) == (210.0, 1.0)
    assert found["gpu_h"] == pytest.approx(240 / 3600)
    assert found["utilisation"] == pytest.approx(240 / (8 * 210))
    assert found["placement"] == 0.5
    unfinished = metrics(result((0.0, 50.0, 1.0), (10.0, None, 4.0)))
    assert (unfinished["unfinished"], unfinished["rho_max"]) == (1.0, 2.0)


def test_jain_and_cdf() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    x, share = cdf([3.0, 1.0])
    assert (list(x), list(share)) == ([1.0, 3.0], [0.5, 1.0])


def test_paired_intervals() -> None:
    same = interval([1.0, 1.0, 1.0])
    assert (same.mean, same.low, same.high) == (1.0, 1.0, 1.0)
    two = interval([0.0, 2.0])
    assert two.high == pytest.approx(1 + 12.7062, abs=1e-3)  # t(0.975, 1) x s / sqrt 2 with s = sqrt 2
    ratio = paired_ratio([2.0, 8.0], [1.0, 4.0])
    assert (ratio.mean, known(ratio)) == (pytest.approx(2.0), True)
    assert not known(interval([1.0]))
    assert math.isnan(paired_ratio([1.0], [0.0]).mean)


def job(seed: int, policy: str = "tiresias") -> SimulationRun:
    apps = tuple(TraceApp(f"a{i}", 50.0 * i + seed, 1 + i % 2, ((300.0,), (200.0, 200.0))) for i in range(8))
    return SimulationRun(Workload("w", apps), clusters.uniform(2, 2), policy, seed=seed)


def test_several_processes_give_the_same_result_as_one() -> None:
    jobs = [job(1), job(2), job(1, "srtf")]
    seen: list[int] = []
    assert list(run_many(jobs, 2)) == list(run_many(jobs, 1, lambda j: seen.append(j.seed)))
    assert seen == [1, 2, 1]


def test_seeds_stop_when_the_ratio_is_known() -> None:
    runs = run_until(lambda seed: [job(seed), job(seed)], "gpu_h", range(10), least=3, processes=1)
    assert [len(group) for group in runs] == [2, 2, 2]


@pytest.mark.parametrize("policy", KEEPS)
@pytest.mark.parametrize("seed", [9, 15])
def test_with_a_private_schedule_no_app_ends_a_lease_later_than_on_its_private_cluster(policy: str, seed: int) -> None:
    case = random_case(seed, 24)
    cells = CellsOf(simulated.cells_of(case, private_schedule=True))
    cluster = simulated.machines([simulated.NODE_GPUS] * case.nodes)
    options = simulated.POLICIES.get(policy, {})
    job = SimulationRun(simulated.workload(case), cluster, policy, options, simulated.settings(), supply=cells)
    excess_s = [app.excess_s for app in run(job).apps]
    assert len(excess_s) == 24
    assert max(x for x in excess_s if x is not None) <= ALLOWED_S
    assert None not in excess_s
