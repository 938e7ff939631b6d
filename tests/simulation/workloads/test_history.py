"""A cluster's past from an administrator's files, in the formats in which Hadoop and Spark write them."""

import gzip
import itertools
import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pycontrol.cli import main
from pycontrol.lab.whatif import whatif_command
from pycontrol.lab.workloads import CATALOGUE
from pycontrol.lab.workloads.trace_table import BadTrace
from pycontrol.lab.workloads.yarn_history import ASSUMED, LAUNCHED, SPARK_ASSUMED, read_files

T0 = 1_790_000_000_000


def summary(number: int, gpu_s: int | None, name: str = "train", waited_s: int = 30, ran_s: int = 600) -> str:
    """A line of the ResourceManager's log (RMAppManager.createAppSummary, Hadoop 3.3)."""
    at = T0 + 60_000 * number
    began, ended = at + 1000 * waited_s, at + 1000 * (waited_s + ran_s)
    gpus = "" if gpu_s is None else rf"\, {gpu_s} yarn.io/gpu-seconds"
    return (
        "2026-09-21 14:13:20,000 INFO org.apache.hadoop.yarn.server.resourcemanager.RMAppManager$ApplicationSummary:"
        f" appId=application_1_{number:04d},name={name},user=ann,queue=root.prod,state=FINISHED,"
        r"trackingUrl=http://rm:8088/proxy/application_1/?a\=b\,c,appMasterHost=n1,"
        f"submitTime={at},startTime={at + 5},launchTime={began},finishTime={ended},finalStatus=SUCCEEDED,"
        r"memorySeconds=9,vcoreSeconds=3,preemptedMemorySeconds=0,preemptedVcoreSeconds=0,preemptedAMContainers=0,"
        r"preemptedNonAMContainers=0,preemptedResources=<memory:0\, vCores:0>,applicationType=YARN,"
        rf"resourceSeconds=9 MB-seconds\, 3 vcore-seconds{gpus},"
        r"preemptedResourceSeconds=0 MB-seconds\, 0 vcore-seconds,"
        "applicationTags=,applicationNodeLabel=,diagnostics=,totalAllocatedContainers=5\n"
    )


def given(number: int, after_s: int, gpus: int, zone_h: int = 0) -> str:
    """A line of the ResourceManager's audit, in the same log; `after_s`: since the submission."""
    at = datetime.fromtimestamp(T0 / 1e3 + 60 * number + after_s) + timedelta(hours=zone_h)
    of = f", yarn.io/gpu: {gpus}" if gpus else ""
    return (
        f"{at:%Y-%m-%d %H:%M:%S},250 INFO org.apache.hadoop.yarn.server.resourcemanager.RMAuditLogger: USER=ann\t"
        f"OPERATION=AM Allocated Container\tTARGET=SchedulerApp\tRESULT=SUCCESS\tAPPID=application_1_{number:04d}\t"
        f"CONTAINERID=container_1_{number:04d}_01_000001\tRESOURCE=<memory:256, vCores:1{of}>\tQUEUENAME=prod\n"
    )


@pytest.mark.parametrize("zone_h", [0, 5])
def test_an_app_waits_until_its_first_gpus_not_until_its_master(tmp_path: Path, zone_h: int) -> None:
    """Four GPUs for 300 s after 330 s of waiting with a master: by the launch alone, two for 600 s after 30 s."""
    file = tmp_path / "rm.log"
    ended = datetime.fromtimestamp(T0 / 1e3 + 60 + 630) + timedelta(hours=zone_h)
    lines = [given(1, 30, 0, zone_h), given(1, 330, 2, zone_h), given(1, 331, 2, zone_h), summary(1, 1200)]
    file.write_text("".join([*lines[:3], f"{ended:%Y-%m-%d %H:%M:%S},100 {lines[3][24:]}"]))
    found = read_files([file])
    (app,) = found.workload("").apps
    assert (app.gang_gpus, found.actual()[app.app_id]) == (4, (330.25, 630.0))
    assert found.assumed == [ASSUMED]
    file.write_text("".join([lines[0], lines[3]]))
    found = read_files([file])
    assert (found.workload("").apps[0].gang_gpus, found.actual()[app.app_id]) == (2, (30.0, 630.0))
    assert found.assumed == [ASSUMED, LAUNCHED]


