"""`isonomy.submit` and its handle, against a web server that answers as YARN and the control plane do."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import isonomy
from submarine_patch.cli import main
from submarine_patch.cli.follow import Goal, Status, goal_of
from tests.httpd import Asked, Reply, serving
from tests.submarine.test_cli import SUBMARINE_SITE

APP = "application_1_0002"
RUN = ["job", "run", "--name", "x", "--worker_resources", "memory=1G", "--worker_launch_cmd", "true"]
JOBS = [
    {
        "job_id": "job000",
        "state": "done",
        "step": 9,
        "loss": 0.4,
        "accuracy": 0.8,
        "metric": 0.7,
        "until_step": 9,
        "configuration": {"lr": "0.1"},
    },
    {
        "job_id": "job001",
        "state": "running",
        "step": 5,
        "loss": 0.3,
        "accuracy": 0.0,
        "metric": 0.9,
        "until_step": 9,
        "configuration": {"lr": "0.2", "units": "75", "balanced": "True", "optimizer": "adam"},
    },
]


class Yarn:
    """Runs at first, then is done."""

    asked: ClassVar[list[str]] = []
    states: ClassVar[list[tuple[str, str]]] = []
    early: ClassVar[list[int]] = []
    """An element for each `kill` that comes before the app is known."""

    def answer(self, asked: Asked) -> Reply:
        path = asked.path.removeprefix("/ws/v1/cluster/")
        if asked.method == "POST":
            self.asked.append("POST " + path.rpartition("/")[2])
            if self.early:
                self.early.pop()
                return Reply({"error": "it has not asked for GPUs yet"}, 409)
            return Reply({})
        self.asked.append(path)
        if path == f"apps/{APP}":
            state, final = self.states[0] if len(self.states) == 1 else self.states.pop(0)
            told = {"finalStatus": final, "name": "sweep", "progress": 40.0, "diagnostics": "because"}
            return Reply({"app": {"state": state, **told}})
        done = len(self.states) == 1
        best = {"configuration": {"lr": "0.2"}, "accuracy": 0.0, "metric": "f1", "value": 0.9}
        return Reply(
            {
                "app": {
                    "app_id": APP,
                    "gpus_held": 4,
                    "message": "",
                    "best": best if done else None,
                    "model_path": "/models/x" if done else "",
                },
                "reason": {"code": "Running"},
                "rho": {"rho": 1.5},
                "jobs": [] if done else JOBS,
                "now_s": 1000.0,
                "estimate": {"start_s": [1.0, 2.0, 3.0], "end_s": [1060.0, 1600.0, 8200.0]},
            }
        )


@pytest.fixture
def web() -> Iterator[str]:
    """The host and port of its web server."""
    with serving(Yarn().answer) as url:
        yield url.removeprefix("http://")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, web: str) -> Path:
    """A configuration, a web server, and a java that answers like a submission."""
    Yarn.asked, Yarn.states = [], [("RUNNING", "UNDEFINED")] * 3 + [("FINISHED", "SUCCEEDED")]
    home, conf, jdk = tmp_path / "home", tmp_path / "conf", tmp_path / "jdk"
    for folder in (home / "lib", conf, jdk / "bin"):
        folder.mkdir(parents=True)
    (home / "lib" / "isonomy-submarine-runtime.jar").touch()
    (conf / "core-site.xml").touch()
    (conf / "submarine-site.xml").write_text(SUBMARINE_SITE)
    (conf / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        f"<value>{web}</value></property></configuration>"
    )
    java = jdk / "bin" / "java"
    java.write_text(f"""#!/bin/bash
