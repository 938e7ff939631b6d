"""Submitting from Python, on a real cluster: the example notebook, and a script that knows nothing of Isonomy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import requests
from hdfs import InsecureClient
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import isonomy
from submarine_patch.agent.speeds import file_of
from tests.cluster.rig import BIN, REPO, Rig

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
import sys, time
for epoch in range(1, 41):
    time.sleep(float(sys.argv[1]))
    print(f"Epoch [{epoch}/40], Loss: {1 / epoch:.4f}, Val Acc: {epoch / 50:.4f}", flush=True)
    if sys.argv[2:]:
        raise ValueError("Input contains NaN")
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("submit") / "dc", "isonomy")
    yield made
    made.down()


@pytest.fixture
def here(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rig.env.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("here")
def test_unchanged_scripts_wait_with_a_reason_are_followed_and_leave_something_behind(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything runs at once, so that it takes as long as an app that starts twice."""
    script = tmp_path / "plain.py"
    script.write_text(UNCHANGED)

    def submit(name: str, gpus: int, how: str, **more: Any) -> Any:
        return isonomy.submit(f"python plain.py {how}", name=name, queue="research", framework="command",
                              memory="512M", gpus=gpus, files=[script], **more)  # fmt: skip

    moved, steady = submit("plain-a", 4, "0.3", hours=0.01), submit("plain-b", 4, "0.5", hours=0.01)
    bad, waits = submit("plain-d", 1, "0.1 fail"), submit("plain-c", 4, "0.1")
    said = capsys.readouterr().err
    assert len(re.findall(r"isonomy: starts .*; ends in ~", said)) == 2, said
    assert len(re.findall(r"isonomy: starts .*; its end is not known", said)) == 2, said
    why = rig.wait(lambda: told(rig, "plain-c", "NoFreeGpus"), 60, "it is told why it waits")
    assert re.match(
        r"no machine has 4 free GPUs; (the lease of|leases of) plain-[ab].* (ends in|end within) \d+ s", why
    )
    (row,) = (r for r in rig.get("queue")["apps"] if r["name"] == "plain-c")
    assert re.sub(r"\d+ s", "", row["sentence"]) == re.sub(r"\d+ s", "", why)
    assert "waits: no machine has 4 free GPUs" in waits.status().line()
    waits.kill()
    follows = subprocess.Popen(
        [BIN / "isonomy", "logs", "plain-b", "-f"], env=rig.env, stdout=subprocess.PIPE, text=True
    )
    rig.training("plain-a", 3)
    assert re.search(r"step \d+/40", moved.status().line()), "its lines say how far it trains"
    host = rig.get("explain", app="plain-a")["leases"][0]["gpu"].rpartition(":")[0]
    rig.post("drain", node=host)
    rig.wait(lambda: not rig.get("explain", app="plain-a")["leases"], 60, "it gives its GPUs back")
    rig.post("undrain", node=host)
    lost = rig.wait(lambda: rig.get("explain", app="plain-a").get("lost"), START_S, "it starts again, and is told so")
    assert re.fullmatch(r"lost \d+ steps? = \d+\.\d GPU-min, trained again", lost)
    for app in (moved, steady):
        ended = app.wait(timeout_s=START_S)
        assert ended.succeeded, ended.message + rig.tail()
        assert ended.best.get("value", ended.best["accuracy"]) == pytest.approx(0.8)
        left = f"/user/root/submarine/jobs/{ended.name}/staging/{app.app_id}"
        rig.wait(lambda left=left: not {*hdfs_names(rig, left)} & STAGED, 20, "what it needed is gone")
    assert "Epoch [40/40]" in follows.communicate(timeout=60)[0]
    assert waits.wait(timeout_s=START_S).state == "KILLED"
    assert bad.wait(timeout_s=START_S).state == "FAILED"
    assert [j["launches"] for j in rig.jobs("plain-d")] == [2], "two equal failures are enough"
    logs = subprocess.run([BIN / "isonomy", "logs", "plain-d"], env=rig.env, capture_output=True, text=True, timeout=60)
    assert "ValueError: Input contains NaN\nisonomy worker: failed with 1\n" in logs.stdout
    rig.stop()
    rig.serve("isonomy")
    page = f"{rig.cluster['rm_web'].split(',')[0]}/ws/v1/cluster/isonomy/ui"
    shown = [
        requests.get(f"{page}{at}", {"user.name": "root"}, timeout=10).text for at in ("", f"/app/{steady.app_id}")
    ]
    assert "plain-b" in shown[0].partition('id="h-ended"')[2]
    assert "polyline" in shown[1].partition('id="h-jobs"')[2]


def told(rig: Rig, name: str, code: str) -> str:
    """The sentence for this reason; empty for another."""
    why = rig.get("explain", app=name).get("reason", {})
    return str(why["sentence"]) if why.get("code") == code else ""


@pytest.mark.usefixtures("here")
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
    isonomy.app("wide").kill()
    rig.wait(lambda: rig.app("wide").get("state") == "FINISHED", 60, "wide ends")
    by_step = losses("\n".join(p.read_text() for p in logs_of(rig, "wide")))
    assert min(by_step) < 30
    assert max(by_step) > steps + 30
    most = min(max(by_step), STEPS_COMPARED)
    alone = subprocess.run([*command.replace("python", sys.executable, 1).split(), "--steps", str(most)],
                           capture_output=True, text=True, timeout=300, check=True)  # fmt: skip
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
        "--name": "servers", "--queue": "prod", "--num_workers": "2", "--worker_resources": "memory=1G,vcores=1,gpu=3",
        "--num_ps": "2", "--ps_resources": "memory=512M,vcores=1", "--max-iterations": "300", "--iteration-s": "0.9",
        "--worker_launch_cmd": "python -m submarine_patch.examples.digits --log-steps 1 --checkpoint-steps 1000",
    }  # fmt: skip
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


@pytest.mark.usefixtures("here")
def test_a_script_with_a_folder_of_its_own_continues_after_its_machine_is_drained(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(OWN)
    app = isonomy.submit("python own.py", name="own", queue="research", framework="command", memory="512M", gpus=1,
                         files=[script], keep_folder="ckpt", metric="f1", mode="max")  # fmt: skip
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
    rig.post("undrain", node=host)
