"""Submitting from Python, on a real cluster: the example notebook, and a script that knows nothing of Isonomy."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
import pytest
import requests
from click.testing import CliRunner
from hdfs import InsecureClient
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import isonomy
from pycontrol.cli import main
from pycontrol.cli.client import Rm, rm_address
from submarine_patch.agent.speeds import file_of
from submarine_patch.cli import declared
from submarine_patch.cli.follow import until_final
from tests.cluster.rig import BIN, REPO, Rig, submit_script
from tests.cluster.test_waiting import Told

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

START_S = 300.0
"""The longest that four workers' start takes, on a busy machine."""
STEPS_COMPARED = 1500
STAGED = {"isonomy-am.jar", "isonomy-app.json", "files", "agent"}
"""What an app needs in its staging folder until it has ended."""
OWN = """
import json, os, signal, sys, time
os.makedirs("ckpt", exist_ok=True)
step = json.load(open("ckpt/state.json"))["step"] if os.path.exists("ckpt/state.json") else 0
print("began at", step, flush=True)
def save():
    json.dump({"step": step}, open("ckpt/part", "w")); os.replace("ckpt/part", "ckpt/state.json")
signal.signal(signal.SIGTERM, lambda *_: (save(), sys.exit(0)))
while step < 60:
    time.sleep(0.3); step += 1
    print(f"Step [{step}/60], Loss: {1 / step:.4f}, f1: {step / 60:.3f}", flush=True)
save()
"""
UNCHANGED = """
import os, sys, time
pace_s, gate, rate = float(sys.argv[1]), sys.argv[2], float(sys.argv[3])
for epoch in range(1, 401):
    time.sleep(pace_s if epoch <= 10 else 0.01)
    print(f"Epoch [{epoch}/400], Loss: {1 / epoch:.4f}, Val Acc: {epoch / 500:.4f}", flush=True)
    if rate > 0.5:
        raise ValueError("Input contains NaN")
    while epoch == 10 and not os.path.exists(gate):
        time.sleep(0.1)
print("done, sum of val acc = 56.47", flush=True)
"""
SILENT = """
import time
while True:
    print("still reading, accuracy: 0.5", flush=True)
    time.sleep(0.5)
"""
FAILS_FIRST = 6
"""A seed by which the rate of the first of three trials is above 0.5, and those of the others are below."""
PACE_S = 1.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A cluster for this process's submissions."""
    made = Rig(tmp_path_factory.mktemp("submit") / "dc", "isonomy")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in made.env.items():
            environment.setenv(name, value)
        environment.setattr(declared, "PATIENCE_S", START_S)  # a submission says when it starts on a busy machine, too
        yield made
    made.down()


@dataclass
class Day:
    """A data scientist's unchanged scripts, all at once."""

    gate: Path
    """Makes the long ones go on from epoch 10 to their end, which a forecast sees some minutes ahead until then."""
    apps: dict[str, Any] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    """By app what its submission said."""
    again: str = ""
    """What the progress line says of `moved` as it trains again."""
    follows: subprocess.Popen[str] | None = None

    def submit(self, name: str, command: str, script: Path, gpus: int, **more: Any) -> None:
        """Submits an app of a job, or several."""
        said = io.StringIO()
        with redirect_stderr(said):
            self.apps[name] = submit_script(command, name, script, gpus, **more)
        self.said[name] = said.getvalue()


