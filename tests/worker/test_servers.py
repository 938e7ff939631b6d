"""Parameter servers: which processes run where, and a real training that is stopped and resumes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from submarine_patch.worker import EXIT_STOPPED, checkpoints, servers
from tests.worker.gangs import DISTURBED_STEP_S, Job

DIGITS = "python -m submarine_patch.examples.digits --checkpoint-steps 20 --log-steps 5"


def test_without_servers_each_worker_is_one_process() -> None:
    told = [json.loads(c) for c in servers.configurations(["a:1", "b:2"], [4, 2], 0)]
    assert [c["task"] for c in told] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert told[0]["cluster"] == told[1]["cluster"] == {"worker": ["a:1", "b:2"]}


def test_servers_and_the_coordinator_run_beside_the_workers() -> None:
    first, second = map(json.loads, servers.configurations(["a:10", "b:20"], [2, 1], 3))
    assert first["cluster"] == {
        "chief": ["a:10"],
        "worker": ["a:11", "a:12", "b:20"],
        "ps": ["a:13", "b:21", "a:14"],
    }
    assert first["task"] == {"type": "chief", "index": 0}
    assert second == {"cluster": first["cluster"], "task": {"type": "worker", "index": 2}}


@pytest.mark.parametrize("sizes", [[1], [3], [2, 1], [1, 1, 1, 1]])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_each_container_finds_its_own_processes_in_tf_config(sizes: list[int], number: int) -> None:
    addresses = [f"10.0.0.{rank // 2}:{20_000 + 100 * rank}" for rank in range(len(sizes))]
    configs = servers.configurations(addresses, sizes, number)
    found = []
    for rank, config in enumerate(configs):
        expected = servers.tasks(rank, sizes, number)
        own = servers.beside(config, len(expected))
        assert [task for task, _ in own] == expected
        assert own[0][1] == config
        found += expected
    cluster = json.loads(configs[0])["cluster"]
    assert sorted(found) == sorted((kind, i) for kind, places in cluster.items() for i in range(len(places)))
    assert len(found) == 1 + sum(sizes) + number
    every = [address for places in cluster.values() for address in places]
    assert len(set(every)) == len(every)


def task_of(process: psutil.Process) -> str:
    """The type of a process in TF_CONFIG."""
    return str(json.loads(process.environ()["TF_CONFIG"])["task"]["type"])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path / "job", DIGITS, until_step=120)
    made.servers = 1
    yield made
    made.end()


@pytest.mark.adapters
@pytest.mark.timeout(900)
def test_training_with_a_server_stops_with_a_checkpoint_and_resumes(job: Job) -> None:
    pytest.importorskip("tensorflow")
    first = job.launch(workers=2, step_s=DISTURBED_STEP_S)
    first.at_step(15)
    first.stop()
    assert first.end_of_the_coordinator() == EXIT_STOPPED
    assert first.codes()[1] == EXIT_STOPPED
    assert "serving until the coordinator has stopped" in first.text()
    newest = checkpoints.newest(job.files)
    assert newest is not None
    assert 15 <= newest[0].step < job.until_step
    assert f"Stopped on request at step {newest[0].step}" in first.text()

    second = job.launch(workers=2)
    assert second.end_of_the_coordinator() == 0, second.text()[-3000:]
    second.codes()
    assert re.search(f"Restored checkpoint for {newest[0].step} ", second.text())
    assert job.result()["accuracy"] > 0.8


@pytest.mark.adapters
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_fails_its_worker_and_the_training_resumes(job: Job) -> None:
    pytest.importorskip("tensorflow")
    first = job.launch(step_s=DISTURBED_STEP_S)
    assert first.saved() >= 20
    (server,) = [p for p in psutil.Process(first.processes[0].pid).children() if task_of(p) == "ps"]
    server.kill()
    assert first.codes() == [1]
    assert "the ps 0 beside it ended with -9" in str(first.arbiter.messages[-1])
    second = job.launch()
    assert second.codes() == [0], second.text()[-3000:]
    assert "Restored checkpoint for" in second.text()