def in_zone(line: str, ended_s: float, zone_h: int) -> str:
    """The line as a ResourceManager writes it whose clock is ahead of UTC."""
    return f"{datetime.fromtimestamp(ended_s) + timedelta(hours=zone_h):%Y-%m-%d %H:%M:%S},100 {line[24:]}"


def test_a_log_over_the_end_of_daylight_saving_time_dates_each_app_by_its_own_clock(tmp_path: Path) -> None:
    """The first app ended while the clock was two hours ahead, the second when it was one hour ahead."""
    file = tmp_path / "rm.log"
    lines = [
        given(1, 330, 2, 2), in_zone(summary(1, 1200), T0 / 1e3 + 60 + 630, 2),
        given(2, 330, 2, 1), in_zone(summary(2, 1200), T0 / 1e3 + 120 + 630, 1),
    ]  # fmt: skip
    file.write_text("".join(lines))
    found = read_files([file])
    began = [began_s for began_s, _ in found.actual().values()]
    assert began == [330.25, 60 + 330.25]
    assert found.extent == (T0 / 1e3 + 60, T0 / 1e3 + 120 + 630)


def test_a_resource_manager_that_starts_or_takes_over_and_logs_all_ends_again_changes_no_time(tmp_path: Path) -> None:
    """The first log is of one that restarted three hours later, the second of one that then took over."""
    ended_s, later_s = T0 / 1e3 + 60 + 630, T0 / 1e3 + 60 * 400 + 630
    first, second = tmp_path / "rm1.log", tmp_path / "rm2.log"
    again = in_zone(summary(1, 1200), ended_s + 3 * 3600, 2)
    first.write_text("".join([given(1, 330, 2, 2), in_zone(summary(1, 1200), ended_s, 2), again]))
    second.write_text("".join([again, given(400, 330, 2, 2), in_zone(summary(400, 1200), later_s, 2)]))
    for files in ([first], [first, second], [second, first]):
        found = read_files(files)
        began = [began_s for began_s, _ in found.actual().values()]
        assert sorted(x for x in began if x is not None) == [330.25, 330.25 + 60 * 399][: len(files)]
        assert min(found.extent) == T0 / 1e3 + 60


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    def told(text: str, code: int) -> str:
        (file := tmp_path / "apps.json").write_text(text)
        result = CliRunner().invoke(main, ["workload", "record", str(file), "--out", str(tmp_path / "out.csv")])
        assert result.exit_code == code
        return str(result.output)

    assert "apps.json: is empty" in told("", 2)
    assert "no application with GPUs has ended there: none skipped" in told('{"apps": null}', 1)
    bad = told(json.dumps({"apps": {"app": [{"id": "application_1_0009"}]}}), 1)
    assert "an application (application_1_0009) cannot be understood: KeyError('startedTime')" in bad
    right = {"id": "application_1_0009", "queue": "root.q", "user": "ann", "startedTime": T0, "finishedTime": T0 + 9000}
    for key, wrong in itertools.product(("startedTime", "finishedTime", "launchTime"), (math.nan, 10**400)):
        assert "cannot be understood" in told(json.dumps({"apps": {"app": [{**right, key: wrong}]}}), 1), key
    bad = told(json.dumps({"apps": {"app": [{**right, "resourceSecondsMap": {"yarn.io/gpu": math.nan}}]}}), 1)
    assert "work_done_gpu_s: must be from 0 to" in bad


OTHER = "2026-09-22 03:00:00,000 INFO org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNodeImpl: n1 is lost\n"


