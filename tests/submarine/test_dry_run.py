"""`submarine job run --dry-run` against the real router: what a job would get, without a submission."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pycontrol.policies import registry
from pycontrol.simulation.questions import Questions
from pycontrol.web.router import Router
from submarine_patch.cli import main
from tests.web.stage import busy, served

JOB = ["job", "run", "--name", "x", "--worker_launch_cmd", "true", "--dry-run"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    stage, questions = (
        busy(registry.make("isonomy"), machines=2, gpus=4, apps=6, hours=1.0),
        Questions({}, slower=10.0),
    )
    router = Router(
        stage, issue=lambda *_: "", arbiter_address="h:1", feed=stage.feed,
        why_not=lambda a, now_s, params, user, called: questions.answer(a, now_s, params, str(params), called),
    )  # fmt: skip
    with served(router) as found:
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


def test_a_dry_run_needs_gpus_and_a_queue(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISONOMY_RM", server)
    assert run("--worker_resources", "memory=2G,vcores=2") == 2
    assert "--dry-run: needs" in capsys.readouterr().err
    assert run("--queue", "nope", "--worker_resources", "memory=2G,vcores=2,gpu=1") == 1
    assert "must be a leaf queue: root.default" in capsys.readouterr().err
