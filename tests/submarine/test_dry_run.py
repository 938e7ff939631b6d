"""What `submarine job run` answers from the real router: what a job would get, and when it would start and end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycontrol.model.auction import Demand
from pycontrol.policies import registry
from pycontrol.simulation.questions import Questions
from pycontrol.simulation.scene import Scene, picture, with_app
from pycontrol.web.router import Router
from submarine_patch.cli import declared, main
from tests.submarine.test_cli import fake_installation
from tests.web.stage import busy, served

JOB = ["job", "run", "--name", "x", "--worker_launch_cmd", "true", "--dry-run"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    stage, questions = (
        busy(registry.make("isonomy"), machines=2, gpus=4, apps=6, hours=1.0),
        Questions({}, slower=10.0),
    )
    router = Router(
        stage,
        issue=lambda *_: "",
        arbiter_address="h:1",
        feed=stage.feed,
        picture=picture,
        why_not=lambda a, now_s, params, user, called: questions.answer(a, now_s, params, str(params), called),
    )
    with served(router) as found:
        size = {"usedMemoryMB": 1024, "availMemoryMB": 15360, "usedVirtualCores": 1, "availableVirtualCores": 15}
        lost = {"state": "LOST", "usedMemoryMB": 0, "availMemoryMB": 99999, "usedVirtualCores": 0}
        machines = [{"state": "RUNNING", **size}, {**lost, "availableVirtualCores": 99}]
        found.yarn["/ws/v1/cluster/nodes"] = {"nodes": {"node": machines}}
        yield found.url.partition("/ws/")[0]
    questions.stop()


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*JOB, *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_dry_run_says_what_a_job_would_get(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISONOMY_RM", server)
    status = run("--queue", "prod", "--worker_resources", "memory=2G,vcores=2,gpu=4", "-o", "json")
    found = json.loads(capsys.readouterr().out)
    assert status == (0 if found["gets"] else 1)
    assert found["gets"] or found["changes"]
    assert run("--queue", "root.prod", "--gpus-per-job", "64", "--worker_resources", "memory=2G,vcores=2") == 1
    assert "64 GPUs in one gang" in capsys.readouterr().out
    assert run("--queue", "prod", "--worker_resources", "memory=2G,vcores=2,gpu=6") == 1
    assert "6 GPUs in one gang; at most 4 on a machine" in capsys.readouterr().out


@pytest.mark.interpreted
def test_a_dry_run_asks_for_the_very_job_that_would_be_submitted(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Demand, int]] = []

    def as_asked(scene: Scene, user: str, queue: str, demand: Demand, priority: int = 0) -> Scene:
        asked.append((demand, priority))
        return with_app(scene, user, queue, demand, priority)

    monkeypatch.setattr("pycontrol.simulation.questions.with_app", as_asked)
    monkeypatch.setenv("ISONOMY_RM", server)
    job = "--queue", "prod", "--worker_resources", "memory=2G,vcores=2,gpu=2"
    assert run(*job, "--hours", "90", "--pinned", "corner", "--priority", "5") == 1, "there is no such cell"
    run(*job, "--opportunistic", "true")
    (pinned, first), (opportunistic, unsaid) = asked
    assert (pinned.pinned, pinned.opportunistic, pinned.work_left_gpu_s, first) == ("corner", False, 2 * 90 * 3600, 5)
    assert (opportunistic.pinned, opportunistic.opportunistic, unsaid) == ("", True, 0)
    assert opportunistic.work_left_gpu_s == 2 * 600, "one lease"


def test_a_dry_run_needs_gpus_and_a_queue(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISONOMY_RM", server)
    assert run("--worker_resources", "memory=2G,vcores=2") == 2
    assert "--dry-run: needs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--queue", "prdo"), "queue: must be a leaf queue; did you mean prod? (got prdo)"),
        (("--queue", "root.prdo"), "queue: must be a leaf queue; did you mean root.prod? (got root.prdo)"),
        (("--queue", "xyz"), "queue: must be a leaf queue; known are default, prod, research (got xyz)"),
        (
            ("--queue", "prod", "--worker_resources", "memory=40G,vcores=2,gpu=1"),
            "--worker_resources memory=40G,vcores=2,gpu=1: no running machine has as much; the machines have 16384 MB"
            " and 16 vcores",
        ),
        (
            ("--queue", "prod", "--num_workers", "2", "--num_ps", "3", "--ps_resources", "memory=512M,vcores=5"),
            "--worker_resources memory=2G,vcores=2,gpu=1, and --ps_resources for each of 3 servers: no running machine"
            " has as much; the machines have 16384 MB and 16 vcores",
        ),
        (
            ("--queue", "prod", "--saved_model_path", "file:///tmp/model"),
            "--saved_model_path file:///tmp/model: results are written to the cluster's HDFS; give a path there",
        ),
    ],
)
def test_a_dry_run_refuses_what_a_submission_refuses(
    more: tuple[str, ...], said: str, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISONOMY_RM", server)
    resources = () if "--worker_resources" in more else ("--worker_resources", "memory=2G,vcores=2,gpu=1")
    assert run(*more, *resources) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"submarine: {said}"


def test_a_dry_run_says_that_an_input_file_must_be_on_each_machine(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISONOMY_RM", server)
    run("--queue", "prod", "--worker_resources", "memory=16G,vcores=16,gpu=1", "--input_path", "file:///data")
    assert "note: --input_path file:///data: is read on the worker's machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "end"),
    [
        (("--hours", "0.1"), "; ends in ~"),
        ((), "; its end is not known: nobody said how long it trains"),
    ],
)
def test_a_submission_says_when_it_would_start_and_end(
    more: tuple[str, ...],
    end: str,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_installation(tmp_path, monkeypatch, server.removeprefix("http://"), status=0)
    monkeypatch.setattr(declared, "PATIENCE_S", 60.0)
    with pytest.raises(SystemExit):
        main([*JOB[:-1], "--queue", "prod", "--worker_resources", "memory=2G,vcores=2,gpu=4", *more, "-o", "json"])
    found, said = capsys.readouterr()
    times = json.loads(found)
    assert end in said
    assert "submarine: starts " in said
    assert times["start_s"] == sorted(times["start_s"])
    assert (times["end_s"] is not None) == ("--hours" in more)


def test_a_forecast_that_takes_too_long_holds_no_submission_up(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_installation(tmp_path, monkeypatch, server.removeprefix("http://"), status=0)
    monkeypatch.setattr(declared, "PATIENCE_S", 0.0)
    with pytest.raises(SystemExit):
        main([*JOB[:-1], "--queue", "prod", "--worker_resources", "memory=2G,vcores=2,gpu=4"])
    assert "when it starts is not known yet (that takes longer than a second here)" in capsys.readouterr().err