def log(folder: Path) -> Path:
    file = folder / "yarn-resourcemanager.log"
    hostile = r"evil\,queue\=root.x\,resourceSeconds\=1 yarn.io/gpu-seconds"
    lines = [summary(1, 2400), summary(2, 4800, hostile), summary(3, None), summary(4, 9, ran_s=0), summary(1, 2400)]
    old = summary(5, 7).replace("resourceSeconds=", "older=")
    file.write_text("".join([*lines, old, summary(6, 7).replace("finishTime=", "finishTime=x"), OTHER]))
    return file


def rest(folder: Path) -> Path:
    """As curl saves it."""
    file, app = (
        folder / "apps.json",
        {"user": "ann", "queue": "root.prod", "state": "FINISHED", "launchTime": T0 + 30_000},
    )
    gpus = [{"key": "memory-mb", "value": "9"}, {"key": "yarn.io/gpu", "value": "2400"}]
    apps: list[Mapping[str, Any]] = [
        {**app, "id": f"application_1_{k:04d}", "startedTime": T0, "finishedTime": ended, "resourceSecondsMap": of}
        for k, (ended, of) in enumerate(
            [
                (T0 + 630_000, {"entry": gpus}),
                (T0 + 630_000, {"yarn.io/gpu": 1200}),
                (0, {"entry": gpus}),
                (T0 + 630_000, {"memory-mb": 7}),
            ]
        )
    ]
    file.write_text(json.dumps({"apps": {"app": [*apps, {"id": "application_1_0009"}]}}))
    return file


SPARK: list[dict[str, Any]] = [
    {"Event": "SparkListenerLogStart", "Spark Version": "3.5.1"},
    {
        "Event": "SparkListenerApplicationStart",
        "App Name": "etl",
        "App ID": "application_2_0001",
        "Timestamp": T0,
        "User": "eve",
        "App Attempt ID": "1",
    },
    {
        "Event": "SparkListenerEnvironmentUpdate",
        "Spark Properties": {"spark.yarn.queue": "root.etl", "spark.executor.resource.gpu.amount": "1"},
    },
    {
        "Event": "SparkListenerExecutorAdded",
        "Timestamp": T0 + 20_000,
        "Executor ID": "1",
        "Executor Info": {
            "Host": "n1",
            "Total Cores": 4,
            "Resources": {"gpu": {"name": "gpu", "addresses": ["0", "3"]}},
        },
    },
    {
        "Event": "SparkListenerExecutorAdded",
        "Timestamp": T0 + 30_000,
        "Executor ID": "2",
        "Executor Info": {"Host": "n2", "Total Cores": 4},
    },
    {"Event": "SparkListenerExecutorRemoved", "Timestamp": T0 + 60_000, "Executor ID": "1", "Removed Reason": "idle"},
    {"Event": "SparkListenerApplicationEnd", "Timestamp": T0 + 130_000},
]
SPARK_GPU_S = 2 * 40.0 + 1 * 100.0


def spark(folder: Path) -> Path:
    """A folder as the history server's: a plain log, a rolling one, one that goes on, a compressed one, a checksum."""
    folder = folder / "spark-events"
    rolling = folder / "eventlog_v2_application_2_0002"
    rolling.mkdir(parents=True)
    lines = [json.dumps(x, separators=(",", ":")) for x in SPARK]
    (folder / "application_2_0001_1").write_text("\n".join(lines))
    (folder / ".application_2_0001_1.crc").write_bytes(b"crc")
    second = [x.replace("application_2_0001", "application_2_0002") for x in lines]
    (rolling / "appstatus_application_2_0002").write_text("")
    for k, part in enumerate((second[:4], second[4:]), 9):
        (rolling / f"events_{k}_application_2_0002").write_text("\n".join(part))
    third = [x.replace("application_2_0001", "application_2_0003") for x in lines[:-1]]
    (folder / "application_2_0003.inprogress").write_bytes(gzip.compress("\n".join([*third, '{"Event":"Sp']).encode()))
    (folder / "application_2_0004.zstd").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(128, 200)))
    return folder