printf '%s\\n' "$@" > {tmp_path}/arguments
if grep -q quota {tmp_path}/arguments; then echo "submarine: the queue is full" >&2; exit 1; fi
cat "$(grep -o '/.*space.yaml' {tmp_path}/arguments)" > {tmp_path}/space 2>/dev/null
echo "Submitted {APP} (x, single) to queue root.prod"
""")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SUBMARINE_HOME", str(home))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    monkeypatch.setenv("JAVA_HOME", str(jdk))
    return tmp_path


def test_submit_wait_and_results(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = isonomy.submit(
        "python -m train %hyperparameters%",
        name="sweep",
        gpus=2,
        app_scheduler="asha",
        max_iterations=9,
        metric="f1",
        mode="max",
        search_space={"lr": {"type": "float", "min": 0.1, "max": 1}},
        env={"A": "b"},
    )
    given = (cluster / "arguments").read_text().splitlines()
    assert "memory=2G,vcores=1,gpu=2" in given
    assert "isonomy.metric=f1" in given
    assert "A=b" in given
    assert "lr" in (cluster / "space").read_text()
    status = app.status()
    assert (status.state, status.gpus, status.final) == ("RUNNING", 4, False)
    assert (
        status.line()
        == "step 5/9, loss 0.3, f1 0.9, 4 GPUs, 2 of 2 measured, best f1 0.9 (lr 0.2, units 75, balanced True,"
        " optimizer adam), ends in ~10 min (60 s to 2 h 00 min)"
    )
    assert repr(status) == f"<Status of sweep: {status.line()}>"
    assert app.best() == {}
    assert app.wait(progress=True, poll_s=0.01).succeeded
    assert app.best() == {
        "configuration": {"lr": "0.2"},
        "accuracy": 0.0,
        "metric": "f1",
        "value": 0.9,
        "model_path": "/models/x",
    }
    trials = app.trials()
    rows = trials if isinstance(trials, list) else trials.to_dict("records")
    assert [(r["job_id"], r["lr"], r["f1"]) for r in rows] == [("job000", 0.1, 0.7), ("job001", 0.2, 0.9)]
    assert rows[1]["units"] == 75
    assert rows[1]["accuracy"] is None, "no line showed it"
    assert rows[1]["balanced"] is True
    assert rows[1]["optimizer"] == "adam"
    app.kill()
    assert Yarn.asked[-1] == "POST kill"
    assert capsys.readouterr().out == "", "a program's output is its own"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"framework": "jax"}, "--framework jax: unknown"),
        ({"max_iteration": 3}, "max_iteration: unknown option; known are"),
        ({"files": ["/nowhere.py"]}, "--localization /nowhere.py: no such file or folder here"),
        ({"search_space": {"lr": {"type": "real"}}, "app_scheduler": "asha", "max_iterations": 3}, "type is 'real'"),
    ],
)
def test_mistakes_raise_usage_errors_before_the_cluster_is_contacted(
    cluster: Path, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(isonomy.UsageError, match=says):
        isonomy.submit("true", name="x", **arguments)
    assert not (cluster / "arguments").exists()
    assert not Yarn.asked


@pytest.mark.usefixtures("cluster")
def test_a_refusal_by_the_cluster_raises_a_submission_error() -> None:
    with pytest.raises(isonomy.SubmissionError, match="the queue is full"):
        isonomy.submit("true", name="quota")


@pytest.mark.usefixtures("cluster")
def test_the_progress_shows_a_jobs_note_while_the_app_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(JOBS[1], "note", "no line of its log shows f1")
    handle = isonomy.app("sweep")
    assert handle.status().line().endswith("job001: no line of its log shows f1")
    assert "no line of its log" not in handle.wait(poll_s=0.01).line()


@pytest.mark.usefixtures("cluster")
def test_the_progress_shows_the_newest_line_where_none_is_understood(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(JOBS[1], "note", "no line of its log shows progress (docs/submit.md says which do)")
    monkeypatch.setattr("submarine_patch.cli.follow.newest_line", lambda client, app_id: "round 7 was fine")
    isonomy.app("sweep").wait(poll_s=0.01, progress=True)
    assert "shows progress (docs/submit.md says which do); the newest: round 7 was fine" in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
def test_a_kill_waits_until_the_app_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("submarine_patch.cli.api.POLL_S", 0.01)
    Yarn.early, Yarn.states = [1, 2], [("RUNNING", "UNDEFINED")]
    isonomy.app("sweep").kill()
    assert Yarn.asked.count("POST kill") == 3
    Yarn.early, Yarn.states = [1], [("FINISHED", "SUCCEEDED")]
    isonomy.app("sweep").kill()
    assert Yarn.asked.count("POST kill") == 4, "it has ended already"


@pytest.mark.usefixtures("cluster")
def test_an_app_that_fails() -> None:
    Yarn.states = [("KILLED", "KILLED")]
    status = isonomy.app("sweep").wait(poll_s=0.01)
    assert (status.succeeded, status.final, status.message) == (False, True, "because")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("final", "status"), [("SUCCEEDED", 0), ("FAILED", 1)])
def test_the_command_line_waits_with_a_bar_in_a_terminal(
    cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, final: str, status: int
) -> None:
    Yarn.states[-1] = ("FINISHED", final)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("submarine_patch.cli.follow.POLL_S", 0.01)
    with pytest.raises(SystemExit) as ended:
        main([*RUN, "--wait_job_finish"])
    assert ended.value.code == status
    assert "--wait_job_finish" not in (cluster / "arguments").read_text().splitlines()
    shown = capsys.readouterr().err
    assert f"{final}, f1 0.9000 with lr:0.2, model in /models/x" in shown
    assert ("submarine: sweep FAILED: because" in shown) == (final == "FAILED")


@pytest.mark.usefixtures("cluster")
def test_without_a_terminal_it_waits_with_a_line_for_each_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("submarine_patch.cli.follow.POLL_S", 0.01)
    with pytest.raises(SystemExit) as ended:
        main([*RUN, "--wait_job_finish", "-o", "json"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"application_id": APP, "exit_status": 0, "start_s": None, "end_s": None}
    running, end = (line.partition(" ")[2] for line in err.splitlines() if " sweep " in line)
    assert running.startswith("sweep step 5/9, loss 0.3, accuracy 0.9, 4 GPUs, 2 of 2 measured, best accuracy 0.9 (lr")
    assert end == "sweep SUCCEEDED, f1 0.9000 with lr:0.2, model in /models/x"


@pytest.mark.usefixtures("cluster")
def test_a_notebook_without_ipywidgets_gets_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    isonomy.app("sweep").wait(progress=True, poll_s=0.01)
    lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.split()[:2] for line in lines] == [["sweep", "step"], ["sweep", "SUCCEEDED,"]]


def test_the_first_step_is_news_and_the_second_is_not() -> None:
    def at(step: int) -> Status:
        return Status(
            "application_1_1", "s", "RUNNING", gpus=1, jobs=({"job_id": "j", "state": "running", "step": step},)
        )

    assert at(0).news != at(1).news == at(2).news


def test_the_best_so_far_has_the_smallest_value_where_that_is_better() -> None:
    jobs = tuple(
        {"job_id": "j", "state": "paused", "step": 9, "metric": value, "configuration": {"lr": str(value)}}
        for value in (0.25, 0.083, None)
    )
    status = Status("application_1_1", "s", "RUNNING", jobs=jobs, goal=goal_of({"metric": "val_loss"}))
    assert "2 of 3 measured, best val_loss 0.083 (lr 0.083)" in status.line()
    assert "best" not in replace(status, goal=Goal()).line(), "of an app of another process it is not known"


@pytest.mark.usefixtures("cluster")
def test_an_interrupted_wait_says_that_the_app_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(client: object, app_id: str, goal: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("submarine_patch.cli.follow.wait", interrupted)
    with pytest.raises(SystemExit) as ended:
        main([*RUN, "--wait_job_finish"])
    assert ended.value.code == 130
    assert f"to end it: submarine job kill {APP}" in capsys.readouterr().err
