"""History as a workload, replayed under other policies."""

import dataclasses
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cli import main
from pycontrol.cli.client import Misused
from pycontrol.cli.estimate import STATE_FILE
from pycontrol.lab import clusters
from pycontrol.lab.clusters import uniform
from pycontrol.lab.compared import _change, compared
from pycontrol.lab.recorded import of_journal, of_yarn
from pycontrol.lab.runs import simulate
from pycontrol.lab.whatif import _replayed, actual_of, whatif_command
from pycontrol.lab.workloads import load
from pycontrol.lab.workloads.own_format import write
from pycontrol.model import events as ev
from pycontrol.model.cluster import Node, PartitionCapacity, Queue
from pycontrol.model.topology import Scope
from pycontrol.policies import registry
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.simulation.result import Result
from pycontrol.simulation.scene import picture
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.hadoopconf.test_queues import written
from tests.httpd import Reply, serving
from tests.web.scene import EARLY, LATE, Scene

T0 = 1_790_000_000_000
APPS = [
    {
        "id": f"application_1_{i:04d}",
        "user": f"u{i % 2}",
        "queue": "root.research" if i % 2 else "root.prod",
        "startedTime": T0 + 60_000 * i,
        "launchTime": T0 + 60_000 * i + 30_000,
        "finishedTime": T0 + 60_000 * i + 630_000,
        "resourceSecondsMap": {"entry": [{"key": "memory-mb", "value": "9"}, {"key": "yarn.io/gpu", "value": "2400"}]},
    }
    for i in range(8)
]
CPU = {**APPS[0], "id": "application_1_0099", "resourceSecondsMap": {"memory-mb": 7}}


@pytest.fixture
def yarn() -> Iterator[str]:
    with serving(lambda asked: Reply({"apps": {"app": [*APPS, CPU]}})) as url:
        yield url


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(args), env={"ISONOMY_RM": None})
    assert result.exit_code == code, result.output
    return str(result.output)


def test_apps_that_do_not_finish_are_named_and_what_is_assumed_is_said_once(tmp_path: Path) -> None:
    large = {**APPS[0], "id": "application_1_0050", "resourceSecondsMap": {"yarn.io/gpu": 60_000_000}}
    (file := tmp_path / "apps.json").write_text(json.dumps({"apps": {"app": [*APPS, large]}}))
    text = run("whatif", str(file), "--cluster", "2x4")
    assert "yarn_cs: 4 apps did not finish: larger than the cluster" in text, "the others wait behind it in their queue"
    assert "isonomy: 1 app did not finish: larger than the cluster" in text
    assert text.count("assumed: ") == 1


def test_yarns_own_history_becomes_a_workload() -> None:
    found = of_yarn([*APPS, CPU], 0.0, "here")
    assert len(found.workload.apps) == 8
    assert dict(found.skipped.reasons) == {"without GPUs": 1}
    first = found.workload.apps[0]
    assert (first.gang_gpus, first.work_gpu_s, first.submitted_s) == (4, 2400.0, 0.0)
    assert found.actual[first.app_id] == (30.0, 630.0)
    late = of_yarn(APPS, T0 / 1000 + 230, "here")
    assert dict(late.skipped.reasons) == {"submitted before the time": 4}
    assert late.covered == (T0 / 1000 + 230, T0 / 1000 + 1050)