def jhist(folder: Path, conf: bool = True) -> Path:
    """A MapReduce job's two maps with a GPU each, in Avro's JSON."""
    folder.mkdir(exist_ok=True)
    of = "org.apache.hadoop.mapreduce.jobhistory."
    events = [
        (
            "JOB_SUBMITTED",
            "JobSubmitted",
            {"jobid": "job_3_0001", "userName": "bob", "submitTime": T0, "jobQueueName": "q"},
        ),
        ("MAP_ATTEMPT_STARTED", "TaskAttemptStarted", {"attemptId": "m0", "taskType": "MAP", "startTime": T0 + 10_000}),
        ("MAP_ATTEMPT_STARTED", "TaskAttemptStarted", {"attemptId": "m1", "taskType": "MAP", "startTime": T0 + 10_000}),
        ("REDUCE_ATTEMPT_STARTED", "TaskAttemptStarted", {"attemptId": "r0", "startTime": T0 + 20_000}),
        ("MAP_ATTEMPT_FINISHED", "MapAttemptFinished", {"attemptId": "m0", "finishTime": T0 + 110_000}),
        ("MAP_ATTEMPT_FAILED", "TaskAttemptUnsuccessfulCompletion", {"attemptId": "m1", "finishTime": T0 + 60_000}),
        ("JOB_FINISHED", "JobFinished", {"jobid": "job_3_0001", "finishTime": T0 + 120_000}),
    ]
    lines = [json.dumps({"type": kind, "event": {of + name: data}}) for kind, name, data in events]
    (folder / "job_3_0001-1790-bob-train-1791-2-0-SUCCEEDED-q.jhist").write_text("\n".join(["Avro-Json", "{}", *lines]))
    if conf:
        name, number = "mapreduce.map.resource.yarn.io/gpu", 1
        (folder / "job_3_0001_conf.xml").write_text(
            f"<configuration><property><name>{name}</name><value>{number}</value></property></configuration>"
        )
    return folder


def test_the_resource_managers_log_is_read(tmp_path: Path) -> None:
    found = read_files([log(tmp_path)])
    assert {k: (x.gpus, x.gpu_s, x.queue) for k, x in found.apps.items()} == {
        "application_1_0001": (4, 2400.0, "root.prod"),
        "application_1_0002": (8, 4800.0, "root.prod"),
    }
    assert found.actual()["application_1_0001"] == (30.0, 630.0)
    assert dict(found.skipped.reasons) == {
        "without GPUs": 1,
        "that ran for less than a second": 1,
        "of a Hadoop that logs no resourceSeconds": 1,
        "bad rows": 1,
    }
    assert "line 7" in found.skipped.bad[0]
    assert found.skipped.parts == {"named again": 1}
    assert found.extent[1] - T0 / 1000 > 40_000, "the log goes on after the last application's end"


def test_saved_answers_are_read(tmp_path: Path) -> None:
    found = read_files([rest(tmp_path)])
    assert {k: x.gpus for k, x in found.apps.items()} == {"application_1_0000": 4, "application_1_0001": 2}
    assert dict(found.skipped.reasons) == {"that have not ended": 1, "without GPUs": 1, "bad rows": 1}
    assert found.extent == (T0 / 1000, T0 / 1000 + 630)


def test_a_file_that_knows_the_end_completes_one_that_was_saved_before(tmp_path: Path) -> None:
    for files in ([rest(tmp_path), log(tmp_path)], [log(tmp_path), rest(tmp_path)]):
        found = read_files(files)
        assert sorted(found.apps) == [f"application_1_000{k}" for k in (0, 1, 2)]
        assert found.skipped.reasons["that have not ended"] == 0


def test_spark_logs_of_a_folder_are_read(tmp_path: Path) -> None:
    found = read_files([spark(tmp_path)])
    assert {k: (x.gpu_s, x.queue, x.user) for k, x in found.apps.items()} == {
        f"application_2_000{k}": (SPARK_GPU_S, "root.etl", "eve") for k in (1, 2)
    }
    assert found.actual()["application_2_0002"] == (20.0, 130.0)
    assert dict(found.skipped.reasons) == {"that have not ended": 1, "bad rows": 1}, "and the line that is cut off"
    assert found.skipped.parts == {"files of no known format, or compressed other than by gzip": 1}
    assert SPARK_ASSUMED in found.assumed


