"""The suite for every adapter: under any disturbance of its gang, a training ends with the undisturbed result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from submarine_patch.worker import checkpoints
from tests.worker.gangs import Job


class Conformance:
    """Tests with one worker; subclasses define how to train."""

    command: ClassVar[str]
    """Trains to ISONOMY_UNTIL_STEP with a checkpoint every 20 steps."""
    env: ClassVar[dict[str, str]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def undisturbed(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], dict[str, Any]]]:
        """The undisturbed result, by number of workers; computed on first use."""
        known: dict[int, dict[str, Any]] = {}

        def result(workers: int) -> dict[str, Any]:
            if workers not in known:
                job = Job(tmp_path_factory.mktemp("undisturbed"), cls.command, **cls.env)
                try:
                    launch = job.launch(workers)
                    assert launch.codes() == [0] * workers, launch.text()[-3000:]
                    known[workers] = job.result()
                finally:
                    job.end()
            return known[workers]

        return result

    @pytest.fixture
    def job(self, tmp_path: Path) -> Iterator[Job]:
        made = Job(tmp_path / "job", self.command, **self.env)
        yield made
        made.end()

    def _same(self, job: Job, undisturbed: Callable[[int], dict[str, Any]], workers: int = 1) -> None:
        found, expected = job.result(), undisturbed(workers)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["accuracy"] == pytest.approx(expected["accuracy"], rel=1e-5)

    def _finish(self, job: Job, workers: int = 1) -> None:
        last = job.launch(workers)
        assert last.codes() == [0] * workers, last.text()[-3000:]

    def test_no_stop_learns(self, undisturbed: Callable[[int], dict[str, Any]]) -> None:
        assert undisturbed(1)["accuracy"] > 0.8

    def test_stop_inside_an_epoch(self, job: Job, undisturbed: Callable[[int], dict[str, Any]]) -> None:
        first = job.launch()
        first.at_step(3)
        first.stop()
        assert first.codes() == [75]
        assert 0 < checkpoints.listed(job.files)[0].step < 60
        self._finish(job)
        assert "Restored checkpoint for" in job.launches[1].text()
        self._same(job, undisturbed)

    def test_store_away(self, job: Job, undisturbed: Callable[[int], dict[str, Any]]) -> None:
        """While a checkpoint is written, and again while the next launch looks for it."""
        first = job.launch()
        first.at_step(3)
        job.hdfs.go()
        first.says("a checkpoint failed by step")
        first.stop()
        first.says("trying on")
        job.hdfs.come()
        assert first.codes() == [75]
        job.hdfs.go()
        second = job.launch()
        second.says("trying on")
        job.hdfs.come()
        assert second.codes() == [0], second.text()[-3000:]
        assert "Restored checkpoint for" in second.text()
        self._same(job, undisturbed)

    def test_checkpoint_half_written(self, job: Job, undisturbed: Callable[[int], dict[str, Any]]) -> None:
        first = job.launch()
        first.saved()
        first.processes[0].kill()
        assert first.codes() == [-9]
        step = checkpoints.listed(job.files)[0].step
        whole = job.files.root / checkpoints.listed(job.files)[0].name
        for name in ("_ckpt-50-0f0f0f0f0f0f0f0f", "ckpt-50-0f0f0f0f0f0f0f0f"):
            for part in whole.iterdir():
                data, half = part.read_bytes(), part.name.startswith("state")
                (job.files.root / name).mkdir(exist_ok=True)
                (job.files.root / name / part.name).write_bytes(data[: len(data) // 2] if half else data)
        self._finish(job)
        assert f"Restored checkpoint for {step} from" in job.launches[1].text()
        self._same(job, undisturbed)

    def test_disk_full(self, job: Job, undisturbed: Callable[[int], dict[str, Any]]) -> None:
        first = job.launch()
        first.saved()
        job.hdfs.full = True
        first.says("a checkpoint failed by step")
        first.processes[0].kill()
        first.codes()
        job.hdfs.full = False
        self._finish(job)
        assert "Restored checkpoint for 20 from" in job.launches[1].text(), first.text() + job.launches[1].text()
        self._same(job, undisturbed)

    def test_second_gang_while_the_old_one_lingers(
        self, job: Job, undisturbed: Callable[[int], dict[str, Any]]
    ) -> None:
        first = job.launch()
        first.saved()
        second = job.launch()
        second.says("Restored checkpoint for")
        if first.processes[0].poll() is None:
            first.stop()
        first.codes()
        assert second.codes() == [0], second.text()[-3000:]
        time.sleep(0.1)
        self._same(job, undisturbed)


class GangConformance(Conformance):
    """Tests with one and with several workers."""

    workers = 2

    def test_stop_of_one_worker_of_two(self, job: Job, undisturbed: Callable[[int], dict[str, Any]]) -> None:
        first = job.launch(self.workers)
        first.at_step(3)
        first.stop(self.workers - 1)
        assert first.codes() == [75] * self.workers, first.text()[-3000:]
        self._finish(job, self.workers)
        self._same(job, undisturbed, self.workers)

    def test_worker_killed(self, job: Job, undisturbed: Callable[[int], dict[str, Any]]) -> None:
        first = job.launch(self.workers)
        first.saved()
        first.processes[-1].kill()
        first.stop(*range(self.workers - 1), within_s=3.0)
        assert first.codes() == [75] * (self.workers - 1) + [-9], first.text()[-3000:]
        self._finish(job, self.workers)
        self._same(job, undisturbed, self.workers)
