"""The contract of app schedulers, as a test suite for pytest and hypothesis.

A package with an app scheduler derives a class of tests from `AppSchedulerConformance` (docs/extending.md):

    class TestWaves(AppSchedulerConformance):
        @pytest.fixture
        def name(self) -> str:
            return "acme.waves"  # its entry point's
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pycontrol.fairness.slowdown import Profiler
from submarine_patch.agent import schedulers
from submarine_patch.agent.schedulers.base import Scheduler
from submarine_patch.agent.schedulers.port import Profile, Verdict
from submarine_patch.agent.spec import AppSpec

SPACE = {
    "parameters": {
        "rate": {"type": "float", "min": 0.001, "max": 0.1, "log": True},
        "layers": {"type": "int", "min": 1, "max": 3},
        "batch": {"type": "choice", "values": [32, 64]},
    }
}
SPEC = AppSpec(
    app_id="application_1_0001", name="digits", gang_gpus=2, max_iterations=9, min_iterations=1, max_retries=2,
    iteration_s=1.0, launch_cmd="train", memory_mb=512, vcores=1, checkpoint="hdfs:///ck", saved_model="hdfs:///model",
    staging="hdfs:///staging", webhdfs="http://nn", hdfs_user="ann", arbiter="host:1",
)  # fmt: skip
CHECKS = [HealthCheck.differing_executors, HealthCheck.function_scoped_fixture]
"""Hypothesis checks to suppress: one class per scheduler runs the base class's tests, and `name` is constant."""


def spec_of(name: str, **changes: Any) -> AppSpec:
    """The spec of an app of 9 jobs with a search space and this scheduler."""
    return replace(SPEC, **{"app_scheduler": name, "search_space": SPACE, "sampler": "random", "jobs": 9, **changes})


def specs(name: str, jobs_max: int = 20) -> st.SearchStrategy[AppSpec]:
    """A strategy for specs of all kinds with this scheduler."""
    return st.builds(
        lambda **changes: spec_of(name, **changes),
        eta=st.integers(2, 4),
        max_iterations=st.integers(1, 60),
        min_iterations=st.integers(0, 1),
        jobs=st.integers(0, jobs_max),
        budget_iterations=st.sampled_from([0, 0, 50, 400]),
        metric=st.sampled_from(["accuracy", "loss", "f1"]),
        seed=st.integers(0, 3),
        parallel=st.integers(1, 5),
        target=st.sampled_from([None, 0.5]),
    )


def accuracy(job_id: str, step: int) -> float:
    """The accuracy of a job at a step: each job has its own learning curve, with noise."""
    rng = random.Random(job_id)
    end, speed = rng.random(), rng.uniform(2, 30)
    noise = random.Random(f"{job_id}/{step}").gauss(0, 0.01)
    return end * (1 - math.exp(-step / speed)) + noise