def test_job_histories_need_the_configuration(tmp_path: Path) -> None:
    found = read_files([jhist(tmp_path / "with")])
    assert {k: (x.gpu_s, x.user, x.queue) for k, x in found.apps.items()} == {"application_3_0001": (150.0, "bob", "q")}
    found = read_files([jhist(tmp_path / "without", conf=False)])
    assert dict(found.skipped.reasons) == {"whose _conf.xml is not beside them": 1}


def test_a_job_history_with_an_event_that_lacks_a_field_is_named_and_left_out(tmp_path: Path) -> None:
    file = next(jhist(tmp_path / "with").glob("*.jhist"))
    file.write_text(file.read_text() + '\n{"type": "MAP_ATTEMPT_STARTED", "event": {"of": {"attemptId": "m2"}}}')
    found = read_files([file])
    assert not found.apps
    assert found.skipped.bad == [f"{file}: cannot be understood: KeyError('startTime')"]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(BadTrace, match="is none of /ws/v1/cluster/apps"):
        read_files([file])


def test_a_file_is_a_workload_by_itself(tmp_path: Path) -> None:
    found = CATALOGUE.open(str(rest(tmp_path)), options={"bad_rows": "skip"})
    assert [a.gang_gpus for a in found.workload.apps] == [4, 2]
    assert "apps.json, " in found.workload.source
    assert "3 skipped" in found.workload.source
    with pytest.raises(BadTrace, match="bad_rows=skip"):
        CATALOGUE.load(str(rest(tmp_path)))


def test_queues_are_chosen_with_or_without_root_also_where_the_history_names_leaf_queues(tmp_path: Path) -> None:
    (file := tmp_path / "rm.log").write_text("".join([summary(1, 2400).replace("root.prod", "prod"), summary(2, 2400)]))
    for queues in ("prod", "root.prod"):
        assert len(CATALOGUE.load(f"{file},queues={queues}").apps) == 2


def test_a_replay_of_such_a_file_is_held_against_what_happened(tmp_path: Path) -> None:
    file = tmp_path / "rm.log"
    file.write_text("".join(summary(k, 2400) for k in range(4)))
    result = CliRunner().invoke(whatif_command, [str(file), "--cluster", "2x4", "-o", "json"])
    found = json.loads(result.output)
    assert (found["calibration"]["apps"], found["calibration"]["real_median_s"]) == (4, 30.0)
    assert found["assumed"] == f"{ASSUMED}; {LAUNCHED}"
    assert found["workload"].startswith("rm.log, 2026-09-2")


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["workload", "record", *args])
    assert result.exit_code == code, result.output
    return str(result.output)


def test_record_says_what_the_files_cover_and_what_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    files = [str(f(tmp_path)) for f in (log, rest, spark)]
    text = run(*files, "--out", str(out))
    assert text.startswith("covered: 2026-09-2")
    assert "5 apps in " in text
    assert "of a Hadoop that logs no resourceSeconds" in text
    assert f"assumed: {read_files([]).assumed[0]}; {LAUNCHED}; {SPARK_ASSUMED}" in text
    found = json.loads(run(*files, "--out", str(out), "-o", "json"))
    assert found["left_out"]["without GPUs"] == 1
    assert found["left_out_parts"]["named again"] == 4, "by the log twice, and by both"
    assert found["skipped"] == sum(found["left_out"].values())
    assert len(json.loads(out.with_name("mine.csv.actual.json").read_text())["actual"]) == 5
    assert "no application with GPUs has ended in" in run(*files, "--since", "1h", "--out", str(out), code=1)
    assert "give FILES or --journal" in run(*files, "--journal", "x", "--out", str(out), code=2)
