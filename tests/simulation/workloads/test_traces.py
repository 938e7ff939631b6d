"""Traces in every format that is known, what is said of a bad one, and what is left out."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from pycontrol.lab.workloads import CATALOGUE, load, measured_speedups
from pycontrol.lab.workloads.own_format import write
from pycontrol.lab.workloads.trace_table import BadTrace
from pycontrol.simulation.trace_apps import TraceApp, Workload

DATA = Path(os.environ.get("ISONOMY_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
PHILLY = "job_id,vc,submit_time_local,submit_elapsed_s,num_gpus,exec_duration_s,gpu_seconds,source\n"


def attempt(begin: str, end: str | None, *machines: int) -> dict[str, object]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(n)]} for i, n in enumerate(machines)]
    return {"start_time": begin, "end_time": end, "detail": detail}


def job(name: str, at: str, *attempts: dict[str, object], vc: str = "v", status: str = "Pass") -> dict[str, object]:
    return {"jobid": name, "vc": vc, "user": "u", "status": status, "submitted_time": at, "attempts": list(attempts)}


LOG = [
    job(
        "j1",
        "2017-10-08 00:00:00",
        attempt("2017-10-08 00:10:00", "2017-10-08 01:10:00", 2),
        attempt("2017-10-08 02:00:00", "2017-10-08 02:30:00", 2),
    ),
    job("j2", "2017-10-08 00:01:00"),
    job("j3", "2017-10-08 00:02:00", attempt("2017-10-08 00:02:00", None, 1), vc="w"),
    job(
        "j4",
        "2017-11-04 23:00:00",
        attempt("2017-11-05 00:00:00", "2017-11-05 03:00:00", 4, 4),
        vc="w",
        status="Killed",
    ),
]
"""j1: two attempts; j2: never ran; j3: did not end; j4: on two machines while the clock went back an hour."""
LOG_APPS = [(0, 2, 2 * 5400.0), (27 * 86400 + 23 * 3600, 8, 8 * 4 * 3600.0)]
FORMATS = {
    "philly-jobs": (PHILLY + "b,vc2,x,160,4,10,40,p\na,vc1,x,100,2,50,100,p\n", [(0, 2, 100), (60, 4, 40)]),
    "philly": (json.dumps(LOG), LOG_APPS),
    "philly-subset": (
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 00:01:00,5,2,10,v\n2017-10-09 00:00:00,7,1,7,v\n",
        [(0, 1, 7), (60, 2, 10)],
    ),
    "themis-apps": (
        "app_id,job_id,vc,submit_elapsed_s,num_gpus,exec_duration_s,gpu_seconds\n"
        "x,1,v,10,1,5,5\nx,2,v,12,1,7,7\ny,3,v,20,2,5,10\n",
        [(0, 1, 12), (10, 2, 10)],
    ),
    "pcs": ("app_id,submit_time,service,num_jobs,sleep_time,model_name\n0,5.0,80.0,4,0.0,Vgg\n", [(0, 4, 80)]),
    "helios": (
        "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue,vc\n"
        "h,u,8,9,1,COMPLETED,2020-04-01 00:00:00,x,y,100,0,v\ni,u,0,9,1,COMPLETED,2020-04-01 00:00:00,x,y,100,0,v\n",
        [(0, 8, 800)],
    ),
    "tiresias": ("job_id,num_gpu,submit_time,iterations,model_name,duration\n1,4,0,10,vgg16,60\n", [(0, 4, 240)]),
    "openb": (
        "name,num_gpu,gpu_milli,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p,2,1000,LS,Running,5,110,10\nq,1,300,LS,Running,6,110,10\nr,1,1000,LS,Pending,7,,\ns,0,0,LS,Running,8,9,8\n",
        [(0, 2, 200), (1, 1, 100)],
    ),
    "pai": (
        "j,worker,2,Terminated,100.0,200.0,600,30,50,T4\nk,ps,1,Terminated,110.0,120.0,600,30,,\n"
        "l,tf,1,Failed,130.0,,600,30,100,V100\n",
        [(0, 1, 100)],
    ),
    "gavel": (
        'LM (batch size 10)\tcmd "x"\tdir\t--steps\t1\t1000\t2\tgns\t1\t-1.0\t50\t3\n',
        [(0, 2, 100)],
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_format_is_found_by_its_content(kind: str, packed: bool, tmp_path: Path) -> None:
    text, expected = FORMATS[kind]
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert CATALOGUE.detect(path) == kind
    for name in (path, f"{kind}:{path}"):
        assert [(a.submitted_s, a.gang_gpus, a.work_gpu_s) for a in load(name).apps] == expected


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(LOG))
    found = CATALOGUE.open(path)
    assert found.skipped.reasons == {"without GPUs": 1, "without work": 1}
    assert found.skipped.parts == {"attempts without both times": 1}
    assert found.workload.source.endswith(
        "2 skipped (1 without GPUs, 1 without work), and 1 attempts without both times"
    )
    assert [a.app_id for a in load(path, status="Killed").apps] == ["j4"]
    assert [a.app_id for a in load(f"{path},queues=v").apps] == ["j1"]


def test_elastic_jobs_are_read_back_without_loss(tmp_path: Path) -> None:
    out = tmp_path / "w.csv"
    drawn = load("w2,elastic=4,scaling=0.9,limit=9", 1)
    write(drawn, out)
    assert load(out) == drawn
    assert {a.gang_gpus for a in drawn.apps} == {1}
    assert {a.job_gpus_max for a in drawn.apps} == {4 * a.gang_gpus for a in load("w2,limit=9", 1).apps}


def test_our_own_format_is_read_back_without_loss(tmp_path: Path) -> None:
    for name in ("w1,count=9", "w2,count=9", "oef,tenants=5", "hived,share=0.002"):
        whole = load(name, 2)
        write(whole, tmp_path / "w.csv")
        again = load(tmp_path / "w.csv")
        assert again == Workload(whole.name, whole.apps, whole.source)


def test_an_app_without_work_is_left_out_of_our_own_format_too(tmp_path: Path) -> None:
    none, idle, busy = (TraceApp(f"a{len(w)}", 0.0, 1, (w,)) for w in ((), (0.0,), (0.0, 1.0)))
    write(Workload("x", (none, idle, busy)), tmp_path / "w.csv")
    found = CATALOGUE.open(tmp_path / "w.csv")
    assert found.workload.apps == (busy,)
    assert found.skipped.reasons == {"without work": 2}


ODD = '[{"jobid": "j7", "vc": "v", "submitted_time": "soon", "attempts": []}]'
NO_MACHINES = '[{"jobid": "j7", "vc": "v", "submitted_time": "2017-10-08 00:00:00", "attempts": [{"detail": [1]}]}]'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PHILLY + "a,v,x,soon,1,5,5,p\n", "line 2, column submit_elapsed_s: 'soon', expected a number of at least 0"),
        (PHILLY + "a,v,x,1,1,5,5,p\n\na,v,x,1,1.5,5,5,p\n", "line 4, column num_gpus: '1.5', expected a whole number"),
        (PHILLY + "a,v,x,1,1,5,nan,p\n", "line 2, column gpu_seconds: 'nan'"),
        (PHILLY + "a,v,x,1,-1,5,5,p\n", "line 2, column num_gpus: '-1'"),
        (PHILLY + "a,v\n", "line 2: has 2 columns, expected 8"),
        (PHILLY + "a,v,x,1,0,5,5,p\n", r"no app is left \(1 skipped \(1 without GPUs\)\)"),
        ("timestamp,num_gpus,gpu_time,cluster\nnoon,1,5,v\n", "line 2, column timestamp: 'noon', expected a time such"),
        ("a,b\n1,2\n", "line 1: 'a,b' is of no known format; say which: FORMAT:FILE"),
        ("", "is of no known format"),
        ("[{", "is not JSON: .* line 1 column"),
        ("[3]", "job 1: expected an object"),
        ('[{"vc": "v"}]', "job 1, field jobid: None, expected a text"),
        (ODD, r"job 1 \(j7\), field submitted_time: 'soon', expected a time such as"),
        (NO_MACHINES, r"field attempts\[0\].detail: expected a list of machines"),
        ("# isonomy workload {}\n", "line 1: expected # isonomy workload"),
    ],
)
def test_a_bad_file_is_named_with_line_and_column(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=said) as error:
        load(path)
    assert str(path) in str(error.value) or "no app is left" in said


def test_bad_rows_are_skipped_and_counted_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text(PHILLY + "a,v,x,1,1,5,5,p\nb,v,x,one,two,5,5,p\nc,v\nd,v,x,3,1,5,5,p\n")
    found = CATALOGUE.open(path, options={"bad_rows": "skip"})
    assert [a.app_id for a in found.workload.apps] == ["a", "d"]
    assert found.skipped.reasons == {"bad rows": 2}
    assert any("line 3, column" in problem for problem in found.skipped.bad)


def test_an_id_that_repeats_is_refused_or_its_first_app_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "twice.csv"
    path.write_text(PHILLY + "a,v,x,1,1,5,5,p\nb,v,x,2,1,5,5,p\na,v,x,3,2,5,9,p\n")
    with pytest.raises(BadTrace, match=r"twice.csv: two apps have the id a \(bad_rows=skip"):
        load(path)
    found = CATALOGUE.open(path, options={"bad_rows": "skip"})
    assert [(a.app_id, a.work_gpu_s) for a in found.workload.apps] == [("a", 5.0), ("b", 5.0)]
    assert found.skipped.reasons == {"with the id of another": 1}


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(PHILLY + "".join(f"j{k},vc{k % 2},x,{k * 86400},1,5,5,p\n" for k in range(10)))
    assert [a.app_id for a in load(path, queues=("vc1",)).apps] == ["j1", "j3", "j5", "j7", "j9"]
    assert [(a.app_id, a.submitted_s) for a in load(path, begin_s=86400, end_s=3 * 86400).apps] == [
        ("j1", 0.0),
        ("j2", 86400.0),
    ]
    assert [a.submitted_s for a in load(path, faster=2, limit=3).apps] == [0, 43200, 86400]
    assert len(load(path, queues="vc0+vc1").apps) == 10
    with pytest.raises(BadTrace, match=r"there is no root.vc9; there are root.vc0, root.vc1"):
        load(path, queues="vc9")


def needs(path: str) -> Path:
    if not (DATA / path).exists():
        pytest.skip("the public traces are not here")
    return DATA / path


def test_the_public_philly_jobs() -> None:
    apps = load(needs("philly/philly_jobs_reconstructed.csv.gz")).apps
    assert len(apps) == 109_570
    assert sum(a.work_gpu_s for a in apps) / 86400 == pytest.approx(83_452, abs=1)


@pytest.mark.parametrize(
    ("path", "apps"),
    [
        ("philly/themis_w1_apps_A.csv.gz", 87),
        ("philly/muri/trace1.csv", 1494),
        ("alibaba/openb_pod_list_default.csv.gz", 6203),
        ("job_traces/tiresias/60_job.csv", 60),
        ("job_traces/sia_newtrace/workload-1.csv", 960),
        ("philly/pcs_per_vc/trace_103959.csv", 2677),
        ("job_traces/gavel_physical_cluster/max_min_fairness.trace", 95),
        ("job_traces/shockwave/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace", 120),
    ],
)
def test_other_public_traces(path: str, apps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISONOMY_DATA", str(DATA))
    found = load(needs(path))
    assert len(found.apps) == apps
    assert all(a.work_gpu_s > 0 and a.gang_gpus >= 1 for a in found.apps)


@pytest.mark.parametrize("name", measured_speedups.PROFILES)
def test_measured_speedups(name: str) -> None:
    needs(measured_speedups.PROFILES[name][0])
    found = load("oef", 1, profile=name, data=str(DATA))
    vectors = measured_speedups.load(name, DATA)
    assert all(min(v.values()) == 1 and len(v) == 3 for v in vectors.values())
    assert {a.model for a in found.apps} <= set(vectors)


def test_sias_types_are_the_cards_of_its_cluster(tmp_path: Path) -> None:
    """As its simulator's configuration has them; its four Quadro RTX 6000 are `quad`, which is not read."""
    folder = tmp_path / "profiles" / "sia" / "bert"
    folder.mkdir(parents=True)
    for short, step_s in {"aws": 4.0, "rtx": 2.0, "quad": 1.5, "dgx-ext": 1.0}.items():
        (folder / f"placements-{short}.csv").write_text(f"placement,local_bsz,step_time\n1,8,{step_s}\n2,8,0.1\n")
    assert measured_speedups.load("sia", tmp_path) == {"bert": {"T4": 1.0, "RTX 2080 Ti": 2.0, "A100": 4.0}}


def test_a_trace_of_steps_says_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "t.trace"
    path.write_text("LM (batch size 10)\tcmd\t-n\t1\t1000\t5.0\t2\n")
    with pytest.raises(BadTrace, match="is not there, and this trace counts steps: set ISONOMY_DATA"):
        load(path, data=str(tmp_path))
    folder = tmp_path / "profiles"
    folder.mkdir()
    speeds = {t: {"('LM (batch size 10)', 2)": {"null": s}} for t, s in (("k80", 4.0), ("p100", 8), ("v100", 10))}
    (folder / "gavel_simulation_throughputs.json.gz").write_bytes(gzip.compress(json.dumps(speeds).encode()))
    (app,) = load(path, data=str(tmp_path)).apps
    assert (app.work_gpu_s, app.speedups) == (1000 / 4 * 2, {"k80": 1.0, "p100": 2.0, "v100": 2.5})
