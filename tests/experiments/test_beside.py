"""The newest systems' published runs, and ours beside them: the formulas, and a small trace in their formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pycontrol.lab.beside.figures import Played, beside
from pycontrol.lab.beside.kueue import BASELINE, LARGE, kueue
from pycontrol.lab.beside.shockwave import shockwave
from pycontrol.lab.beside.sia import RUNS, app_of, sia
from pycontrol.lab.kit import Setup
from pycontrol.lab.oef.golden import FOLDER, TRACE


def test_fairness_is_against_all_jobs_or_those_at_the_time() -> None:
    begin, end = np.array([0.0, 0.0, 100.0]), np.array([100.0, 200.0, 300.0])
    run = Played("x", begin, end, np.array([50.0, 100.0, 100.0]), 1, 0.0)
    assert run.fairness == pytest.approx([100 / 150, 200 / 300, 200 / 300])
    # the first shares its life with one other job, the second with one all the time, the third half the time
    assert run.fairness_now == pytest.approx([100 / (50 * 2), 200 / (100 * 2), 200 / (100 * 1.5)])
    assert beside("t", [[run, run]]).rows == (("x", "167", "200", "300", "0.67", "1.33", "0.0", "-"),)


def test_without_the_public_data_nothing_is_claimed(tmp_path: Path) -> None:
    assert [c.holds for c in shockwave(Setup(quick=True, data=tmp_path)).claims] == [None]


def test_published_runs_stand_beside_ours_on_the_same_jobs(tmp_path: Path) -> None:
    jobs = [(0, 4, 1000.0), (10, 2, 500.0), (20, 1, 300.0)]
    lines = "".join(f"m\tc\td\ts\t1\t9\t{gpus}\tgns\t1\t-1\t0\t{at_s}\n" for at_s, gpus, _ in jobs)
    done_s = [1200.0, 600.0, 900.0]
    published = {
        "job_run_time": {k: {"0": gpus * run_s} for k, (_, gpus, run_s) in enumerate(jobs)},
        "jct_list": done_s,
        "finish_time_fairness_list": [d / run_s for d, (_, _, run_s) in zip(done_s, jobs, strict=True)],
        "per_round_schedule": [{"0": [0, 1, 2, 3], "1": [4, 5]}, {"2": [0]}],
        "time_per_iteration": 120,
    }
    for path, text in ((TRACE, lines), (f"{FOLDER}/tacc_32gpus__shockwave__simulation.json", json.dumps(published))):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = shockwave(Setup(quick=True, seeds=1, processes=1, data=tmp_path))
    theirs, ours = found.tables[0].rows
    assert theirs == ("Shockwave", "900", "1194", "1200", "3.00", "3.00", "0.2", "-")
    # nobody waits on 32 GPUs: each job takes its time alone and one launch
    assert ours[:4] == ("isonomy", "620", "1010", "1020")
    assert [c.holds for c in found.claims] == [True, True, True]


def test_kueues_loads_have_the_size_that_its_ci_names() -> None:
    assert (BASELINE.workloads, LARGE.workloads) == (15_000, 50_000)


def test_every_workload_of_kueues_is_admitted_and_journaled() -> None:
    found = kueue(Setup(quick=True))
    assert [c.holds for c in found.claims] == [None, None]
    (row,) = found.tables[0].rows
    assert row[:2] == ("baseline", "isonomy")
    # 300 workloads of 1, 5 and 20 GPUs on 120: no sooner than the GPUs allow, each with an arrival, a lease and an end
    assert row[2] >= (35 * 0.2 + 10 * 0.5 * 5 + 5 * 1.0 * 20) / 20
    assert 4 <= float(found.claims[1].ours.partition(" facts")[0].rpartition(" ")[2]) <= 10


JOB = {
    "name": "a",
    "submitted_s": 0,
    "gpus": 4,
    "restart_s": 30,
    "alone_s": {"T4": {"1": 4000.0, "4": 2000.0}, "A100": {"1": 1000.0, "4": 500.0}},
}


def test_a_job_of_sias_takes_as_long_here_as_alone_there(tmp_path: Path) -> None:
    ran = {"finished_s": 600.0, "gpu_s": 1800.0, "restarts": 1}
    found = {
        "about": "one job",
        "cluster": {"T4": [2, 4], "A100": [1, 8]},
        "jobs": [JOB],
        "runs": {"Sia": [ran], "Gavel": [ran]},
    }
    (tmp_path / RUNS[0]).parent.mkdir(parents=True)
    (tmp_path / RUNS[0]).write_text(json.dumps(found))
    said = sia(Setup(quick=True, seeds=1, processes=1, data=tmp_path))
    # alone at the mean speed of eight T4 and eight A100: 1 / (0.5 / 2000 + 0.5 / 500) = 800 s
    assert said.tables[0].rows[0][:5] == ("Sia", "600", "600", "600", "0.75")
    # on four A100 after one launch
    assert said.tables[0].rows[2][:4] == ("isonomy", "530", "530", "530")
    assert [c.holds for c in said.claims] == [True, True]


def test_an_elastic_job_of_sias_is_as_fast_on_all_its_gpus_as_alone_there() -> None:
    app = app_of(JOB, elastic=True)
    assert (app.gang_gpus, app.job_gpus_max, app.work_gpu_s, app.speedups["A100"]) == (1, 4, 4000.0, 4.0)
    assert app.work_gpu_s / (4 * app.efficiency(4)) == pytest.approx(2000.0)


def test_without_sias_run_nothing_is_claimed(tmp_path: Path) -> None:
    assert [c.holds for c in sia(Setup(quick=True, data=tmp_path)).claims] == [None]