@pytest.fixture(scope="module")
def day(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Day:
    """Two apps hold all machines with 4 GPUs, one of them lost its machine for a while, and another waits for those:
    until the gate opens, since these are boosted. The others have the smaller machines to themselves."""
    folder = tmp_path_factory.mktemp("scripts")
    plain, silent, found = folder / "plain.py", folder / "silent.py", Day(folder / "gate")
    plain.write_text(UNCHANGED)
    silent.write_text(SILENT)
    long = f"python plain.py {{}} {found.gate} 0"
    found.submit("silent", "python silent.py", silent, 1)
    found.submit("moved", long.format(PACE_S), plain, 4, hours=0.3)
    found.submit("steady", long.format(1.2 * PACE_S), plain, 4, hours=0.3)
    found.submit("bad", "python plain.py 0.1 none 1", plain, 1)
    found.follows = subprocess.Popen([BIN / "isonomy", "logs", "steady", "-f"], stdout=subprocess.PIPE, text=True)
    found.apps["bad"].wait(timeout_s=START_S)
    found.submit(
        "search",
        "python plain.py 1 none %rate%",
        plain,
        1,
        app_scheduler="median",
        jobs=3,
        seed=FAILS_FIRST,
        search_space={"rate": {"type": "float", "min": 0, "max": 1}},
        max_iterations=40,
    )
    rig.training("moved", 3, limit_s=START_S)
    host = rig.get("explain", app="moved")["leases"][0]["gpu"].rpartition(":")[0]
    rig.post("drain", node=host)
    rig.wait(lambda: rig.get("explain", app="moved").get("leases") == [], 60, "it gives its GPUs back")
    rig.post("undrain", node=host)
    rig.wait(lambda: rig.get("explain", app="moved").get("leases"), 60, "it gets them again")
    for name in ("moved", "steady"):
        cli("boost", found.apps[name].app_id, "--for", "2h")
    found.submit("waits", f"python plain.py 0.1 {found.gate} 0", plain, 4, hours=0.4)
    rig.wait(lambda: rig.get("explain", app="moved").get("lost"), START_S, "it trains again, and is told so")
    found.again = found.apps["moved"].status().line()
    return found


def test_a_wait_has_one_reason_and_a_start_in_all_views_until_it_is_over(rig: Rig, day: Day) -> None:
    for name in ("moved", "steady", "waits"):
        assert re.search(r"isonomy: starts .*; ends in ~", day.said[name]), day.said
    assert re.search(r"isonomy: starts .*; its end is not known", day.said["silent"]), day.said
    told = Told(rig.get, ["waits"])

    def same() -> str:
        told.look()
        sentence, *views = said_of(rig, day.apps["waits"])
        return sentence if "you start about" in sentence and all(sentence in text for text in views) else ""

    why = rig.wait(same, START_S, "all views tell the same reason and start")
    assert re.search(r"no machine has 4 free GPUs; (the lease of|leases of) (moved|steady).* (ends in|end within)", why)
    day.gate.touch()
    rig.wait(told.look, START_S, "it starts")
    assert day.apps["waits"].wait(timeout_s=START_S).succeeded
    confirmed, wrong = told.contradicted()
    assert not wrong, "\n".join(wrong)
    assert confirmed["NoFreeGpus"] + confirmed["Outranked"] > 1


def said_of(rig: Rig, app: Any) -> list[str]:
    """Why an app waits: the sentence in JSON, then all of the other views; without the seconds that pass meanwhile."""
    page = requests.get(f"{ui(rig)}/app/{app.app_id}", {"user.name": "root"}, timeout=10).text
    sentence = json.loads(cli("explain", app.app_id, "-o", "json"))["reason"]["sentence"]
    texts = sentence, cli("explain", app.app_id), cli("queue"), app.status().line(), unescape(page)
    return [re.sub(r"\d+ s\b", "", text) for text in texts]


def cli(*words: str) -> str:
    """What an `isonomy` command prints."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.stdout


def ui(rig: Rig) -> str:
    """The page's address."""
    return f"{rig.cluster['rm_web'].split(',')[0]}/ws/v1/cluster/isonomy/ui"


def test_lost_work_is_told_equal_failures_end_a_job_and_no_gpu_is_granted_after_the_last_step(
    rig: Rig, day: Day
) -> None:
    lost = re.search(r"step \d+/400, .*lost (\d+) steps = (\d+\.\d) GPU-min, trained again", day.again)
    assert lost is not None, day.again
    assert int(lost[1]) >= 3
    assert float(lost[2]) == pytest.approx(int(lost[1]) * PACE_S * 4 / 60, rel=0.3, abs=0.1)
    bad = day.apps["bad"].wait(timeout_s=START_S)
    assert bad.state == "FAILED"
    assert "twice, so it is not tried again" in bad.message
    assert [j["launches"] for j in rig.jobs("bad")] == [2]
    day.gate.touch()
    for name in ("moved", "steady", "bad"):
        day.apps[name].wait(timeout_s=START_S)
        rig.wait(lambda name=name: rig.get("explain", app=name).get("leases") == [], 20, "its leases are over")
        leases = rig.get("spans", app=name)["leases"]
        over_s = max(x["ended_s"] for x in leases if x["started_s"])
        assert not [x for x in leases if x["granted_s"] >= over_s], leases


def test_no_value_comes_without_a_step_and_the_progress_shows_a_log_that_is_not_understood(rig: Rig, day: Day) -> None:
    silent = day.apps["silent"]
    lines = (s.line() for s in until_final(Rm(rm_address()), silent.app_id, timeout_s=START_S))
    line = next(line for line in lines if "the newest" in line)
    assert re.search(r"no line of its log shows progress .*; the newest: still reading, accuracy: 0.5$", line)
    (job,) = rig.jobs("silent")
    assert (job["step"], job["metric"], job["accuracy"]) == (0, None, 0)
    assert not silent.best()
    day.gate.touch()
    best = day.apps["steady"].wait(timeout_s=START_S).best
    assert best.get("value", best["accuracy"]) == pytest.approx(0.8), "not what a sentence after the last step says"


def test_what_has_ended_is_listed_its_logs_are_read_its_results_fetched_and_its_staging_folder_is_gone(
    rig: Rig, day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rig.wait(lambda: sum(j["step"] > 3 for j in rig.jobs("search")) == 2, START_S, "two trials train")
    day.gate.touch()
    for name in ("search", "silent"):
        day.apps[name].kill()
    states = {name: app.wait(timeout_s=START_S).state for name, app in day.apps.items()}
    assert states == {
        **dict.fromkeys(("moved", "steady", "waits"), "SUCCEEDED"),
        "bad": "FAILED",
        **dict.fromkeys(("search", "silent"), "KILLED"),
    }
    for name, app in day.apps.items():
        left = f"/user/root/submarine/jobs/{name}/staging/{app.app_id}"
        rig.wait(lambda left=left: not {*hdfs_names(rig, left)} & STAGED, 20, "what it needed is gone")
    rig.stop()
    rig.serve("isonomy")
    rows = {row["name"]: row for row in json.loads(cli("jobs", "--mine", "--since", "1d", "-o", "json"))["apps"]}
    assert {name: rows[name]["final_state"] for name in states} == states
    assert all(rows[name]["attained_gpu_s"] > 0 for name in states)
    took = r"\d\d:\d\d:\d\d +\d+[^ ]* \w+ +\d+\.\d\d"
    listed = cli("jobs", "--mine")
    assert re.search(rf"^steady .* SUCCEEDED +{took} .*0\.8000.* hdfs://.*/results-", listed, re.MULTILINE), listed
    assert re.search(rf"^search .* KILLED +{took} .* hdfs://.*/results-", listed, re.MULTILINE), listed
    assert set(cli("get", "search").split()) == {f"search/results-{day.apps['search'].app_id}"}
    trials = list(csv.DictReader(next(tmp_path.rglob("trials.csv")).open()))
    assert [bool(t["accuracy"]) and int(t["step"]) > 3 for t in trials] == [False, True, True]
    assert trials[0]["state"] == "failed"
    found = json.loads(cli("logs", "search", "-o", "json"))
    failed = ["isonomy worker: failed with 1" in str(source["files"]) for source in found]
    assert failed == [True] * 2 + [False] * 2, found
    assert {source["role"] for source in found} == {"worker"}
    assert {source["role"] for source in json.loads(cli("logs", "search", "--am", "-o", "json"))} == {"am"}
    assert "ValueError: Input contains NaN\nisonomy worker: failed with 1\n" in cli("logs", "bad")
    assert day.follows is not None
    assert "Epoch [400/400]" in day.follows.communicate(timeout=60)[0]
    shown = [
        requests.get(f"{ui(rig)}{at}", {"user.name": "root"}, timeout=10).text
        for at in ("", f"/app/{day.apps['steady'].app_id}")
    ]
    assert "steady" in shown[0].partition('id="h-ended"')[2]
    assert "polyline" in shown[1].partition('id="h-jobs"')[2]


def test_an_elastic_job_makes_room_for_a_notebook_and_takes_it_back(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--gpus-per-job", "3:12", "--job-type", "wide", "--slowdown", "1,1.1,1.3"]
    command = "python -m submarine_patch.examples.digits --log-steps 1 --batch-size 48"
    rig.submit("wide", 6000, *words, queue="prod", steps=6000, command=command)
    rig.training("wide", limit_s=START_S)
    assert rig.jobs("wide")[0]["gpus"] == 12
    run_the_notebook(rig, tmp_path, monkeypatch)
    shrunk = rig.jobs("wide")[0]
    assert shrunk["launches"] > 1, "it gave GPUs to the notebook's jobs"
    steps = shrunk["step"]
    rig.wait(lambda: (j := rig.jobs("wide")[0])["gpus"] == 12 and j["step"] > steps, START_S, "wide grows")
    rig.stop()
    rig.serve("isonomy")
    rig.wait(lambda: rig.jobs("wide") and rig.jobs("wide")[0]["step"] > steps + 30, START_S, "wide goes on")
    cli("get", "sweep", str(tmp_path / "fetched"))
    fetched = {found.name for found in (tmp_path / "fetched").rglob("*")}
    assert {"model.keras", "trials.csv", "launches.csv", "curves.svg"} <= fetched
    isonomy.app("wide").kill()
    rig.wait(lambda: rig.app("wide").get("state") == "FINISHED", 60, "wide ends")
    by_step = losses("\n".join(p.read_text() for p in logs_of(rig, "wide")))
    assert min(by_step) < 30
    assert max(by_step) > steps + 30
    most = min(max(by_step), STEPS_COMPARED)
    alone = subprocess.run(
        [*command.replace("python", sys.executable, 1).split(), "--steps", str(most)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    expected = losses(alone.stderr)
    for step, seen in ((k, v) for k, v in by_step.items() if k <= most):
        assert all(loss == pytest.approx(expected[step][0], rel=0.02, abs=0.002) for loss in seen), step
    kept = json.loads(hdfs(rig, "/user/root/.isonomy/speeds/" + file_of("wide")))
    assert kept["job_type"] == "wide"
    assert kept["slowdowns"], "measured on 6 GPUs and on 12, for later apps of the type"


def losses(log: str) -> dict[int, list[float]]:
    """What a session's log says of each step's loss."""
    found: dict[int, list[float]] = {}
    for loss, step in re.findall(r"loss = (\S+), step = (\d+) ", log):
        found.setdefault(int(step), []).append(float(loss))
    return found


def logs_of(rig: Rig, name: str) -> list[Path]:
    """The workers' standard error."""
    return sorted(rig.folder.glob(f"data/nodemanager-*/log/{rig.app(name)['id']}/*/stderr"))


def hdfs_names(rig: Rig, folder: str) -> list[str]:
    """The names in a folder on HDFS; none where it is gone."""
    names = InsecureClient(rig.cluster["webhdfs"], user="root", timeout=20)
    return list(names.list(folder)) if names.status(folder, strict=False) else []


def hdfs(rig: Rig, path: str) -> bytes:
    """A file on HDFS."""
    with InsecureClient(rig.cluster["webhdfs"], user="root", timeout=20).read(path) as file:
        return bytes(file.read())


def run_the_notebook(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example, in a kernel of its own."""
    monkeypatch.setenv("PYTHONPATH", f"{REPO}:{REPO / 'submarine_patch/api'}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(REPO / "submarine_patch/examples/sweep.ipynb", as_version=4)
    try:
        NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    except CellExecutionError as e:
        raise AssertionError(f"{e}\n{rig.tail()}") from e
    submitted, typo, waited, trials, best = (said(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert re.search(r"<isonomy app application_\d+_\d+>", submitted)
    assert "--framework kerass: unknown; did you mean keras?" in typo
    assert "SUCCEEDED" in waited
    assert "job003" in trials
    assert "/models/sweep/ckpt-40-" in best
    assert any("isonomy worker: goes on as job" in p.read_text() for p in logs_of(rig, "sweep")), (
        "trials share processes"
    )


def said(cell: Any) -> str:
    """What a cell printed, and its last value."""
    return "\n".join(str(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in cell.outputs)


def test_a_job_with_parameter_servers_continues_after_a_machine_is_drained(rig: Rig) -> None:
    options = {
        "--name": "servers",
        "--queue": "prod",
        "--num_workers": "2",
        "--worker_resources": "memory=1G,vcores=1,gpu=3",
        "--num_ps": "2",
        "--ps_resources": "memory=512M,vcores=1",
        "--max-iterations": "300",
        "--iteration-s": "0.9",
        "--worker_launch_cmd": "python -m submarine_patch.examples.digits --log-steps 1 --checkpoint-steps 1000",
    }
    words = [str(BIN / "submarine"), "job", "run", *(word for pair in options.items() for word in pair)]
    subprocess.run(words, env=rig.env, check=True, timeout=300)
    rig.training("servers", 20, limit_s=START_S)
    host = rig.get("explain", app="servers")["leases"][0]["gpu"].rpartition(":")[0]
    rig.post("drain", node=host)
    rig.wait(lambda: any(j["launches"] > 1 for j in rig.jobs("servers")), START_S, "it continues elsewhere")
    rig.post("undrain", node=host)
    rig.succeeds("servers")
    said = "\n".join(p.read_text() for p in logs_of(rig, "servers"))
    stopped, restored = re.search(r"Stopped on request at step (\d+)", said), re.search(r"Restored .* for (\d+) ", said)
    assert stopped is not None
    assert restored is not None
    assert stopped[1] == restored[1], "all steps done are in the checkpoint"
    assert "serving until the coordinator has stopped" in said, "its GPUs lay on two machines"


def test_a_script_with_a_folder_of_its_own_continues_after_its_machine_is_drained(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(OWN)
    app = submit_script("python own.py", "own", script, 1, keep_folder="ckpt", metric="f1", mode="max")
    rig.training("own", 5)
    host = app.explain()["leases"][0]["gpu"].rpartition(":")[0]
    rig.post("drain", node=host)
    ended = app.wait(timeout_s=300)
    assert ended.succeeded, ended.message + rig.tail()
    (job,) = ended.jobs
    assert job["launches"] == 2
    assert job["metric"] > 0.5
    assert not job["note"]
    said = [p.read_text() for p in Path(rig.folder).glob("data/*/log/*/*/stdout") if "began at" in p.read_text()]
    begun = sorted(int(text.split("began at", 1)[1].split()[0]) for text in said)
    assert begun[0] == 0
    assert begun[1] >= 5, "what it had done was kept"
    cli("get", "own", str(tmp_path / "fetched"))
    assert json.loads(next(tmp_path.rglob("state.json")).read_text()) == {"step": 60}
    rig.post("undrain", node=host)
