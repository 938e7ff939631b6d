"""Traces in every format that is known, and what is said of a bad one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from pycontrol.experiments.kit import Setup
from pycontrol.simulation.workloads import BadTrace, load
from pycontrol.simulation.workloads.traces import write

PHILLY = "job_id,vc,submit_time_local,submit_elapsed_s,num_gpus,exec_duration_s,gpu_seconds\n"
ATTEMPT = {
    "start_time": "2017-10-08 00:10:00",
    "end_time": "2017-10-08 01:10:00",
    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
}
JSON = json.dumps(
    [
        {"jobid": "j1", "vc": "v", "user": "u", "submitted_time": "2017-10-08 00:00:00", "attempts": [ATTEMPT]},
        {"jobid": "j2", "vc": "v", "user": "u", "submitted_time": "2017-10-08 00:01:00", "attempts": []},
    ]
)
FORMATS = {
    "philly": (PHILLY + "a,vc1,x,100,2,50,100\nb,vc2,x,160,4,10,40\n", [(0, 2, 100), (60, 4, 40)]),
    "json": (JSON, [(0, 2, 7200)]),
    "themis": (
        "app_id,job_id,vc,submit_elapsed_s,num_gpus,exec_duration_s,gpu_seconds\n"
        "x,1,v,10,1,5,5\nx,2,v,12,1,7,7\ny,3,v,20,2,5,10\n",
        [(0, 1, 12), (10, 2, 10)],
    ),
    "helios": (
        "job_id,user,vc,gpu_num,submit_time,duration\nh,u,v,8,2020-04-01 00:00:00,100\n", [(0, 8, 800)],
    ),
    "tiresias": ("job_id,num_gpu,submit_time,iterations,model_name,duration\n1,4,0,10,vgg16,60\n", [(0, 4, 240)]),
    "alibaba": (
        "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
        "p,2,1000,LS,5,110,10\nq,1,300,LS,5,110,10\nr,1,1000,LS,5,0,\n",
        [(0, 2, 200)],
    ),
    "gavel": ("ResNet-50 (batch size 64)\tcmd\t-n\t1\t1000\t5.0\t2\n", [(0, 2, 200)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_format_is_told_by_its_header(kind: str, packed: bool, tmp_path: Path) -> None:
    text, expected = FORMATS[kind]
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    apps = load(path).apps
    assert [(a.submitted_s, a.gang_gpus, a.work_gpu_s) for a in apps] == expected


def test_our_own_format_is_read_back(tmp_path: Path) -> None:
    whole = load("w2", seed=2, apps=6)
    write(whole, tmp_path / "w.csv")
    again = load(tmp_path / "w.csv")
    for a, b in zip(whole.apps, again.apps, strict=True):
        assert (a.app_id, a.gang_gpus, a.model) == (b.app_id, b.gang_gpus, b.model)
        assert a.slowdown == pytest.approx(b.slowdown)
        assert a.work_gpu_s == pytest.approx(b.work_gpu_s)
        assert a.submitted_s == pytest.approx(b.submitted_s, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PHILLY + "a,v,x,soon,1,5,5\n", "line 2, column submit_elapsed_s: is 'soon', expected a number of at least 0"),
        (PHILLY + "a,v,x,1,1.5,5,5\n", "line 2, column num_gpus: is '1.5', expected a whole number"),
        (PHILLY + "a,v,x,1,1,nan,5\n", "line 2, column exec_duration_s: is 'nan'"),
        (PHILLY + "a,v\n", "line 2, column submit_elapsed_s: is missing"),
        (PHILLY + "a,v,x,1,0,5,5\n", "there is no app in it \\(1 rows without GPU time\\)"),
        ("a,b\n1,2\n", "line 1: no known trace has these columns"),
        ("[{", "expected the JSON of cluster_job_log"),
        ('[{"jobid": "j7", "vc": "v"}]', "job 0 \\(j7\\): KeyError 'submitted_time'"),
        ("name,time,application,num_replicas,batch_size\n", "hold no durations"),
    ],
)
def test_a_bad_file_is_named_with_line_and_column(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=said):
        load(path)


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(PHILLY + "".join(f"j{k},vc{k % 2},x,{k * 86400},1,5,5\n" for k in range(10)))
    assert len(load(path, queues="vc1").apps) == 5
    assert len(load(path, days=3).apps) == 4
    assert [a.submitted_s for a in load(path, faster=2, limit=3).apps] == [0, 43200, 86400]
    with pytest.raises(ValueError, match=r"no app of .* is in vc9; it has vc0, vc1"):
        load(path, queues="vc9")


def test_the_public_philly_jobs() -> None:
    path = Setup().trace("philly/philly_jobs_reconstructed.csv.gz")
    if path is None:
        pytest.skip("the public traces are not here")
    assert len(load(path, limit=1000).apps) == 1000
