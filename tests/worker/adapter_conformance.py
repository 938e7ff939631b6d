"""The suite for every adapter: under any disturbance of its gang, a training ends with the undisturbed loss.

One test a row, for each subclass of `Conformance`:

    no stop                                     test_no_stop_learns
    a stop inside an epoch                      test_stop_inside_an_epoch
    a stop of one worker of two                 test_stop_of_one_worker_of_two (adapters for several workers)
    a worker is killed with -9                  test_worker_killed
    HDFS is away for 30 s while it trains       test_store_away_for_30_s
    HDFS is away at a stop and at a start       test_store_away_at_a_stop_and_at_a_start
    a checkpoint is half written                test_checkpoint_half_written
    the disk is full                            test_disk_full
    a second gang while the old one lingers     test_second_gang_while_the_old_one_lingers
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from submarine_patch.worker import checkpoints
from tests.worker.gangs import DISTURBED_STEP_S, Job

Undisturbed = Callable[[int], dict[str, Any]]
AWAY_S = 30.0


class Conformance:
    """Trains to step 60 with a checkpoint every 20 steps."""

    command: ClassVar[str]
    env: ClassVar[dict[str, str]] = {}
    workers: ClassVar[int] = 2
    """Of a gang, in the rows that are about its workers; 1 in the others."""

    @pytest.fixture(scope="class")
    @classmethod
    def undisturbed(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
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

    def _same(self, job: Job, undisturbed: Undisturbed, workers: int = 1) -> None:
        found, expected = job.result(), undisturbed(workers)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["accuracy"] == pytest.approx(expected["accuracy"], rel=1e-5)

    def _finish(self, job: Job, workers: int = 1) -> None:
        last = job.launch(workers)
        assert last.codes() == [0] * workers, last.text()[-3000:]

    def test_no_stop_learns(self, undisturbed: Undisturbed) -> None:
        assert undisturbed(1)["accuracy"] > 0.8

    def test_stop_inside_an_epoch(self, job: Job, undisturbed: Undisturbed) -> None:
        first = job.launch(step_s=DISTURBED_STEP_S)
        first.at_step(3)
        first.stop()
        assert first.codes() == [75]
        assert 0 < checkpoints.listed(job.files)[0].step < 60
        self._finish(job)
        assert "Restored checkpoint for" in job.launches[1].text()
        self._same(job, undisturbed)

    def test_stop_of_one_worker_of_two(self, job: Job, undisturbed: Undisturbed) -> None:
        if self.workers == 1:
            pytest.skip("this adapter is for one worker")
        first = job.launch(self.workers, step_s=DISTURBED_STEP_S)
        first.at_step(3)
        first.stop(self.workers - 1)
        assert first.codes() == [75] * self.workers, first.text()[-3000:]
        self._finish(job, self.workers)
        self._same(job, undisturbed, self.workers)

    def test_worker_killed(self, job: Job, undisturbed: Undisturbed) -> None:
        """The others cannot leave together any more: they are killed at the stop's deadline."""
        first = job.launch(self.workers, step_s=DISTURBED_STEP_S)
        first.saved()
        first.processes[-1].kill()
        for rank in range(self.workers - 1):
            first.stop(rank, within_s=3.0)
        assert first.codes() == [75] * (self.workers - 1) + [-9], first.text()[-3000:]
        self._finish(job, self.workers)
        assert "Restored checkpoint for" in job.launches[1].text()
        self._same(job, undisturbed, self.workers)

    def test_store_away_for_30_s(self, job: Job, undisturbed: Undisturbed) -> None:
        """The training continues without it, and waits for it at its end."""
        first = job.launch(step_s=DISTURBED_STEP_S)
        first.at_step(3)
        job.hdfs.go()
        back_s = time.monotonic() + AWAY_S
        first.says("a checkpoint failed by step")
        time.sleep(max(0.0, back_s - time.monotonic()))
        job.hdfs.come()
        assert first.codes() == [0], first.text()[-3000:]
        self._same(job, undisturbed)

    def test_store_away_at_a_stop_and_at_a_start(self, job: Job, undisturbed: Undisturbed) -> None:
        first = job.launch(step_s=DISTURBED_STEP_S)
        first.at_step(3)
        job.hdfs.go()
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

    def test_checkpoint_half_written(self, job: Job, undisturbed: Undisturbed) -> None:
        first = job.launch(step_s=DISTURBED_STEP_S)
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

    def test_disk_full(self, job: Job, undisturbed: Undisturbed) -> None:
        job.hdfs.full_after = "ckpt-20"
        first = job.launch()
        first.says("a checkpoint failed by step")
        first.processes[0].kill()
        first.codes()
        assert job.hdfs.full
        job.hdfs.full, job.hdfs.full_after = False, ""
        self._finish(job)
        assert "Restored checkpoint for 20 from" in job.launches[1].text(), first.text() + job.launches[1].text()
        self._same(job, undisturbed)

    def test_second_gang_while_the_old_one_lingers(self, job: Job, undisturbed: Undisturbed) -> None:
        first = job.launch(step_s=DISTURBED_STEP_S)
        first.saved()
        second = job.launch()
        second.says("Restored checkpoint for")
        if first.processes[0].poll() is None:
            first.stop()
        first.codes()
        assert second.codes() == [0], second.text()[-3000:]
        self._same(job, undisturbed)