@dataclass
class Trainer:
    """Trains the jobs of one scheduler in random order, and checks its contract."""

    spec: AppSpec
    scheduler: Scheduler
    rng: random.Random
    fails: float = 0.0
    steps: dict[str, int] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)

    def check(self) -> None:
        runnable = self.scheduler.runnable()
        assert self.scheduler.finished == (not runnable)
        assert len(set(runnable)) == len(runnable) <= self.scheduler.widest()
        assert not self.over.intersection(runnable), "what has ended does not come back"
        assert not any(self.scheduler.waits(j) for j in runnable)
        for job_id in runnable:
            until = self.scheduler.until_step(job_id)
            assert self.steps.get(job_id, 0) < until <= self.spec.max_iterations, "there is something left to train"
            assert self.scheduler.rung(job_id) >= 0
        self.check_figure_7(len(runnable))

    def check_figure_7(self, runnable: int) -> None:
        profile = Profile(Profiler(2.0), self.steps)
        phases = [self.scheduler.jobs_in_phase(k, profile) for k in range(self.scheduler.num_phases())]
        assert bool(phases) == (not self.scheduler.finished)
        assert all(phases), "no phase is empty"
        assert not phases or len(phases[0]) == runnable
        infos = [j for jobs in phases for j in jobs] + self.scheduler.jobs_remaining(profile)
        for info in infos:
            assert 1 <= info.iters_remaining <= self.spec.max_iterations
            assert (info.avg_time_per_iter_s, info.locality_sensitivity) == (2.0, 1.1)

    def one(self) -> None:
        """Train one random job for a part of its steps."""
        job_id = self.rng.choice(self.scheduler.runnable())
        until = self.scheduler.until_step(job_id)
        while True:
            if self.rng.random() < self.fails / 5:
                self.scheduler.on_failure(job_id)
                self.end(job_id, "failed")
                return
            step = self.steps[job_id] = min(until, self.steps.get(job_id, 0) + max(1, until // 8))
            good = accuracy(job_id, step)
            good = 1 - good if self.spec.lower_is_better else good
            if step == until:
                verdict = self.scheduler.on_result(job_id, good)
            else:
                verdict = self.scheduler.on_progress(job_id, step, good)
            if verdict is Verdict.STOP:
                self.end(job_id, f"{step} stop")
                return
            if step == until:
                self.story.append(f"{job_id} {step} {verdict}")
                assert (job_id in self.scheduler.runnable()) == (verdict is Verdict.CONTINUE)
                assert (verdict is Verdict.PAUSE) == self.scheduler.waits(job_id)
                return
            assert verdict is Verdict.CONTINUE
            if self.rng.random() < 0.3:
                return  # its GPUs go to another job for a while

    def end(self, job_id: str, how: str) -> None:
        self.over.add(job_id)
        self.story.append(f"{job_id} {how}")
        assert job_id not in self.scheduler.runnable()
        assert not self.scheduler.waits(job_id)

    def run(self) -> Iterator[None]:
        for _ in range(20_000):
            self.check()
            if self.scheduler.finished:
                return
            self.one()
            yield
        raise AssertionError("it does not end")


def trained(spec: AppSpec, seed: int = 0, fails: float = 0.0) -> Trainer:
    """Train an app to its end; `fails`: the probability that a job fails."""
    trainer = Trainer(spec, schedulers.create(spec), random.Random(seed), fails)
    for _ in trainer.run():
        pass
    return trainer


class AppSchedulerConformance:
    """Base class of tests; derive and add a fixture `name`, the isonomy.app_scheduler of an installed package."""

    @pytest.fixture
    def name(self) -> str:
        """The name of the app scheduler to test."""
        raise NotImplementedError("a fixture `name` of the derived class")

    @settings(max_examples=25, deadline=None, suppress_health_check=CHECKS)
    @given(data=st.data(), fails=st.sampled_from([0.0, 0.0, 0.3]), seed=st.integers(0, 99))
    def test_it_keeps_its_promises_and_ends(self, name: str, data: st.DataObject, fails: float, seed: int) -> None:
        spec = data.draw(specs(name))
        trainer = trained(spec, seed, fails)
        best = trainer.scheduler.best()
        if best is None:
            assert fails
        else:
            assert best in trainer.steps
        if spec.budget_iterations >= spec.max_iterations and name != "single":
            assert sum(trainer.steps.values()) <= spec.budget_iterations
        for job_id in trainer.steps:
            drawn = trainer.scheduler.configuration(job_id)
            assert 0.001 <= float(drawn["rate"]) <= 0.1
            assert int(drawn["layers"]) in (1, 2, 3)
            assert drawn["batch"] in ("32", "64")

    @settings(max_examples=10, deadline=None, suppress_health_check=CHECKS)
    @given(data=st.data(), seed=st.integers(0, 99), split=st.integers(0, 30))
    def test_it_is_deterministic_and_goes_on_equally_from_its_saved_state(
        self, name: str, data: st.DataObject, seed: int, split: int
    ) -> None:
        spec = data.draw(specs(name, jobs_max=9))
        trainer = Trainer(spec, schedulers.create(spec), random.Random(seed), 0.2)
        for _ in zip(range(split), trainer.run(), strict=False):
            pass
        saved = trainer.scheduler.dump()
        again = schedulers.create(spec, json.loads(json.dumps(saved)))
        assert again.dump() == saved
        twin = Trainer(spec, again, random.Random(), 0.2, dict(trainer.steps), set(trainer.over), list(trainer.story))
        twin.rng.setstate(trainer.rng.getstate())
        for one in (trainer, twin):
            for _ in one.run():
                pass
        assert twin.story == trainer.story
        assert again.dump() == trainer.scheduler.dump()
        assert again.best() == trainer.scheduler.best()

    def test_the_winner_is_among_the_best_jobs(self, name: str) -> None:
        spec = spec_of(name, jobs=16, max_iterations=60, target=None)
        trainer = trained(spec)
        ends = sorted((accuracy(j, 60) for j in trainer.steps), reverse=True)
        assert accuracy(str(trainer.scheduler.best()), 60) >= ends[min(len(ends) - 1, 2)]