def test_record_and_whatif(yarn: str, tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    assert "8 apps" in run("workload", "record", "--rm", yarn, "--since", "2020-01-01", "--out", str(out))
    assert len(load(str(out), 1).apps) == 8
    assert len(actual_of(str(out))[0]) == 8
    text = run("whatif", str(out), "--cluster", "2x4", "--policy", "yarn_cs,isonomy")
    assert text.startswith("isonomy instead of yarn_cs: ")
    assert "The replay under yarn_cs gives a median wait of " in text
    data = json.loads(run("whatif", str(out), "--cluster", "2x4", "--policy", "yarn_cs,isonomy,drf", "-o", "json"))
    assert len(data["sentences"]) == 2
    assert data["calibration"]["apps"] == 8
    assert {row["queue"] for row in data["waits"]["queue"]} == {"root.prod", "root.research"}
    assert "give two policies" in run("whatif", str(out), "--cluster", "2x4", "--policy", "drf", code=2)
    anonymous = tmp_path / "anonymous.csv"
    run("workload", "record", "--rm", yarn, "--since", "2020-01-01", "--anonymise", "--out", str(anonymous))
    assert "research" not in anonymous.read_text()
    assert "application_1" not in anonymous.read_text() + Path(f"{anonymous}.actual.json").read_text()
    assert len(actual_of(str(anonymous))[0]) == 8


def test_a_part_of_a_history_is_held_against_what_happened_to_it(yarn: str, tmp_path: Path) -> None:
    out, saved = tmp_path / "mine.csv", tmp_path / "apps.json"
    run("workload", "record", "--rm", yarn, "--since", "2020-01-01", "--out", str(out))
    saved.write_text(json.dumps({"apps": {"app": [*APPS, {"id": "application_1_0098"}]}}))
    lenient = f"yarn:{saved},bad_rows=skip"
    for part, apps in ((f"{out},limit=3", 3), (f"isonomy:{out},begin_s=60", 7), (f"{lenient},queues=research", 4)):
        found = json.loads(run("whatif", part, "--cluster", "2x4", "-o", "json"))["calibration"]
        assert (found["apps"], found["real_median_s"]) == (apps, 30.0)
    assert "not comparable (faster=)" in run("whatif", f"{out},faster=2", "--cluster", "2x4")


def test_a_replay_keeps_the_limits_of_the_queues(yarn: str, tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    run("workload", "record", "--rm", yarn, "--since", "2020-01-01", "--out", str(out))
    limits = {
        "root.queues": "research,prod",
        "root.research.capacity": "75",
        "root.prod.capacity": "25",
        "root.prod.maximum-capacity": "25",
        "root.research.user-limit-factor": "2",
    }
    replay = ("whatif", str(out), "--cluster", "4x4", "--policy", "yarn_cs,isonomy", "-o", "json")

    def waits_s(*more: str) -> dict[str, float]:
        rows = json.loads(run(*replay, *more))["waits"]["queue"]
        return {row["queue"]: row["median_s"]["isonomy"] for row in rows}

    free, limited = waits_s(), waits_s("--queues", str(written(tmp_path, limits)))
    assert limited["root.prod"] > free["root.prod"] + 300, "one gang at once instead of up to four"
    assert limited["root.research"] < free["root.research"]


SHARES = {"root.queues": "a,b,c", "root.a.capacity": "70", "root.b.capacity": "20", "root.c.capacity": "10"}


def waits(results: dict[str, Result], policy: str = "yarn_cs") -> dict[str, float]:
    """App -> how long it waited."""
    return {a.app_id: -1.0 if a.started_s is None else a.started_s - a.submitted_s for a in results[policy].apps}


def replayed(folder: Path, apps: list[TraceApp], cluster: Path | str, queues: dict[str, str]) -> dict[str, float]:
    """Waits under CapacityScheduler, as the command replays a file."""
    write(Workload("mine", tuple(apps)), folder / "mine.csv")
    file = written(folder, queues) if queues else None
    return waits(_replayed(str(folder / "mine.csv"), ["yarn_cs"], str(cluster), None, file, ())[0])


def test_capacities_maxima_and_limits_of_users_make_apps_wait(tmp_path: Path) -> None:
    """Ten GPUs for 100 s: three jobs of a queue with a maximum of 20 %, named without its parents, as logs name it."""
    apps = [TraceApp(f"b{k}", 0.0, 1, ((100.0,),), "b", f"u{k}") for k in range(4)]
    apps += [TraceApp(f"c{k}", 1.0, 1, ((100.0,),), "root.c", "ann") for k in range(3)]
    assert max(replayed(tmp_path, apps, "1x10", {}).values()) < 10
    found = replayed(
        tmp_path, apps, "1x10", {**SHARES, "root.b.maximum-capacity": "20", "root.c.user-limit-factor": "1"}
    )
    assert [round(found[f"b{k}"], -2) for k in range(4)] == [0, 0, 100, 100]
    assert [round(found[f"c{k}"], -2) for k in range(3)] == [0, 0, 100], "ann may have one GPU, and one beyond it"


@pytest.mark.parametrize(
    ("cluster", "sizes"),
    [
        pytest.param("1x4", (3, 2, 1), id="whoever exceeds the room lets nobody of the queue pass"),
        pytest.param("2x4", (3, 3, 2, 1), id="a machine that is reserved counts as used, and nothing starts there"),
    ],
)
def test_capacity_scheduler_is_replayed_as_it_works(tmp_path: Path, cluster: str, sizes: tuple[int, ...]) -> None:
    apps = [TraceApp(f"a{k}", 1.0 * k, n, ((100.0 * n,),), "root.a", scope=Scope.MACHINE) for k, n in enumerate(sizes)]
    *first, large, small = replayed(tmp_path, apps, cluster, {}).values()
    assert (round(max(first)), round(large, -2), round(small, -2)) == (0, 100, 100)
    baseline = simulate(Workload("mine", tuple(apps)), clusters.cluster(cluster), "yarn_cs")
    assert waits({"yarn_cs": baseline})[f"a{len(sizes) - 1}"] < 10, "in the papers' baseline it passes"


def labelled(folder: Path) -> Path:
    """A snapshot of a cluster with four GPUs, and two of the label fast, where root.b's jobs run by default."""
    here = {"": PartitionCapacity(0.7), "fast": PartitionCapacity(0.0)}
    there = {"": PartitionCapacity(0.2), "fast": PartitionCapacity(1.0)}
    queues = Queue("root.a", 0.7, partitions=here), Queue("root.b", 0.2, partitions=there, default_partition="fast")
    nodes = (Node(f"{h}:1", h, "r", n, partition=label) for h, n, label in (("m1", 4, ""), ("m2", 2, "fast")))
    a = Arbiter(Settings(), registry.make("isonomy"))
    a.handle(ev.ClusterSnapshot(True, tuple(nodes), (), (), (), (*queues, Queue("root.c", 0.1))), 0.0)
    with zipfile.ZipFile(folder / "s.zip", "w") as archive:
        archive.writestr(STATE_FILE, json.dumps(picture(a, 0.0)))
    return folder / "s.zip"


@pytest.mark.parametrize("file", [True, False], ids=["of a file", "of the snapshot"])
def test_a_job_waits_for_the_machines_of_its_label_only(tmp_path: Path, file: bool) -> None:
    labels = {
        "root.accessible-node-labels": "fast",
        "root.a.accessible-node-labels": "fast",
        "root.b.accessible-node-labels.fast.capacity": "100",
        "root.b.default-node-label-expression": "fast",
        "root.c.accessible-node-labels": " ",
    }
    apps = [
        TraceApp("a1", 0.0, 4, ((400.0,),), "root.a"),
        TraceApp("b1", 0.0, 2, ((200.0,),), "root.b"),
        TraceApp("b2", 1.0, 1, ((100.0,),), "root.b"),  # by its queue's default
        TraceApp("a2", 2.0, 1, ((100.0,),), "root.a", partition="fast"),  # by its own
        TraceApp("a3", 3.0, 1, ((100.0,),), "root.a", slowdown=(1.0, 1.0, 1.0)),
    ]
    found = replayed(tmp_path, apps, labelled(tmp_path), {**SHARES, **labels} if file else {})
    assert {k: round(x, -2) for k, x in found.items()} == {"a1": 0, "b1": 0, "b2": 100, "a2": 100, "a3": 100}
    lost = [TraceApp("x", 0.0, 1, ((1.0,),), "root.a", partition="slow")]
    with pytest.raises(Misused, match=r"no machine has the node label slow of 1 app; a snapshot of your cluster knows"):
        replayed(tmp_path, lost, labelled(tmp_path), {**SHARES, **labels} if file else {})


def test_a_queue_or_label_that_is_not_there_is_named_with_its_key_and_cure(tmp_path: Path) -> None:
    def said(app: TraceApp, cluster: Path | str, **queues: str) -> str:
        with pytest.raises(Misused) as caught:
            replayed(tmp_path, [app], cluster, {**SHARES, **{k.replace("__", "-"): x for k, x in queues.items()}})
        return caught.value.message

    file = tmp_path / "capacity-scheduler.xml"
    own = TraceApp("x", 0.0, 1, ((1.0,),), "root.c", partition="fast")
    assert said(TraceApp("x", 0.0, 1, ((1.0,),), "gone"), "1x4") == (
        f"--queues: {file}: has no leaf queue gone, that of 1 app; add it to its parent's key (as"
        " yarn.scheduler.capacity.root.queues), or replay some queues only: WORKLOAD,queues=a+b"
    )
    default = {"root.c.default__node__label__expression": "fast"}
    assert "(yarn.scheduler.capacity.root.c.default-node-label-expression); a snapshot of your cluster knows" in said(
        TraceApp("x", 0.0, 1, ((1.0,),), "root.c"), "1x4", **default
    )
    assert said(own, labelled(tmp_path), **{"root.c.accessible__node__labels": " "}) == (
        f"--queues: {file}: yarn.scheduler.capacity.root.c.accessible-node-labels lacks the node label fast of 1 app;"
        " add it there"
    )


def test_an_unknown_workload_is_the_arguments_fault() -> None:
    """`whatif` takes it as an argument; --workload is an option of `simulate`."""
    run = CliRunner().invoke(whatif_command, ["/nowhere.csv", "--cluster", "2x2"])
    assert run.exit_code == 2
    assert "WORKLOAD: /nowhere.csv: is no file" in run.output
    assert "--workload" not in run.output


def test_the_journal_becomes_a_workload(tmp_path: Path) -> None:
    scene = Scene(run_s=8000)
    durable = scene.world.arbiter.durable
    assert durable.apps[EARLY].finished_s is not None
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    for _, time_s, fact in scene.kept.facts:
        journal.append([fact], time_s)
    journal.close()
    found = of_journal(scene.kept.facts, 0.0, "here")
    by_id = {a.app_id: a for a in found.workload.apps}
    assert {EARLY, LATE} <= by_id.keys()
    for app_id in (EARLY, LATE):
        record = durable.apps[app_id]
        assert by_id[app_id].work_gpu_s == pytest.approx(record.work_done_gpu_s)
        assert found.actual[app_id][1] == pytest.approx(record.finished_s - durable.apps[EARLY].submitted_s, abs=1)
    out = tmp_path / "own.csv"
    text = run(
        "workload", "record", "--journal", str(tmp_path / "journal.sqlite"), "--since", "1970-01-01", "--out", str(out)
    )
    assert "1 skipped (1 that have not ended)" in text
    assert "no application with GPUs" in run(
        "workload", "record", "--journal", str(tmp_path / "journal.sqlite"), "--since", "1d", "--out", str(out), code=1
    )


def test_the_sentence_says_what_changed() -> None:
    assert "halved research's median wait, 41 min to 19 min" in _change(-1320.0, "research", 2460.0, 1140.0)
    assert "lengthened prod's" in _change(120.0, "prod", 600.0, 720.0)
    workload = load("w1,count=6", 1)
    results = {name: simulate(workload, uniform(4, 4), name, seed=1) for name in ("yarn_cs", "isonomy")}
    found = compared(results, {})
    assert found["calibration"] is None
    assert found["totals"]["isonomy"]["apps"] == 6
    short, long = (dataclasses.replace(results["isonomy"].apps[0], started_s=s, submitted_s=0.0) for s in (10.0, 30.0))
    two = compared({"a": dataclasses.replace(results["isonomy"], apps=(short, long))}, {short.app_id: (50.0, None)})
    assert two["waits"]["queue"][0]["p95_s"]["a"] == 30.0
    assert two["calibration"]["close"] == 1.0, "40 s are close: within a minute"
    same = compared({"a": results["isonomy"], "b": results["isonomy"]}, {})
    assert "no queue's median wait would have changed much" in same["sentences"][0]
